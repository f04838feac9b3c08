//! Merged checks whose call fails as a whole, or whose server has changed: each check is decided as if it were alone.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    task::Poll,
    thread,
    time::Duration,
};

use redis::cmd;
use tokio::time::sleep;
use tower_sliding_window::{
    Limiter, PartitionKey, RedisBackend,
    backend::{Backend, Check, Pair, Purpose},
    outage::{Breaker, BreakerState},
    redis::{Merging, RedisServers},
};

use super::{
    admin::Admin,
    merging::{decided, hourly, in_mode, merging, one_unit, outcomes, script_calls, user},
    proxy::relay,
    resharding::{id, move_key, set_slot},
    rig::{HOUR, alice, check, policy, wait_until},
};
use crate::support::{
    cluster::{Cluster, OPTIONS, slot},
    server::{Engine, Server},
};

/// Starts a server in cluster mode that has all slots.
pub async fn one_node_cluster(engine: Engine) -> Server {
    let server = Server::with_options(engine, &OPTIONS);
    let slots: Vec<u16> = (0..16_384).collect();
    cmd("CLUSTER").arg("ADDSLOTS").arg(slots).exec(&mut server.connection()).unwrap();
    let is_ok = || {
        let info: String = cmd("CLUSTER").arg("INFO").query(&mut server.connection()).unwrap();
        info.contains("cluster_state:ok")
    };
    wait_until("the cluster is not ready", is_ok).await;
    server
}

/// Redis in cluster mode rejects a call with keys of several slots. A check of one key has none.
#[tokio::test]
async fn merged_checks_of_several_slots_are_decided() {
    for engine in Engine::ALL {
        let server = one_node_cluster(engine).await;
        let client = redis::Client::open(server.url()).unwrap();
        let connection = client.get_multiplexed_async_connection().await.unwrap();
        let servers = [
            // It is a mistake to give it a node of a cluster, which `connect` would report.
            RedisServers::single(server.url()),
            RedisServers::connection(connection.clone()),
            RedisServers::server_connection(connection),
        ];
        for (i, servers) in servers.into_iter().enumerate() {
            let backend = &RedisBackend::builder(servers).merging(Merging::On).lazy().unwrap();
            let all = || (0..20).map(|j| one_unit(backend, user(&format!("{i} {}", j % 10)))).collect();
            for outcome in outcomes(all()).await {
                assert!(outcome.unwrap().is_admitted(), "{engine:?} {i}");
            }
            // From now on, only checks of one slot share a call.
            let mut admin = Admin::at(&server);
            admin.query::<()>(&["CONFIG", "RESETSTAT"]);
            let decisions = outcomes(all()).await;
            assert!(decisions.into_iter().all(|outcome| outcome.unwrap().is_admitted()), "{engine:?} {i}");
            let calls = script_calls(&mut admin);
            assert!((10..=21).contains(&calls), "{engine:?} {i}: {calls}");
            assert_eq!(backend.unanswered_checks(), 0, "{engine:?} {i}");
        }
    }
}

/// Redis rejects a call if some of its keys have moved to another node. A check of one key has none of this.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn merged_checks_are_decided_while_slot_moves() {
    let cluster = Cluster::start(Engine::Redis);
    let servers = RedisServers::cluster([cluster.nodes[0].url()]);
    let backend = RedisBackend::builder(servers).merging(Merging::On).connect().await.unwrap();
    let slot_of_alice = slot(&alice());
    let bob = (0..).map(|i: u32| user(&i.to_string())).find(|bob| slot(bob) == slot_of_alice).unwrap();
    let owner = usize::from(slot_of_alice) * 3 / 16_384;
    let [from, to] = [owner, (owner + 1) % 3].map(|i| &cluster.primaries()[i]);
    for key in [alice(), bob.clone()] {
        let _ = one_unit(&backend, key).await.unwrap();
    }
    set_slot(to, slot_of_alice, &["IMPORTING", &id(from)]);
    set_slot(from, slot_of_alice, &["MIGRATING", &id(to)]);
    move_key(from, to, &backend.key_name("tsw", &alice(), &hourly()));
    let key = |i: u32| if i.is_multiple_of(2) { alice() } else { bob.clone() };
    for outcome in outcomes((0..12).map(|i| one_unit(&backend, key(i))).collect()).await {
        assert!(outcome.unwrap().is_admitted(), "a check of one key has a decision while its slot moves");
    }
    let left = |key: PartitionKey| {
        let peek = Check::new([Pair::new(key, hourly(), 0)]).unwrap().with_purpose(Purpose::Peek);
        let backend = &backend;
        async move { backend.check(&peek).await.unwrap().statuses()[0].remaining() }
    };
    assert_eq!([left(alice()).await, left(bob.clone()).await], [993, 993], "each check is charged once");
}

/// A server that has become a replica rejects only writes. The address leads to the new primary.
#[tokio::test]
async fn merged_checks_leave_demoted_server() {
    for engine in Engine::ALL {
        for mode in [Merging::Off, Merging::On] {
            let [old, new] = [(); 2].map(|()| Server::start(engine));
            let target = Arc::new(AtomicU16::new(old.port()));
            let port = relay(target.clone(), Duration::ZERO, |_| false).await;
            let backend = in_mode(&format!("redis://127.0.0.1:{port}/"), mode).await;
            let one = policy("one", 1, HOUR);
            let of_one = || check(std::slice::from_ref(&one), 1, Purpose::Charge);
            assert!(
                backend.check(&of_one()).await.unwrap().is_admitted(),
                "{engine:?} {mode:?}: the only unit"
            );
            // A connection that is new is kept for a moment.
            sleep(Duration::from_millis(100)).await;
            Admin::at(&old).query::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
            target.store(new.port(), Ordering::SeqCst);
            // The first check is a call of its own, which is denied and writes nothing.
            let mut checks = vec![decided(&backend, of_one())];
            checks.extend((0..10).map(|i| one_unit(&backend, user(&i.to_string()))));
            let outcomes = outcomes(checks).await;
            assert!(!outcomes[0].as_ref().unwrap().is_admitted(), "{engine:?} {mode:?}");
            for outcome in &outcomes[1..] {
                assert!(outcome.as_ref().unwrap().is_admitted(), "{engine:?} {mode:?}");
            }
        }
    }
}

/// The call that is open was started before the breaker has opened. So its outcome does not count.
#[tokio::test]
async fn probe_joins_no_open_call() {
    const DEADLINE: Duration = Duration::from_millis(500);
    let server = Server::start(Engine::Redis);
    let breaker = Breaker::new(1, Duration::from_millis(1));
    let builder = Limiter::builder(merging(&server.url()).await).policy(hourly()).breaker(breaker);
    let limiter = builder.deadline(DEADLINE).deny_cache(None).build().unwrap();
    let _ = limiter.check(alice()).await.unwrap();
    // A server that has answered within the last deadline is not silent.
    sleep(2 * DEADLINE).await;
    server.signal(libc::SIGSTOP);
    let mut failed = Box::pin(limiter.check(alice()));
    let is_pending = poll_fn(|context| Poll::Ready(failed.as_mut().poll(context).is_pending())).await;
    assert!(is_pending, "the server hangs");
    // The deadline of the check passes, but the check is not polled.
    sleep(2 * DEADLINE).await;
    server.signal(libc::SIGCONT);
    // No other task runs between these three.
    let (mut before, mut probe) = (pin!(limiter.check(alice())), pin!(limiter.check(alice())));
    poll_fn(|context| {
        assert!(before.as_mut().poll(context).is_pending(), "the check waits for a call");
        // After its deadline, a check is polled a few times more.
        assert!(
            (0..10).any(|_| failed.as_mut().poll(context).is_ready()),
            "the deadline of the check has passed"
        );
        assert_eq!(limiter.stats().breakers[0].state, BreakerState::Open, "the failure opens the breaker");
        // The breaker is open for a millisecond.
        thread::sleep(Duration::from_millis(5));
        assert!(probe.as_mut().poll(context).is_pending(), "the probe waits for a call of its own");
        Poll::Ready(())
    })
    .await;
    let (before, probe) = tokio::join!(before, probe);
    assert!(before.unwrap().is_admitted() && probe.unwrap().is_admitted(), "the server answers both");
    assert_eq!(limiter.stats().breakers[0].state, BreakerState::Closed, "the probe closes the breaker");
}
