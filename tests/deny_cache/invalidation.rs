//! Invalidation: refunds and resets invalidate cached denials.

use tokio::time::{advance, sleep};
use tower_sliding_window::{Policies, Policy, Reservation, backend::Pair, policy::Rate, settle::Settled};

use super::{Fault, MINUTE, SECOND, TICK, ZERO, alice, check, policy, remote, ten, user};

/// Returns a limiter with a cached denial and a reservation of all units of Alice.
async fn reserved_and_denied() -> (super::Remote, tower_sliding_window::Limiter, Reservation) {
    let (remote, limiter) = remote();
    let reservation = limiter.reserve((alice(), 10)).await.unwrap();
    assert!(!check(&limiter, 1).await.is_admitted());
    assert!(check(&limiter, 1).await.is_cached());
    (remote, limiter, reservation)
}

#[tokio::test(start_paused = true)]
async fn refund_invalidates_cached_denial() {
    let (_remote, limiter, reservation) = reserved_and_denied().await;
    assert!(matches!(reservation.settle(9).await, Settled::Done { .. }));
    assert!(check(&limiter, 1).await.is_admitted());
    assert!(!check(&limiter, 1).await.is_cached());
}

#[tokio::test(start_paused = true)]
async fn reset_invalidates_cached_denial() {
    let (_remote, limiter, _) = reserved_and_denied().await;
    limiter.reset(alice()).await.unwrap();
    assert!(check(&limiter, 10).await.is_admitted());
    assert!(!check(&limiter, 1).await.is_admitted());
    limiter.reset(vec![Pair::new(alice(), ten(), 7)]).await.unwrap();
    assert!(check(&limiter, 10).await.is_admitted());
}

#[tokio::test(start_paused = true)]
async fn refund_invalidates_denials_of_every_quota() {
    let (_remote, limiter, reservation) = reserved_and_denied().await;
    let under = |quota| Policies::from(policy("ten", quota, MINUTE)).pairs(&alice(), 1);
    assert!(!limiter.check(under(9)).await.unwrap().is_admitted());
    assert!(limiter.check(under(9)).await.unwrap().is_cached());
    reservation.settle(0).await;
    assert!(limiter.check(under(9)).await.unwrap().is_admitted());
    limiter.reset(under(1_000)).await.unwrap();
    assert!(check(&limiter, 10).await.is_admitted());
}

/// A headroom reduces the rate of a token bucket, and its classes share one usage. A denial holds only under its own rate.
#[tokio::test(start_paused = true)]
async fn change_of_usage_invalidates_denials_of_every_rate() {
    let (remote, limiter) = remote();
    let bucket = Policy::token_bucket("bucket", 10, Rate::new(1, MINUTE)).unwrap();
    let classes = [0, 20, 50].map(|headroom| bucket.clone().headroom_percent(headroom).unwrap());
    let under = |class: usize| Policies::from(classes[class].clone()).pairs(&alice(), 1);
    let is_cached = async |class| limiter.check(under(class)).await.unwrap().is_cached();
    let reservation = limiter.reserve([Pair::new(alice(), classes[0].clone(), 10)]).await.unwrap();
    for refunds in [true, false] {
        for class in [0, 1, 2] {
            let _ = is_cached(class).await;
        }
        let sent = remote.checks();
        for class in [0, 1, 2, 1, 0] {
            assert!(is_cached(class).await, "class {class}");
        }
        assert_eq!(remote.checks(), sent);
        if refunds {
            assert!(matches!(reservation.settle(9).await, Settled::Done { .. }));
        } else {
            limiter.reset(under(0)).await.unwrap();
        }
        for class in [2, 1, 0] {
            assert!(!is_cached(class).await, "class {class}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn decision_under_one_rate_changes_denials_of_others() {
    let (remote, limiter) = remote();
    let bucket = Policy::token_bucket("bucket", 10, Rate::new(1, MINUTE)).unwrap();
    let half = bucket.clone().headroom_percent(50).unwrap();
    let ask = async |policy: &Policy, cost| {
        limiter.check([Pair::new(alice(), policy.clone(), cost)]).await.unwrap()
    };
    assert!(ask(&bucket, 9).await.is_admitted());
    assert!(!ask(&half, 1).await.is_cached());
    assert!(ask(&half, 1).await.is_cached());
    assert!(ask(&bucket, 1).await.is_admitted());
    assert!(!ask(&bucket, 1).await.is_cached());
    advance(SECOND / 2).await;
    assert!(!ask(&half, 1).await.is_cached(), "its wait is longer after the charge");
    assert!(ask(&half, 1).await.is_cached());
    remote.reset_by_other_process(std::slice::from_ref(&bucket)).await;
    assert!(ask(&bucket, 1).await.is_cached());
    advance(SECOND * 2 / 5).await;
    assert!(ask(&bucket, 1).await.is_admitted(), "a refresh");
    assert!(ask(&half, 1).await.is_admitted(), "the refresh has shown that units were returned");
}

#[tokio::test(start_paused = true)]
async fn denials_are_known_under_five_rates() {
    let (_remote, limiter) = remote();
    let under = |minutes| {
        let bucket = Policy::token_bucket("bucket", 10, Rate::new(1, minutes * MINUTE)).unwrap();
        [Pair::new(alice(), bucket, 10)]
    };
    assert!(limiter.check(under(1)).await.unwrap().is_admitted());
    let is_cached = async |minutes| limiter.check(under(minutes)).await.unwrap().is_cached();
    for minutes in 1..=5 {
        assert!(!is_cached(minutes).await, "{minutes}");
    }
    for minutes in 1..=5 {
        assert!(is_cached(minutes).await, "{minutes}");
    }
    assert!(!is_cached(6).await);
    assert!(is_cached(2).await && !is_cached(1).await, "the sixth has replaced the first");
}

#[tokio::test(start_paused = true)]
async fn refund_keeps_cached_denials_of_other_keys() {
    let (remote, limiter, reservation) = reserved_and_denied().await;
    for name in 0..100 {
        assert!(!limiter.check((user(name), 11)).await.unwrap().is_cached());
    }
    reservation.settle(0).await;
    limiter.reset(alice()).await.unwrap();
    let sent = remote.checks();
    for name in 0..100 {
        assert!(limiter.check((user(name), 11)).await.unwrap().is_cached());
    }
    assert_eq!(remote.checks(), sent);
}

#[tokio::test(start_paused = true)]
async fn settlement_without_refund_keeps_cached_denial() {
    for used in [10, 12] {
        let (_remote, limiter, reservation) = reserved_and_denied().await;
        assert!(matches!(reservation.settle(used).await, Settled::Done { .. }));
        assert!(check(&limiter, 1).await.is_cached());
    }
}

#[tokio::test(start_paused = true)]
async fn refund_in_flight_invalidates_cached_denial() {
    let (remote, limiter, reservation) = reserved_and_denied().await;
    remote.set_change_latency(20 * TICK, 20 * TICK);
    let settlement = reservation.settle(5);
    assert!(!check(&limiter, 1).await.is_cached(), "the start of a settlement invalidates the denial");
    sleep(30 * TICK).await;
    drop(settlement);
    // The store has applied the refund, but the reply is still in flight.
    assert!(check(&limiter, 1).await.is_cached());
    sleep(20 * TICK).await;
    assert!(check(&limiter, 1).await.is_admitted());
}

/// The store denies the check before the refund. The reply arrives after the reply of the refund.
#[tokio::test(start_paused = true)]
async fn denial_in_flight_during_refund_leaves_no_entry() {
    for reset in [false, true] {
        let (remote, limiter, reservation) = reserved_and_denied().await;
        remote.set_check_latency(5 * TICK, 50 * TICK);
        // Waits until the entry has reached its maximum age.
        sleep(SECOND).await;
        let slow = tokio::spawn(limiter.check(alice()));
        sleep(10 * TICK).await;
        if reset {
            limiter.reset(alice()).await.unwrap();
        } else {
            assert!(matches!(reservation.settle(5).await, Settled::Done { .. }));
        }
        let slow = slow.await.unwrap().unwrap();
        assert_eq!((slow.is_admitted(), slow.is_cached()), (false, false));
        assert!(check(&limiter, 1).await.is_admitted());
    }
}

/// The check starts after the start of the settlement. The store denies it before it applies the refund.
#[tokio::test(start_paused = true)]
async fn refund_end_invalidates_denial_cached_meanwhile() {
    for reset in [false, true] {
        let (remote, limiter, reservation) = reserved_and_denied().await;
        remote.set_change_latency(40 * TICK, 5 * TICK);
        remote.set_check_latency(2 * TICK, 2 * TICK);
        let change = tokio::spawn({
            let limiter = limiter.clone();
            async move {
                if reset {
                    limiter.reset(alice()).await.unwrap();
                } else {
                    assert!(matches!(reservation.settle(5).await, Settled::Done { .. }));
                }
            }
        });
        sleep(TICK).await;
        assert!(!check(&limiter, 1).await.is_cached());
        assert!(check(&limiter, 1).await.is_cached());
        change.await.unwrap();
        assert!(check(&limiter, 1).await.is_admitted());
    }
}

#[tokio::test(start_paused = true)]
async fn failed_refund_or_reset_invalidates_cached_denial() {
    for fault in [Fault::Down, Fault::Hang, Fault::Panic] {
        let (remote, limiter, reservation) = reserved_and_denied().await;
        remote.fail(fault);
        assert!(matches!(reservation.settle(5).await, Settled::Lost(_)));
        remote.fail(None);
        assert!(!check(&limiter, 1).await.is_cached());
        if !matches!(fault, Fault::Panic) {
            remote.fail(fault);
            limiter.reset(alice()).await.unwrap_err();
            remote.fail(None);
            assert!(!check(&limiter, 1).await.is_cached());
        }
        // A cancelled reset may still take effect.
        assert!(check(&limiter, 1).await.is_cached());
        remote.set_change_latency(ZERO, 10 * TICK);
        let reset = tokio::spawn(limiter.reset(alice()));
        sleep(5 * TICK).await;
        reset.abort();
        assert!(reset.await.unwrap_err().is_cancelled());
        assert!(check(&limiter, 10).await.is_admitted());
    }
}

/// The refund may have returned no units, so the denial holds while the store makes no decision.
#[tokio::test(start_paused = true)]
async fn failed_refund_keeps_denial_for_outage() {
    for fault in [Fault::Down, Fault::Panic] {
        let (remote, limiter, reservation) = reserved_and_denied().await;
        remote.fail(fault);
        assert!(matches!(reservation.settle(5).await, Settled::Lost(_)));
        remote.fail(Fault::Down);
        assert!(check(&limiter, 1).await.is_cached());
    }
}
