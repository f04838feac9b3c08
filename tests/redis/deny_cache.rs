//! Denials that are known without asking, on real servers.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_sliding_window::{
    Limiter, LimiterBuilder, PartitionKey, Policies, Policy, RedisBackend, Wait, backend::Pair,
    outage::DenyCache,
};

use super::{
    look::Look,
    rig::{HOUR, UNHURRIED, alice, at_once, backend, clocked, idle, policy},
};
use crate::support::{
    cluster::Cluster,
    server::{Engine, Server},
};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: DenyCache = DenyCache { max_age: Duration::from_secs(60), max_entries: 100 };

async fn builder(server: &Server, policy: Policy) -> LimiterBuilder {
    Limiter::builder(backend(server).await).deadline(UNHURRIED).policy(policy)
}

/// How many scripts the server was sent.
fn scripts(look: &mut Look) -> u64 {
    look.calls("evalsha").all + look.calls("eval").all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_refusals_cost_the_server_one_command_in_a_maximum_age() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = builder(&server, policy("hourly", 5, HOUR)).await.deny_cache(MINUTE).build().unwrap();
        assert!(limiter.check(alice(), 5).await.unwrap().is_admitted());
        let mut look = Look::at(&server);
        look.ask::<()>(&["CONFIG", "RESETSTAT"]);
        assert!(!limiter.check(alice(), 1).await.unwrap().is_cached());
        let clients = (0..8).map(|_| {
            let limiter = limiter.clone();
            async move {
                for _ in 0..1_250 {
                    assert!(limiter.check(alice(), 1).await.unwrap().is_cached());
                }
            }
        });
        at_once(clients).await;
        assert_eq!(scripts(&mut look), 1, "{engine:?}");
    }
}

#[tokio::test]
async fn by_default_the_server_is_asked_about_once_in_a_second() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = builder(&server, policy("hourly", 5, HOUR)).await.build().unwrap();
        assert!(limiter.check(alice(), 5).await.unwrap().is_admitted());
        let mut look = Look::at(&server);
        look.ask::<()>(&["CONFIG", "RESETSTAT"]);
        let start = Instant::now();
        for _ in 0..100 {
            for _ in 0..100 {
                assert!(!limiter.check(alice(), 1).await.unwrap().is_admitted());
            }
            sleep(Duration::from_millis(20)).await;
        }
        let most = 1 + start.elapsed().as_millis() / (SECOND * 7 / 8).as_millis();
        let asked = scripts(&mut look);
        assert!((2..=most).contains(&u128::from(asked)), "{engine:?}: {asked} of {most}");
    }
}

#[tokio::test]
async fn whoever_waits_as_told_is_admitted() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = builder(&server, policy("p", 1, SECOND * 3 / 10)).await.build().unwrap();
        assert!(limiter.check(alice(), 1).await.unwrap().is_admitted());
        let mut repeated = 0;
        for asked in 0.. {
            let decision = limiter.check(alice(), 1).await.unwrap();
            let Wait::For(wait) = decision.retry_after() else { panic!("{decision:?}") };
            if decision.is_admitted() {
                break;
            }
            repeated += usize::from(decision.is_cached());
            // What is repeated may be short by a round trip, so once more is asked.
            assert!(asked < 4, "{engine:?}: {decision:?}");
            sleep(if asked == 0 { wait / 10 } else { wait }).await;
        }
        assert!(repeated < 2);
    }
}

#[tokio::test]
async fn what_is_settled_and_what_is_reset_is_asked_for_again() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = builder(&server, policy("hourly", 10, HOUR)).await.deny_cache(MINUTE).build().unwrap();
        let reservation = limiter.reserve(alice(), 10).await.unwrap();
        for is_cached in [false, true] {
            assert_eq!(limiter.check(alice(), 1).await.unwrap().is_cached(), is_cached, "{engine:?}");
        }
        reservation.settle(4).await;
        assert!(limiter.check(alice(), 6).await.unwrap().is_admitted(), "{engine:?}");
        assert!(!limiter.check(alice(), 1).await.unwrap().is_admitted());
        limiter.reset(alice()).await.unwrap();
        assert!(limiter.check(alice(), 10).await.unwrap().is_admitted(), "{engine:?}");
    }
}

#[tokio::test]
async fn what_the_server_has_lost_is_noticed() {
    let server = Server::start(Engine::Redis);
    let cache = DenyCache { max_age: SECOND / 5, ..MINUTE };
    let limiter = builder(&server, policy("hourly", 10, HOUR)).await.deny_cache(cache).build().unwrap();
    assert!(limiter.check(alice(), 10).await.unwrap().is_admitted());
    assert!(!limiter.check(alice(), 1).await.unwrap().is_admitted());
    Look::at(&server).ask::<()>(&["FLUSHALL"]);
    while !limiter.check(alice(), 1).await.unwrap().is_admitted() {
        sleep(SECOND / 100).await;
    }
    assert!(limiter.check(alice(), 9).await.unwrap().is_admitted());
}

#[tokio::test]
async fn while_the_server_is_down_what_is_known_is_denied_and_what_is_not_is_an_outage() {
    for engine in Engine::ALL {
        let mut server = Server::start(engine);
        let limiter = builder(&server, policy("hourly", 10, HOUR)).await.deny_cache(MINUTE).build().unwrap();
        assert!(limiter.check(alice(), 10).await.unwrap().is_admitted());
        assert!(!limiter.check(alice(), 1).await.unwrap().is_admitted());
        server.kill();
        idle().await;
        for _ in 0..10 {
            limiter.check(PartitionKey::new("user", "bob"), 1).await.unwrap_err();
            assert!(limiter.check(alice(), 1).await.unwrap().is_cached(), "{engine:?}");
        }
    }
}

#[tokio::test]
async fn on_a_clock_that_is_moved_nothing_is_known_without_asking() {
    let server = Server::start(Engine::Redis);
    let (backend, clock) = clocked(&server).await;
    let limiter = Limiter::builder(backend).policy(policy("p", 1, SECOND)).build().unwrap();
    assert!(limiter.check(alice(), 1).await.unwrap().is_admitted());
    assert!(!limiter.check(alice(), 1).await.unwrap().is_admitted());
    clock.advance(SECOND);
    assert!(limiter.check(alice(), 1).await.unwrap().is_admitted());
}

#[tokio::test]
async fn in_a_cluster_what_several_slots_deny_is_asked_for_every_time_and_what_one_denies_is_not() {
    let cluster = Cluster::start(Engine::Redis);
    let backend = RedisBackend::from_connection(cluster.connection().await);
    let builder = Limiter::builder(backend).deadline(UNHURRIED).without_policies().deny_cache(MINUTE);
    let limiter = builder.build().unwrap();
    // The slots of these are on different nodes.
    let (user, address) = (PartitionKey::new("user", "alice"), PartitionKey::new("peer-ip", "192.0.2.2"));
    let two = Policies::from(policy("two", 2, HOUR));
    let pairs = |key| two.pairs(key, 1);
    let both = || [pairs(&user), pairs(&address)].concat();
    let check = async |pairs: Vec<Pair>| limiter.check_pairs(pairs).unwrap().await.unwrap();
    for _ in 0..2 {
        assert!(check(both()).await.is_admitted());
    }
    for _ in 0..3 {
        let denied = check(both()).await;
        assert!(!denied.is_admitted() && !denied.is_cached(), "{denied:?}");
    }
    for is_cached in [false, true, true] {
        let denied = check(pairs(&user)).await;
        assert_eq!((denied.is_admitted(), denied.is_cached()), (false, is_cached));
    }
    // A pair that is known to deny denies whatever it is asked with.
    assert!(check(both()).await.is_cached());
    limiter.reset_pairs(both()).unwrap().await.unwrap();
    assert!(check(both()).await.is_admitted());
}
