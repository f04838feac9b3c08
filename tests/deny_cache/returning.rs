//! Units that go back: what is not known any more.

use tokio::time::sleep;
use tower_sliding_window::{Policies, Reservation, backend::Pair, settle::Settled};

use super::{Fault, MINUTE, NOTHING, SECOND, TICK, alice, check, policy, remote, ten, user};

/// Alice has reserved everything, and one more was denied.
async fn reserved() -> (super::Remote, tower_sliding_window::Limiter, Reservation) {
    let (remote, limiter) = remote();
    let reservation = limiter.reserve(alice(), 10).await.unwrap();
    assert!(!check(&limiter, 1).await.is_admitted());
    assert!(check(&limiter, 1).await.is_cached());
    (remote, limiter, reservation)
}

#[tokio::test(start_paused = true)]
async fn what_a_settlement_gives_back_can_be_used_at_once() {
    let (_remote, limiter, reservation) = reserved().await;
    assert!(matches!(reservation.settle(9).await, Settled::Done));
    assert!(check(&limiter, 1).await.is_admitted());
    assert!(!check(&limiter, 1).await.is_cached());
}

#[tokio::test(start_paused = true)]
async fn what_a_reset_gives_back_can_be_used_at_once() {
    let (_remote, limiter, _) = reserved().await;
    limiter.reset(alice()).await.unwrap();
    assert!(check(&limiter, 10).await.is_admitted());
    assert!(!check(&limiter, 1).await.is_admitted());
    limiter.reset_pairs(vec![Pair::new(alice(), ten(), 7)]).unwrap().await.unwrap();
    assert!(check(&limiter, 10).await.is_admitted());
}

#[tokio::test(start_paused = true)]
async fn it_is_given_back_under_every_quota() {
    let (_remote, limiter, reservation) = reserved().await;
    let under = |quota| Policies::from(policy("ten", quota, MINUTE)).pairs(&alice(), 1);
    assert!(!limiter.check_pairs(under(9)).unwrap().await.unwrap().is_admitted());
    assert!(limiter.check_pairs(under(9)).unwrap().await.unwrap().is_cached());
    reservation.settle(0).await;
    assert!(limiter.check_pairs(under(9)).unwrap().await.unwrap().is_admitted());
    limiter.reset_pairs(under(1_000)).unwrap().await.unwrap();
    assert!(check(&limiter, 10).await.is_admitted());
}

#[tokio::test(start_paused = true)]
async fn what_is_known_of_others_stays_known() {
    let (remote, limiter, reservation) = reserved().await;
    for name in 0..100 {
        assert!(!limiter.check(user(name), 11).await.unwrap().is_cached());
    }
    reservation.settle(0).await;
    limiter.reset(alice()).await.unwrap();
    let asked = remote.asked();
    for name in 0..100 {
        assert!(limiter.check(user(name), 11).await.unwrap().is_cached());
    }
    assert_eq!(remote.asked(), asked);
}

#[tokio::test(start_paused = true)]
async fn what_was_used_exactly_or_more_changes_nothing_that_is_known() {
    for used in [10, 12] {
        let (_remote, limiter, reservation) = reserved().await;
        assert!(matches!(reservation.settle(used).await, Settled::Done));
        assert!(check(&limiter, 1).await.is_cached());
    }
}

#[tokio::test(start_paused = true)]
async fn while_units_are_on_their_way_the_store_is_asked() {
    let (remote, limiter, reservation) = reserved().await;
    remote.change_trip(20 * TICK, 20 * TICK);
    let settlement = reservation.settle(5);
    assert!(!check(&limiter, 1).await.is_cached(), "it is asked from when it begins");
    sleep(30 * TICK).await;
    drop(settlement);
    // They are there, but nobody knows yet.
    assert!(check(&limiter, 1).await.is_cached());
    sleep(20 * TICK).await;
    assert!(check(&limiter, 1).await.is_admitted());
}

/// The denial is decided before the units are back, and told after that is known.
#[tokio::test(start_paused = true)]
async fn a_denial_that_is_under_way_while_units_go_back_is_not_remembered() {
    for reset in [false, true] {
        let (remote, limiter, reservation) = reserved().await;
        remote.check_trip(5 * TICK, 50 * TICK);
        // Until nothing is known.
        sleep(SECOND).await;
        let late = tokio::spawn(limiter.check(alice(), 1));
        sleep(10 * TICK).await;
        if reset {
            limiter.reset(alice()).await.unwrap();
        } else {
            assert!(matches!(reservation.settle(5).await, Settled::Done));
        }
        let late = late.await.unwrap().unwrap();
        assert_eq!((late.is_admitted(), late.is_cached()), (false, false));
        assert!(check(&limiter, 1).await.is_admitted());
    }
}

/// It is asked for after the settlement has begun, and decided and told before the units are back.
#[tokio::test(start_paused = true)]
async fn a_denial_between_the_begin_of_a_return_and_its_end_is_not_remembered() {
    for reset in [false, true] {
        let (remote, limiter, reservation) = reserved().await;
        remote.change_trip(40 * TICK, 5 * TICK);
        remote.check_trip(2 * TICK, 2 * TICK);
        let change = tokio::spawn({
            let limiter = limiter.clone();
            async move {
                if reset {
                    limiter.reset(alice()).await.unwrap();
                } else {
                    assert!(matches!(reservation.settle(5).await, Settled::Done));
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
async fn what_may_have_gone_back_is_not_known_any_more() {
    for fault in [Fault::Down, Fault::Hang, Fault::Panic] {
        let (remote, limiter, reservation) = reserved().await;
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
        // Given up in the middle, it may be done all the same.
        assert!(check(&limiter, 1).await.is_cached());
        remote.change_trip(NOTHING, 10 * TICK);
        let reset = tokio::spawn(limiter.reset(alice()));
        sleep(5 * TICK).await;
        reset.abort();
        assert!(reset.await.unwrap_err().is_cancelled());
        assert!(check(&limiter, 10).await.is_admitted());
    }
}
