//! The examples with settlements. Each test ends before a window of one minute.

use std::time::{Duration, Instant};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};

use super::process::Example;
use crate::{
    http::wire::{Answer, request, request_with_body},
    support::server::{Engine, Server},
};

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// Sends a login to the example.
async fn login(example: &Example, user: &str, password: &str) -> Answer {
    let body = format!("user={user}&password={password}");
    request_with_body(example.address(), "POST", "/login", &[FORM], &body).await
}

#[tokio::test]
async fn login_example_counts_only_failures() {
    let example = Example::of("login", None);
    let mut statuses = Vec::new();
    for (user, password) in [
        ("alice", "sesame"),
        ("alice", "guess"),
        ("Alice", "sesame"),
        ("ALICE", "guess"),
        ("alice", "sesame"),
        ("+alice+", "guess"),
        ("alice", "sesame"),
        ("bob", "sesame"),
    ] {
        statuses.push(login(&example, user, password).await.status);
    }
    assert_eq!(
        statuses,
        [200, 401, 200, 401, 200, 401, 429, 200],
        "three failures of one user in all spellings"
    );
    assert_eq!(example.stop("INT").status.code(), Some(0));
}

#[tokio::test]
async fn login_example_admits_quota_of_wrong_passwords() {
    let example = Example::of("login", None);
    let (mut of_user, mut of_address) = (0, 0);
    for (number, admitted) in (0..200).map(|number| (number, number >= 100)) {
        // The attacker of one user, and then the same address with another user each time.
        let (user, count) = if admitted {
            (format!("user-{number}"), &mut of_address)
        } else {
            ("alice".to_owned(), &mut of_user)
        };
        let answer = login(&example, &user, "guess").await;
        assert!(matches!(answer.status, 401 | 429), "a wrong password is rejected: {answer:?}");
        assert_eq!(answer.header("ratelimit"), None, "the policies are hidden");
        *count += u32::from(answer.status == 401);
    }
    assert_eq!(of_user, 3, "of 100 wrong passwords of a user, the quota is admitted");
    // The attempts that the limit by user denies do not count for the address.
    assert_eq!(of_user + of_address, 10, "the quota of the address: {of_user} and {of_address}");
    assert_eq!(example.stop("INT").status.code(), Some(0));
}

/// Sends a prompt, and reads the whole answer.
async fn chat(example: &Example, path: &str, key: &str, max_tokens: &str) -> Answer {
    let headers = [("x-api-key", key), ("x-max-tokens", max_tokens)];
    request_with_body(example.address(), "POST", path, &headers, "three words only").await
}

/// Sends a prompt, and disconnects after this number of tokens. Returns what it has received.
async fn disconnect(example: &Example, key: &str, max_tokens: u32, after: usize) -> String {
    let prompt = "three words only";
    let head =
        format!("POST /chat HTTP/1.1\r\nhost: a\r\nx-api-key: {key}\r\nx-max-tokens: {max_tokens}\r\n");
    let text = format!("{head}content-length: {}\r\n\r\n{prompt}", prompt.len());
    let mut stream = TcpStream::connect(example.address()).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    let reading = async {
        while String::from_utf8_lossy(&received).matches("data:").count() < after {
            assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0, "the answer has ended");
        }
    };
    timeout(Duration::from_secs(10), reading).await.expect("tokens");
    String::from_utf8(received).unwrap()
}

/// Returns what is left of the quotas: requests, input tokens, output tokens and cents.
async fn usage(example: &Example, key: &str) -> [u32; 4] {
    let usage = request(example.address(), "GET", "/usage", &[("x-api-key", key)]).await.body;
    let names = ["requests: ", "input-tokens: ", "output-tokens: ", "cents: "];
    let mut lines = usage.lines();
    names.map(|name| {
        let left = lines.next().and_then(|line| line.strip_prefix(name)?.split(' ').next()?.parse().ok());
        left.unwrap_or_else(|| panic!("{name}{usage}"))
    })
}

/// Waits until a settlement has changed the usage from this one. Returns the new one.
async fn changed_usage(example: &Example, key: &str, before: [u32; 4]) -> [u32; 4] {
    let start = Instant::now();
    loop {
        let usage = usage(example, key).await;
        if usage != before {
            return usage;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{key}: {usage:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn tokens_example_charges_produced_tokens() {
    let server = Server::start(Engine::Redis);
    for redis_url in [None, Some(&*server.url())] {
        let example = Example::of("tokens", redis_url);
        let answer = chat(&example, "/chat", "bob", "5").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let left =
            answer.header("ratelimit").unwrap().split(", ").map(|item| item.split(';').nth(1).unwrap());
        // The estimate of the input is half of 16 bytes.
        assert_eq!(left.collect::<Vec<_>>(), ["r=59", "r=992", "r=195", "r=9977"]);
        assert_eq!(answer.body.matches("data:").count(), 5, "{}", answer.body);
        assert_eq!(changed_usage(&example, "bob", [59, 992, 195, 9_977]).await, [59, 997, 195, 9_982]);

        // The estimate of Carol is clamped to the quota.
        for (key, max_tokens, cents) in [("alice", 200, 608), ("carol", 500, 1_508)] {
            let received = disconnect(&example, key, max_tokens, 3).await;
            assert!(received.contains(r#""output-tokens";r=0;"#), "{received}");
            let usage = changed_usage(&example, key, [59, 992, 0, 10_000 - cents]).await;
            let output = 200 - usage[2];
            assert!((3..200).contains(&output), "{output}");
            assert_eq!(usage, [59, 997, 200 - output, 10_000 - 3 - 3 * output], "{key}");
        }

        // Without a meter, the estimate stays.
        assert_eq!(chat(&example, "/unmetered", "dave", "40").await.body.matches("data:").count(), 40);
        assert_eq!(usage(&example, "dave").await, [59, 992, 160, 9_872]);

        let mut expected = Vec::new();
        for key in ["bob", "alice", "carol"] {
            let [_, input, output, cents] = usage(&example, key).await;
            let (input, output, cents) = (1_000 - input, 200 - output, 10_000 - cents);
            expected.push(format!("{key}: {input} input and {output} output tokens, {cents} cents"));
        }
        let ended = example.stop("INT");
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        let printed: Vec<&str> = ended.stdout.lines().filter(|line| line.contains(" input and ")).collect();
        assert_eq!(printed, expected);
    }
}
