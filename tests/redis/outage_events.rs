//! The events of outages on real servers: one when an outage begins, one when it ends.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_sliding_window::{
    Limiter, PartitionKey, RedisBackend,
    outage::{BreakerState, DenyCacheConfig},
    redis::RedisServers,
};

use super::{
    admin::Admin,
    rig::{HOUR, TIMEOUT, alice, limiter, policy},
};
use crate::support::{
    cluster::Cluster,
    events::Events,
    server::{Engine, Server},
};

/// An outage of a server, and the reason that its event states.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Killed,
    Hung,
    NoPermission,
    OutOfMemory,
}

impl Fault {
    const ALL: [Self; 4] = [Self::Killed, Self::Hung, Self::NoPermission, Self::OutOfMemory];

    fn begin(self, server: &mut Server) {
        match self {
            Self::Killed => server.kill(),
            Self::Hung => server.signal(libc::SIGSTOP),
            Self::NoPermission => Admin::at(server).query(&["ACL", "SETUSER", "limiter", "-evalsha"]),
            Self::OutOfMemory => Admin::at(server).set("maxmemory", "1"),
        }
    }

    fn end(self, server: &mut Server) {
        match self {
            Self::Killed => server.restart(),
            Self::Hung => server.signal(libc::SIGCONT),
            Self::NoPermission => Admin::at(server).query(&["ACL", "SETUSER", "limiter", "+evalsha"]),
            Self::OutOfMemory => Admin::at(server).set("maxmemory", "0"),
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::Killed => "the store cannot be reached",
            Self::Hung => "the store did not answer within the deadline",
            Self::NoPermission => "the user of the store lacks a permission",
            Self::OutOfMemory => "the store is out of memory",
        }
    }
}

/// The pause between two checks. A hot loop would leave no time for the servers.
const PAUSE: Duration = Duration::from_millis(5);

/// A busy machine exceeds the default deadline of 100 ms.
const DEADLINE: Duration = Duration::from_millis(500);

/// A time in which a breaker would probe a server several times. If it takes longer, there are more probes.
const PROBES: Duration = Duration::from_millis(1_200);

/// Checks until a breaker is open, and for the time of several probes more. None of the probes is decided.
async fn check_during_outage(limiter: &Limiter, key: &PartitionKey, what: &str) {
    let is_open = || limiter.stats().breakers.iter().any(|breaker| breaker.state != BreakerState::Closed);
    let start = Instant::now();
    while !is_open() {
        assert!(start.elapsed() < TIMEOUT, "{what}: no breaker opens");
        let _ = limiter.check(key.clone()).await;
        sleep(PAUSE).await;
    }
    let start = Instant::now();
    while start.elapsed() < PROBES {
        let decision = limiter.check(key.clone()).await;
        assert!(decision.is_err(), "{what}: no check is decided during the outage: {decision:?}");
        sleep(PAUSE).await;
    }
}

async fn wait_for_decision(limiter: &Limiter, key: &PartitionKey) {
    let start = Instant::now();
    while let Err(error) = limiter.check(key.clone()).await {
        assert!(start.elapsed() < TIMEOUT, "the limiter does not recover: {error:?}");
        sleep(PAUSE).await;
    }
}

#[tokio::test]
async fn outage_causes_one_event_at_begin_and_one_at_end() {
    for engine in Engine::ALL {
        let mut server = Server::with_options(engine, &["--user", "limiter", "on", ">secret", "~*", "+@all"]);
        let address = format!("127.0.0.1:{}", server.port());
        let backend = RedisBackend::connect(&format!("redis://limiter:secret@{address}/")).await.unwrap();
        let builder = Limiter::builder(backend).policy(policy("hourly", 1_000_000, HOUR));
        let limiter = builder.deadline(DEADLINE).build().unwrap();
        for fault in Fault::ALL {
            wait_for_decision(&limiter, &alice()).await;
            let (events, _guard) = Events::collect();
            fault.begin(&mut server);
            check_during_outage(&limiter, &alice(), &format!("{engine:?} {fault:?}")).await;
            let begin = events.take();
            assert_eq!(begin.len(), 1, "{engine:?} {fault:?}: {begin:?}");
            for part in ["WARN", "circuit breaker opened", &address, fault.reason()] {
                assert!(begin[0].contains(part), "{engine:?} {fault:?}: {begin:?}");
            }
            assert!(!begin[0].contains("secret"), "{begin:?}");

            fault.end(&mut server);
            for _ in 0..20 {
                wait_for_decision(&limiter, &alice()).await;
            }
            let end = events.take();
            assert_eq!(end.len(), 1, "{engine:?} {fault:?}: {end:?}");
            for part in ["INFO", "circuit breaker closed", &address, "open_for"] {
                assert!(end[0].contains(part), "{engine:?} {fault:?}: {end:?}");
            }
        }
    }
}

/// A client over its limit is denied without a write, so the server answers it during an outage of writes.
#[tokio::test]
async fn outage_of_writes_causes_two_events_despite_denials() {
    let faults: [[&[&str]; 2]; 3] = [
        [&["CONFIG", "SET", "maxmemory", "1"], &["CONFIG", "SET", "maxmemory", "0"]],
        [&["ACL", "SETUSER", "limiter", "-rpush"], &["ACL", "SETUSER", "limiter", "+rpush"]],
        [&["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"]],
    ];
    for engine in Engine::ALL {
        let server = Server::with_options(engine, &["--user", "limiter", "on", ">secret", "~*", "+@all"]);
        let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
        let backend = RedisBackend::connect(&url).await.unwrap();
        // Longer than the deadline: meanwhile, the failures open the breaker.
        let cache = DenyCacheConfig::new(2 * DEADLINE, DenyCacheConfig::default().max_entries);
        let builder = Limiter::builder(backend).policy(policy("hourly", 1, HOUR)).deny_cache(cache);
        let limiter = builder.deadline(DEADLINE).build().unwrap();
        let mut users = 0_u64..;
        // Checks until the breaker has this state, and for a time of several probes and refreshes.
        let mut check_until = async |state: BreakerState| {
            let (start, mut since) = (Instant::now(), None::<Instant>);
            while since.is_none_or(|since| since.elapsed() < PROBES) {
                let _ = limiter.check(alice()).await;
                let user = PartitionKey::new("user", users.next().unwrap().to_le_bytes());
                let _ = limiter.check(user).await;
                if since.is_none() && limiter.stats().breakers.iter().any(|breaker| breaker.state == state) {
                    since = Some(Instant::now());
                }
                assert!(start.elapsed() < TIMEOUT, "{engine:?}: the breaker does not become {state:?}");
                sleep(PAUSE).await;
            }
        };
        for [begin, end] in faults {
            check_until(BreakerState::Closed).await;
            let (events, _guard) = Events::collect();
            let take =
                || events.take().into_iter().filter(|event| !event.starts_with("DEBUG")).collect::<Vec<_>>();
            Admin::at(&server).query::<()>(begin);
            check_until(BreakerState::Open).await;
            let begun = take();
            assert!(
                begun.len() == 1 && begun[0].contains("breaker opened"),
                "{engine:?} {begin:?}: {begun:?}"
            );
            Admin::at(&server).query::<()>(end);
            check_until(BreakerState::Closed).await;
            let ended = take();
            assert!(ended.len() == 1 && ended[0].contains("breaker closed"), "{engine:?} {end:?}: {ended:?}");
        }
    }
}

/// The breaker stays closed, because most checks are decided: only the fixed window needs GET.
#[tokio::test]
async fn missing_permission_of_one_policy_causes_one_event() {
    for engine in Engine::ALL {
        let server =
            Server::with_options(engine, &["--user", "limiter", "on", ">secret", "~*", "+@all", "-get"]);
        let address = format!("127.0.0.1:{}", server.port());
        let backend = RedisBackend::connect(&format!("redis://limiter:secret@{address}/")).await.unwrap();
        let fixed = policy("fixed", 9, HOUR).with_algorithm(tower_sliding_window::Algorithm::FixedWindow);
        let decided = limiter(backend.clone(), [policy("log", 1_000, HOUR)]);
        let undecided = limiter(backend, [fixed.unwrap()]);
        let (events, _guard) = Events::collect();
        for _ in 0..20 {
            undecided.check(alice()).await.unwrap_err();
            let _ = decided.check(alice()).await.unwrap();
        }
        let events = events.take();
        assert_eq!(events.len(), 1, "{engine:?}: {events:?}");
        for part in ["WARN", "no rate limit decision", &address, "lacks a permission"] {
            assert!(events[0].contains(part), "{engine:?} {part}: {events:?}");
        }
    }
}

#[tokio::test]
async fn event_names_node_of_cluster() {
    let mut cluster = Cluster::start(Engine::Valkey);
    let backend = RedisBackend::builder(RedisServers::cluster(cluster.nodes.iter().map(Server::url)))
        .connect()
        .await
        .unwrap();
    let limiter = Limiter::builder(backend).policy(policy("hourly", 1_000_000, HOUR));
    let limiter = limiter.deadline(DEADLINE).build().unwrap();
    let keys: Vec<_> = (0..64).map(|i| PartitionKey::new("user", [i])).collect();
    for key in &keys {
        wait_for_decision(&limiter, key).await;
    }
    for replica in cluster.replicas() {
        // The node stays dead.
        Admin::at(replica).set("cluster-replica-no-failover", "yes");
    }
    let (events, _guard) = Events::collect();
    let address = format!("127.0.0.1:{}", cluster.nodes[1].port());
    cluster.kill(1);
    let start = Instant::now();
    let is_open = || limiter.stats().breakers.iter().any(|breaker| breaker.state != BreakerState::Closed);
    while !is_open() {
        assert!(start.elapsed() < TIMEOUT, "no breaker opens");
        for key in &keys {
            let _ = limiter.check(key.clone()).await;
        }
        sleep(PAUSE).await;
    }
    let begin = events.take();
    assert!(begin.len() == 1 && begin[0].contains(&address), "{begin:?}");
    let breakers = limiter.stats().breakers;
    let open = breakers.iter().filter(|breaker| breaker.state != BreakerState::Closed);
    assert_eq!(open.map(|breaker| &*breaker.server).collect::<Vec<_>>(), [&*address], "{breakers:?}");
    // Those of all nodes, and that of the look-ups.
    assert!(breakers.len() > cluster.nodes.len() / 2, "{breakers:?}");
}

/// A killed node never comes back, and a hung one comes back as a replica.
#[tokio::test]
async fn failover_in_cluster_causes_one_event_at_begin_and_one_at_end() {
    for engine in Engine::ALL {
        let mut cluster = Cluster::start(engine);
        let backend = RedisBackend::builder(RedisServers::cluster(cluster.nodes.iter().map(Server::url)))
            .connect()
            .await
            .unwrap();
        let limiter = Limiter::builder(backend).policy(policy("hourly", 1_000_000, HOUR));
        let limiter = limiter.deadline(DEADLINE).build().unwrap();
        let keys: Vec<_> = (0..64).map(|i| PartitionKey::new("user", [i])).collect();
        let (events, _guard) = Events::collect();
        for primary in [1, 2] {
            for key in &keys {
                wait_for_decision(&limiter, key).await;
            }
            let before = events.take();
            assert!(before.is_empty(), "{engine:?}: expected no event without an outage: {before:?}");
            let address = format!("127.0.0.1:{}", cluster.nodes[primary].port());
            if primary == 1 {
                cluster.kill(primary);
            } else {
                cluster.nodes[primary].signal(libc::SIGSTOP);
            }
            let (start, mut seen) = (Instant::now(), Vec::new());
            let has_ended = |event: &String| event.contains("breaker closed") && event.contains(&address);
            while !seen.iter().any(has_ended) {
                assert!(start.elapsed() < TIMEOUT, "{engine:?}: no event at the end: {seen:?}");
                for key in &keys {
                    let _ = limiter.check(key.clone()).await;
                }
                sleep(PAUSE).await;
                seen.extend(events.take());
            }
            if primary != 1 {
                cluster.nodes[primary].signal(libc::SIGCONT);
            }
            for key in &keys {
                wait_for_decision(&limiter, key).await;
            }
            seen.extend(events.take());
            let of_node: Vec<_> = seen.iter().filter(|event| event.contains(&address)).collect();
            let texts = ["circuit breaker opened", "circuit breaker closed: the server owns no slots"];
            assert_eq!(
                of_node.len(),
                2,
                "{engine:?}: expected one event at the begin and one at the end: {seen:?}"
            );
            for (event, text) in of_node.iter().zip(texts) {
                assert!(event.contains(text), "{engine:?}: expected {text}: {event}");
            }
            // The other nodes may answer CLUSTERDOWN for a moment, which is an outage of theirs.
            let count = |text: &str| seen.iter().filter(|event| event.contains(text)).count();
            let (begun, ended) = (count("breaker opened"), count("breaker closed"));
            assert_eq!(
                (begun, begun + ended),
                (ended, seen.len()),
                "{engine:?}: expected pairs of events: {seen:?}"
            );
        }
        let breakers = limiter.stats().breakers;
        let is_closed =
            |breaker: &tower_sliding_window::outage::ServerBreaker| breaker.state == BreakerState::Closed;
        assert!(breakers.iter().all(is_closed), "{engine:?}: expected closed breakers: {breakers:?}");
    }
}
