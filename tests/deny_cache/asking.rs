//! Who asks, and who does not.

use tokio::{
    task::yield_now,
    time::{Instant, advance, sleep, timeout},
};
use tower_sliding_window::{
    Decision, Limiter, Status, Wait,
    backend::{Backend, BackendError, Check, Pair, Purpose},
    outage::DenyCache,
};

use super::{
    DUE, Fault, MINUTE, NOTHING, Remote, SECOND, TICK, age, alice, check, on, policy, remote, ten, used_up,
    user,
};
use crate::http::probe::now;

#[tokio::test(start_paused = true)]
async fn a_peek_is_asked_for_every_time_and_is_not_remembered() {
    let (remote, limiter) = remote();
    assert!(check(&limiter, 10).await.is_admitted());
    for _ in 0..3 {
        assert!(!limiter.peek(alice(), 1).await.unwrap().is_admitted());
    }
    assert_eq!(remote.asked(), 4);
    assert!(!check(&limiter, 1).await.is_cached());
    for _ in 0..3 {
        assert!(!limiter.peek(alice(), 1).await.unwrap().is_cached());
    }
    assert_eq!(remote.asked(), 8);
}

#[tokio::test(start_paused = true)]
async fn what_costs_nothing_is_asked_for_and_admitted() {
    let (remote, limiter) = used_up().await;
    assert!(check(&limiter, 0).await.is_admitted());
    assert_eq!(remote.asked(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_was_used_beyond_a_charge_is_charged_whatever_is_known() {
    let (remote, limiter) = remote();
    let reservation = limiter.reserve(alice(), 10).await.unwrap();
    assert!(!check(&limiter, 1).await.is_admitted());
    reservation.settle(13).await;
    assert_eq!(remote.settings().asked.last(), Some(&(Purpose::Overage, 3)));
    // More is used than was, so what was denied is denied.
    assert!(check(&limiter, 1).await.is_cached());
}

#[tokio::test(start_paused = true)]
async fn an_admission_is_never_remembered() {
    let (remote, limiter) = remote();
    for asked in 1..=10 {
        assert!(check(&limiter, 1).await.is_admitted());
        assert_eq!(remote.asked(), asked);
    }
}

#[tokio::test(start_paused = true)]
async fn when_it_is_due_exactly_one_of_many_asks_and_the_others_wait_for_nothing() {
    let (remote, limiter) = used_up().await;
    for (round, trip) in [(1, 10 * TICK), (2, 60 * TICK)] {
        advance(DUE).await;
        remote.check_trip(trip, trip);
        let start = Instant::now();
        let many: Vec<_> = (0..1_000)
            .map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move { (check(&limiter, 1).await, start.elapsed()) })
            })
            .collect();
        let mut asked = 0;
        for one in many {
            let (decision, waited) = one.await.unwrap();
            assert!(!decision.is_admitted());
            assert_eq!(decision.is_cached(), waited.is_zero() || waited >= SECOND / 10);
            asked += usize::from(!waited.is_zero());
        }
        assert_eq!((asked, remote.asked()), (1, 2 + round), "{trip:?}");
        remote.check_trip(NOTHING, NOTHING);
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_asks_for_others_leaves_that_to_the_next_when_it_is_dropped_or_fails_or_panics() {
    let (remote, limiter) = used_up().await;
    advance(DUE).await;
    remote.fail(Fault::Hang);
    for asked in 1..=3 {
        assert!(timeout(10 * TICK, limiter.check(alice(), 1)).await.is_err());
        assert_eq!(remote.asked(), 2 + asked);
    }
    remote.fail(Fault::Panic);
    for asked in 4..=5 {
        let panicked = tokio::spawn(limiter.check(alice(), 1)).await;
        assert!(panicked.unwrap_err().is_panic());
        assert_eq!(remote.asked(), 2 + asked);
    }
    remote.fail(Fault::Down);
    for asked in 6..=7 {
        assert!(check(&limiter, 1).await.is_cached());
        assert_eq!(remote.asked(), 2 + asked);
    }
    // Whoever is not polled asks nobody, and nobody asks for it. It is soon too late to be answered from what was known.
    let idle = limiter.check(alice(), 1);
    remote.fail(None);
    assert!(check(&limiter, 1).await.is_cached());
    drop(idle);
    let asked = remote.asked();
    assert!(!check(&limiter, 1).await.is_cached());
    assert!(check(&limiter, 1).await.is_cached());
    assert_eq!(remote.asked(), asked + 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_told_late_makes_nothing_older() {
    let (remote, limiter) = remote();
    assert!(check(&limiter, 10).await.is_admitted());
    remote.check_trip(NOTHING, 50 * TICK);
    let late = tokio::spawn(limiter.check(alice(), 1));
    sleep(10 * TICK).await;
    remote.check_trip(NOTHING, NOTHING);
    assert!(!check(&limiter, 1).await.is_admitted());
    let newest = Instant::now();
    assert!(!late.await.unwrap().unwrap().is_cached());
    advance(DUE - newest.elapsed() - TICK).await;
    assert!(check(&limiter, 1).await.is_cached());
    advance(TICK).await;
    assert!(!check(&limiter, 1).await.is_cached());
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_too_long_is_not_waited_for() {
    let remote = Remote::new();
    let limiter = on(remote.clone()).deadline(MINUTE).build().unwrap();
    assert!(check(&limiter, 10).await.is_admitted());
    assert!(!check(&limiter, 1).await.is_admitted());
    let denied = Instant::now();
    advance(DUE).await;
    remote.fail(Fault::Hang);
    let asking = tokio::spawn(limiter.check(alice(), 1));
    yield_now().await;
    while denied.elapsed() < SECOND {
        assert!(check(&limiter, 1).await.is_cached());
        advance(TICK).await;
    }
    remote.fail(None);
    assert!(!check(&limiter, 1).await.is_cached());
    assert!(check(&limiter, 1).await.is_cached());
    asking.abort();
}

#[tokio::test(start_paused = true)]
async fn a_check_of_several_pairs_asks_when_none_of_them_is_sure() {
    let remote = Remote::new();
    let limiter = Limiter::builder(remote.clone()).policy(ten()).policy(policy("p", 10, MINUTE)).build();
    let limiter = limiter.unwrap();
    assert!(check(&limiter, 10).await.is_admitted());
    let only = |name: &str| vec![Pair::new(alice(), policy(name, 10, MINUTE), 1)];
    assert!(!limiter.check_pairs(only("ten")).unwrap().await.unwrap().is_admitted());
    advance(SECOND / 2).await;
    assert!(!limiter.check_pairs(only("p")).unwrap().await.unwrap().is_admitted());
    assert_eq!(remote.asked(), 3);
    // The one is old, and the other is not.
    advance(DUE - SECOND / 2).await;
    let denied = check(&limiter, 1).await;
    assert_eq!((denied.is_cached(), denied.statuses().len(), remote.asked()), (true, 2, 3));
    // Now it is.
    advance(SECOND / 2).await;
    assert!(!check(&limiter, 1).await.is_cached());
    assert_eq!(check(&limiter, 1).await.statuses().len(), 2);
    assert_eq!(remote.asked(), 4);
}

#[tokio::test(start_paused = true)]
async fn however_many_are_denied_no_more_are_remembered_than_the_bound() {
    for max_entries in [1, 50, 1_000] {
        let remote = Remote::new();
        let cache = DenyCache { max_entries, ..age(MINUTE) };
        let limiter = on(remote.clone()).deny_cache(cache).breaker(None).build().unwrap();
        for name in 0..5_000 {
            assert!(!limiter.check(user(name), 11).await.unwrap().is_admitted());
        }
        remote.fail(Fault::Down);
        let mut known = 0;
        for name in 0..5_000 {
            known += usize::from(limiter.check(user(name), 11).await.is_ok());
        }
        assert!((max_entries - max_entries / 8..=max_entries).contains(&known), "{known} of {max_entries}");
        remote.fail(None);
        // The newest one is always among them.
        limiter.check(user("new"), 11).await.unwrap();
        assert!(limiter.check(user("new"), 11).await.unwrap().is_cached());
    }
}

#[test]
fn an_entry_takes_no_more_memory_than_is_documented() {
    /// Denies everything for a minute.
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
    let limiter = || on(Denier).deny_cache(age(MINUTE)).build().unwrap();
    let empty = allocation_counter::measure(|| std::mem::forget(limiter())).bytes_current;
    let without =
        allocation_counter::measure(|| std::mem::forget(on(Denier).deny_cache(None).build().unwrap()));
    let empty = empty - without.bytes_current;
    assert!(empty < 8_000, "{empty} bytes for an empty one");
    for (name, costs, most) in [("", 1..=1, 280), (&*"x".repeat(1_000), 7..=10, 600)] {
        let limiter = limiter();
        // Not at a number at which a table has just grown.
        let entries = 12_000;
        let counted = allocation_counter::measure(|| {
            for i in 0..entries {
                for cost in costs.clone().rev() {
                    let key = user(format!("{i}{name}"));
                    assert!(!now(limiter.check(key, cost)).unwrap().is_cached());
                }
            }
        });
        let each = counted.bytes_current / entries;
        assert!(each <= most, "{each} bytes an entry");
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_key_is_known_like_a_short_one() {
    let (remote, limiter) = remote();
    for last in ['a', 'b'] {
        let long = || user("x".repeat(100_000) + &last.to_string());
        assert!(!limiter.check(long(), 11).await.unwrap().is_cached());
        assert!(limiter.check(long(), 11).await.unwrap().is_cached());
    }
    assert_eq!(remote.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn checks_that_are_under_way_together_are_all_right() {
    let (remote, limiter) = remote();
    remote.check_trip(TICK, TICK);
    let many: Vec<_> = (0..100).map(|_| tokio::spawn(limiter.check(alice(), 1))).collect();
    let mut admitted = 0;
    for one in many {
        admitted += usize::from(one.await.unwrap().unwrap().is_admitted());
    }
    assert_eq!((admitted, remote.asked()), (10, 100));
    sleep(SECOND / 2).await;
    assert!(check(&limiter, 1).await.is_cached());
}
