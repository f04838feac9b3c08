//! Misses and refreshes: which checks the limiter sends to the store.

use tokio::{
    task::yield_now,
    time::{Instant, advance, sleep, timeout},
};
use tower_sliding_window::{
    Decision, Limiter, Rejection, Status, Wait,
    backend::{Backend, BackendError, Check, Pair, Purpose},
    outage::DenyCacheConfig,
};

use super::{
    Fault, MINUTE, REFRESH_AGE, Remote, SECOND, TICK, ZERO, alice, check, exhausted, on, policy, remote, ten,
    user, wait, with_max_age,
};
use crate::http::probe::now;

#[tokio::test(start_paused = true)]
async fn peek_bypasses_deny_cache() {
    let (remote, limiter) = remote();
    assert!(check(&limiter, 10).await.is_admitted());
    for _ in 0..3 {
        assert!(!limiter.peek(alice()).await.unwrap().is_admitted());
    }
    assert_eq!(remote.checks(), 4);
    assert!(!check(&limiter, 1).await.is_cached());
    for _ in 0..3 {
        assert!(!limiter.peek(alice()).await.unwrap().is_cached());
    }
    assert_eq!(remote.checks(), 8);
}

#[tokio::test(start_paused = true)]
async fn zero_cost_check_misses_deny_cache() {
    let (remote, limiter) = exhausted().await;
    assert!(check(&limiter, 0).await.is_admitted());
    assert_eq!(remote.checks(), 3);
}

#[tokio::test(start_paused = true)]
async fn overage_bypasses_deny_cache() {
    let (remote, limiter) = remote();
    let reservation = limiter.reserve((alice(), 10)).await.unwrap();
    assert!(!check(&limiter, 1).await.is_admitted());
    reservation.settle(13).await;
    assert_eq!(remote.settings().checks.last(), Some(&(Purpose::Overage, 3)));
    // The usage has grown, so the cached denial stays valid.
    assert!(check(&limiter, 1).await.is_cached());
}

#[tokio::test(start_paused = true)]
async fn admission_leaves_no_cache_entry() {
    let (remote, limiter) = remote();
    for sent in 1..=10 {
        assert!(check(&limiter, 1).await.is_admitted());
        assert_eq!(remote.checks(), sent);
    }
}

#[tokio::test(start_paused = true)]
async fn one_check_refreshes_due_entry_while_others_hit() {
    let (remote, limiter) = exhausted().await;
    for (round, latency) in [(1, 10 * TICK), (2, 60 * TICK)] {
        advance(REFRESH_AGE).await;
        remote.set_check_latency(latency, latency);
        let start = Instant::now();
        let many: Vec<_> = (0..1_000)
            .map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move { (check(&limiter, 1).await, start.elapsed()) })
            })
            .collect();
        let mut refreshes = 0;
        for one in many {
            let (decision, waited) = one.await.unwrap();
            assert!(!decision.is_admitted());
            assert_eq!(decision.is_cached(), waited.is_zero() || waited >= SECOND / 10);
            refreshes += usize::from(!waited.is_zero());
        }
        assert_eq!((refreshes, remote.checks()), (1, 2 + round), "{latency:?}");
        remote.set_check_latency(ZERO, ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn failed_or_dropped_refresh_passes_to_next_check() {
    let (remote, limiter) = exhausted().await;
    advance(REFRESH_AGE).await;
    remote.fail(Fault::Hang);
    for sent in 1..=3 {
        assert!(timeout(10 * TICK, limiter.check(alice())).await.is_err());
        assert_eq!(remote.checks(), 2 + sent);
    }
    remote.fail(Fault::Panic);
    for sent in 4..=5 {
        let panicked = tokio::spawn(limiter.check(alice())).await;
        assert!(panicked.unwrap_err().is_panic());
        assert_eq!(remote.checks(), 2 + sent);
    }
    remote.fail(Fault::Down);
    for sent in 6..=7 {
        assert!(check(&limiter, 1).await.is_cached());
        assert_eq!(remote.checks(), 2 + sent);
    }
    // A check that is not polled sends nothing and takes no refresh. The entry soon reaches its maximum age.
    let idle = limiter.check(alice());
    remote.fail(None);
    assert!(check(&limiter, 1).await.is_cached());
    drop(idle);
    let sent = remote.checks();
    assert!(!check(&limiter, 1).await.is_cached());
    assert!(check(&limiter, 1).await.is_cached());
    assert_eq!(remote.checks(), sent + 1);
}

#[tokio::test(start_paused = true)]
async fn slow_denial_does_not_age_newer_entry() {
    let (remote, limiter) = remote();
    assert!(check(&limiter, 10).await.is_admitted());
    remote.set_check_latency(ZERO, 50 * TICK);
    let slow = tokio::spawn(limiter.check(alice()));
    sleep(10 * TICK).await;
    remote.set_check_latency(ZERO, ZERO);
    assert!(!check(&limiter, 1).await.is_admitted());
    let newest = Instant::now();
    assert!(!slow.await.unwrap().unwrap().is_cached());
    advance(REFRESH_AGE - newest.elapsed() - TICK).await;
    assert!(check(&limiter, 1).await.is_cached());
    advance(TICK).await;
    assert!(!check(&limiter, 1).await.is_cached());
}

#[tokio::test(start_paused = true)]
async fn hanging_refresh_does_not_extend_entry() {
    let remote = Remote::new();
    let limiter = on(remote.clone()).deadline(MINUTE).build().unwrap();
    assert!(check(&limiter, 10).await.is_admitted());
    assert!(!check(&limiter, 1).await.is_admitted());
    let denied = Instant::now();
    advance(REFRESH_AGE).await;
    remote.fail(Fault::Hang);
    let refresh = tokio::spawn(limiter.check(alice()));
    yield_now().await;
    while denied.elapsed() < SECOND {
        assert!(check(&limiter, 1).await.is_cached());
        advance(TICK).await;
    }
    remote.fail(None);
    assert!(!check(&limiter, 1).await.is_cached());
    assert!(check(&limiter, 1).await.is_cached());
    refresh.abort();
}

#[tokio::test(start_paused = true)]
async fn multi_pair_check_refreshes_when_all_entries_are_due() {
    let remote = Remote::new();
    let limiter = Limiter::builder(remote.clone()).policy(ten()).policy(policy("p", 10, MINUTE)).build();
    let limiter = limiter.unwrap();
    assert!(check(&limiter, 10).await.is_admitted());
    let only = |name: &str| vec![Pair::new(alice(), policy(name, 10, MINUTE), 1)];
    assert!(!limiter.check(only("ten")).await.unwrap().is_admitted());
    advance(SECOND / 2).await;
    assert!(!limiter.check(only("p")).await.unwrap().is_admitted());
    assert_eq!(remote.checks(), 3);
    // One entry is due, and the other is not.
    advance(REFRESH_AGE - SECOND / 2).await;
    let denied = check(&limiter, 1).await;
    assert_eq!((denied.is_cached(), denied.statuses().len(), remote.checks()), (true, 2, 3));
    // Now both entries are due.
    advance(SECOND / 2).await;
    assert!(!check(&limiter, 1).await.is_cached());
    assert_eq!(check(&limiter, 1).await.statuses().len(), 2);
    assert_eq!(remote.checks(), 4);
}

#[tokio::test(start_paused = true)]
async fn deny_cache_never_exceeds_max_entries() {
    for max_entries in [1, 50, 1_000] {
        let remote = Remote::new();
        let cache = DenyCacheConfig::new(with_max_age(MINUTE).max_age, max_entries);
        let limiter = on(remote.clone()).deny_cache(cache).breaker(None).build().unwrap();
        for name in 0..5_000 {
            assert!(!limiter.check((user(name), 11)).await.unwrap().is_admitted());
        }
        remote.fail(Fault::Down);
        let mut cached = 0;
        for name in 0..5_000 {
            cached += usize::from(limiter.check((user(name), 11)).await.is_ok());
        }
        assert!((max_entries - max_entries / 8..=max_entries).contains(&cached), "{cached} of {max_entries}");
        remote.fail(None);
        // The newest denial is always in the cache.
        let _ = limiter.check((user("new"), 11)).await.unwrap();
        assert!(limiter.check((user("new"), 11)).await.unwrap().is_cached());
    }
}

/// A store that denies every check for a minute.
struct Denier;
impl Backend for Denier {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        let denies = |pair| Status::new(pair, 0, Wait::For(MINUTE), MINUTE, MINUTE);
        Ok(Decision::new(0, check.pairs().iter().map(denies).collect::<Vec<_>>()))
    }
    fn denials_hold(&self) -> bool {
        true
    }
}

#[test]
fn entry_takes_at_most_documented_memory() {
    let on = || Limiter::builder(Denier).policy(policy("p", 40, MINUTE));
    let limiter = || on().deny_cache(with_max_age(MINUTE)).build().unwrap();
    let empty = allocation_counter::measure(|| std::mem::forget(limiter())).bytes_current;
    let without = allocation_counter::measure(|| std::mem::forget(on().deny_cache(None).build().unwrap()));
    let empty = empty - without.bytes_current;
    assert!(empty < 8_000, "{empty} bytes for an empty cache");
    // At these numbers of entries a hash table has not just grown.
    let long = "x".repeat(200);
    for (entries, name, costs, most) in
        [(12_000, "", 1..=1, 380), (3_000, &*long, 1..=1, 620), (3_000, &*long, 9..=40, 2_000)]
    {
        let limiter = limiter();
        let counted = allocation_counter::measure(|| {
            for i in 0..entries {
                for cost in costs.clone().rev() {
                    let key = user(format!("{i}{name}"));
                    assert!(!now(limiter.check((key, cost))).unwrap().is_cached());
                }
            }
        });
        let each = counted.bytes_current / entries;
        assert!(each <= most, "{each} bytes an entry");
    }
}

/// Long keys and many costs take no more memory than as many short entries. The tables of 704 entries have the most room in vain.
#[test]
fn full_cache_takes_at_most_640_bytes_times_max_entries() {
    let shapes = [(1, 1..=1), (40, 1..=2), (120, 1..=1), (200, 1..=1), (200, 9..=40), (1_000, 9..=40)];
    for (max_entries, (name_length, costs)) in
        [704, 1_024].into_iter().flat_map(|max| shapes.clone().map(|shape| (max, shape)))
    {
        let cache = DenyCacheConfig::new(MINUTE, max_entries);
        let limiter = Limiter::builder(Denier).policy(policy("p", 40, MINUTE)).deny_cache(cache).build();
        let limiter = limiter.unwrap();
        let counted = allocation_counter::measure(|| {
            for i in 0..2 * max_entries {
                for cost in costs.clone().rev() {
                    let key = user(format!("{i:0name_length$}"));
                    assert!(!now(limiter.check((key, cost))).unwrap().is_cached());
                }
            }
        });
        let bytes = counted.bytes_current;
        assert!(
            bytes <= 640 * max_entries as i64,
            "{bytes} bytes for {max_entries} entries with names of {name_length} digits"
        );
    }
}

/// An entry that is larger than the room for one is cached.
#[test]
fn smallest_cache_repeats_denial_of_long_key() {
    for max_entries in 1..8 {
        let cache = DenyCacheConfig::new(MINUTE, max_entries);
        let limiter = Limiter::builder(Denier).policy(policy("p", 40, MINUTE)).deny_cache(cache).build();
        let limiter = limiter.unwrap();
        let check = || now(limiter.check(user("x".repeat(220)))).unwrap();
        assert!(!check().is_cached());
        assert!(check().is_cached(), "{max_entries} entries");
    }
}

#[tokio::test(start_paused = true)]
async fn long_key_hits_deny_cache_like_short_key() {
    let (remote, limiter) = remote();
    for last in ['a', 'b'] {
        let long = || user("x".repeat(100_000) + &last.to_string());
        assert!(!limiter.check((long(), 11)).await.unwrap().is_cached());
        assert!(limiter.check((long(), 11)).await.unwrap().is_cached());
    }
    assert_eq!(remote.checks(), 2);
}

#[tokio::test(start_paused = true)]
async fn concurrent_checks_admit_exact_quota() {
    let (remote, limiter) = remote();
    remote.set_check_latency(TICK, TICK);
    let many: Vec<_> = (0..100).map(|_| tokio::spawn(limiter.check(alice()))).collect();
    let mut admitted = 0;
    for one in many {
        admitted += usize::from(one.await.unwrap().unwrap().is_admitted());
    }
    assert_eq!((admitted, remote.checks()), (10, 100));
    sleep(SECOND / 2).await;
    assert!(check(&limiter, 1).await.is_cached());
}

#[tokio::test(start_paused = true)]
async fn take_of_some_units_is_never_cached_and_its_denial_is() {
    let (remote, limiter) = remote();
    let take = async |units| limiter.take_up_to(alice(), units).await.map(|(units, _)| units);
    assert_eq!(take(7).await.unwrap(), 7);
    assert_eq!(take(7).await.unwrap(), 3, "the rest of the quota");
    remote.reset_by_other_process(&[ten()]).await;
    assert_eq!(take(7).await.unwrap(), 7, "a part of the units was no denial");
    assert_eq!(take(7).await.unwrap(), 3);
    for is_cached in [false, true, true] {
        let Err(Rejection::Denied(denial)) = take(7).await else { panic!("all units are used") };
        assert_eq!((denial.is_cached(), wait(&denial)), (is_cached, MINUTE));
        assert!(!check(&limiter, 1).await.is_admitted());
    }
    assert_eq!(remote.checks(), 5, "the denial of one unit answers every later take and check");
}

#[tokio::test(start_paused = true)]
async fn take_of_zero_units_is_admitted_beside_cached_denial() {
    let (_, limiter) = remote();
    assert_eq!(limiter.take_up_to(alice(), 10).await.unwrap().0, 10);
    assert!(!check(&limiter, 1).await.is_admitted());
    assert!(check(&limiter, 1).await.is_cached());
    assert_eq!(limiter.take_up_to(alice(), 0).await.unwrap().0, 0);
    assert!(check(&limiter, 1).await.is_cached(), "the denial is still known");
}
