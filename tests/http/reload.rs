//! Policies from a file, replaced while requests go on.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use axum::{Router, routing::get};
use tokio::task::JoinSet;
use tower_sliding_window::{
    MemoryBackend, PolicyTable, RateLimitLayer, limit, peer_ip, testing::ManualClock,
};

use super::{
    ALICE, api_key,
    wire::{Site, request},
};

/// Loads a text into the table. If it is wrong, the table stays as it is.
fn load(table: &PolicyTable, text: &str) -> Result<(), toml::de::Error> {
    table.replace(toml::from_str(text)?).unwrap();
    Ok(())
}

/// Returns a file with two policies of this quota.
fn file(quota: u32) -> String {
    format!(
        "[default]\nname = \"user\"\nquota = {quota}\nwindow = \"1m\"\n\n\
         [tiers.address]\nname = \"address\"\nquota = {quota}\nwindow = \"1m\"\n"
    )
}

/// Serves a layer that looks up two names of the table for each request.
async fn serve(table: &PolicyTable) -> Site {
    let limits = RateLimitLayer::builder(MemoryBackend::new().with_clock(&ManualClock::new()))
        .key(api_key())
        .policies(table.choose_by(|_| None))
        .also(limit(peer_ip()).policies(table.choose_by(|_| Some("address"))))
        .build()
        .unwrap();
    Site::serve(Router::new().route("/", get(async || "")).layer(limits)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_while_table_is_replaced() {
    let table: PolicyTable = toml::from_str(&file(1_000_000)).unwrap();
    let site = serve(&table).await;
    let (address, is_over) = (site.address(), Arc::new(AtomicBool::new(false)));
    let mut clients = JoinSet::new();
    for _ in 0..4 {
        let is_over = is_over.clone();
        clients.spawn(async move {
            let mut seen = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let answer = request(address, "GET", "/", &[ALICE]).await;
                assert_eq!(answer.status, 200, "{answer:?}");
                seen.push(answer.header("ratelimit-policy").unwrap().to_owned());
            }
            seen
        });
    }
    for change in 1..=100 {
        load(&table, &file(1_000_000 + change)).unwrap();
        load(&table, &file(0)).unwrap_err();
        // The clients send requests between two changes.
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    is_over.store(true, Ordering::Relaxed);
    let seen = clients.join_all().await.concat();
    for policies in &seen {
        let quotas: Vec<_> = policies.split("q=").skip(1).map(|rest| &rest[..7]).collect();
        assert!(quotas.len() == 2 && quotas[0] == quotas[1], "a mixture: {policies}");
    }
    let last = request(address, "GET", "/", &[ALICE]).await;
    assert_eq!(last.header("ratelimit-policy"), Some(r#""user";q=1000100;w=60, "address";q=1000100;w=60"#));
    // No charge is lost, and no request is counted under other policies.
    let left = 1_000_100 - seen.len() - 1;
    assert_eq!(last.header("ratelimit"), Some(&*format!(r#""user";r={left};t=60, "address";r={left};t=60"#)));
}

#[tokio::test]
async fn new_quota_applies_at_once_and_wrong_file_never() {
    let table: PolicyTable = toml::from_str(&file(10)).unwrap();
    let site = serve(&table).await;
    let send = async || {
        let answer = site.get("/", &[ALICE]).await;
        (answer.status, answer.header("ratelimit").unwrap().to_owned())
    };
    let expected = |status, left| (status, format!(r#""user";r={left};t=60, "address";r={left};t=60"#));
    assert_eq!([send().await, send().await, send().await], [9, 8, 7].map(|left| expected(200, left)));
    load(&table, &file(4)).unwrap();
    assert_eq!(send().await, expected(200, 0));
    // The first entry of this file is valid, and the second is not.
    let wrong = file(1_000).replacen("quota = 1000", "quota = 50", 1).replace("quota = 1000", "quota = -1");
    let error = load(&table, &wrong).unwrap_err().to_string();
    assert!(error.contains("line 8, column 9") && error.contains(r#"policy "address": quota -1"#), "{error}");
    assert_eq!(send().await, expected(429, 0));
    load(&table, &file(6)).unwrap();
    assert_eq!([send().await, send().await], [1, 0].map(|left| expected(200, left)));
}
