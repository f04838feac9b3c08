//! The example `observability`: its metrics and its health page, before, during and after an outage of Redis.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::time::sleep;

use super::process::Example;
use crate::{
    http::wire::request,
    support::{
        scrape::Scrape,
        server::{Engine, Server},
    },
};

/// What the client of the example has seen.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    admitted: f64,
    denied: f64,
    unavailable: f64,
}

impl Seen {
    async fn get(&mut self, example: &Example, path: &str, key: &str) -> u16 {
        let status = request(example.address(), "GET", path, &[("x-api-key", key)]).await.status;
        *match status {
            200 => &mut self.admitted,
            429 => &mut self.denied,
            503 => &mut self.unavailable,
            status => panic!("{status}"),
        } += 1.0;
        status
    }

    /// Requests until this status comes.
    async fn get_until(&mut self, example: &Example, key: &str, status: u16) {
        let start = Instant::now();
        while self.get(example, "/search", key).await != status {
            assert!(start.elapsed() < Duration::from_secs(20), "no request has the status {status}");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Returns the outcomes of the requests to this route.
    fn of_route(scrape: &Scrape, route: &str) -> Self {
        let get = |outcome| scrape.get(&format!(r#"requests_total{{outcome="{outcome}",route="{route}"}}"#));
        Self { admitted: get("admitted"), denied: get("denied"), unavailable: get("unavailable") }
    }
}

async fn scrape(example: &Example) -> (Scrape, String) {
    let text = request(example.address(), "GET", "/metrics", &[]).await.body;
    (Scrape::parse(&text), text)
}

async fn health(example: &Example) -> Value {
    let answer = request(example.address(), "GET", "/health", &[]).await;
    serde_json::from_str(&answer.body).unwrap()
}

#[tokio::test]
async fn metrics_report_requests_and_outage_of_redis() {
    let mut server = Server::start(Engine::Redis);
    let name = format!("127.0.0.1:{}", server.port());
    let breaker = format!(r#"breaker_open{{server="{name}"}}"#);
    let example = Example::of("observability", Some(&server.url()));

    let (mut users, mut searches) = (Seen::default(), Seen::default());
    for i in 0..12 {
        users.get(&example, &format!("/users/{i}"), "alice").await;
    }
    for i in 0..20 {
        searches.get(&example, "/search", &format!("key-{i}")).await;
    }
    let (before, text) = scrape(&example).await;
    assert_eq!(Seen::of_route(&before, "/users/{id}"), users);
    assert_eq!(Seen::of_route(&before, "/search"), searches);
    assert!(users.denied >= 1.0 && searches.denied == 0.0, "{users:?} {searches:?}");
    let of_policy = |scrape: &Scrape, policy, outcome| {
        scrape.get(&format!(r#"decisions_total{{policy="{policy}",outcome="{outcome}"}}"#))
    };
    let denied = of_policy(&before, "per-key", "denied") + of_policy(&before, "per-key", "denied_from_cache");
    assert_eq!(denied, users.denied);
    // The address has room.
    assert_eq!(of_policy(&before, "per-address", "denied"), 0.0);
    for policy in ["per-key", "per-address"] {
        assert_eq!(of_policy(&before, policy, "admitted"), users.admitted + searches.admitted);
    }
    let units = users.admitted + 5.0 * searches.admitted;
    assert_eq!(before.get(r#"charged_units_total{policy="per-key"}"#), units);
    // 9 and 10 of 10 units are at least the fraction 0.9.
    if users.admitted == 10.0 {
        assert_eq!(before.get(r#"near_limit_total{policy="per-key"}"#), 2.0, "{text}");
    }
    let checks = before.get("check_duration_seconds_count") + before.get("deny_cache_hits_total");
    assert_eq!(checks, 32.0);
    assert!(before.has(&breaker) && before.get(&breaker) == 0.0, "{text}");
    for name in ["alice", "key-", "127.0.0.1\"", "/users/1"] {
        assert!(!text.contains(name), "{name}: {text}");
    }
    let page = health(&example).await;
    assert_eq!(page["denied"], users.denied);
    assert_eq!(page["breakers"][0]["state"], "closed");
    assert_eq!(page["most_denied"][0]["key"], "header:x-api-key=alice");

    server.kill();
    searches.get_until(&example, "outage", 503).await;
    // The breaker opens one deadline after the last answer.
    for _ in 0..30 {
        searches.get(&example, "/search", "outage").await;
        sleep(Duration::from_millis(10)).await;
    }
    let (during, text) = scrape(&example).await;
    assert_eq!(Seen::of_route(&during, "/search"), searches);
    assert_eq!(during.get(&breaker), 1.0, "{text}");
    assert!(during.get(r#"unavailable_checks_total{reason="connection"}"#) >= 20.0, "{text}");
    let reasons = during.non_zero("unavailable_checks_total");
    let unavailable = users.unavailable + searches.unavailable;
    assert_eq!(reasons.iter().map(|(_, checks)| checks).sum::<f64>(), unavailable, "{text}");
    assert_eq!(of_policy(&during, "per-key", "unavailable"), unavailable);
    assert_ne!(health(&example).await["breakers"][0]["state"], "closed");

    server.restart();
    searches.get_until(&example, "after", 200).await;
    let (after, text) = scrape(&example).await;
    assert_eq!(Seen::of_route(&after, "/search"), searches);
    assert!(after.has(&breaker) && after.get(&breaker) == 0.0, "{text}");
    assert_eq!(health(&example).await["breakers"][0]["state"], "closed");

    let ended = example.stop("TERM");
    for event in ["circuit breaker opened", "circuit breaker closed", "denied"] {
        assert!(ended.stderr.contains(event), "{event}: {}", ended.stderr);
    }
}
