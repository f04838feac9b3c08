//! The limits of the example `axum`: ten units in any ten seconds. A search costs five units.

use std::time::Duration;

use tokio::{join, task::JoinSet, time::sleep};

use super::process::{Example, Outage};
use crate::{
    http::wire::request,
    support::server::{Engine, Server},
};

/// Waits up to ten seconds of real time, for all backends at once.
#[tokio::test]
async fn example_enforces_quota_in_memory_and_on_redis() {
    let servers = Engine::ALL.map(Server::start);
    let in_memory = Example::start(None);
    let [redis, redis_6, redis_8, valkey] =
        servers.each_ref().map(|server| Example::start(Some(&server.url())));
    join!(
        enforces_quota("in memory", &in_memory),
        enforces_quota("on Redis", &redis),
        enforces_quota("on Redis 6", &redis_6),
        enforces_quota("on Redis 8", &redis_8),
        enforces_quota("on Valkey", &valkey),
    );
}

async fn enforces_quota(name: &str, example: &Example) {
    let mut attempt = 0;
    let wait = loop {
        match use_up_quota(name, example, attempt).await {
            Ok(wait) => break wait,
            Err(Outage) => attempt += 1,
        }
        assert!(attempt < 20, "{name}: every attempt had an outage");
    };
    // The service admits a client that waits exactly as long as `Retry-After` demands.
    sleep(wait).await;
    assert_eq!(example.decided_status("/", &format!("bob {attempt}")).await, 200, "{name}, after {wait:?}");
    assert_eq!(
        example.decided_status("/search", &format!("dave {attempt}")).await,
        200,
        "{name}, after {wait:?}"
    );
}

/// Uses up the quota of Bob and Dave, and returns their wait. If the waits differ on a slow machine, returns the longer one.
async fn use_up_quota(name: &str, example: &Example, attempt: u32) -> Result<Duration, Outage> {
    let [bob, carol, dave] = ["bob", "carol", "dave"].map(|user| format!("{user} {attempt}"));

    // The service admits ten of eleven quick requests with one key, and denies the last one.
    let mut answers = Vec::new();
    for _ in 0..11 {
        answers.push(example.get("/", &bob).await?);
    }
    let statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [vec![200; 10], vec![429]].concat(), "{name}");
    let (of_key, of_address) = parts(&answers[9].body);
    assert_eq!(of_key, "Hello!\nburst: 0 of 10 left\nsustained: 20 of 30 left\n", "{name}");
    let policies = r#""burst";q=10;w=10, "sustained";q=30;w=60, "per-address";q=1000;w=60"#;
    assert_eq!(answers[10].header("ratelimit-policy"), Some(policies));

    // Another key has its full quota.
    let answer = example.get("/", &carol).await?;
    assert_eq!(answer.status, 200, "{name}");
    let (of_carol, of_same_address) = parts(&answer.body);
    assert_eq!(of_carol, "Hello!\nburst: 9 of 10 left\nsustained: 29 of 30 left\n", "{name}");
    // Both keys have one address, and the denial charged nothing.
    assert_eq!(of_same_address, of_address - 1, "{name}");

    // With fewer than five units left, the service denies a search and admits a smaller request.
    for (path, left) in [("/search", 5), ("/", 4)] {
        let answer = example.get(path, &dave).await?;
        assert_eq!(answer.status, 200, "{name}");
        let (burst, sustained) = (format!("burst: {left} of 10"), format!("sustained: {} of 30", left + 20));
        assert!(answer.body.contains(&burst) && answer.body.contains(&sustained), "{name}: {answer:?}");
    }
    let search = example.get("/search", &dave).await?;
    assert_eq!(search.status, 429, "{name}");
    assert_eq!(example.get("/", &dave).await?.status, 200, "{name}");

    let waits: [u64; 2] =
        [&answers[10], &search].map(|answer| answer.header("retry-after").unwrap().parse().unwrap());
    assert!(waits.iter().all(|wait| (1..=10).contains(wait)), "{name}: {waits:?}");
    Ok(Duration::from_secs(waits[0].max(waits[1])))
}

/// Returns the lines of the key, and the remaining units of the address.
fn parts(body: &str) -> (&str, u32) {
    let (of_key, rest) = body.split_once("per-address: ").unwrap();
    (of_key, rest.strip_suffix(" of 1000 left\n").unwrap().parse().unwrap())
}

#[tokio::test]
async fn processes_on_one_redis_admit_exactly_the_quota() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let examples = [Example::start(Some(&server.url())), Example::start(Some(&server.url()))];
        // After an outage, the test repeats with another key.
        for attempt in 0.. {
            let statuses = send_concurrently(&examples, &format!("bob {attempt}")).await;
            let count = |status| statuses.iter().filter(|other| **other == status).count();
            let counts = (count(200), count(429), count(503));
            assert!(counts.0 <= 10, "{engine:?}: {counts:?}");
            if counts.2 == 0 {
                assert_eq!(counts, (10, 190, 0), "{engine:?}");
                break;
            }
            assert!(attempt < 20, "{engine:?}: every attempt had an outage: {counts:?}");
        }
    }
}

/// Sends two hundred concurrent requests with one key to both processes in turn, and returns their statuses.
async fn send_concurrently(examples: &[Example; 2], key: &str) -> Vec<u16> {
    let mut requests = JoinSet::new();
    for i in 0..200 {
        let (address, key) = (examples[i % 2].address(), key.to_owned());
        requests.spawn(async move { request(address, "GET", "/", &[("x-api-key", &*key)]).await.status });
    }
    requests.join_all().await
}

#[tokio::test]
async fn limit_on_redis_outlives_process() {
    let server = Server::start(Engine::Redis);
    let first = Example::start(Some(&server.url()));
    let mut admitted = 0;
    while first.decided_status("/search", "bob").await == 200 {
        admitted += 1;
        assert!(admitted <= 2, "two searches are the quota");
    }
    assert_eq!(first.stop("TERM").status.code(), Some(0));
    let second = Example::start(Some(&server.url()));
    assert_eq!(second.decided_status("/search", "bob").await, 429);
    assert_eq!(second.decided_status("/search", "alice").await, 200);
}

#[tokio::test]
async fn example_counts_missing_keys_by_address() {
    let example = Example::start(None);
    let mut statuses = Vec::new();
    for _ in 0..11 {
        statuses.push(request(example.address(), "GET", "/", &[]).await.status);
    }
    assert_eq!(statuses, [vec![200; 10], vec![429]].concat());
    assert_eq!(example.decided_status("/", "bob").await, 200);
}
