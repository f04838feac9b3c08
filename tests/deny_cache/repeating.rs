//! What is repeated, for how long, and what is told of it.

use tokio::time::{advance, sleep};
use tower_sliding_window::{Algorithm, Limiter, Policies, Policy, Rejection, Wait, backend::Pair};

use super::{
    DUE, MINUTE, NOTHING, Remote, SECOND, TICK, age, alice, check, on, policy, remote, ten, used_up, user,
    wait,
};

#[tokio::test(start_paused = true)]
async fn what_was_denied_is_denied_again_without_asking_and_tells_what_is_left_of_the_wait() {
    let (remote, limiter) = used_up().await;
    let at = limiter.peek(alice(), 1).await.unwrap().at_micros();
    for millis in 0..800 {
        let denied = check(&limiter, 1).await;
        assert!(!denied.is_admitted() && denied.is_cached());
        let left = MINUTE - millis * TICK;
        let status = &denied.statuses()[0];
        assert_eq!(denied.retry_after(), Wait::For(left));
        assert_eq!((status.next_after(), status.reset_after()), (left, left));
        assert_eq!((status.limit(), status.remaining(), status.cost()), (10, 0, 1));
        assert_eq!((status.policy(), denied.at_micros()), (&ten(), at));
        advance(TICK).await;
    }
    assert_eq!(remote.asked(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_reservation_is_denied_by_what_a_check_was_and_the_other_way_round() {
    let (remote, limiter) = used_up().await;
    assert!(matches!(limiter.reserve(alice(), 1).await, Err(Rejection::Denied(it)) if it.is_cached()));
    let bob = user("bob");
    assert!(limiter.reserve(bob.clone(), 10).await.is_ok());
    assert!(matches!(limiter.reserve(bob.clone(), 2).await, Err(Rejection::Denied(_))));
    assert_eq!(remote.asked(), 4);
    assert!(limiter.check(bob, 2).await.unwrap().is_cached());
    assert_eq!(remote.asked(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_smaller_cost_is_asked_for() {
    let (remote, limiter) = remote();
    assert!(check(&limiter, 7).await.is_admitted());
    assert!(!check(&limiter, 5).await.is_admitted());
    assert!(!check(&limiter, 4).await.is_cached());
    assert!(check(&limiter, 3).await.is_admitted());
    assert_eq!(remote.asked(), 4);
}

#[tokio::test(start_paused = true)]
async fn costs_of_one_key_are_each_told_their_own_wait() {
    let (remote, limiter) = remote();
    for cost in [1, 2, 3, 4] {
        assert!(check(&limiter, cost).await.is_admitted());
        advance(10 * SECOND).await;
    }
    // After so many seconds so much has left.
    let waits = [(1, 20), (3, 30), (6, 40), (10, 50)];
    for round in 0..3 {
        for (cost, seconds) in waits {
            let denied = check(&limiter, cost).await;
            assert_eq!(denied.retry_after(), Wait::For(seconds * SECOND - round * TICK), "{cost}");
            assert_eq!(denied.is_cached(), round > 0);
        }
        advance(TICK).await;
    }
    assert_eq!(remote.asked(), 4 + 4);
    // Of a fifth one nothing is asked. It is denied as the one below it is.
    let denied = check(&limiter, 5).await;
    assert_eq!((denied.retry_after(), denied.is_cached()), (Wait::For(30 * SECOND - 3 * TICK), true));
    assert_eq!(remote.asked(), 4 + 4);
}

#[tokio::test(start_paused = true)]
async fn while_the_wait_of_a_cost_is_asked_for_others_of_that_cost_are_told_a_shorter_one() {
    let (remote, limiter) = remote();
    assert!(check(&limiter, 1).await.is_admitted());
    advance(SECOND).await;
    assert!(check(&limiter, 9).await.is_admitted());
    assert!(!check(&limiter, 1).await.is_admitted());
    remote.check_trip(TICK, TICK);
    let asking = tokio::spawn(limiter.check(alice(), 5));
    sleep(TICK).await;
    let meanwhile = check(&limiter, 5).await;
    assert_eq!((meanwhile.is_cached(), wait(&meanwhile)), (true, MINUTE - SECOND - TICK));
    let asked = asking.await.unwrap().unwrap();
    assert_eq!((asked.is_cached(), wait(&asked)), (false, MINUTE - TICK));
    assert_eq!(remote.asked(), 4);
}

#[tokio::test(start_paused = true)]
async fn what_can_never_be_admitted_is_never_admitted_again() {
    let (remote, limiter) = remote();
    assert_eq!(check(&limiter, 11).await.retry_after(), Wait::Never);
    for cost in [11, 12, u32::MAX] {
        let denied = check(&limiter, cost).await;
        assert_eq!((denied.retry_after(), denied.is_cached()), (Wait::Never, true));
        let status = &denied.statuses()[0];
        assert_eq!((status.remaining(), status.next_after()), (10, MINUTE));
    }
    assert_eq!(remote.asked(), 1);
    assert!(check(&limiter, 10).await.is_admitted());
    // Nor where something smaller is known to be denied, whose wait would help it.
    assert!(!check(&limiter, 1).await.is_admitted());
    let denied = check(&limiter, 11).await;
    assert_eq!((denied.retry_after(), denied.is_cached()), (Wait::Never, true));
    advance(SECOND).await;
    assert!(!check(&limiter, 11).await.is_cached());
}

#[tokio::test(start_paused = true)]
async fn at_the_end_of_the_wait_the_store_is_asked_and_admits_and_not_before() {
    for millis in [2, 100, 999] {
        let remote = Remote::new();
        let limiter = Limiter::builder(remote.clone()).policy(policy("p", 1, millis * TICK)).build().unwrap();
        assert!(check(&limiter, 1).await.is_admitted());
        assert!(!check(&limiter, 1).await.is_admitted());
        advance((millis - 1) * TICK).await;
        let denied = check(&limiter, 1).await;
        assert_eq!((denied.is_admitted(), wait(&denied)), (false, TICK));
        advance(TICK).await;
        assert!(check(&limiter, 1).await.is_admitted(), "{millis}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_counts_from_when_it_was_asked_for_and_not_from_when_it_was_told() {
    let remote = Remote::new();
    let limiter = Limiter::builder(remote.clone()).policy(policy("p", 1, SECOND / 2)).build().unwrap();
    assert!(check(&limiter, 1).await.is_admitted());
    remote.check_trip(NOTHING, 40 * TICK);
    assert_eq!(wait(&check(&limiter, 1).await), SECOND / 2);
    remote.check_trip(NOTHING, NOTHING);
    let denied = check(&limiter, 1).await;
    assert_eq!((denied.is_cached(), wait(&denied)), (true, SECOND / 2 - 40 * TICK));
    advance(SECOND / 2 - 40 * TICK).await;
    assert!(check(&limiter, 1).await.is_admitted());
}

#[tokio::test(start_paused = true)]
async fn what_another_process_gives_back_is_seen_within_the_maximum_age() {
    for max_age in [TICK, 10 * TICK, SECOND, MINUTE] {
        let remote = Remote::new();
        let quota = policy("ten", 10, 60 * MINUTE);
        let builder = Limiter::builder(remote.clone()).policy(quota.clone());
        let limiter = builder.deny_cache(age(max_age)).build().unwrap();
        assert!(check(&limiter, 10).await.is_admitted());
        assert!(!check(&limiter, 1).await.is_admitted());
        let denied = tokio::time::Instant::now();
        remote.lose(std::slice::from_ref(&quota)).await;
        // Asked all the time, one asks again for all before it is too late.
        while !check(&limiter, 1).await.is_admitted() {
            advance(max_age / 1_000).await;
        }
        let elapsed = denied.elapsed();
        assert!((max_age / 10 * 8..max_age / 10 * 9).contains(&elapsed), "{max_age:?}: {elapsed:?}");
        // And nobody else is denied by what that has refuted.
        remote.check_trip(TICK, TICK);
        let others: Vec<_> = (0..4).map(|_| tokio::spawn(limiter.check(alice(), 1))).collect();
        for other in others {
            assert!(other.await.unwrap().unwrap().is_admitted());
        }
        remote.check_trip(NOTHING, NOTHING);

        // Asked only at the very end, too, by as many as there are.
        assert!(check(&limiter, 5).await.is_admitted());
        assert!(!check(&limiter, 1).await.is_admitted());
        remote.lose(std::slice::from_ref(&quota)).await;
        advance(max_age).await;
        let asked = remote.asked();
        for _ in 0..10 {
            assert!(check(&limiter, 1).await.is_admitted());
        }
        assert_eq!(remote.asked(), asked + 10);
    }
}

#[tokio::test(start_paused = true)]
async fn another_key_another_policy_and_another_limiter_are_asked_for() {
    let (remote, limiter) = used_up().await;
    let asked = remote.asked();
    let pair = |policy: Policy| vec![Pair::new(alice(), policy, 1)];
    let precision = SECOND;
    let others = [
        policy("eleven", 10, MINUTE),
        policy("ten", 10, MINUTE + TICK),
        ten().with_algorithm(Algorithm::FixedWindow).unwrap(),
        ten().with_algorithm(Algorithm::SlidingBuckets { precision }).unwrap(),
    ];
    for (i, other) in others.into_iter().enumerate() {
        assert!(limiter.check_pairs(pair(other)).unwrap().await.unwrap().is_admitted());
        assert_eq!(remote.asked(), asked + i + 1);
    }
    assert!(limiter.check_pairs(pair(ten())).unwrap().await.unwrap().is_cached());
    assert!(limiter.check(user("bob"), 1).await.unwrap().is_admitted());
    assert_eq!(remote.asked(), asked + 5);
    for other in [on(remote.clone()), on(remote.clone()).namespace("other")] {
        assert!(!check(&other.build().unwrap(), 1).await.is_cached());
    }
    assert_eq!(remote.asked(), asked + 7);
    assert!(check(&limiter.clone(), 1).await.is_cached(), "a clone shares what is known");
}

#[tokio::test(start_paused = true)]
async fn another_quota_takes_effect_at_once() {
    let (remote, limiter) = used_up().await;
    let under = async |quota, cost| {
        let pairs = Policies::from(policy("ten", quota, MINUTE)).pairs(&alice(), cost);
        limiter.check_pairs(pairs).unwrap().await.unwrap()
    };
    // The units that are used are known to be at least ten. So a smaller quota denies, too.
    let denied = under(9, 1).await;
    assert_eq!((denied.is_cached(), denied.statuses()[0].limit()), (false, 9), "and its wait is asked for");
    assert!(under(9, 1).await.is_cached());
    assert_eq!(under(9, 10).await.retry_after(), Wait::Never);
    let denied = under(11, 2).await;
    assert_eq!((denied.is_cached(), denied.statuses()[0].remaining()), (true, 1));
    assert_eq!(remote.asked(), 3);
    assert!(under(11, 1).await.is_admitted());
    assert!(under(12, 1).await.is_admitted());
    assert_eq!(remote.asked(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_check_is_denied_by_each_of_its_pairs_and_told_of_those_that_are_known_to() {
    let remote = Remote::new();
    let builder = Limiter::builder(remote.clone()).policy(policy("wide", 1_000, MINUTE)).policy(ten());
    let limiter = builder.policy(policy("narrow", 5, SECOND / 2)).build().unwrap();
    assert!(check(&limiter, 5).await.is_admitted());
    advance(SECOND / 2).await;
    assert!(check(&limiter, 5).await.is_admitted());
    advance(SECOND / 10).await;
    let denied = check(&limiter, 1).await;
    assert_eq!((denied.is_cached(), denied.statuses().len()), (false, 3));
    let names = |decision: &tower_sliding_window::Decision| {
        let statuses = decision.statuses().iter().map(|status| status.policy().name().to_owned());
        statuses.collect::<Vec<_>>()
    };
    let denied = check(&limiter, 1).await;
    assert_eq!((denied.is_cached(), names(&denied)), (true, vec!["ten".to_owned(), "narrow".to_owned()]));
    assert_eq!(wait(&denied), MINUTE - 6 * SECOND / 10);
    assert_eq!(denied.violated().count(), 2);
    // When the shorter wait is over, the other one is not.
    advance(4 * SECOND / 10).await;
    let denied = check(&limiter, 1).await;
    assert_eq!((denied.is_cached(), names(&denied)), (true, vec!["ten".to_owned()]));
    assert_eq!(remote.asked(), 3);
    // Of another check the same pair is known.
    let pairs = vec![Pair::new(user("bob"), ten(), 1), Pair::new(alice(), ten(), 1)];
    assert!(limiter.check_pairs(pairs).unwrap().await.unwrap().is_cached());
}

#[tokio::test(start_paused = true)]
async fn where_something_has_left_meanwhile_the_next_instant_is_that_of_the_wait() {
    let (_remote, limiter) = remote();
    assert!(check(&limiter, 1).await.is_admitted());
    advance(MINUTE - SECOND / 10).await;
    assert!(check(&limiter, 9).await.is_admitted());
    assert_eq!(check(&limiter, 9).await.statuses()[0].next_after(), SECOND / 10);
    advance(SECOND / 10 - TICK).await;
    assert_eq!(check(&limiter, 9).await.statuses()[0].next_after(), TICK);
    advance(TICK).await;
    let denied = check(&limiter, 9).await;
    let status = &denied.statuses()[0];
    assert!(denied.is_cached());
    assert_eq!((status.remaining(), status.next_after()), (0, MINUTE - SECOND / 10));
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_a_thousand_times_a_second_is_asked_for_about_once() {
    let (remote, limiter) = used_up().await;
    for _ in 0..58 * 1_000 {
        assert!(!check(&limiter, 1).await.is_admitted());
        advance(TICK).await;
    }
    let asked = remote.asked() - 2;
    assert_eq!(asked as u128, 58 * SECOND.as_millis() / DUE.as_millis());
}
