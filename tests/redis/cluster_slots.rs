//! Checks across the slots of a real cluster, with dead and hung nodes. The benchmark `outage` prints related figures.

use std::{
    collections::BTreeMap,
    pin::pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use tokio::{
    net::TcpStream,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};
use tower_sliding_window::{
    Limiter, RedisBackend,
    backend::Pair,
    outage::{Breaker, DenyCacheConfig},
    redis::RedisServers,
};

use super::{
    admin::Admin,
    proxy::{Passing, Proxy},
    rig::{HOUR, LONG_DEADLINE, TIMEOUT, wait_until},
};
use crate::support::{
    cluster_rows::{
        PROCESSES, UNREACHED, clients_over_limit, cluster, healthy_checks_not_asked, key_on, limiter, pair,
        passes_beside_dead_slot, send, units_back_beside_hung_slot,
    },
    server::Server,
};

/// Returns the number of script calls that a node has received.
fn calls(node: &Server) -> u64 {
    Admin::at(node).calls("evalsha").all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_over_its_limit_starves_no_shared_key() {
    let cluster = cluster();
    let route = pair(&key_on(0, "route", 0), 20, 1);
    let (busy, honest) = (pair(&key_on(1, "address", 1), 1, 1), pair(&key_on(2, "address", 2), UNREACHED, 1));
    let patient = limiter(&cluster).await.deadline(LONG_DEADLINE).build().unwrap();
    let first = patient.check([route.clone(), busy.clone()]).await.unwrap();
    assert!(first.is_admitted(), "the address has one unit");
    let (processes, _clients) = clients_over_limit(&cluster, [route.clone(), busy], LONG_DEADLINE).await;
    wait_until("not every process has a denial", || processes.iter().all(|it| it.stats().denied > 0)).await;

    let (start, before) = (Instant::now(), calls(&cluster.nodes[0]));
    let mut pace = interval(Duration::from_millis(100));
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // A unit of the route is missing while a process rolls it back.
    let (mut units, mut requests) = (0, 0);
    while units < 19 {
        assert!(
            start.elapsed() < TIMEOUT,
            "the honest client has {units} of 19 units after {requests} requests"
        );
        pace.tick().await;
        let decision = patient.check([route.clone(), honest.clone()]).await.unwrap();
        units += u32::from(decision.is_admitted());
        requests += 1;
    }
    // A request is a charge and at most a peek. A rollback is a charge and a refund.
    let calls = calls(&cluster.nodes[0]) - before;
    let ages = 2 + start.elapsed().as_secs() / DenyCacheConfig::default().max_age.as_secs();
    assert!(
        calls <= 2 * requests + 2 * PROCESSES as u64 * ages,
        "{calls} calls for {requests} requests in {ages} maximum ages: at most one rollback per age and process"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthy_slot_denies_beside_dead_slot() {
    assert_eq!(passes_beside_dead_slot(true).await, 0, "the exhausted slot denies every request");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthy_slot_fills_beside_dead_slot() {
    assert_eq!(passes_beside_dead_slot(false).await, 10, "fail open admits the quota of the healthy slot");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_node_stops_no_checks_of_healthy_nodes() {
    assert_eq!(
        healthy_checks_not_asked(10).await,
        0,
        "healthy nodes are asked while the dead node's breaker is open"
    );
}

/// Once the breaker of the hung node is open, the first poll of a check returns its error, whatever the healthy node answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_hung_node_do_not_wait() {
    let cluster = cluster();
    let (hung, healthy) =
        (pair(&key_on(1, "user", 0), UNREACHED, 1), pair(&key_on(0, "user", 0), UNREACHED, 1));
    // There is no probe during the test.
    let limiter = limiter(&cluster).await.breaker(Breaker::new(5, HOUR));
    let limiter = limiter.deadline(Duration::from_secs(1)).build().unwrap();
    for pair in [&hung, &healthy] {
        let decision = limiter.check([pair.clone()]).await.unwrap();
        assert!(decision.is_admitted(), "before the node hangs");
    }
    let mut clients = JoinSet::new();
    clients.spawn(send(limiter.clone(), healthy, Duration::from_millis(10)));
    cluster.nodes[1].signal(libc::SIGSTOP);
    let start = Instant::now();
    while limiter.check([hung.clone()]).await.is_err_and(|error| error.was_asked()) {
        assert!(start.elapsed() < TIMEOUT, "the breaker of the hung node does not open");
    }
    let (admitted, mut pace) = (limiter.stats().admitted, interval(Duration::from_millis(10)));
    for request in 0..100 {
        pace.tick().await;
        let mut check = pin!(limiter.check([hung.clone()]));
        let polled = check.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(
            matches!(&polled, Poll::Ready(Err(error)) if !error.was_asked()),
            "request {request} waits for the hung node: {polled:?}"
        );
    }
    wait_until("the healthy node does not answer", || limiter.stats().admitted > admitted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hung_slot_delays_no_refund_or_reset() {
    assert_eq!(
        units_back_beside_hung_slot().await,
        20,
        "the healthy slot has 10 units back after the settlement, and 10 after the reset"
    );
}

/// Every slot has run its call while no reply has arrived. The fourth slot is on the first node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_of_check_are_asked_concurrently() {
    let cluster = cluster();
    let (mut proxies, mut ports) = (Vec::new(), BTreeMap::new());
    for node in cluster.primaries() {
        let proxy = Proxy::before(node).await;
        ports.insert(node.port(), proxy.port());
        proxies.push(proxy);
    }
    let connect = move |_: String, port| {
        let proxy = ports.get(&port).copied().unwrap_or(port);
        TcpStream::connect(("127.0.0.1", proxy))
    };
    let backend = RedisBackend::builder(RedisServers::cluster_streams(
        [("127.0.0.1", cluster.nodes[0].port())],
        connect,
    ))
    .lazy()
    .unwrap();
    let limiter = Limiter::builder(backend).without_policies().deadline(TIMEOUT).build().unwrap();
    let pairs: Vec<Pair> = (0..4).map(|i| pair(&key_on(i % 3, "user", i), UNREACHED, 1)).collect();
    let check = || limiter.check(&pairs[..]);
    // The nodes know the script, and the backend knows their clocks.
    for _ in 0..2 {
        assert!(check().await.unwrap().is_admitted(), "before the replies are held");
    }
    for node in cluster.primaries() {
        Admin::at(node).query::<()>(&["CONFIG", "RESETSTAT"]);
    }
    proxies.iter().for_each(|proxy| proxy.pass(Passing::HeldReplies));
    let check = tokio::spawn(check());
    let start = Instant::now();
    loop {
        let calls: Vec<u64> = cluster.primaries().iter().map(calls).collect();
        if calls == [2, 1, 1] {
            break;
        }
        assert!(
            start.elapsed() < TIMEOUT / 2,
            "without a reply, the nodes have {calls:?} of [2, 1, 1] calls"
        );
        sleep(Duration::from_millis(5)).await;
    }
    assert!(!check.is_finished(), "no reply has arrived");
    proxies.iter().for_each(|proxy| proxy.pass(Passing::Everything));
    assert!(check.await.unwrap().unwrap().is_admitted(), "the replies admit the check");
}
