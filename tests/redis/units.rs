//! Units by hand on a real server: as many as fit, and units beyond the quota.

use tower_sliding_window::{
    Limiter, OutageRule, PartitionKey, RedisBackend, Rejection,
    backend::{Pair, Reason},
    outage::Share,
    redis::RedisServers,
    settle::Settled,
};

use super::rig::{
    HOUR, LONG_DEADLINE, LONG_WINDOW, alice, backend, concurrently, every_type, limiter, policy, remaining,
};
use crate::support::{
    cluster::Cluster,
    server::{Engine, Server},
};

#[tokio::test]
async fn concurrent_takes_share_quota_of_every_type() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        for policy in every_type(1_000, LONG_WINDOW) {
            let name = policy.name().to_owned();
            let limiter = limiter(backend(&server).await, [policy]);
            let takes = (0..40).map(|n| {
                let limiter = limiter.clone();
                async move { limiter.take_up_to((alice(), 3), 7 + n % 5).await.map(|(units, _)| units) }
            });
            let taken: Vec<u32> = concurrently(takes).await.into_iter().filter_map(Result::ok).collect();
            // The quota has room for 333 units of 3.
            assert_eq!(taken.iter().sum::<u32>(), 333, "{engine:?}, {name}: {taken:?}");
            assert!(matches!(limiter.take_up_to((alice(), 3), 1).await, Err(Rejection::Denied(_))));
            let debited = limiter.debit((alice(), 500)).await.unwrap();
            assert_eq!(remaining(&limiter).await, 0);
            assert!(matches!(debited.settle(0).await, Settled::Done { .. }));
            // The capacity of a token bucket returns all the time.
            assert!(
                (1..3).contains(&remaining(&limiter).await),
                "{engine:?}, {name}: all units are refunded"
            );
        }
    }
}

#[tokio::test]
async fn take_in_several_slots_is_an_error_and_charges_nothing() {
    let cluster = Cluster::start(Engine::Redis);
    let servers = RedisServers::cluster([cluster.nodes[0].url()]);
    let backend = RedisBackend::builder(servers).connect().await.unwrap();
    let share = OutageRule::LocalFallback(Share::among(1).unwrap());
    for rule in [OutageRule::FailClosed, OutageRule::FailOpen, share] {
        let builder = Limiter::builder(backend.clone()).without_policies().deadline(LONG_DEADLINE);
        let limiter = builder.outage(rule).build().unwrap();
        let pair = |name: &str| Pair::new(PartitionKey::new("user", name), policy("p", 10, HOUR), 1);
        let both = || [pair("a"), pair("b")];
        let rejected = limiter.take_up_to(both(), 5).await;
        let Err(Rejection::Unavailable(error)) = rejected else { panic!("{rejected:?}") };
        assert_eq!(error.reason(), Reason::CrossSlot);
        let left = |decision: tower_sliding_window::Decision| decision.statuses()[0].remaining();
        for name in ["a", "b"] {
            assert_eq!(left(limiter.peek([pair(name)]).await.unwrap()), 9, "nothing was charged");
        }
        let (units, taken) = limiter.take_up_to([pair("a")], 50).await.unwrap();
        assert_eq!(units, 10, "one slot takes units");
        taken.settle(0).await;
        // A debit charges each slot, and its receipts refund each.
        let debited = limiter.debit(both()).await.unwrap();
        assert_eq!(left(limiter.peek([pair("b")]).await.unwrap()), 8);
        assert!(matches!(debited.settle(0).await, Settled::Done { .. }));
        assert_eq!(left(limiter.peek([pair("b")]).await.unwrap()), 9);
    }
}
