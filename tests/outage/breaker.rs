//! The circuit breaker: closed, open, half-open and probes.

use std::{
    error::Error,
    future::{Future, pending},
    iter,
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Waker},
    time::Duration,
};

use tokio::{
    task::yield_now,
    time::{Instant, advance, sleep, timeout},
};
use tower_sliding_window::{
    Decision, Limiter, PartitionKey, Status, Wait,
    backend::{Backend, BackendError, Check, Purpose, Reason},
    outage::{Breaker, Protection},
    testing::FakeAnswer::{self, Admit, Hang, Unavailable},
    testing::FakeBackend,
};

use super::{OF_ONE_CHECK, SECOND, TICK, alice, deferred, on, outcome};

const THREE_FAILURES: Breaker = Breaker::new(3, SECOND);
const DOWN: FakeAnswer = Unavailable(Reason::Connection);
const FAILED: Result<bool, (Reason, bool)> = Err((Reason::Connection, true));
const REJECTED_BY_BREAKER: Result<bool, (Reason, bool)> = Err((Reason::Connection, false));

fn script(answers: impl IntoIterator<Item = FakeAnswer>) -> (FakeBackend, Limiter) {
    let backend = FakeBackend::scripted(answers);
    let limiter = deferred(&backend).breaker(THREE_FAILURES).build().unwrap();
    (backend, limiter)
}

async fn check(limiter: &Limiter) -> Result<bool, (Reason, bool)> {
    outcome(limiter.check(alice()).await)
}

#[tokio::test(start_paused = true)]
async fn breaker_opens_after_failures_and_closes_after_probe() {
    let (backend, limiter) = script([DOWN, DOWN, DOWN, Admit]);
    for _ in 0..3 {
        assert_eq!(check(&limiter).await, FAILED, "the store is asked until the breaker opens");
    }
    let opened = Instant::now();
    while opened.elapsed() < SECOND {
        let start = Instant::now();
        assert_eq!(check(&limiter).await, REJECTED_BY_BREAKER, "the open breaker rejects");
        assert_eq!(start.elapsed(), Duration::ZERO, "a rejected check does not wait");
        advance(TICK).await;
    }
    assert_eq!(backend.checks().len(), 3, "an open breaker asks the store for nothing");
    assert_eq!(check(&limiter).await, Ok(true), "the probe is admitted");
    assert_eq!(check(&limiter).await, Ok(true), "the breaker is closed after the probe");
    assert_eq!(backend.checks().len(), 5, "the probe and the next check are sent");
}

#[tokio::test(start_paused = true)]
async fn answer_resets_failure_count() {
    let wait = FakeAnswer::Deny(Wait::For(SECOND));
    let (backend, limiter) = script([DOWN, DOWN, wait, DOWN, DOWN, Admit, DOWN, DOWN, DOWN]);
    for expected in [FAILED, FAILED, Ok(false), FAILED, FAILED, Ok(true)] {
        assert_eq!(check(&limiter).await, expected, "an answer between failures keeps the breaker closed");
        advance(SECOND).await;
    }
    for expected in [FAILED, FAILED, FAILED, REJECTED_BY_BREAKER] {
        assert_eq!(check(&limiter).await, expected, "three failures in succession open the breaker");
    }
    assert_eq!(backend.checks().len(), 9, "all checks but the rejected one are sent");
}

#[tokio::test(start_paused = true)]
async fn recent_answer_keeps_breaker_closed() {
    let (backend, limiter) = script([Admit, DOWN]);
    assert_eq!(check(&limiter).await, Ok(true), "the store answers first");
    for _ in 0..99 {
        advance(TICK).await;
        assert_eq!(check(&limiter).await, FAILED, "the breaker stays closed after a recent answer");
    }
    advance(TICK).await;
    // The last success is 100 ms ago, which is the deadline.
    assert_eq!(check(&limiter).await, FAILED, "the failure that opens the breaker");
    assert_eq!(check(&limiter).await, REJECTED_BY_BREAKER, "the last answer is a deadline old");
    assert_eq!(backend.checks().len(), 101, "all checks but the rejected one are sent");
}

#[tokio::test(start_paused = true)]
async fn failed_probe_reopens_breaker_with_its_own_reason() {
    let (backend, limiter) = script([DOWN, DOWN, DOWN, Unavailable(Reason::Busy), Admit]);
    for _ in 0..3 {
        assert_eq!(check(&limiter).await, FAILED, "the store is asked until the breaker opens");
    }
    advance(SECOND).await;
    assert_eq!(check(&limiter).await, Err((Reason::Busy, true)), "the probe fails for its own reason");
    for _ in 0..2 {
        assert_eq!(
            check(&limiter).await,
            Err((Reason::Busy, false)),
            "the reason is that of the failed probe"
        );
        advance(SECOND / 2 - TICK).await;
    }
    assert_eq!(
        check(&limiter).await,
        Err((Reason::Busy, false)),
        "the breaker is open for a whole second again"
    );
    advance(2 * TICK).await;
    assert_eq!(check(&limiter).await, Ok(true), "the second probe is admitted");
    assert_eq!(backend.checks().len(), 5, "three failures and two probes are sent");
}

#[tokio::test(start_paused = true)]
async fn half_open_breaker_sends_exactly_one_probe() {
    let (backend, limiter) = script([DOWN, DOWN, DOWN, Hang, Admit]);
    for _ in 0..3 {
        assert_eq!(check(&limiter).await, FAILED, "the store is asked until the breaker opens");
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
            (outcome, waited) => assert_eq!(
                (outcome, waited),
                (REJECTED_BY_BREAKER, Duration::ZERO),
                "during the probe, all other checks are rejected at once"
            ),
        }
    }
    assert_eq!((probes, backend.checks().len()), (1, 4), "one probe is sent");
    // The probe has failed, so the breaker is open again.
    assert_eq!(
        check(&limiter).await,
        Err((Reason::Timeout, false)),
        "the failed probe opens the breaker again"
    );
    advance(SECOND).await;
    assert_eq!(check(&limiter).await, Ok(true), "the next probe is admitted");
}

#[tokio::test(start_paused = true)]
async fn cancelled_probe_passes_to_next_check() {
    let (backend, limiter) = script([DOWN, DOWN, DOWN, Hang, Hang, Hang, Admit]);
    for _ in 0..3 {
        assert_eq!(check(&limiter).await, FAILED, "the store is asked until the breaker opens");
    }
    advance(SECOND).await;
    for _ in 0..2 {
        assert!(
            timeout(SECOND / 20, check(&limiter)).await.is_err(),
            "the probe hangs until the client leaves"
        );
    }
    // The next check is the probe. During the probe the breaker rejects all other checks.
    let probe = tokio::spawn(limiter.check(alice()));
    sleep(TICK).await;
    assert_eq!(check(&limiter).await, REJECTED_BY_BREAKER, "during the probe, the breaker rejects");
    probe.abort();
    assert!(probe.await.unwrap_err().is_cancelled(), "the probe was cancelled");
    assert_eq!(check(&limiter).await, Ok(true), "the next check is the probe");
    assert_eq!(backend.checks().len(), 7, "every cancelled probe was sent");
}

/// The runtime of the probe does not run.
#[tokio::test(start_paused = true)]
async fn stuck_probe_is_replaced_after_its_deadline() {
    let (backend, limiter) = script([DOWN, DOWN, DOWN, Hang, Admit, DOWN]);
    for _ in 0..3 {
        assert_eq!(check(&limiter).await, FAILED, "the store is asked until the breaker opens");
    }
    advance(SECOND).await;
    let mut stuck = pin!(check(&limiter));
    // The fake backend answers at the second poll.
    for _ in 0..2 {
        assert!(stuck.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "the probe hangs");
    }
    for _ in 0..9 {
        advance(SECOND / 100).await;
        assert_eq!(
            check(&limiter).await,
            REJECTED_BY_BREAKER,
            "until its deadline, the probe is the only one"
        );
    }
    advance(SECOND / 10).await;
    assert_eq!(check(&limiter).await, Ok(true), "the next check replaces the probe");
    // The end of the old probe does not open the breaker again.
    assert_eq!(stuck.await, Err((Reason::Overloaded, true)), "it is noticed late");
    assert_eq!(check(&limiter).await, FAILED, "the breaker is closed, so the store is asked");
    assert_eq!(backend.checks().len(), 6, "three failures, two probes and a check are sent");
}

/// A backend may have several servers, of which one fails.
#[tokio::test(start_paused = true)]
async fn backend_may_protect_its_servers_itself() {
    struct Protects(Arc<Mutex<Vec<Protection>>>);

    impl Backend for Protects {
        async fn check(&self, _: &Check) -> Result<Decision, BackendError> {
            yield_now().await;
            Err(BackendError::new(Reason::Connection))
        }

        fn protect(&self, protection: Protection) -> bool {
            self.0.lock().unwrap().push(protection);
            true
        }
    }

    let given = Arc::<Mutex<Vec<Protection>>>::default();
    let builder =
        on(Protects(given.clone())).breaker(THREE_FAILURES).max_checks_in_flight(2).deadline(SECOND);
    let limiter = builder.build().unwrap();
    let given = given.lock().unwrap().clone();
    let protection = given.first().unwrap();
    assert_eq!(
        (given.len(), protection.breaker),
        (1, Some(THREE_FAILURES)),
        "the backend gets the settings of the breaker once"
    );
    assert_eq!(
        (protection.max_checks_in_flight, protection.deadline),
        (2, SECOND),
        "the backend gets the limit and the deadline"
    );
    // The limiter has no breaker and sheds no load.
    let checks = (0..20).map(|_| limiter.check(alice()));
    for outcome in tokio::task::JoinSet::from_iter(checks).join_all().await {
        assert_eq!(crate::outage::outcome(outcome), FAILED, "the backend is asked every time");
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_check_does_not_change_failure_count() {
    let (backend, limiter) = script([DOWN, DOWN, Hang, Hang, Hang, DOWN]);
    for _ in 0..2 {
        assert_eq!(check(&limiter).await, FAILED, "the store is asked until the breaker opens");
    }
    for _ in 0..3 {
        assert!(
            timeout(SECOND / 20, check(&limiter)).await.is_err(),
            "the store hangs until the client leaves"
        );
    }
    assert_eq!(check(&limiter).await, FAILED, "the third failure");
    assert_eq!(check(&limiter).await, REJECTED_BY_BREAKER, "dropped checks reset no failure count");
    assert_eq!(backend.checks().len(), 6, "all checks but the rejected one are sent");
}

#[tokio::test(start_paused = true)]
async fn unpolled_check_takes_no_probe() {
    let (_backend, limiter) = script([DOWN, DOWN, DOWN, Admit]);
    for _ in 0..3 {
        assert_eq!(check(&limiter).await, FAILED, "the store is asked until the breaker opens");
    }
    advance(SECOND).await;
    let idle = limiter.check(alice());
    assert_eq!(check(&limiter).await, Ok(true), "the check that is polled is the probe");
    drop(idle);
}

#[tokio::test(start_paused = true)]
async fn timeouts_open_breaker_after_one_deadline() {
    let (backend, limiter) = script([Hang]);
    let start = Instant::now();
    let many: Vec<_> = (0..20)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { check(&limiter).await })
        })
        .collect();
    for one in many {
        assert_eq!(one.await.unwrap(), Err((Reason::Timeout, true)), "the store hangs");
    }
    assert!(start.elapsed() <= SECOND / 10 + TICK, "{:?}", start.elapsed());
    let opened = Instant::now();
    assert_eq!(check(&limiter).await, Err((Reason::Timeout, false)), "the breaker is open");
    assert_eq!(
        (opened.elapsed(), backend.checks().len()),
        (Duration::ZERO, 20),
        "the open breaker rejects at once"
    );
}

#[tokio::test(start_paused = true)]
async fn deadline_that_crowd_notices_late_is_no_failure() {
    let late = |time: Duration, error| async move {
        let (backend, limiter) = script((0..100).map(|_| Hang).chain([Admit]));
        let mut crowd: Vec<_> = (0..100).map(|_| Box::pin(check(&limiter))).collect();
        for check in &mut crowd {
            // The fake backend hangs at the second poll.
            for _ in 0..2 {
                let polled = check.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                assert!(polled.is_pending(), "the backend hangs");
            }
        }
        // This process is so busy that no task runs until then.
        advance(time).await;
        for check in crowd {
            assert_eq!(check.await, error, "noticed after {time:?}");
        }
        assert_eq!(backend.checks().len(), 100, "every check is sent");
        check(&limiter).await
    };
    let busy = late(SECOND / 10 + SECOND / 100, Err((Reason::Overloaded, true))).await;
    assert_eq!(busy, Ok(true), "the breaker is closed");
    // In time, it is a failure of the store.
    let idle = late(SECOND / 10 + SECOND / 1_000, Err((Reason::Timeout, true))).await;
    assert_eq!(idle, Err((Reason::Timeout, false)), "the breaker is open");
}

/// So many checks at once show whether a process is busy.
const CROWD: usize = 100;

/// Sends a crowd of checks to a backend that hangs. The process notices each deadline late. Returns the outcome of one of them.
async fn check_in_busy_process(limiter: &Limiter) -> Result<bool, (Reason, bool)> {
    let mut crowd: Vec<_> = (0..CROWD).map(|_| Box::pin(check(limiter))).collect();
    for check in &mut crowd {
        for _ in 0..2 {
            let polled = check.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending(), "the backend hangs");
        }
    }
    advance(SECOND / 10 + SECOND / 100).await;
    crowd.remove(0).await
}

/// A process that has been busy for a second has no reason to expect a reply that it has not read.
#[tokio::test(start_paused = true)]
async fn busy_process_finds_outage_after_one_second() {
    let limiter = deferred(&FakeBackend::hanging()).breaker(None).build().unwrap();
    let start = Instant::now();
    let error = loop {
        let outcome = check_in_busy_process(&limiter).await;
        if outcome != Err((Reason::Overloaded, true)) {
            break outcome;
        }
        assert!(start.elapsed() < 2 * SECOND, "a store that answers nothing is an outage");
    };
    assert_eq!(error, Err((Reason::Timeout, true)), "after {:?}", start.elapsed());
    assert!(start.elapsed() > SECOND, "{:?}", start.elapsed());
}

/// Each reply shows that the store works, also if the process notices the deadlines of other checks late.
#[tokio::test(start_paused = true)]
async fn busy_process_that_reads_replies_finds_no_outage() {
    let answers = (0..30).flat_map(|_| iter::once(Admit).chain(iter::repeat_n(Hang, CROWD)));
    let limiter = deferred(&FakeBackend::scripted(answers)).breaker(None).build().unwrap();
    let start = Instant::now();
    while start.elapsed() < 3 * SECOND {
        assert_eq!(check(&limiter).await, Ok(true), "the store answers");
        let outcome = check_in_busy_process(&limiter).await;
        assert_eq!(outcome, Err((Reason::Overloaded, true)), "after {:?}", start.elapsed());
    }
}

/// A client that leaves after its deadline does not show that the store hangs.
#[tokio::test(start_paused = true)]
async fn check_dropped_after_deadline_is_no_failure() {
    let (backend, limiter) = script([Hang, Hang, Hang, Hang, Admit]);
    for _ in 0..4 {
        let mut left = Box::pin(check(&limiter));
        for _ in 0..2 {
            assert!(
                left.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(),
                "the backend hangs"
            );
        }
        advance(SECOND).await;
        drop(left);
    }
    assert_eq!(check(&limiter).await, Ok(true), "the breaker is closed");
    assert_eq!(backend.checks().len(), 5, "every check is sent");
}

#[tokio::test(start_paused = true)]
async fn only_store_failures_open_breaker() {
    for &reason in Reason::ALL {
        let (backend, limiter) = script([Unavailable(reason)]);
        for _ in 0..10 {
            assert_eq!(check(&limiter).await.unwrap_err().0, reason, "the error has the reason of the store");
        }
        let sent = if reason.is_outage() { 3 } else { 10 };
        assert_eq!(
            reason.is_outage(),
            !OF_ONE_CHECK.contains(&reason) && reason != Reason::Overloaded,
            "{reason:?}: an error of one check or an overload is no outage"
        );
        assert_eq!(backend.checks().len(), sent, "{reason:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn error_of_one_check_counts_as_answer() {
    for reason in OF_ONE_CHECK {
        let (backend, limiter) =
            script([DOWN, DOWN, Unavailable(reason), DOWN, DOWN, DOWN, Unavailable(reason)]);
        let error = Err((reason, true));
        for expected in [FAILED, FAILED, error] {
            assert_eq!(check(&limiter).await, expected, "{reason:?}: the store is asked");
        }
        advance(SECOND).await;
        for expected in [FAILED, FAILED, FAILED, REJECTED_BY_BREAKER] {
            assert_eq!(check(&limiter).await, expected, "{reason:?}: the answer has reset the failure count");
        }
        advance(SECOND).await;
        for _ in 0..2 {
            assert_eq!(
                check(&limiter).await,
                error,
                "{reason:?}: the probe is an answer, so the breaker is closed"
            );
        }
        assert_eq!(backend.checks().len(), 8, "{reason:?}: all checks but the rejected one are sent");
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_key_does_not_open_breaker_for_other_keys() {
    /// A backend that hangs for the key of mallory only.
    struct HangsForMallory;
    impl Backend for HangsForMallory {
        async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
            if check.pairs()[0].key == PartitionKey::new("user", "mallory") {
                return pending().await;
            }
            let admits = |pair| Status::new(pair, 1, Wait::ZERO, SECOND, SECOND);
            Ok(Decision::new(0, check.pairs().iter().map(admits).collect::<Vec<_>>()))
        }
    }
    let limiter = on(HangsForMallory).breaker(THREE_FAILURES).build().unwrap();
    let mallory = limiter.clone();
    let attack = tokio::spawn(async move {
        for _ in 0..5 {
            let many: Vec<_> =
                (0..50).map(|_| tokio::spawn(mallory.check(PartitionKey::new("user", "mallory")))).collect();
            for one in many {
                assert_eq!(
                    outcome(one.await.unwrap()),
                    Err((Reason::Overloaded, true)),
                    "the store answers the other keys"
                );
            }
        }
    });
    let mut others = 0;
    while !attack.is_finished() {
        assert_eq!(check(&limiter).await, Ok(true), "the hanging key affects no other");
        others += 1;
        sleep(10 * TICK).await;
    }
    attack.await.unwrap();
    assert!(others > 40, "{others}");
}

#[tokio::test(start_paused = true)]
async fn check_sent_before_opening_does_not_change_open_breaker() {
    /// A backend that fails at once. A check with cost 2 succeeds after 50 ms, and a check with cost 3 fails after 50 ms.
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
    let limiter = on(Slow).breaker(THREE_FAILURES).build().unwrap();
    let slow: Vec<_> = [2, 3].into_iter().map(|cost| tokio::spawn(limiter.check((alice(), cost)))).collect();
    yield_now().await;
    for expected in [FAILED, FAILED, FAILED, REJECTED_BY_BREAKER] {
        assert_eq!(check(&limiter).await, expected, "the store is asked until the breaker opens");
    }
    let opened = Instant::now();
    let mut outcomes = Vec::new();
    for one in slow {
        outcomes.push(outcome(one.await.unwrap()));
    }
    assert_eq!(outcomes, [Ok(true), FAILED], "the earlier checks keep their outcomes");
    // The success has not closed the breaker, and the failure has not extended its open time.
    assert_eq!(check(&limiter).await, REJECTED_BY_BREAKER, "an earlier success closes no breaker");
    advance(SECOND - opened.elapsed() - TICK).await;
    assert_eq!(check(&limiter).await, REJECTED_BY_BREAKER, "the breaker is open for a whole second");
    advance(TICK).await;
    assert_eq!(
        outcome(limiter.check((alice(), 2)).await),
        Ok(true),
        "an earlier failure does not extend the open time"
    );
}

#[tokio::test(start_paused = true)]
async fn only_limiter_clones_share_breaker() {
    let backend = FakeBackend::scripted([DOWN]);
    let limiter = deferred(&backend).breaker(THREE_FAILURES).build().unwrap();
    for _ in 0..3 {
        assert_eq!(check(&limiter.clone()).await, FAILED, "the store is asked until the breaker opens");
    }
    assert_eq!(check(&limiter.clone()).await, REJECTED_BY_BREAKER, "a clone shares the breaker");
    let other = deferred(&backend).breaker(THREE_FAILURES).build().unwrap();
    assert_eq!(check(&other).await, FAILED, "another limiter has its own breaker");
}

#[tokio::test(start_paused = true)]
async fn limiter_has_breaker_unless_disabled() {
    let backend = FakeBackend::unavailable(Reason::Connection);
    let limiter = deferred(&backend).breaker(None).build().unwrap();
    for _ in 0..100 {
        assert_eq!(check(&limiter).await, FAILED, "without a breaker, every check is sent");
    }
    assert_eq!(backend.checks().len(), 100, "without a breaker, every check is sent");
    let backend = FakeBackend::unavailable(Reason::Connection);
    let limiter = deferred(&backend).build().unwrap();
    for _ in 0..100 {
        assert_eq!(
            check(&limiter).await.unwrap_err().0,
            Reason::Connection,
            "the reason is that of the store"
        );
    }
    assert_eq!(backend.checks().len(), 5, "by default, five failures open the breaker");
}

#[tokio::test(start_paused = true)]
async fn immediate_backend_bypasses_breaker() {
    let backend = FakeBackend::unavailable(Reason::Connection);
    let limiter = on(backend.clone()).breaker(THREE_FAILURES).build().unwrap();
    for _ in 0..10 {
        assert_eq!(check(&limiter).await, FAILED, "the backend is asked every time");
    }
    assert_eq!(backend.checks().len(), 10, "every check is sent");
}

#[tokio::test(start_paused = true)]
async fn only_resets_and_settlements_bypass_open_breaker() {
    let (backend, limiter) = script([Admit, DOWN]);
    let reservation = limiter.reserve((alice(), 5)).await.unwrap();
    advance(SECOND).await;
    assert_eq!(outcome(limiter.peek(alice()).await), FAILED, "a failed peek counts");
    assert_eq!(
        limiter.reserve(alice()).await.unwrap_err().error().unwrap().reason(),
        Reason::Connection,
        "a failed reservation counts"
    );
    assert_eq!(check(&limiter).await, FAILED, "a failed check counts");
    assert_eq!(outcome(limiter.peek(alice()).await), REJECTED_BY_BREAKER, "the open breaker rejects a peek");
    assert!(
        !limiter.reserve(alice()).await.unwrap_err().error().unwrap().was_asked(),
        "the open breaker rejects a reservation"
    );
    limiter.reset(alice()).await.unwrap();
    assert!(
        matches!(reservation.settle(1).await, tower_sliding_window::settle::Settled::Done { .. }),
        "a settlement bypasses the open breaker"
    );
    let purposes: Vec<_> = backend.checks().iter().map(|check| check.purpose).collect();
    assert_eq!(
        purposes,
        [Purpose::Reserve, Purpose::Peek, Purpose::Reserve, Purpose::Charge],
        "no rejected check is sent"
    );
    assert_eq!(
        (backend.resets().len(), backend.refunds().len()),
        (1, 1),
        "the reset and the settlement are sent"
    );
}

#[tokio::test(start_paused = true)]
async fn open_breaker_error_names_breaker_and_source() {
    let (_backend, limiter) = script([DOWN]);
    for text in [
        "no rate limit decision: the store cannot be reached",
        "no rate limit decision: the store cannot be reached",
        "no rate limit decision: the store cannot be reached",
        "no rate limit decision: the store cannot be reached (circuit breaker is open)",
    ] {
        assert_eq!(
            limiter.check(alice()).await.unwrap_err().to_string(),
            text,
            "the text names the open breaker"
        );
    }
    /// A backend that returns an error with a source.
    struct FailsWithSource;
    impl Backend for FailsWithSource {
        async fn check(&self, _check: &Check) -> Result<Decision, BackendError> {
            Err(BackendError::with_source(Reason::Other, "the cable"))
        }
    }
    let limiter = on(FailsWithSource).breaker(THREE_FAILURES).build().unwrap();
    for _ in 0..5 {
        let error = limiter.check(alice()).await.unwrap_err();
        assert_eq!(error.source().unwrap().to_string(), "the cable", "the error keeps its source");
    }
}
