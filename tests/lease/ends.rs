//! When a lease ends: with its bucket, when it is idle, after a reset, and with another quota.

use std::time::Duration;

use tokio::time::{advance, sleep, timeout};
use tower_sliding_window::{
    PartitionKey, Policy,
    backend::{Pair, Purpose},
    settle::Settled,
};

use super::store::Store;
use super::{
    MICROSECOND, MILLISECOND, PRECISION, SECOND, alice, buckets, builder, check, checks, leased, limiter,
    next_bucket, remaining,
};

/// The request takes 2 ms and the reply 3 ms. The script runs 3 ms after the beginning of the bucket.
async fn lease_in_new_bucket(store: &Store, limiter: &tower_sliding_window::Limiter) {
    next_bucket(store).await;
    advance(MILLISECOND).await;
    assert_eq!(checks(limiter, 1).await, 0);
}

#[tokio::test(start_paused = true)]
async fn lease_ends_before_its_bucket() {
    for drift in [-500, 0, 500] {
        let store = Store::new().with_latency(Duration::ZERO, 3 * MILLISECOND).with_drift(drift);
        let limiter = limiter(&store, leased(10_000, 1_000));
        next_bucket(&store).await;
        checks(&limiter, 600).await;
        lease_in_new_bucket(&store, &limiter).await;
        let end = store.now_micros() / 100_000 * 100_000 + 100_000;
        advance(Duration::from_micros(end - store.now_micros() - 500)).await;
        let mut last = 0;
        while check(&limiter).await.is_leased() {
            last = store.now_micros();
            advance(10 * MICROSECOND).await;
        }
        // Earlier by the allowance for drift in both directions, and the steps of the test.
        assert!(
            last < end && end - last <= 98 + 20,
            "drift {drift}: the last grant at {last}, the end at {end}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn lease_ends_at_exact_instant() {
    let store = Store::new().with_latency(2 * MILLISECOND, 3 * MILLISECOND);
    let limiter = limiter(&store, leased(10_000, 1_000));
    checks(&limiter, 10).await;
    lease_in_new_bucket(&store, &limiter).await;
    // The script ran 3 ms after the beginning of the bucket, 2 ms after the request. Of the 97,000 us that were left, 49 us are the
    // allowance for drift, and one is the instant of the end itself. The reply came 5 ms after the request.
    advance(Duration::from_micros(97_000 - 49 - 1 - 5_000)).await;
    assert!(check(&limiter).await.is_leased());
    advance(MICROSECOND).await;
    assert!(!check(&limiter).await.is_leased());
}

/// The units that were leased before a forward step may exceed the quota. Those that are leased after it must not.
#[tokio::test(start_paused = true)]
async fn clock_step_ends_lease_that_grows_in_its_bucket() {
    let store = Store::new().with_latency(Duration::ZERO, 3 * MILLISECOND);
    let limiter = limiter(&store, leased(10_000, 40));
    checks(&limiter, 100).await;
    lease_in_new_bucket(&store, &limiter).await;
    assert_eq!(checks(&limiter, 40).await, 40);
    store.shift_clock(50_000);
    store.take_asked();
    assert_eq!(checks(&limiter, 1).await, 0);
    assert_eq!(store.take_asked(), [(Purpose::Lease, 40)], "more units of the same bucket");
    let end = store.now_micros() / 100_000 * 100_000 + 100_000;
    advance(Duration::from_micros(end - store.now_micros() - 500)).await;
    assert!(check(&limiter).await.is_leased());
    advance(Duration::from_micros(500)).await;
    assert!(!check(&limiter).await.is_leased(), "the bucket has ended at {end}");
}

#[tokio::test(start_paused = true)]
async fn leftover_units_are_returned_once() {
    let store = Store::new();
    let limiter = limiter(&store, leased(1_000, 50));
    // Two leases: 1 unit, and 3 units of which 2 are left.
    assert_eq!(checks(&limiter, 5).await, 2);
    assert_eq!(remaining(&limiter).await, 993);
    next_bucket(&store).await;
    sleep(2 * MILLISECOND).await;
    assert_eq!(store.take_refunds(), [2]);
    // They are returned at their own place.
    assert_eq!(remaining(&limiter).await, 995);
    sleep(2 * SECOND).await;
    assert_eq!(store.take_refunds(), [0_u32; 0]);
    let stats = limiter.stats();
    assert_eq!((stats.leased_units_returned, stats.leased_units_lost, stats.settlements), (2, 0, 0));
    assert_eq!(stats.leased_units, stats.leased_units_granted + stats.leased_units_returned);
}

#[tokio::test(start_paused = true)]
async fn idle_lease_is_returned_after_a_second() {
    let store = Store::new();
    let minute = 60 * SECOND;
    let policy =
        buckets(1_000, 60 * minute, minute).leased(tower_sliding_window::policy::Lease::up_to(50)).unwrap();
    let limiter = limiter(&store, policy);
    // The last lease has seven units, of which three are left.
    assert_eq!(checks(&limiter, 12).await, 8);
    for _ in 0..2 {
        // A grant in less than a second keeps the lease.
        sleep(900 * MILLISECOND).await;
        assert_eq!(checks(&limiter, 1).await, 1);
    }
    sleep(990 * MILLISECOND).await;
    assert_eq!(store.take_refunds(), [0_u32; 0]);
    sleep(12 * MILLISECOND).await;
    assert_eq!(store.take_refunds(), [1]);
    assert_eq!(remaining(&limiter).await, 1_000 - 14);
}

/// The store has lost its data, so a request in the same bucket begins another lease.
#[tokio::test(start_paused = true)]
async fn lease_that_is_replaced_is_returned() {
    let store = Store::new();
    let limiter = limiter(&store, leased(1_000, 50));
    // Two units are left.
    checks(&limiter, 5).await;
    store.lose(Pair::new(alice(), leased(1_000, 50), 1)).await;
    store.take_asked();
    assert!(!limiter.check((alice(), 4)).await.unwrap().is_leased());
    assert!(matches!(store.take_asked()[..], [(Purpose::Lease, 1..)]));
    sleep(2 * MILLISECOND).await;
    assert_eq!(store.take_refunds(), [2]);
    assert_eq!(limiter.stats().leased_units_returned, 2);
    assert!(check(&limiter).await.is_leased(), "the other lease is kept");
}

#[tokio::test(start_paused = true)]
async fn drain_returns_all_leases() {
    let store = Store::new();
    let limiter = limiter(&store, leased(1_000, 50));
    checks(&limiter, 5).await;
    limiter.drain().await;
    assert_eq!(store.take_refunds(), [2]);
    assert_eq!(remaining(&limiter).await, 995);
}

#[tokio::test(start_paused = true)]
async fn reset_ends_lease_at_once() {
    let store = Store::new();
    let limiter = limiter(&store, leased(1_000, 50));
    checks(&limiter, 5).await;
    limiter.reset(alice()).await.unwrap();
    assert!(!check(&limiter).await.is_leased());
    // The units of the old lease are not returned to the new record.
    assert_eq!(remaining(&limiter).await, 999);
}

#[tokio::test(start_paused = true)]
async fn reset_ends_leases_of_all_limiters_of_process() {
    let store = Store::new().with_name("ends of leases");
    let [first, second] = [(); 2].map(|()| limiter(&store, leased(1_000, 50)));
    let elsewhere = builder(&store, leased(1_000, 50)).namespace("elsewhere").build().unwrap();
    // Each holds two units.
    for limiter in [&first, &second, &elsewhere] {
        checks(limiter, 5).await;
    }
    first.reset(alice()).await.unwrap();
    assert!(!check(&second).await.is_leased());
    assert_eq!(remaining(&second).await, 999);
    assert!(check(&elsewhere).await.is_leased(), "another namespace has leases of its own");
}

#[tokio::test(start_paused = true)]
async fn reset_ends_lease_that_is_requested() {
    let store = Store::new().with_latency(MILLISECOND, 8 * MILLISECOND);
    let limiter = limiter(&store, leased(1_000, 50));
    checks(&limiter, 1).await;
    // The script of the lease runs before the reset, and its reply comes after it.
    let (decision, reset) = tokio::join!(check(&limiter), async {
        sleep(2 * MILLISECOND).await;
        limiter.reset(alice()).await
    });
    reset.unwrap();
    assert!(decision.is_admitted());
    assert_eq!(limiter.stats().leased_units, 1);
    assert!(!check(&limiter).await.is_leased());
}

#[tokio::test(start_paused = true)]
async fn changed_quota_ends_lease_at_once() {
    let store = Store::new();
    let limiter = limiter(&store, leased(1_000, 50));
    checks(&limiter, 5).await;
    let of = |policy: &Policy| [Pair::new(alice(), policy.clone(), 1)];
    let lower = leased(6, 50);
    // Five units are used, and two are leased, which come back.
    let decision = limiter.check(of(&lower)).await.unwrap();
    assert!(!decision.is_leased());
    sleep(2 * MILLISECOND).await;
    assert_eq!(store.take_refunds(), [2]);
    assert!(limiter.check(of(&lower)).await.unwrap().is_admitted());
    assert!(!limiter.check(of(&lower)).await.unwrap().is_admitted());
    assert!(PRECISION > 4 * MILLISECOND, "all of this is in one bucket");
}

#[tokio::test(start_paused = true)]
async fn checks_lease_under_changed_quota() {
    for quota in [500, 2_000] {
        let store = Store::new();
        let limiter = limiter(&store, leased(1_000, 50));
        checks(&limiter, 5).await;
        let mut are_leased = Vec::new();
        for _ in 0..4 {
            let pair = Pair::new(alice(), leased(quota, 50), 1);
            are_leased.push(limiter.check([pair]).await.unwrap().is_leased());
        }
        // The first check learns what remains of the changed quota, and the second one asks for a lease.
        assert_eq!(are_leased, [false, false, true, true], "{quota}");
    }
}

#[tokio::test(start_paused = true)]
async fn lower_quota_rejects_lease_of_higher_quota() {
    let store = Store::new();
    let [first, second] = [(); 2].map(|()| limiter(&store, leased(1_000, 50)));
    let (high, low) = (leased(1_000, 50), leased(40, 50));
    let of = |policy: &Policy, cost| [Pair::new(alice(), policy.clone(), cost)];
    checks(&first, 8).await;
    assert_eq!(checks(&first, 2).await, 2);
    // This check begins, and asks the store after the quota is lower and another process has used some of it.
    let earlier = first.check(of(&high, 50));
    assert!(first.check(of(&low, 1)).await.unwrap().is_admitted());
    sleep(2 * MILLISECOND).await;
    let left = first.peek(of(&low, 0)).await.unwrap().statuses()[0].remaining();
    let _ = second.check(of(&low, left)).await.unwrap();
    assert!(earlier.await.unwrap().is_admitted());
    assert!(!first.check(of(&low, 1)).await.unwrap().is_admitted());
}

#[tokio::test(start_paused = true)]
async fn changed_bound_limits_next_lease() {
    let store = Store::new();
    let limiter = limiter(&store, leased(10_000, 50));
    checks(&limiter, 200).await;
    next_bucket(&store).await;
    store.take_asked();
    let lower = || [Pair::new(alice(), leased(10_000, 2), 1)];
    for _ in 0..9 {
        assert!(limiter.check(lower()).await.unwrap().is_admitted());
    }
    assert_eq!(store.take_asked(), [(Purpose::Lease, 2); 3]);
}

#[tokio::test(start_paused = true)]
async fn drain_returns_lease_that_is_requested() {
    let store = Store::new().with_latency(MILLISECOND, 4 * MILLISECOND);
    let limiter = limiter(&store, leased(1_000, 50));
    checks(&limiter, 1).await;
    // The caller is gone, and its lease request is in flight.
    assert!(timeout(2 * MILLISECOND, check(&limiter)).await.is_err());
    limiter.drain().await;
    let stats = limiter.stats();
    assert_eq!((stats.leased_units, stats.leased_units_returned), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn drain_returns_leases_of_many_keys() {
    let store = Store::new();
    let limiter = builder(&store, leased(1_000, 50)).settlement_queue(1).build().unwrap();
    let key = |i: u32| PartitionKey::new("user", i.to_string());
    for i in 0..100 {
        for _ in 0..2 {
            let _ = limiter.check(key(i)).await.unwrap();
        }
    }
    limiter.drain().await;
    let stats = limiter.stats();
    assert_eq!((stats.leased_units, stats.leased_units_returned, stats.leased_units_lost), (100, 100, 0));
}

#[tokio::test(start_paused = true)]
async fn returned_units_leave_room_for_settlements() {
    let store = Store::new();
    let limiter = builder(&store, leased(1_000, 50)).settlement_queue(1).build().unwrap();
    let reservation = limiter.reserve(PartitionKey::new("user", "bob")).await.unwrap();
    checks(&limiter, 2).await;
    let (_, settled) = tokio::join!(limiter.drain(), async { reservation.settle(0).await });
    assert!(matches!(settled, Settled::Done { .. }), "{settled:?}");
}
