//! The limiter: its builder, its operations, its queues, its settlements and its warnings.

mod bans;
mod metrics;
mod observers;
mod one_policy;
mod operations;
mod policy_files;
mod priorities;
mod pseudonyms;
mod settlement;
mod settlement_queue;
mod shadow;
mod stats;
mod tokens;
mod units;
mod waiting;
mod warnings;

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tower_sliding_window::{
    Decision, Limiter, MemoryBackend, PartitionKey, Policy, RedisBackend, Status, Wait,
    backend::{Backend, BackendError, Check, Reason},
    testing::FakeBackend,
};

fn policy(name: &str, quota: u32) -> Policy {
    Policy::new(name, quota, Duration::from_secs(60)).unwrap()
}

fn alice() -> PartitionKey {
    PartitionKey::new("user", "alice")
}

/// Polls once, outside any runtime.
fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Returns the output of a future that is ready at its first poll.
fn now<F: Future>(future: F) -> F::Output {
    match poll_once(future) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future is not ready"),
    }
}

/// A backend that decides at its first poll, and supports charges only.
struct ChargeOnly;

impl Backend for ChargeOnly {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        let admits = |pair| Status::new(pair, 1, Wait::ZERO, Duration::ZERO, Duration::ZERO);
        Ok(Decision::new(0, check.pairs().iter().map(admits).collect::<Vec<_>>()))
    }
}

#[test]
fn builder_rejects_invalid_settings() {
    let text = |limiter: tower_sliding_window::LimiterBuilder| limiter.build().unwrap_err().to_string();
    let with = |count: usize| {
        let builder = Limiter::builder(FakeBackend::admitting());
        (0..count).fold(builder, |builder, i| builder.policy(policy(&i.to_string(), 1)))
    };
    assert_eq!(
        text(with(0)),
        "no policy: a limiter needs 1 to 8 policies; add one with `.policy(Policy::new(..)?)`"
    );
    assert_eq!(text(with(9)), "9 policies: a limiter needs 1 to 8 policies");
    with(8).build().unwrap();
    assert_eq!(
        text(with(2).policy(policy("1", 9))),
        r#"policy "1" occurs twice: the policies of a limiter need different names"#
    );
    for given in [0.0, -0.1, 1.000_001, f64::INFINITY, f64::NAN] {
        let expected = format!("near_limit {given:?}: it must be above 0 and at most 1");
        assert_eq!(text(with(1).near_limit(given)), expected);
    }
    with(1).near_limit(1.0).build().unwrap();
    assert_eq!(
        text(with(1).namespace("a{b}")),
        r#"namespace "a{b}": it must be 1 to 64 printable ASCII characters without `{`, `}` and space"#
    );
    for deadline in [Duration::ZERO, Duration::from_micros(999), Duration::from_secs(61)] {
        assert_eq!(
            text(with(1).deadline(deadline)),
            format!("deadline {deadline:?}: it must be 1 ms to 60 s")
        );
    }
}

#[test]
fn memory_and_custom_backends_decide_outside_runtime() {
    let limiter =
        |builder: tower_sliding_window::LimiterBuilder| builder.policy(policy("p", 1)).build().unwrap();
    for limiter in [limiter(Limiter::builder(MemoryBackend::new())), limiter(Limiter::builder(ChargeOnly))] {
        assert!(
            matches!(poll_once(limiter.check(alice())), Poll::Ready(Ok(decision)) if decision.is_admitted())
        );
    }
}

#[test]
fn redis_backend_returns_error_outside_runtime() {
    let limiter =
        Limiter::builder(RedisBackend::lazy("redis://127.0.0.1:1/").unwrap()).policy(policy("p", 1));
    let outcome = poll_once(limiter.build().unwrap().check(alice()));
    assert!(matches!(outcome, Poll::Ready(Err(error)) if error.reason() == Reason::Other));
}

#[test]
fn limiter_rejects_decision_without_every_pair() {
    struct Incomplete;
    impl Backend for Incomplete {
        async fn check(&self, _check: &Check) -> Result<Decision, BackendError> {
            Ok(Decision::new(0, []))
        }
    }
    let limiter = Limiter::builder(Incomplete).policy(policy("p", 1)).build().unwrap();
    let outcome = poll_once(limiter.check(alice()));
    assert!(matches!(outcome, Poll::Ready(Err(error)) if error.reason() == Reason::BrokenReply));
}
