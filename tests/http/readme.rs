//! The quick start of the README, on a stopped clock.

use axum::{Router, routing::get};
use tower_sliding_window::{
    MemoryBackend, RateLimitLayer, RouteCosts, header, key::MissingKey, limit, peer_ip, testing::ManualClock,
};

use super::{ALICE, MINUTE, SECOND, policy, wire::Site};
use crate::docs::read;

pub fn limits() -> RateLimitLayer {
    RateLimitLayer::builder(MemoryBackend::new().with_clock(&ManualClock::new()))
        .policy(policy("burst", 10, SECOND))
        .policy(policy("sustained", 1_000, 60 * MINUTE))
        .key(peer_ip())
        .cost(RouteCosts::new().route("/search", 10).unwrap())
        .also(
            limit(header("x-api-key").unwrap())
                .policy(policy("per-key", 100, MINUTE))
                .missing_key(MissingKey::Exempt),
        )
        .build()
        .unwrap()
}

#[tokio::test]
async fn readme_shows_current_responses() {
    let site = Site::serve(Router::new().route("/", get(async || "hello")).layer(limits())).await;
    let mut answers = Vec::new();
    for _ in 0..11 {
        answers.push(site.get("/", &[ALICE]).await);
    }
    let readme = read("README.md");
    let blocks = readme.split("```text\n").skip(1).map(|rest| rest.split("\n```").next().unwrap());
    let shown: Vec<&str> = blocks.filter(|block| block.starts_with("HTTP/1.1 ")).collect();
    assert_eq!(shown.len(), 2, "{shown:?}");
    for (shown, answer) in shown.into_iter().zip([&answers[0], &answers[10]]) {
        let (head, body) = shown.split_once("\n\n").unwrap_or((shown, "hello"));
        let (status, fields) = head.split_once('\n').unwrap();
        assert!(status.starts_with(&format!("HTTP/1.1 {} ", answer.status)), "{status}: {answer:?}");
        for field in fields.lines() {
            let (name, value) = field.split_once(": ").unwrap();
            assert_eq!(answer.header(name), Some(value), "{name}");
        }
        assert_eq!(answer.body, body);
    }
}

#[test]
fn readme_contains_unit_test_that_runs() {
    let test = read("tests/http/readme_unit_test.rs");
    let (_, code) = test.split_once("\n\n").unwrap();
    assert!(code.contains("#[tokio::test]"), "{code}");
    assert!(
        read("README.md").contains(&format!("```rust\n{code}```\n")),
        "README.md does not contain:\n{code}"
    );
}
