//! The breaker: when it opens, how long it stays so, and what closes it.

use std::{error::Error, future::pending, time::Duration};

use tokio::{
    task::yield_now,
    time::{Instant, advance, sleep, timeout},
};
use tower_sliding_window::{Decision, Limiter, PartitionKey, Status, Wait, backend::{Backend, BackendError, Check, Purpose, Reason}, outage::Breaker, testing::FakeBackend, testing::FakeAnswer::{self, Admit, Hang, Unavailable}};

use super::{OF_ONE_CHECK, REASONS, SECOND, TICK, alice, later, on, told};

const THREE: Breaker = Breaker { failures: 3, open_for: SECOND };
const DOWN: FakeAnswer = Unavailable(Reason::Connection);
const FAILED: Result<bool, (Reason, bool)> = Err((Reason::Connection, true));
const LEFT_ALONE: Result<bool, (Reason, bool)> = Err((Reason::Connection, false));

fn script(answers: impl IntoIterator<Item = FakeAnswer>) -> (FakeBackend, Limiter) {
    let backend = FakeBackend::scripted(answers);
    let limiter = later(&backend).breaker(THREE).build().unwrap();
    (backend, limiter)
}

async fn check(limiter: &Limiter) -> Result<bool, (Reason, bool)> {
    told(limiter.check(alice(), 1).await)
}

#[tokio::test(start_paused = true)]
async fn it_opens_after_so_many_failures_stays_open_so_long_and_closes_at_the_first_answer() {
    let (backend, limiter) = script([DOWN, DOWN, DOWN, Admit]);
    for _ in 0..3 {
        assert_eq!(check(&limiter).await, FAILED);
    }
    let opened = Instant::now();
    while opened.elapsed() < SECOND {
        let start = Instant::now();
        assert_eq!(check(&limiter).await, LEFT_ALONE);
        assert_eq!(start.elapsed(), Duration::ZERO);
        advance(TICK).await;
    }
    assert_eq!(backend.checks().len(), 3);
    assert_eq!(check(&limiter).await, Ok(true));
    assert_eq!(check(&limiter).await, Ok(true));
    assert_eq!(backend.checks().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn an_answer_ends_the_row() {
    let wait = FakeAnswer::Deny(Wait::For(SECOND));
    let (backend, limiter) = script([DOWN, DOWN, wait, DOWN, DOWN, Admit, DOWN, DOWN, DOWN]);
    for expected in [FAILED, FAILED, Ok(false), FAILED, FAILED, Ok(true)] {
        assert_eq!(check(&limiter).await, expected);
        advance(SECOND).await;
    }
    for expected in [FAILED, FAILED, FAILED, LEFT_ALONE] {
        assert_eq!(check(&limiter).await, expected);
    }
    assert_eq!(backend.checks().len(), 9);
}

#[tokio::test(start_paused = true)]
async fn it_stays_closed_while_something_was_answered_within_a_deadline() {
    let (backend, limiter) = script([Admit, DOWN]);
    assert_eq!(check(&limiter).await, Ok(true));
    for _ in 0..99 {
        advance(TICK).await;
        assert_eq!(check(&limiter).await, FAILED);
    }
    advance(TICK).await;
    // A hundred milliseconds, which is the deadline, and nothing but failures.
    assert_eq!(check(&limiter).await, FAILED);
    assert_eq!(check(&limiter).await, LEFT_ALONE);
    assert_eq!(backend.checks().len(), 101);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_fails_opens_it_for_as_long_again_with_its_own_reason() {
    let (backend, limiter) = script([DOWN, DOWN, DOWN, Unavailable(Reason::Busy), Admit]);
    for _ in 0..3 {
        assert_eq!(check(&limiter).await, FAILED);
    }
    advance(SECOND).await;
    assert_eq!(check(&limiter).await, Err((Reason::Busy, true)));
    for _ in 0..2 {
        assert_eq!(check(&limiter).await, Err((Reason::Busy, false)));
        advance(SECOND / 2 - TICK).await;
    }
    assert_eq!(check(&limiter).await, Err((Reason::Busy, false)));
    advance(2 * TICK).await;
    assert_eq!(check(&limiter).await, Ok(true));
    assert_eq!(backend.checks().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn exactly_one_of_many_probes_and_the_others_wait_for_nothing() {
    let (backend, limiter) = script([DOWN, DOWN, DOWN, Hang, Admit]);
    for _ in 0..3 {
        assert_eq!(check(&limiter).await, FAILED);
    }
    advance(SECOND).await;
    let start = Instant::now();
    let many: Vec<_> = (0..100)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { (check(&limiter).await, start.elapsed()) })
        })
        .collect();
    let mut probes = 0;
    for one in many {
        match one.await.unwrap() {
            (Err((Reason::Timeout, true)), waited) => {
                probes += 1;
                assert!((SECOND / 10..=SECOND / 10 + TICK).contains(&waited), "{waited:?}");
            }
            (outcome, waited) => assert_eq!((outcome, waited), (LEFT_ALONE, Duration::ZERO)),
        }
    }
    assert_eq!((probes, backend.checks().len()), (1, 4));
    // It has failed, so they wait again.
    assert_eq!(check(&limiter).await, Err((Reason::Timeout, false)));
    advance(SECOND).await;
    assert_eq!(check(&limiter).await, Ok(true));
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_client_goes_away_leaves_its_place_to_the_next() {
    let (backend, limiter) = script([DOWN, DOWN, DOWN, Hang, Hang, Hang, Admit]);
    for _ in 0..3 {
        assert_eq!(check(&limiter).await, FAILED);
    }
    advance(SECOND).await;
    for _ in 0..2 {
        assert!(timeout(SECOND / 20, check(&limiter)).await.is_err());
    }
    // The next one probes, and as long as it does it is the only one: nobody has closed the breaker.
    let probe = tokio::spawn(limiter.check(alice(), 1));
    sleep(TICK).await;
    assert_eq!(check(&limiter).await, LEFT_ALONE);
    probe.abort();
    assert!(probe.await.unwrap_err().is_cancelled());
    assert_eq!(check(&limiter).await, Ok(true));
    assert_eq!(backend.checks().len(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_check_that_is_dropped_is_neither_a_failure_nor_an_answer() {
    let (backend, limiter) = script([DOWN, DOWN, Hang, Hang, Hang, DOWN]);
    for _ in 0..2 {
        assert_eq!(check(&limiter).await, FAILED);
    }
    for _ in 0..3 {
        assert!(timeout(SECOND / 20, check(&limiter)).await.is_err());
    }
    assert_eq!(check(&limiter).await, FAILED);
    assert_eq!(check(&limiter).await, LEFT_ALONE);
    assert_eq!(backend.checks().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_check_that_is_never_polled_is_no_probe() {
    let (_backend, limiter) = script([DOWN, DOWN, DOWN, Admit]);
    for _ in 0..3 {
        assert_eq!(check(&limiter).await, FAILED);
    }
    advance(SECOND).await;
    let idle = limiter.check(alice(), 1);
    assert_eq!(check(&limiter).await, Ok(true));
    drop(idle);
}

#[tokio::test(start_paused = true)]
async fn a_hang_opens_it_after_so_many_deadlines_have_passed() {
    let (backend, limiter) = script([Hang]);
    let start = Instant::now();
    let many: Vec<_> = (0..20)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { check(&limiter).await })
        })
        .collect();
    for one in many {
        assert_eq!(one.await.unwrap(), Err((Reason::Timeout, true)));
    }
    assert!(start.elapsed() <= SECOND / 10 + TICK, "{:?}", start.elapsed());
    let opened = Instant::now();
    assert_eq!(check(&limiter).await, Err((Reason::Timeout, false)));
    assert_eq!((opened.elapsed(), backend.checks().len()), (Duration::ZERO, 20));
}

#[tokio::test(start_paused = true)]
async fn which_reasons_open_it() {
    for reason in REASONS {
        let (backend, limiter) = script([Unavailable(reason)]);
        for _ in 0..10 {
            assert_eq!(check(&limiter).await.unwrap_err().0, reason);
        }
        let asked = if OF_ONE_CHECK.contains(&reason) { 10 } else { 3 };
        assert_eq!(backend.checks().len(), asked, "{reason:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_one_check_ends_a_row_and_closes_it_for_the_store_has_answered() {
    for reason in OF_ONE_CHECK {
        let (backend, limiter) =
            script([DOWN, DOWN, Unavailable(reason), DOWN, DOWN, DOWN, Unavailable(reason)]);
        let error = Err((reason, true));
        for expected in [FAILED, FAILED, error] {
            assert_eq!(check(&limiter).await, expected);
        }
        advance(SECOND).await;
        for expected in [FAILED, FAILED, FAILED, LEFT_ALONE] {
            assert_eq!(check(&limiter).await, expected);
        }
        advance(SECOND).await;
        for _ in 0..2 {
            assert_eq!(check(&limiter).await, error);
        }
        assert_eq!(backend.checks().len(), 8);
    }
}

#[tokio::test(start_paused = true)]
async fn one_key_that_hangs_does_not_shut_off_those_that_are_answered() {
    /// Answers everybody but mallory.
    struct Picky;
    impl Backend for Picky {
        async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
            if check.pairs()[0].key == PartitionKey::new("user", "mallory") {
                return pending().await;
            }
            let admits = |pair| Status::new(pair, 1, Wait::ZERO, SECOND, SECOND);
            Ok(Decision::new(0, check.pairs().iter().map(admits).collect::<Vec<_>>()))
        }
    }
    let limiter = on(Picky).breaker(THREE).build().unwrap();
    let mallory = limiter.clone();
    let attack = tokio::spawn(async move {
        for _ in 0..5 {
            let many: Vec<_> = (0..50)
                .map(|_| tokio::spawn(mallory.check(PartitionKey::new("user", "mallory"), 1)))
                .collect();
            for one in many {
                assert_eq!(told(one.await.unwrap()), Err((Reason::Timeout, true)));
            }
        }
    });
    let mut others = 0;
    while !attack.is_finished() {
        assert_eq!(check(&limiter).await, Ok(true));
        others += 1;
        sleep(10 * TICK).await;
    }
    attack.await.unwrap();
    assert!(others > 40, "{others}");
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_before_it_opened_says_nothing_afterwards() {
    /// Fails at once, but what costs 2 is answered after 50 ms, and what costs 3 fails then.
    struct Slow;
    impl Backend for Slow {
        async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
            let cost = check.pairs()[0].cost;
            if cost > 1 {
                sleep(50 * TICK).await;
            }
            if cost != 2 {
                return Err(BackendError::new(Reason::Connection));
            }
            let admits = |pair| Status::new(pair, 1, Wait::ZERO, SECOND, SECOND);
            Ok(Decision::new(0, check.pairs().iter().map(admits).collect::<Vec<_>>()))
        }
    }
    let limiter = on(Slow).breaker(THREE).build().unwrap();
    let slow: Vec<_> = [2, 3].into_iter().map(|cost| tokio::spawn(limiter.check(alice(), cost))).collect();
    yield_now().await;
    for expected in [FAILED, FAILED, FAILED, LEFT_ALONE] {
        assert_eq!(check(&limiter).await, expected);
    }
    let opened = Instant::now();
    let mut late = Vec::new();
    for one in slow {
        late.push(told(one.await.unwrap()));
    }
    assert_eq!(late, [Ok(true), FAILED]);
    // Neither closed by the answer nor open for longer by the failure.
    assert_eq!(check(&limiter).await, LEFT_ALONE);
    advance(SECOND - opened.elapsed() - TICK).await;
    assert_eq!(check(&limiter).await, LEFT_ALONE);
    advance(TICK).await;
    assert_eq!(told(limiter.check(alice(), 2).await), Ok(true));
}

#[tokio::test(start_paused = true)]
async fn clones_share_it_and_other_limiters_do_not() {
    let backend = FakeBackend::scripted([DOWN]);
    let limiter = later(&backend).breaker(THREE).build().unwrap();
    for _ in 0..3 {
        assert_eq!(check(&limiter.clone()).await, FAILED);
    }
    assert_eq!(check(&limiter.clone()).await, LEFT_ALONE);
    let other = later(&backend).breaker(THREE).build().unwrap();
    assert_eq!(check(&other).await, FAILED);
}

#[tokio::test(start_paused = true)]
async fn without_one_the_store_is_asked_every_time_and_by_default_there_is_one() {
    let backend = FakeBackend::unavailable(Reason::Connection);
    let limiter = later(&backend).breaker(None).build().unwrap();
    for _ in 0..100 {
        assert_eq!(check(&limiter).await, FAILED);
    }
    assert_eq!(backend.checks().len(), 100);
    let backend = FakeBackend::unavailable(Reason::Connection);
    let limiter = later(&backend).build().unwrap();
    for _ in 0..100 {
        assert_eq!(check(&limiter).await.unwrap_err().0, Reason::Connection);
    }
    assert_eq!(backend.checks().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn what_is_answered_at_once_passes_it_by() {
    let backend = FakeBackend::unavailable(Reason::Connection);
    let limiter = on(backend.clone()).breaker(THREE).build().unwrap();
    for _ in 0..10 {
        assert_eq!(check(&limiter).await, FAILED);
    }
    assert_eq!(backend.checks().len(), 10);
}

#[tokio::test(start_paused = true)]
async fn peeks_and_reservations_go_through_it_and_resets_and_settlements_pass_it_by() {
    let (backend, limiter) = script([Admit, DOWN]);
    let reservation = limiter.reserve(alice(), 5).await.unwrap();
    advance(SECOND).await;
    assert_eq!(told(limiter.peek(alice(), 1).await), FAILED);
    assert_eq!(limiter.reserve(alice(), 1).await.unwrap_err().error().unwrap().reason(), Reason::Connection);
    assert_eq!(check(&limiter).await, FAILED);
    assert_eq!(told(limiter.peek(alice(), 1).await), LEFT_ALONE);
    assert!(!limiter.reserve(alice(), 1).await.unwrap_err().error().unwrap().was_asked());
    limiter.reset(alice()).await.unwrap();
    assert!(matches!(reservation.settle(1).await, tower_sliding_window::settle::Settled::Done));
    let purposes: Vec<_> = backend.checks().iter().map(|check| check.purpose).collect();
    assert_eq!(purposes, [Purpose::Reserve, Purpose::Peek, Purpose::Reserve, Purpose::Charge]);
    assert_eq!((backend.resets().len(), backend.refunds().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_error_of_a_store_that_is_left_alone_says_so() {
    let (_backend, limiter) = script([DOWN]);
    for text in [
        "no rate limit decision: the store cannot be reached",
        "no rate limit decision: the store cannot be reached",
        "no rate limit decision: the store cannot be reached",
        "no rate limit decision: the store cannot be reached (circuit breaker is open)",
    ] {
        assert_eq!(limiter.check(alice(), 1).await.unwrap_err().to_string(), text);
    }
    /// Tells why.
    struct Why;
    impl Backend for Why {
        async fn check(&self, _check: &Check) -> Result<Decision, BackendError> {
            Err(BackendError::with_source(Reason::Other, "the cable"))
        }
    }
    let limiter = on(Why).breaker(THREE).build().unwrap();
    for _ in 0..5 {
        let error = limiter.check(alice(), 1).await.unwrap_err();
        assert_eq!(error.source().unwrap().to_string(), "the cable");
    }
}
