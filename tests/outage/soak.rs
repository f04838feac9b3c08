//! A minute with a fault in every second: nobody is lost, nothing panics, and no outage is told as a denial.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use http::{Request, StatusCode};
use redis::cmd;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{interval, sleep, timeout},
};
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{
    Limiter, OutageRule, PartitionKey, Policy, RateLimitLayer, RedisBackend, header,
};

use super::{Marks, local, look};
use crate::{
    redis_server::{
        look::Look,
        proxy::{Cut, Passing, Proxy},
    },
    support::server::{Engine, Server},
};

const SOAK: Duration = Duration::from_secs(60);
/// Between two requests of one service.
const PAUSE: Duration = Duration::from_millis(10);
/// So much that nobody is ever denied: whoever is, was lied to.
const QUOTA: u32 = 100_000_000;
/// The deadline, and what a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(5);

type Limits = RateLimitLayer;

fn policy() -> Policy {
    Policy::new("plenty", QUOTA, Duration::from_secs(24 * 3600)).unwrap()
}

#[derive(Debug, Default)]
struct Seen {
    decided: u32,
    unchecked: u32,
    local: u32,
    refused: u32,
}

/// A service that is asked again and again until it is told to end.
async fn serve(limits: Limits, ends: Arc<Semaphore>) -> Seen {
    let mut requests = JoinSet::new();
    let mut ticks = interval(PAUSE);
    while ends.available_permits() == 0 {
        ticks.tick().await;
        let service = limits.layer(service_fn(look));
        requests.spawn(async move {
            let request = Request::get("/").header("x-api-key", "alice").body(()).unwrap();
            let response = timeout(PATIENCE, service.oneshot(request)).await.expect("an answer").unwrap();
            (response.status(), Marks::of(response.extensions()))
        });
    }
    let mut seen = Seen::default();
    // One that has panicked ends the test.
    for (status, marks) in requests.join_all().await {
        match (status, marks) {
            (StatusCode::OK, Marks { decision: true, .. }) => seen.decided += 1,
            (StatusCode::OK, Marks { unchecked: Some(_), .. }) => seen.unchecked += 1,
            (StatusCode::OK, Marks { local: Some(_), .. }) => seen.local += 1,
            (StatusCode::SERVICE_UNAVAILABLE, Marks { refusal: Some(_), .. }) => seen.refused += 1,
            other => panic!("{other:?}"),
        }
    }
    seen
}

/// Makes the fault of this number, for a moment.
async fn make(fault: u32, server: &mut Server, proxy: &Proxy) {
    let moment = Duration::from_millis(150 + u64::from(fault * 37 % 11) * 30);
    match fault % 9 {
        0 => {
            server.signal(libc::SIGSTOP);
            sleep(moment).await;
            server.signal(libc::SIGCONT);
        }
        1 => {
            server.kill();
            sleep(moment).await;
            server.restart();
        }
        2 => Look::at(server).ask(&["SCRIPT", "FLUSH"]),
        3 => proxy.cut_next(if fault.is_multiple_of(2) { Cut::BeforeReply } else { Cut::WithinReply }),
        4 => {
            proxy.pass(if fault.is_multiple_of(2) { Passing::Nothing } else { Passing::Questions });
            sleep(moment).await;
            proxy.pass(Passing::Everything);
        }
        5 => {
            Look::at(server).set("maxmemory", "1");
            sleep(moment).await;
            Look::at(server).set("maxmemory", "0");
        }
        6 => {
            Look::at(server).ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
            sleep(moment).await;
            Look::at(server).ask::<()>(&["REPLICAOF", "NO", "ONE"]);
        }
        7 => {
            let mut look = Look::at(server);
            look.ask::<()>(&["ACL", "SETUSER", "default", "-evalsha", "-eval"]);
            sleep(moment).await;
            look.ask::<()>(&["ACL", "SETUSER", "default", "+evalsha", "+eval"]);
        }
        _ => {
            let mut connection = server.connection();
            let millis = moment.as_millis().to_string();
            let busy = "local till = redis.call('TIME')[2] repeat until (redis.call('TIME')[2] - till) % 1000000 > ARGV[1] * 1000";
            let busy = cmd("EVAL").arg(busy).arg(0).arg(millis).clone();
            let busy = thread::spawn(move || busy.exec(&mut connection));
            sleep(moment).await;
            busy.join().unwrap().unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minute_of_faults_loses_nothing_and_denies_nobody() {
    let options = ["--appendonly", "yes", "--appendfsync", "always", "--lua-time-limit", "50"];
    let mut server = Server::with_options(Engine::Redis, &options);
    let proxy = Proxy::before(&server).await;
    let ends = Arc::new(Semaphore::new(0));
    // Three processes, as it were, each with a connection of its own.
    let rules = [OutageRule::FailClosed, OutageRule::FailOpen, local(3)];
    let backends = rules.map(|_| RedisBackend::lazy(&proxy.url()).unwrap());
    let mut services = Vec::new();
    for (rule, backend) in rules.into_iter().zip(&backends) {
        let builder = RateLimitLayer::builder(backend.clone()).policy(policy()).outage(rule);
        let limits = builder.key(header("x-api-key").unwrap()).cost(1).build().unwrap();
        services.push(tokio::spawn(serve(limits, ends.clone())));
    }

    let start = Instant::now();
    let mut faults = 0;
    let mut seconds = interval(Duration::from_secs(1));
    while start.elapsed() < SOAK {
        seconds.tick().await;
        make(faults, &mut server, &proxy).await;
        faults += 1;
    }
    // Everything is whole again, and noticed.
    sleep(Duration::from_secs(3)).await;
    let before = backends.iter().map(RedisBackend::unanswered_checks).sum::<u64>();
    sleep(Duration::from_millis(500)).await;
    ends.add_permits(1);
    let mut seen = Vec::new();
    for service in services {
        seen.push(service.await.unwrap());
    }
    let unanswered = backends.iter().map(RedisBackend::unanswered_checks).sum::<u64>();
    println!("{faults} faults, {unanswered} unanswered: {seen:?}");
    assert_eq!(unanswered, before, "it has not healed");
    assert!(faults >= 30, "{faults} faults in a minute");
    for (seen, rule) in seen.iter().zip(rules) {
        assert!(seen.decided > 1_000, "{rule:?}: {seen:?}");
        let outages = [seen.refused, seen.unchecked, seen.local];
        let expected = match rule {
            OutageRule::FailOpen => outages[1],
            OutageRule::LocalFallback(_) => outages[2],
            _ => outages[0],
        };
        assert!(expected > 0 && expected == outages.iter().sum::<u32>(), "{rule:?}: {seen:?}");
    }

    // What was charged is what was told, and no more than what may stand beside it.
    let direct = RedisBackend::connect(&server.url()).await.unwrap();
    let direct = Limiter::builder(direct).policy(policy()).deadline(PATIENCE).build().unwrap();
    let alice = PartitionKey::new("header:x-api-key", "alice");
    let left = direct.peek(alice, 0).await.unwrap().statuses()[0].remaining();
    let told: u32 = seen.iter().map(|seen| seen.decided).sum();
    let charged = QUOTA - left;
    assert!(charged >= told && u64::from(charged - told) <= unanswered, "{charged}, {told}, {unanswered}");
}
