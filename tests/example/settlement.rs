//! The examples with settlements, in memory. Each test ends before a window of one minute.

use super::process::Example;
use crate::http::wire::{Answer, request, request_with_body};

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

#[tokio::test]
async fn login_example_counts_only_failures() {
    let example = Example::of("login", None);
    let mut statuses = Vec::new();
    for password in ["sesame", "guess", "sesame", "guess", "sesame", "sesame", "guess", "sesame", "guess"] {
        let body = format!("user=alice&password={password}");
        let answer = request_with_body(example.address(), "POST", "/login", &[FORM], &body).await;
        statuses.push(answer.status);
    }
    assert_eq!(statuses, [200, 401, 200, 401, 200, 200, 401, 429, 429]);
    assert_eq!(example.stop("INT").status.code(), Some(0));
}

#[tokio::test]
async fn tokens_example_settles_estimates_and_changes_tiers() {
    let example = Example::of("tokens", None);
    let address = example.address();
    let chat = async |key: &str, estimate: &str, prompt: &str| {
        let headers = [("x-api-key", key), ("x-max-tokens", estimate)];
        request_with_body(address, "POST", "/chat", &headers, prompt).await
    };
    let left =
        |answer: &Answer| answer.header("ratelimit").unwrap().replace(";t=60", "").replace(";t=59", "");

    let answer = chat("bob", "150", "three words only").await;
    assert_eq!((answer.status, &*answer.body), (200, "three words only\n(3 tokens)\n"));
    assert_eq!(left(&answer), r#""requests";r=4, "tokens";r=50"#);
    // 197 units are left, because the settlement refunded 147 units of the estimate.
    let answer = chat("bob", "197", "and two").await;
    assert_eq!((answer.status, left(&answer)), (200, r#""requests";r=3, "tokens";r=0"#.to_owned()));
    let answer = chat("bob", "196", "no").await;
    assert_eq!((answer.status, left(&answer)), (429, r#""requests";r=3, "tokens";r=195"#.to_owned()));
    let answer = chat("bob", "500", "never").await;
    assert_eq!((answer.status, answer.header("retry-after")), (429, None));

    assert_eq!(chat("alice", "500", "alice has more").await.status, 200);
    assert_eq!(request(address, "PUT", "/tiers/gold/400", &[]).await.status, 204);
    assert_eq!(chat("alice", "500", "and now she has not").await.status, 429);
    assert_eq!(left(&chat("alice", "100", "no").await), r#""requests";r=58, "tokens";r=297"#);
    assert_eq!(request(address, "PUT", "/tiers/gold/0", &[]).await.status, 400);
    assert_eq!(example.stop("INT").status.code(), Some(0));
}
