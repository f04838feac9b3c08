//! Leases that are requested before they are needed.

use std::time::Duration;

use tokio::time::{Instant, advance, sleep};
use tower_sliding_window::{
    Algorithm, Limiter, MemoryBackend, Policy,
    backend::{Backend, Check, Pair, Purpose},
    policy::Lease,
    testing::ManualClock,
};

use super::store::{Fault, Store};
use super::{
    MILLISECOND, PRECISION, SECOND, alice, buckets, builder, check, limiter, next_bucket, remaining,
};

/// Returns a policy with a window of a second and buckets of 100 ms.
fn ahead(quota: u32, up_to: u32) -> Policy {
    buckets(quota, SECOND, PRECISION).leased(Lease::up_to(up_to).ahead()).unwrap()
}

/// Charges one unit each 5 ms. Returns how many checks the store has answered, and the longest time of a check.
async fn steady_checks(limiter: &Limiter, number: usize) -> (usize, Duration) {
    let (mut asked, mut longest, mut at) = (0, Duration::ZERO, Instant::now());
    for _ in 0..number {
        let started = Instant::now();
        let decision = check(limiter).await;
        assert!(decision.is_admitted());
        asked += usize::from(!decision.is_leased());
        longest = longest.max(started.elapsed());
        at += 5 * MILLISECOND;
        tokio::time::sleep_until(at).await;
    }
    (asked, longest)
}

/// Returns the number of leases of each purpose since the last call.
fn leases(store: &Store) -> [usize; 2] {
    let asked = store.take_asked();
    [Purpose::Lease, Purpose::LeaseAhead]
        .map(|purpose| asked.iter().filter(|(asked, _)| *asked == purpose).count())
}

#[tokio::test(start_paused = true)]
async fn lease_ahead_spares_wait_at_begin_of_bucket() {
    let store = Store::new().with_latency(10 * MILLISECOND, 10 * MILLISECOND);
    let limiter = limiter(&store, ahead(10_000, 100));
    next_bucket(&store).await;
    let _ = steady_checks(&limiter, 60).await;
    leases(&store);
    assert_eq!(steady_checks(&limiter, 200).await, (0, Duration::ZERO), "in ten buckets, no check waits");
    let [needed, ahead] = leases(&store);
    assert!(needed == 0 && (10..=12).contains(&ahead), "{needed} and {ahead} lease requests in ten buckets");
    let stats = limiter.stats();
    assert_eq!((stats.admitted, stats.denied), (260, 0), "a lease request is no check");
    limiter.drain().await;
    let stats = limiter.stats();
    assert_eq!(stats.leased_units, stats.leased_units_granted + stats.leased_units_returned);
    let used = 10_000 - remaining(&limiter).await;
    assert!((200..=240).contains(&used), "the units of ten buckets count, or of up to twelve: {used}");
}

#[tokio::test(start_paused = true)]
async fn both_leases_hold_at_most_bound() {
    for up_to in [15, 25, 60] {
        let store = Store::new().with_latency(10 * MILLISECOND, 10 * MILLISECOND);
        let limiter = limiter(&store, ahead(10_000, up_to));
        let mut most = 0;
        for _ in 0..200 {
            let _ = steady_checks(&limiter, 1).await;
            let stats = limiter.stats();
            most = most.max(stats.leased_units - stats.leased_units_granted - stats.leased_units_returned);
        }
        // Twice the units of a bucket are enough.
        let expected = u64::from(up_to.min(40));
        assert!(
            (expected - 5..=expected + 4).contains(&most) && most <= u64::from(up_to),
            "{most} of {up_to} units"
        );
        assert!(leases(&store)[1] > 0, "{up_to}");
    }
}

#[tokio::test(start_paused = true)]
async fn lease_ahead_needs_steady_rate() {
    let store = Store::new();
    let limiter = limiter(&store, ahead(10_000, 100));
    // Each second bucket has checks.
    for _ in 0..10 {
        next_bucket(&store).await;
        let _ = steady_checks(&limiter, 19).await;
        advance(PRECISION).await;
    }
    let [needed, ahead] = leases(&store);
    assert!(needed > 0 && ahead == 0, "{needed} and {ahead}");
}

/// The other policy of the check has a lease that is requested when it is needed, or longer buckets.
#[tokio::test(start_paused = true)]
async fn policy_asks_ahead_by_its_own_lease() {
    for (lease, most) in [(Lease::up_to(400), 20), (Lease::up_to(400).ahead(), 24)] {
        let store = Store::new().with_latency(10 * MILLISECOND, 10 * MILLISECOND);
        let precision = 5 * PRECISION;
        let slow = Policy::new("slow", 100_000, 5 * SECOND).unwrap();
        let slow =
            slow.with_algorithm(Algorithm::SlidingBuckets { precision }).unwrap().leased(lease).unwrap();
        let limiter = builder(&store, ahead(10_000, 100)).policy(slow).build().unwrap();
        next_bucket(&store).await;
        let _ = steady_checks(&limiter, 60).await;
        leases(&store);
        let _ = steady_checks(&limiter, 400).await;
        let [needed, ahead] = leases(&store);
        assert!(
            ahead <= most,
            "{needed} and {ahead} lease requests in twenty buckets, and four of the other policy"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn lease_ahead_stops_near_quota() {
    let store = Store::new();
    let [limiter, other] = [(); 2].map(|()| limiter(&store, ahead(1_000, 100)));
    next_bucket(&store).await;
    let _ = steady_checks(&limiter, 64).await;
    let left = remaining(&limiter).await - 7;
    assert!(other.check((alice(), left)).await.unwrap().is_admitted());
    leases(&store);
    let mut admitted = 64;
    while check(&limiter).await.is_admitted() {
        admitted += 1;
        sleep(5 * MILLISECOND).await;
    }
    assert_eq!(admitted, 1_000 - left, "the process grants all units that it holds");
    let ahead = leases(&store)[1];
    assert!(ahead <= 1, "the first request is denied, and is the last one: {ahead}");
}

#[tokio::test(start_paused = true)]
async fn lost_reply_to_lease_ahead_is_counted() {
    let store = Store::new();
    let limiter = super::builder(&store, ahead(10_000, 100)).deadline(10 * MILLISECOND).build().unwrap();
    next_bucket(&store).await;
    let _ = steady_checks(&limiter, 45).await;
    leases(&store);
    store.fail([Fault::LostReply]);
    let _ = steady_checks(&limiter, 15).await;
    let lost = store.take_asked().iter().find(|(purpose, _)| *purpose == Purpose::LeaseAhead).unwrap().1;
    sleep(20 * MILLISECOND).await;
    assert_eq!(limiter.stats().leased_units_lost, u64::from(lost));
}

/// After a forward step of the server's clock, a lease that grows shows that its bucket ends earlier.
#[tokio::test(start_paused = true)]
async fn clock_step_asks_ahead_before_earlier_end() {
    let store = Store::new().with_latency(Duration::ZERO, 3 * MILLISECOND);
    let limiter = limiter(&store, ahead(10_000, 400));
    let grow = async |cost| assert!(!limiter.check((alice(), cost)).await.unwrap().is_leased());
    next_bucket(&store).await;
    let _ = steady_checks(&limiter, 60).await;
    assert_eq!(steady_checks(&limiter, 2).await, (0, Duration::ZERO));
    leases(&store);
    store.shift_clock(50_000);
    grow(60).await;
    assert_eq!(leases(&store), [1, 0], "more units of the same bucket");
    assert_eq!(steady_checks(&limiter, 1).await, (0, Duration::ZERO));
    assert_eq!(leases(&store), [0, 1], "the last half of the bucket has begun");
    grow(200).await;
    assert_eq!(leases(&store), [1, 0]);
    while store.now_micros() % 100_000 > 50_000 {
        assert_eq!(steady_checks(&limiter, 1).await, (0, Duration::ZERO));
    }
    assert_eq!(leases(&store), [0, 0], "the next bucket was asked for");
    assert!(check(&limiter).await.is_leased());
}

#[tokio::test(start_paused = true)]
async fn reset_ends_both_leases() {
    let store = Store::new();
    let limiter = limiter(&store, ahead(10_000, 100));
    next_bucket(&store).await;
    // The last ones are in the second half of a bucket.
    let _ = steady_checks(&limiter, 75).await;
    assert!(leases(&store)[1] > 0);
    limiter.reset(alice()).await.unwrap();
    assert!(!check(&limiter).await.is_leased());
    assert_eq!(remaining(&limiter).await, 10_000 - 1);
}

#[tokio::test(start_paused = true)]
async fn idle_pair_returns_both_leases() {
    let store = Store::new();
    let limiter = limiter(&store, ahead(10_000, 100));
    next_bucket(&store).await;
    let _ = steady_checks(&limiter, 75).await;
    sleep(3 * PRECISION).await;
    let stats = limiter.stats();
    assert_eq!(stats.leased_units, stats.leased_units_granted + stats.leased_units_returned);
    sleep(2 * SECOND).await;
    assert_eq!(remaining(&limiter).await, 10_000);
}

#[tokio::test]
async fn units_of_next_bucket_count_until_window_after_its_end() {
    let clock = ManualClock::new();
    let memory = MemoryBackend::new().with_clock(&clock);
    let ask = |purpose, cost| {
        let pair = Pair::new(alice(), ahead(10, 10), cost);
        let check = Check::new([pair]).unwrap().with_purpose(purpose);
        let memory = memory.clone();
        async move { memory.check(&check).await.unwrap() }
    };
    let begin = 1_000_000_000_000_000;
    clock.set_micros(begin + 30_000);
    let receipt = |decision: tower_sliding_window::Decision| decision.receipts()[0].at_micros - begin;
    assert_eq!(receipt(ask(Purpose::Reserve, 1).await), 100_000);
    assert_eq!(receipt(ask(Purpose::LeaseAhead, 5).await), 200_000);
    assert_eq!(receipt(ask(Purpose::Reserve, 1).await), 200_000, "a later charge belongs to the same bucket");
    for (at, left) in [(1_099_999, 3), (1_100_000, 4), (1_199_999, 4), (1_200_000, 10)] {
        clock.set_micros(begin + at);
        assert_eq!(ask(Purpose::Peek, 0).await.statuses()[0].remaining(), left, "{at}");
    }
}

#[test]
fn lease_ahead_needs_two_buckets_in_window() {
    let lease = Lease::up_to(5).ahead();
    let half = buckets(10, SECOND, SECOND / 2);
    assert!(half.clone().leased(lease).unwrap().lease().unwrap().is_ahead());
    let text = "policy \"hot\": lease of 5 units ahead: it must be 1 to 4294967295 quota units, and the algorithm must be \
                sliding buckets with a precision of at most half the window";
    let longer = buckets(10, SECOND, SECOND / 2 + MILLISECOND);
    assert_eq!(longer.clone().leased(lease).unwrap_err().to_string(), text);
    assert_eq!(half.leased(lease).unwrap().with_algorithm(longer.algorithm()).unwrap_err().to_string(), text);
    assert!(longer.leased(Lease::up_to(5)).is_ok());
}
