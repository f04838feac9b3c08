//! The deny cache on real servers.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_sliding_window::{
    Limiter, LimiterBuilder, PartitionKey, Policies, Policy, RedisBackend, Wait, backend::Pair,
    outage::DenyCacheConfig, redis::RedisServers,
};

use super::{
    admin::Admin,
    rig::{HOUR, LONG_DEADLINE, alice, backend, concurrently, idle, policy, with_manual_clock},
};
use crate::support::{
    cluster::Cluster,
    server::{Engine, Server},
};

const SECOND: Duration = Duration::from_secs(1);
const CACHE: DenyCacheConfig = DenyCacheConfig::new(Duration::from_secs(60), 100);

async fn builder(server: &Server, policy: Policy) -> LimiterBuilder {
    Limiter::builder(backend(server).await).deadline(LONG_DEADLINE).policy(policy)
}

/// Returns how many scripts the server has received.
fn scripts(admin: &mut Admin) -> u64 {
    admin.calls("evalsha").all + admin.calls("eval").all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_denials_send_one_command_per_max_age() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = builder(&server, policy("hourly", 5, HOUR)).await.deny_cache(CACHE).build().unwrap();
        assert!(limiter.check((alice(), 5)).await.unwrap().is_admitted(), "{engine:?}: the whole quota fits");
        let mut admin = Admin::at(&server);
        admin.query::<()>(&["CONFIG", "RESETSTAT"]);
        assert!(!limiter.check(alice()).await.unwrap().is_cached(), "{engine:?}: the server denies first");
        let clients = (0..8).map(|_| {
            let limiter = limiter.clone();
            async move {
                for _ in 0..1_250 {
                    assert!(
                        limiter.check(alice()).await.unwrap().is_cached(),
                        "the cache denies until its maximum age"
                    );
                }
            }
        });
        concurrently(clients).await;
        assert_eq!(scripts(&mut admin), 1, "{engine:?}");
    }
}

#[tokio::test]
async fn default_deny_cache_refreshes_about_every_second() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = builder(&server, policy("hourly", 5, HOUR)).await.build().unwrap();
        assert!(limiter.check((alice(), 5)).await.unwrap().is_admitted(), "{engine:?}: the whole quota fits");
        let mut admin = Admin::at(&server);
        admin.query::<()>(&["CONFIG", "RESETSTAT"]);
        let start = Instant::now();
        for _ in 0..100 {
            for _ in 0..100 {
                assert!(
                    !limiter.check(alice()).await.unwrap().is_admitted(),
                    "{engine:?}: the quota is used"
                );
            }
            // The denials last for two seconds, so that the cache refreshes them.
            sleep(Duration::from_millis(20)).await;
        }
        let max = 1 + start.elapsed().as_millis() / (SECOND * 7 / 8).as_millis();
        let sent = scripts(&mut admin);
        assert!((2..=max).contains(&u128::from(sent)), "{engine:?}: {sent} of {max}");
    }
}

#[tokio::test]
async fn client_is_admitted_after_its_retry_after() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = builder(&server, policy("p", 1, SECOND * 3 / 10)).await.build().unwrap();
        assert!(limiter.check(alice()).await.unwrap().is_admitted(), "{engine:?}: the only unit");
        let mut hits = 0;
        for attempt in 0.. {
            let decision = limiter.check(alice()).await.unwrap();
            let Wait::For(wait) = decision.retry_after() else { panic!("{decision:?}") };
            if decision.is_admitted() {
                break;
            }
            hits += usize::from(decision.is_cached());
            // The wait of a cache hit may be short by a round trip, so another attempt may be necessary.
            assert!(attempt < 4, "{engine:?}: {decision:?}");
            // The client waits as it was told.
            sleep(if attempt == 0 { wait / 10 } else { wait }).await;
        }
        assert!(hits < 2, "{engine:?}: a client that waits meets at most one hit, not {hits}");
    }
}

#[tokio::test]
async fn settlement_and_reset_invalidate_deny_cache() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = builder(&server, policy("hourly", 10, HOUR)).await.deny_cache(CACHE).build().unwrap();
        let reservation = limiter.reserve((alice(), 10)).await.unwrap();
        for is_cached in [false, true] {
            assert_eq!(limiter.check(alice()).await.unwrap().is_cached(), is_cached, "{engine:?}");
        }
        reservation.settle(4).await;
        assert!(limiter.check((alice(), 6)).await.unwrap().is_admitted(), "{engine:?}");
        assert!(!limiter.check(alice()).await.unwrap().is_admitted(), "{engine:?}: the quota is used again");
        limiter.reset(alice()).await.unwrap();
        assert!(limiter.check((alice(), 10)).await.unwrap().is_admitted(), "{engine:?}");
    }
}

#[tokio::test]
async fn deny_cache_notices_lost_server_data() {
    let server = Server::start(Engine::Redis);
    let cache = DenyCacheConfig::new(SECOND / 5, CACHE.max_entries);
    let limiter = builder(&server, policy("hourly", 10, HOUR)).await.deny_cache(cache).build().unwrap();
    assert!(limiter.check((alice(), 10)).await.unwrap().is_admitted(), "the whole quota fits");
    assert!(!limiter.check(alice()).await.unwrap().is_admitted(), "the quota is used");
    Admin::at(&server).query::<()>(&["FLUSHALL"]);
    while !limiter.check(alice()).await.unwrap().is_admitted() {
        // The cache answers at once, and would leave no time for the refresh.
        sleep(SECOND / 100).await;
    }
    assert!(limiter.check((alice(), 9)).await.unwrap().is_admitted(), "the server has lost all other usage");
}

#[tokio::test]
async fn deny_cache_answers_during_outage() {
    for engine in Engine::ALL {
        let mut server = Server::start(engine);
        let limiter = builder(&server, policy("hourly", 10, HOUR)).await.deny_cache(CACHE).build().unwrap();
        assert!(
            limiter.check((alice(), 10)).await.unwrap().is_admitted(),
            "{engine:?}: the whole quota fits"
        );
        assert!(!limiter.check(alice()).await.unwrap().is_admitted(), "{engine:?}: the quota is used");
        server.kill();
        idle().await;
        for _ in 0..10 {
            limiter.check(PartitionKey::new("user", "bob")).await.unwrap_err();
            assert!(limiter.check(alice()).await.unwrap().is_cached(), "{engine:?}");
        }
    }
}

#[tokio::test]
async fn injected_clock_disables_deny_cache() {
    let server = Server::start(Engine::Redis);
    let (backend, clock) = with_manual_clock(&server).await;
    let builder = Limiter::builder(backend).policy(policy("p", 1, SECOND));
    let limiter = builder.deadline(LONG_DEADLINE).build().unwrap();
    assert!(limiter.check(alice()).await.unwrap().is_admitted(), "the only unit");
    assert!(!limiter.check(alice()).await.unwrap().is_admitted(), "the quota is used");
    clock.advance(SECOND);
    assert!(
        limiter.check(alice()).await.unwrap().is_admitted(),
        "the unit has left the window of the injected clock"
    );
}

#[tokio::test]
async fn denials_across_slots_hit_deny_cache() {
    let cluster = Cluster::start(Engine::Redis);
    let backend = RedisBackend::builder(RedisServers::connection(cluster.connection().await)).lazy().unwrap();
    let builder = Limiter::builder(backend).deadline(LONG_DEADLINE).without_policies().deny_cache(CACHE);
    let limiter = builder.build().unwrap();
    // The slots of these keys are on different nodes.
    let (user, address) = (PartitionKey::new("user", "alice"), PartitionKey::new("peer-ip", "192.0.2.1"));
    let three = Policies::from(policy("three", 3, HOUR));
    let pairs = |key| three.pairs(key, 1);
    let both = || [pairs(&user), pairs(&address)].concat();
    let check = async |pairs: Vec<Pair>| limiter.check(pairs).await.unwrap();
    for _ in 0..2 {
        assert!(check(both()).await.is_admitted(), "two of three units of both keys");
    }
    // Only the user is over its limit.
    assert!(check(pairs(&user)).await.is_admitted(), "the last unit of the user");
    for is_cached in [false, true, true] {
        let denied = check(both()).await;
        assert_eq!((denied.is_admitted(), denied.is_cached()), (false, is_cached), "{denied:?}");
    }
    // A cached denial of one pair denies every check that contains the pair. The other pair has none, and its charge was rolled back.
    limiter.drain().await;
    assert!(check(pairs(&user)).await.is_cached(), "the user's denial is cached");
    assert!(check(pairs(&address)).await.is_admitted(), "the address has a unit left");
    limiter.reset(both()).await.unwrap();
    assert!(check(both()).await.is_admitted(), "the reset invalidates the denials");
}
