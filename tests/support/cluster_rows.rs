//! A limiter over a cluster with faults. The benchmark `outage` prints the measurements. The tests check the counts that depend on
//! no speed.

use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use redis::cmd;
use tokio::{
    task::JoinSet,
    time::{interval, sleep, timeout},
};
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{
    Limiter, LimiterBuilder, OutageRule, PartitionKey, Policy, RateLimitLayer, RedisBackend, backend::Pair,
    by, outage::BreakerState, protocol::Draft, redis::RedisServers,
};

use super::{
    cluster::{Cluster, slot},
    delay::DelayProxy,
    server::{Engine, Server},
};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
/// A quota that no measurement reaches.
pub const UNREACHED: u32 = 1_000_000_000;
const PRIMARIES: usize = 3;
/// A deadline that a busy machine does not reach, for results that depend on no deadline.
const LONG_DEADLINE: Duration = Duration::from_secs(20);
/// The processes whose clients are over their limit.
pub const PROCESSES: usize = 4;

/// What requests of an outage have experienced.
#[derive(Default)]
pub struct Waits(Vec<Duration>);

/// Starts a cluster in which a node that fails stays failed, and the others go on.
pub fn cluster() -> Cluster {
    let cluster = Cluster::start(Engine::Redis);
    for node in &cluster.nodes {
        for option in ["cluster-require-full-coverage no", "cluster-replica-no-failover yes"] {
            let (name, value) = option.split_once(' ').unwrap();
            cmd("CONFIG").arg("SET").arg(name).arg(value).exec(&mut node.connection()).unwrap();
        }
    }
    cluster
}

/// Returns the number of the primary that stores a key.
fn primary_of(key: &PartitionKey) -> usize {
    usize::from(slot(key)) * PRIMARIES / 16_384
}

/// Returns a key of this kind on this primary. Different numbers have different keys.
pub fn key_on(primary: usize, kind: &'static str, number: usize) -> PartitionKey {
    let keys = (0..).map(|i| PartitionKey::new(kind, format!("{number}-{i}")));
    keys.into_iter().find(|key| primary_of(key) == primary).unwrap()
}

pub fn pair(key: &PartitionKey, quota: u32, cost: u32) -> Pair {
    Pair::new(key.clone(), Policy::new("measured", quota, HOUR).unwrap(), cost)
}

fn at_cost(pair: &Pair, cost: u32) -> Pair {
    Pair::new(pair.key.clone(), pair.policy.clone(), cost)
}

/// Returns a limiter with the default settings.
pub async fn limiter(cluster: &Cluster) -> LimiterBuilder {
    let urls = cluster.primaries().iter().map(Server::url);
    Limiter::builder(RedisBackend::builder(RedisServers::cluster(urls)).connect().await.unwrap())
        .without_policies()
}

/// Returns the units that the store has left for a pair.
async fn remaining(limiter: &Limiter, pair: Pair) -> u32 {
    loop {
        // The breaker may still be open.
        if let Ok(decision) = limiter.peek([at_cost(&pair, 0)]).await {
            return decision.statuses()[0].remaining();
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Starts 64 clients in several processes. Their address is over its limit. Returns the limiters of the processes.
pub async fn clients_over_limit(
    cluster: &Cluster,
    pairs: [Pair; 2],
    deadline: Duration,
) -> (Vec<Limiter>, JoinSet<()>) {
    let (mut limiters, mut clients) = (Vec::new(), JoinSet::new());
    for _ in 0..PROCESSES {
        let limiter = limiter(cluster).await.deadline(deadline).build().unwrap();
        for _ in 0..64 / PROCESSES {
            let (limiter, pairs) = (limiter.clone(), pairs.clone());
            clients.spawn(async move {
                loop {
                    let decision = limiter.check(pairs.clone()).await;
                    // A hit does not wait, and would leave no time for the others.
                    if !decision.is_ok_and(|decision| !decision.is_cached()) {
                        sleep(Duration::from_millis(1)).await;
                    }
                }
            });
        }
        limiters.push(limiter);
    }
    (limiters, clients)
}

/// Returns how many units of a route an honest client gets with 19 requests, where 19 are due. The route and the addresses are in
/// different slots. Meanwhile, 64 clients in 4 processes send requests from an address that is over its limit.
#[allow(dead_code, reason = "only the benchmark uses it")]
pub async fn units_of_honest_client() -> u32 {
    let cluster = cluster();
    let route = pair(&key_on(0, "route", 0), 20, 1);
    let (busy, honest) = (key_on(1, "address", 1), key_on(2, "address", 2));
    let (busy, honest) = (pair(&busy, 1, 1), pair(&honest, UNREACHED, 1));
    let first = limiter(&cluster).await.build().unwrap();
    assert!(first.check([route.clone(), busy.clone()]).await.unwrap().is_admitted());
    let _clients = clients_over_limit(&cluster, [route.clone(), busy], Limiter::DEFAULT_DEADLINE).await;
    let limiter = limiter(&cluster).await.build().unwrap();
    // Each process may roll back one charge before it knows the denial.
    sleep(Duration::from_millis(300)).await;
    let (mut units, mut ticks) = (0, interval(Duration::from_millis(100)));
    for _ in 0..19 {
        ticks.tick().await;
        let decision = limiter.check([route.clone(), honest.clone()]).await;
        units += u32::from(decision.is_ok_and(|decision| decision.is_admitted()));
    }
    units
}

/// Returns how many of 50 requests pass under fail open. They need a dead slot, and a healthy one with a quota of 10. If
/// `exhausted`, the healthy slot denies all of them.
pub async fn passes_beside_dead_slot(exhausted: bool) -> usize {
    let mut cluster = cluster();
    let (healthy, dead) = (pair(&key_on(0, "user", 0), 10, 1), pair(&key_on(1, "address", 0), UNREACHED, 1));
    let limiter = limiter(&cluster).await.outage(OutageRule::FailOpen).deadline(LONG_DEADLINE);
    let limiter = limiter.build().unwrap();
    if exhausted {
        let all = at_cost(&healthy, 10);
        assert!(limiter.check([all]).await.unwrap().is_admitted());
    }
    let protocol =
        by(|pairs: &[Pair; 2]| Draft::pairs(pairs.clone())).reject_with(|_, _| Ok::<_, Infallible>(false));
    let handler = service_fn(async |_: [Pair; 2]| Ok::<_, Infallible>(true));
    let service = RateLimitLayer::new(limiter, protocol).layer(handler);
    cluster.kill(1);
    let mut passes = 0;
    for request in 0..50 {
        // The dead slot is the first one or the second one.
        let pairs = if request % 2 == 0 { [&healthy, &dead] } else { [&dead, &healthy] };
        passes += usize::from(service.clone().oneshot(pairs.map(Pair::clone)).await.unwrap());
    }
    passes
}

/// Returns how many checks of healthy nodes were not asked, of `checks` at 5 a second, while a dead node gets 30 a second.
pub async fn healthy_checks_not_asked(checks: usize) -> usize {
    let mut cluster = cluster();
    let limiter = limiter(&cluster).await.deadline(LONG_DEADLINE).build().unwrap();
    let dead = pair(&key_on(1, "user", 0), UNREACHED, 1);
    cluster.kill(1);
    let mut clients = JoinSet::new();
    clients.spawn(send(limiter.clone(), dead, Duration::from_secs(1) / 30));
    // The dead node's breaker has opened.
    while limiter.stats().breakers.iter().all(|breaker| breaker.state == BreakerState::Closed) {
        sleep(Duration::from_millis(1)).await;
    }
    let (mut not_asked, mut ticks) = (0, interval(Duration::from_millis(200)));
    for check in 0..checks {
        ticks.tick().await;
        let healthy = pair(&key_on(2 * (check % 2), "user", check), UNREACHED, 1);
        let outcome = limiter.check([healthy]).await;
        not_asked += usize::from(outcome.is_err_and(|error| !error.was_asked()));
    }
    not_asked
}

/// Sends a check of this pair in every interval, without waiting for the others.
pub async fn send(limiter: Limiter, pair: Pair, every: Duration) {
    let mut ticks = interval(every);
    loop {
        ticks.tick().await;
        tokio::spawn(limiter.check([pair.clone()]));
    }
}

/// Returns how long the requests of a hung node wait, at 1,000 a second, once its breaker is open. Healthy nodes get 100 a
/// second.
#[allow(dead_code, reason = "only the benchmark uses it")]
pub async fn waits_of_hung_node(duration: Duration) -> Waits {
    let cluster = cluster();
    let limiter = limiter(&cluster).await.build().unwrap();
    let (hung, healthy) =
        (pair(&key_on(1, "user", 0), UNREACHED, 1), pair(&key_on(0, "user", 0), UNREACHED, 1));
    for pair in [&hung, &healthy] {
        assert!(limiter.check([pair.clone()]).await.unwrap().is_admitted());
    }
    let mut clients = JoinSet::new();
    clients.spawn(send(limiter.clone(), healthy, Duration::from_millis(10)));
    cluster.nodes[1].signal(libc::SIGSTOP);
    let (start, mut ticks) = (Instant::now(), interval(Duration::from_millis(1)));
    let mut requests: JoinSet<Option<Duration>> = JoinSet::new();
    while start.elapsed() < duration + Duration::from_millis(500) {
        ticks.tick().await;
        let is_open = start.elapsed() >= Duration::from_millis(500);
        let check = limiter.check([hung.clone()]);
        requests.spawn(async move {
            let sent = Instant::now();
            let _ = check.await;
            is_open.then(|| sent.elapsed())
        });
    }
    let waits = Waits(requests.join_all().await.into_iter().flatten().collect());
    cluster.nodes[1].signal(libc::SIGCONT);
    waits
}

impl Waits {
    /// Returns the wait that this many of 100 requests do not exceed.
    #[allow(dead_code, reason = "only the benchmark uses it")]
    pub fn percentile(&mut self, percent: usize) -> Duration {
        self.0.sort();
        self.0[(self.0.len() * percent / 100).min(self.0.len() - 1)]
    }
}

/// Returns how many units a healthy slot has back, of 10 after a settlement and 10 after a reset, while the slot before it hangs.
pub async fn units_back_beside_hung_slot() -> u32 {
    let cluster = cluster();
    let (hung, healthy) = (pair(&key_on(1, "user", 0), 10, 10), pair(&key_on(0, "user", 0), 10, 10));
    let limiter = limiter(&cluster).await.deny_cache(None).deadline(2 * SECOND).build().unwrap();
    let both = || [hung.clone(), healthy.clone()];
    let reservation = limiter.reserve(both()).await.expect("an admission");
    cluster.nodes[1].signal(libc::SIGSTOP);
    reservation.settle(0).await;
    let mut units = remaining(&limiter, healthy.clone()).await;
    cluster.nodes[1].signal(libc::SIGCONT);
    // The hung slot may have lost its refund.
    while limiter.reset(both()).await.is_err() {}
    while !limiter.check(both()).await.is_ok_and(|decision| decision.is_admitted()) {}
    cluster.nodes[1].signal(libc::SIGSTOP);
    limiter.reset(both()).await.expect_err("an answer of the hung slot");
    units += remaining(&limiter, healthy).await;
    cluster.nodes[1].signal(libc::SIGCONT);
    units
}

/// Sends 3,000 reservations a second to a server that is 20 ms away, and settles each. Returns how many were admitted, and how
/// many settlements were lost.
#[allow(dead_code, reason = "only the benchmark uses it")]
pub async fn lost_settlements(duration: Duration) -> (usize, u64) {
    let server = Server::start(Engine::Redis);
    let proxy = DelayProxy::before(&server, Duration::from_millis(20)).await;
    let backend = RedisBackend::connect(&proxy.url()).await.unwrap();
    let limiter = Limiter::builder(backend).without_policies().build().unwrap();
    let (start, mut ticks) = (Instant::now(), interval(Duration::from_millis(10)));
    let (mut admitted, mut requests) = (0, JoinSet::new());
    let mut number = 0;
    while start.elapsed() < duration {
        ticks.tick().await;
        for _ in 0..30 {
            number += 1;
            let key = PartitionKey::new("user", (number % 1_000).to_string());
            let reservation = limiter.reserve([pair(&key, UNREACHED, 10)]);
            requests.spawn(async move {
                let reservation = reservation.await.ok()?;
                reservation.settle(1);
                Some(())
            });
        }
        while let Some(done) = requests.try_join_next() {
            admitted += usize::from(done.unwrap().is_some());
        }
    }
    admitted += requests.join_all().await.into_iter().flatten().count();
    timeout(Duration::from_secs(10), limiter.drain()).await.expect("the settlements end");
    (admitted, limiter.lost_settlements())
}

/// Returns the median duration of an admitted check over 1 to 4 slots, each 20 ms away.
#[allow(dead_code, reason = "only the benchmark uses it")]
pub async fn checks_over_slots() -> [Duration; 4] {
    let cluster = cluster();
    let mut proxies = Vec::new();
    for node in cluster.primaries() {
        let proxy = DelayProxy::before(node, Duration::from_millis(20)).await;
        // The nodes announce the port of the proxy to clients, and go on without it among themselves.
        let mut connection = node.connection();
        for (option, port) in
            [("cluster-announce-bus-port", node.port() + 10_000), ("cluster-announce-port", proxy.port())]
        {
            cmd("CONFIG").arg("SET").arg(option).arg(port).exec(&mut connection).unwrap();
        }
        proxies.push(proxy);
    }
    let all_announced = |node: &Server| {
        let slots: String = cmd("CLUSTER").arg("NODES").query(&mut node.connection()).unwrap();
        proxies.iter().all(|proxy| slots.contains(&format!(":{}@", proxy.port())))
    };
    while !cluster.primaries().iter().all(all_announced) {
        sleep(Duration::from_millis(50)).await;
    }
    let backend = RedisBackend::builder(RedisServers::cluster(proxies.iter().map(DelayProxy::url)))
        .connect()
        .await
        .unwrap();
    let limiter =
        Limiter::builder(backend).without_policies().deadline(Duration::from_secs(2)).build().unwrap();
    // The fourth slot is on the first node.
    let pairs: Vec<Pair> = (0..4).map(|i| pair(&key_on(i % PRIMARIES, "user", i), UNREACHED, 1)).collect();
    let mut medians = [Duration::ZERO; 4];
    for (slots, median) in (1..).zip(&mut medians) {
        let mut durations = Waits::default();
        for _ in 0..12 {
            let start = Instant::now();
            let decision = limiter.check(pairs[..slots].to_vec()).await.unwrap();
            assert!(decision.is_admitted());
            durations.0.push(start.elapsed());
        }
        *median = durations.percentile(50);
    }
    medians
}
