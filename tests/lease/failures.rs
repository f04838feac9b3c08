//! Lease requests without an answer, dropped callers, outages, and replies that come too late.

use tokio::time::{advance, sleep, timeout};
use tower_sliding_window::backend::{Purpose, Reason};

use super::store::{Fault, Store};
use super::{MILLISECOND, PRECISION, SECOND, alice, builder, check, checks, leased, limiter, next_bucket};

#[tokio::test(start_paused = true)]
async fn unanswered_request_leases_nothing_for_a_second() {
    let store = Store::new();
    let limiter = builder(&store, leased(1_000, 50)).deadline(10 * MILLISECOND).build().unwrap();
    checks(&limiter, 4).await;
    next_bucket(&store).await;
    store.fail([Fault::LostReply]);
    let error = limiter.check(alice(), 1).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Timeout);
    let lost = store.take_asked().last().unwrap().1;
    assert!(lost > 0);
    assert_eq!(limiter.stats().leased_units_lost, u64::from(lost));
    assert_eq!(checks(&limiter, 20).await, 0);
    advance(SECOND).await;
    assert!(checks(&limiter, 20).await > 0);
}

#[tokio::test(start_paused = true)]
async fn request_that_was_not_run_loses_nothing() {
    let store = Store::new();
    let limiter = limiter(&store, leased(1_000, 50));
    checks(&limiter, 4).await;
    next_bucket(&store).await;
    store.fail([Fault::Refused]);
    assert_eq!(limiter.check(alice(), 1).await.unwrap_err().reason(), Reason::Busy);
    assert_eq!(limiter.stats().leased_units_lost, 0);
    assert_eq!(checks(&limiter, 20).await, 0);
}

#[tokio::test(start_paused = true)]
async fn dropped_caller_does_not_drop_its_lease() {
    let store = Store::new().with_latency(MILLISECOND, 4 * MILLISECOND);
    let limiter = limiter(&store, leased(1_000, 50));
    checks(&limiter, 1).await;
    assert!(timeout(2 * MILLISECOND, check(&limiter)).await.is_err());
    assert_eq!(store.take_asked().last(), Some(&(Purpose::Lease, 1)));
    // Meanwhile, the store decides.
    assert!(!check(&limiter).await.is_leased());
    assert!(check(&limiter).await.is_leased());
    assert_eq!(limiter.stats().leased_units_lost, 0);
    // A request that was never polled does not block the next one.
    drop(limiter.check(alice(), 1));
    check(&limiter).await;
    assert_eq!(store.take_asked().last().map(|asked| asked.0), Some(Purpose::Lease));
}

#[tokio::test(start_paused = true)]
async fn one_request_per_pair_is_in_flight() {
    let store = Store::new().with_latency(MILLISECOND, MILLISECOND);
    let limiter = limiter(&store, leased(1_000, 50));
    checks(&limiter, 5).await;
    next_bucket(&store).await;
    store.take_asked();
    let (a, b, c) = tokio::join!(check(&limiter), check(&limiter), check(&limiter));
    assert!([a, b, c].iter().all(|decision| decision.is_admitted() && !decision.is_leased()));
    let purposes: Vec<_> = store.take_asked().into_iter().map(|(purpose, _)| purpose).collect();
    assert_eq!(purposes, [Purpose::Lease, Purpose::Charge, Purpose::Charge]);
}

#[tokio::test(start_paused = true)]
async fn lease_outlives_outage_until_its_bucket_ends() {
    let store = Store::new();
    let limiter = builder(&store, leased(1_000, 50)).breaker(None).build().unwrap();
    checks(&limiter, 20).await;
    next_bucket(&store).await;
    assert_eq!(checks(&limiter, 2).await, 1);
    store.fail([Fault::Refused; 100]);
    assert_eq!(checks(&limiter, 10).await, 10);
    sleep(PRECISION).await;
    limiter.check(alice(), 1).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn slow_replies_lease_nothing_and_return_units() {
    // A round trip takes longer than a bucket.
    let store = Store::new().with_latency(MILLISECOND, 150 * MILLISECOND);
    let limiter = limiter(&store, leased(1_000, 50));
    let mut requests = 0;
    for _ in 0..20 {
        let (a, b, c) = tokio::join!(check(&limiter), check(&limiter), check(&limiter));
        assert!(![a, b, c].iter().any(|decision| decision.is_leased()));
        requests += store.take_asked().iter().filter(|(purpose, _)| *purpose == Purpose::Lease).count();
    }
    // Three seconds: at most one request in each of them.
    assert!((1..=4).contains(&requests), "{requests}");
    limiter.drain().await;
    let stats = limiter.stats();
    assert!(stats.leased_units > 0);
    assert_eq!(stats.leased_units, stats.leased_units_returned);
}
