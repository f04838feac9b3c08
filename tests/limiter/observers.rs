//! Subscribers, recorders and wakers run code of users. They may use the limiter, and a panic in them breaks nothing for others.

use std::{
    collections::BTreeSet,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::Context,
    thread,
    time::Duration,
};

use tower_sliding_window::{
    Limiter, MemoryBackend, PartitionKey, Policy,
    backend::{Reason, WhenFull},
    outage::Breaker,
    policy::{Anchor, Period, Zone},
    settle::Settled,
    testing::{FakeAnswer, FakeBackend, ManualClock},
};

use super::{alice, now, policy, poll_once};
use crate::{
    http::{Later, MINUTE},
    support::observer::{Observer, waker},
};

const MAX_KEYS: usize = 100;

fn key(name: impl ToString) -> PartitionKey {
    PartitionKey::new("user", name.to_string())
}

/// Runs a function on a thread. Panics if it takes too long, as after a deadlock.
fn soon<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || done.send(run()));
    is_done.recv_timeout(MINUTE / 2).expect("a deadlock, or a panic of the thread")
}

/// Makes decisions that cause many events and values of metrics, on this memory.
fn decide_all(memory: &MemoryBackend, clock: &ManualClock, limiter: &Limiter) {
    // Denials, shadow denials, and evictions by checks, by the overage of a token, and by a debit.
    for _ in 0..20 {
        let _ = now(limiter.check((alice(), 3))).unwrap();
    }
    let token = now(limiter.reserve((key("token"), 1))).unwrap().into_token().unwrap();
    for i in 0..3 * MAX_KEYS {
        let _ = now(limiter.check(key(i)));
    }
    let settled = now(limiter.settle_token(&token, 5)).unwrap();
    assert!(matches!(settled, Settled::Done { .. }), "{settled:?}");
    let reservation = now(limiter.reserve((key("reserved"), 4))).unwrap();
    assert!(matches!(now(reservation.settle(9)), Settled::Done { .. }));
    for i in 0..MAX_KEYS {
        let _ = now(limiter.debit(key(format!("debit {i}"))));
    }
    // A calendar period that begins earlier than the counted one, with one pair and with two.
    let monthly = |name, day| {
        let monthly = Policy::calendar_period(name, 10, Period::Month, Zone::utc()).unwrap();
        monthly.anchored(Anchor::day(day)).unwrap()
    };
    for names in [&["a"][..], &["b", "c"]] {
        // The clock begins on 9 September.
        for day in [5, 20] {
            let builder = names
                .iter()
                .fold(Limiter::builder(memory.clone()), |builder, name| builder.policy(monthly(name, day)));
            assert!(now(builder.build().unwrap().check(alice())).unwrap().is_admitted());
        }
    }
    clock.advance(2 * MINUTE);
    assert!(now(limiter.check(alice())).unwrap().is_admitted());
    now(limiter.reset(alice())).unwrap();
}

/// Opens and closes a circuit breaker.
fn open_breaker(runtime: &tokio::runtime::Runtime, limiter: &Limiter) {
    runtime.block_on(async {
        for _ in 0..2 {
            assert!(limiter.check(alice()).await.is_err());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(limiter.check(alice()).await.is_ok());
        let reservation = limiter.reserve((alice(), 5)).await.unwrap();
        assert!(matches!(reservation.settle(1).await, Settled::Done { .. }));
    });
}

/// Otherwise, a service that ends would report too few lost settlements.
#[test]
fn drain_waits_for_settlements_that_are_being_lost() {
    for ends in [true, false] {
        let backend = FakeBackend::admitting().hanging_settlements();
        let limiter =
            Limiter::builder(backend).policy(policy("ten", 10)).max_checks_in_flight(1).build().unwrap();
        let runtime = |is_paused| {
            let builder = &mut tokio::runtime::Builder::new_current_thread();
            builder.enable_time().start_paused(is_paused).build().unwrap()
        };
        let first = runtime(false);
        let mut settlements = first.block_on(async {
            let mut settlements = Vec::new();
            for _ in 0..3 {
                settlements.push(limiter.reserve(alice()).await.unwrap().settle(0));
                tokio::task::yield_now().await;
            }
            settlements
        });
        let drained = Arc::new(Mutex::new(Vec::new()));
        let drains = {
            let (limiter, drained) = (limiter.clone(), drained.clone());
            waker(move || drained.lock().unwrap().push(poll_once(limiter.drain()).is_ready()))
        };
        // The first one is in progress, and the others wait.
        for settlement in &mut settlements[1..] {
            assert!(Pin::new(settlement).poll(&mut Context::from_waker(&drains)).is_pending());
        }
        if ends {
            drop(first);
            assert_eq!((poll_once(limiter.drain()).is_ready(), limiter.lost_settlements()), (true, 3));
        } else {
            // Nothing drives the first runtime, so the settlements that wait are lost after their deadline.
            runtime(true).block_on(limiter.drain());
            assert_eq!(limiter.lost_settlements(), 2);
        }
        assert_eq!(*drained.lock().unwrap(), [false, false], "another drain has ended before");
    }
}

#[test]
fn subscriber_and_recorder_may_use_limiter() {
    let observed = soon(|| {
        let clock = ManualClock::new();
        let memory = MemoryBackend::with_max_keys(MAX_KEYS).unwrap().with_clock(&clock);
        let limiter = Limiter::builder(memory.clone())
            .policy(policy("ten", 10))
            .policy(policy("shadow", 5).shadow())
            .clamp_estimates()
            .build()
            .unwrap();
        // The breaker rejects the second check.
        let answers = [FakeAnswer::Unavailable(Reason::Connection), FakeAnswer::Admit];
        let failing = Limiter::builder(Later(FakeBackend::scripted(answers)))
            .policy(policy("ten", 10))
            .breaker(Breaker::new(1, Duration::from_millis(10)))
            .deadline(Duration::from_millis(1))
            .build()
            .unwrap();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let observed = Arc::new(Mutex::new(BTreeSet::new()));
        let (all, limiters, read) = (observed.clone(), [limiter.clone(), failing.clone()], memory.clone());
        let number = AtomicUsize::new(0);
        let observer = Observer::new(move |text| {
            // A key with few used units, which may be evicted.
            let new = key(format!("observed {}", number.fetch_add(1, Ordering::Relaxed)));
            all.lock().unwrap().insert(text.to_owned());
            for limiter in &limiters {
                let _ = (limiter.stats(), limiter.most_denied(8), limiter.most_shadow_denied(8));
                let _ = (limiter.readiness(), limiter.lost_settlements(), limiter.waiting());
                let _ = poll_once(limiter.peek(alice()));
            }
            let _ = (read.keys(), poll_once(limiters[0].check(alice())), poll_once(limiters[0].check(new)));
        });
        let _recording = observer.record();
        let _subscribed = observer.subscribe();
        decide_all(&memory, &clock, &limiter);
        open_breaker(&runtime, &failing);
        let _ = memory.when_full(WhenFull::Evict);
        observed.lock().unwrap().clone()
    });
    for expected in [
        "rate_limit_decisions_total policy=ten outcome=denied",
        "rate_limit_decisions_total policy=shadow outcome=shadow_denied",
        "rate_limit_evicted_keys_total",
        "rate_limit_evicted_units_total",
        "rate_limit_settlements_total outcome=done",
        "rate_limit_unavailable_checks_total reason=connection",
        "rate_limit_breaker_open",
        "the calendar period begins earlier",
        "circuit breaker open",
        "circuit breaker closed",
    ] {
        assert!(observed.iter().any(|text| text.contains(expected)), "{expected}: {observed:#?}");
    }
}

/// The lock of the memory's tokens is free. Otherwise, this thread would wait for itself.
#[test]
fn recorder_may_settle_token_while_token_is_settled() {
    soon(|| {
        let memory = MemoryBackend::with_max_keys(2).unwrap();
        let limiter = Limiter::builder(memory).policy(policy("p", 1_000)).build().unwrap();
        let token = |name: &str| now(limiter.reserve((key(name), 1))).unwrap().into_token().unwrap();
        let (token, other) = (token("a"), Mutex::new(Some(token("b"))));
        for i in 0..20 {
            let _ = now(limiter.check(key(i))).unwrap();
        }
        let (settles, settled) = (limiter.clone(), Arc::new(OnceLock::new()));
        let by_recorder = settled.clone();
        let observer = Observer::new(move |metric| {
            if metric == "rate_limit_evicted_keys_total"
                && let Some(other) = other.lock().unwrap().take()
            {
                let _ = by_recorder.set(now(settles.settle_token(&other, 5)).unwrap());
            }
        });
        let _recording = observer.record();
        assert!(matches!(now(limiter.settle_token(&token, 5)), Ok(Settled::Done { .. })));
        assert!(matches!(settled.get(), Some(Settled::Done { .. })));
    });
}

/// Otherwise, each panic would take the place of a key for ever.
#[test]
fn panic_of_recorder_at_eviction_loses_no_room() {
    let clock = ManualClock::new();
    let memory = MemoryBackend::with_max_keys(MAX_KEYS).unwrap().with_clock(&clock);
    let limiter = Limiter::builder(memory.clone()).policy(policy("p", 1_000)).build().unwrap();
    let observer =
        Observer::new(|metric| assert!(metric != "rate_limit_evicted_keys_total", "a recorder panics"));
    let recording = observer.record();
    let panics = |i: &usize| catch_unwind(AssertUnwindSafe(|| now(limiter.check(key(i))))).is_err();
    assert_eq!((0..3 * MAX_KEYS).filter(panics).count(), 2 * MAX_KEYS);
    drop(recording);
    clock.advance(2 * MINUTE);
    for i in 0..MAX_KEYS {
        assert!(now(limiter.check(key(format!("new {i}")))).is_ok());
    }
    assert_eq!((memory.keys(), memory.evicted_keys()), (MAX_KEYS, 2 * MAX_KEYS as u64));
}

#[tokio::test]
async fn panics_of_recorder_and_waker_lose_no_settlement() {
    let builder = Limiter::builder(Later(FakeBackend::admitting())).policy(policy("ten", 10));
    let limiter = builder.max_checks_in_flight(1).build().unwrap();
    let mut reservations = Vec::new();
    for _ in 0..4 {
        reservations.push(limiter.reserve((alice(), 5)).await.unwrap());
    }
    let observer =
        Observer::new(|metric| assert!(!metric.contains("settlements_total"), "a recorder panics"));
    let _recording = observer.record();
    let mut settlements: Vec<_> = reservations.iter().map(|reservation| reservation.settle(1)).collect();
    let mut first = settlements.remove(0);
    let panics = waker(|| panic!("a waker panics"));
    assert!(Pin::new(&mut first).poll(&mut Context::from_waker(&panics)).is_pending());
    for settlement in settlements {
        assert!(matches!(settlement.await, Settled::Done { .. }));
    }
    assert!(matches!(first.await, Settled::Done { .. }));
    assert_eq!((limiter.lost_settlements(), limiter.stats().settlements), (0, 4));
}
