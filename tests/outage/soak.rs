//! A soak test with one injected fault per second: no request is lost, no task panics, and no outage is reported as a denial.

use std::{sync::Arc, thread, time::Duration};

use http::{Request, StatusCode};
use redis::cmd;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{interval, sleep, timeout},
};
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{
    Limiter, OutageRule, PartitionKey, Policy, RateLimitLayer, RedisBackend, backend::Reason, header,
};

use super::{Marks, echo_marks, local, marks};
use crate::{
    redis_server::{
        admin::Admin,
        proxy::{Cut, Passing, Proxy},
        rig::{LONG_DEADLINE, TIMEOUT, wait_until},
    },
    support::server::{Engine, Server},
};

/// One in each second, and each of the nine kinds three times.
const FAULTS: u32 = 27;
/// Between two requests of one service.
const PAUSE: Duration = Duration::from_millis(10);
/// A quota that the test never reaches, so that every denial is an error.
const QUOTA: u32 = 1_000_000;

type Limits = RateLimitLayer;

fn policy() -> Policy {
    Policy::new("plenty", QUOTA, Duration::from_secs(24 * 3600)).unwrap()
}

#[derive(Debug, Default)]
struct Seen {
    decided: u32,
    unchecked: u32,
    local: u32,
    rejected: u32,
    overloaded: u32,
}

/// Sends requests to a service until `ends` has a permit.
async fn serve(limits: Limits, ends: Arc<Semaphore>) -> Seen {
    let mut requests = JoinSet::new();
    let mut ticks = interval(PAUSE);
    while ends.available_permits() == 0 {
        ticks.tick().await;
        let service = limits.layer(service_fn(echo_marks));
        requests.spawn(async move {
            let request = Request::get("/").header("x-api-key", "alice").body(()).unwrap();
            let response = timeout(TIMEOUT, service.oneshot(request)).await.expect("a response").unwrap();
            (response.status(), marks(&response))
        });
    }
    let mut seen = Seen::default();
    // A panic of a request ends the test.
    for (status, marks) in requests.join_all().await {
        match (status, marks) {
            (StatusCode::OK, Marks { decision: true, .. }) => seen.decided += 1,
            (StatusCode::OK, Marks { unchecked: Some(_), .. }) => seen.unchecked += 1,
            (StatusCode::OK, Marks { local: Some(_), .. }) => seen.local += 1,
            (StatusCode::SERVICE_UNAVAILABLE, Marks { rejection: Some((_, Reason::Overloaded)), .. }) => {
                seen.overloaded += 1;
            }
            (StatusCode::SERVICE_UNAVAILABLE, Marks { rejection: Some(_), .. }) => seen.rejected += 1,
            other => panic!("{other:?}"),
        }
    }
    seen
}

/// Injects the fault of this number for a moment. The sleeps are the durations of the faults.
async fn inject(fault: u32, server: &mut Server, proxy: &Proxy) {
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
        // The server may still load its data.
        2 => while Admin::at(server).try_query::<()>(&["SCRIPT", "FLUSH"]).is_err() {},
        3 => proxy.cut_next(if fault.is_multiple_of(2) { Cut::BeforeReply } else { Cut::WithinReply }),
        4 => {
            proxy.pass(if fault.is_multiple_of(2) { Passing::Nothing } else { Passing::Questions });
            sleep(moment).await;
            proxy.pass(Passing::Everything);
        }
        5 => {
            Admin::at(server).set("maxmemory", "1");
            sleep(moment).await;
            Admin::at(server).set("maxmemory", "0");
        }
        6 => {
            Admin::at(server).query::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
            sleep(moment).await;
            Admin::at(server).query::<()>(&["REPLICAOF", "NO", "ONE"]);
        }
        7 => {
            let mut admin = Admin::at(server);
            admin.query::<()>(&["ACL", "SETUSER", "default", "-evalsha", "-eval"]);
            sleep(moment).await;
            admin.query::<()>(&["ACL", "SETUSER", "default", "+evalsha", "+eval"]);
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
async fn continuous_faults_lose_no_charge_and_deny_no_request() {
    let options = ["--appendonly", "yes", "--appendfsync", "always", "--lua-time-limit", "50"];
    let mut server = Server::with_options(Engine::Redis, &options);
    let proxy = Proxy::before(&server).await;
    let ends = Arc::new(Semaphore::new(0));
    // Three services, each with its own connection, simulate three processes.
    let rules = [OutageRule::FailClosed, OutageRule::FailOpen, local(3)];
    let backends = rules.map(|_| RedisBackend::lazy(&proxy.url()).unwrap());
    let (mut services, mut limiters) = (Vec::new(), Vec::new());
    for (rule, backend) in rules.into_iter().zip(&backends) {
        let builder = RateLimitLayer::builder(backend.clone()).policy(policy()).outage(rule);
        let limits = builder.key(header("x-api-key").unwrap()).cost(1).build().unwrap();
        limiters.push(limits.limiter().clone());
        services.push(tokio::spawn(serve(limits, ends.clone())));
    }

    let mut seconds = interval(Duration::from_secs(1));
    for fault in 0..FAULTS {
        seconds.tick().await;
        inject(fault, &mut server, &proxy).await;
    }
    // All faults have ended. Every service gets some decisions in turn.
    let admitted = |limiter: &Limiter| limiter.stats().admitted;
    let before: Vec<u64> = limiters.iter().map(admitted).collect();
    wait_until("the backends do not recover", || {
        limiters.iter().zip(&before).all(|(limiter, before)| admitted(limiter) > before + 50)
    })
    .await;
    ends.add_permits(1);
    let mut seen = Vec::new();
    for service in services {
        seen.push(service.await.unwrap());
    }
    let unanswered = backends.iter().map(RedisBackend::unanswered_checks).sum::<u64>();
    println!("{FAULTS} faults, {unanswered} unanswered: {seen:?}");
    for (seen, rule) in seen.iter().zip(rules) {
        let outages = [seen.rejected, seen.unchecked, seen.local];
        let expected = match rule {
            OutageRule::FailOpen => outages[1],
            OutageRule::LocalFallback(_) => outages[2],
            _ => outages[0],
        };
        // Requests are overloaded if the server has still answered others within the last deadline: at the beginning of a fault.
        let others = outages.iter().sum::<u32>() - expected;
        assert!(expected > 0 && others == 0, "{rule:?}: only this rule applies to an outage: {seen:?}");
    }

    // Every admitted request is charged. The other charges are at most the checks without a reply.
    let direct = RedisBackend::connect(&server.url()).await.unwrap();
    let direct = Limiter::builder(direct).policy(policy()).deadline(LONG_DEADLINE).build().unwrap();
    let alice = PartitionKey::new("header:x-api-key", "alice");
    let left = direct.peek((alice, 0)).await.unwrap().statuses()[0].remaining();
    let admitted: u32 = seen.iter().map(|seen| seen.decided).sum();
    let charged = QUOTA - left;
    assert!(
        charged >= admitted && u64::from(charged - admitted) <= unanswered,
        "{charged} charges of {admitted} admitted requests, and {unanswered} checks without a reply"
    );
}
