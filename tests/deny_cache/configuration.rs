//! What can be configured, and what makes no difference.

use std::time::Duration;

use tower_sliding_window::{
    Decision, Limiter,
    backend::{Backend, BackendError, Check},
    outage::DenyCache,
    testing::FakeBackend,
};

use super::{Remote, SECOND, TICK, age, check, on};
use crate::http::Later;

#[test]
fn what_is_out_of_range_cannot_be_built() {
    let text =
        |cache: DenyCache| on(FakeBackend::admitting()).deny_cache(cache).build().unwrap_err().to_string();
    for max_age in [Duration::ZERO, Duration::from_micros(999), 60 * SECOND + TICK, Duration::MAX] {
        assert_eq!(
            text(age(max_age)),
            format!(
                "denials that are remembered for {max_age:?}: it must be 1 ms to 60 s; `.deny_cache(None)` remembers none"
            )
        );
    }
    for max_entries in [0, (1 << 20) + 1] {
        assert_eq!(
            text(DenyCache { max_entries, ..DenyCache::default() }),
            format!("at most {max_entries} denials that are remembered: the bound must be 1 to 1048576")
        );
    }
    for cache in [
        DenyCache { max_age: TICK, max_entries: 1 },
        DenyCache { max_age: 60 * SECOND, max_entries: 1 << 20 },
    ] {
        on(FakeBackend::admitting()).deny_cache(cache).build().unwrap();
    }
    assert_eq!(DenyCache::default(), DenyCache { max_age: SECOND, max_entries: 16_384 });
}

/// Asked for `limiter`, of how many checks that are denied the store is asked.
async fn asked(limiter: &Limiter, count: impl Fn() -> usize) -> usize {
    let before = count();
    for _ in 0..10 {
        let denied = check(limiter, 11).await;
        assert!(!denied.is_admitted());
    }
    count() - before
}

#[tokio::test(start_paused = true)]
async fn it_is_on_unless_it_is_said_otherwise() {
    let remote = Remote::new();
    let limiter = on(remote.clone()).build().unwrap();
    assert_eq!(asked(&limiter, || remote.asked()).await, 1);
    let limiter = on(remote.clone()).deny_cache(None).build().unwrap();
    assert_eq!(asked(&limiter, || remote.asked()).await, 10);
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_does_not_say_so_or_answers_at_once_is_asked_every_time() {
    /// Answers at once.
    struct AtOnce(FakeBackend);
    impl Backend for AtOnce {
        async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
            self.0.check(check).await
        }
        fn check_now(&self, check: &Check) -> Option<Result<Decision, BackendError>> {
            self.0.check_now(check)
        }
        fn denials_hold(&self) -> bool {
            true
        }
    }
    let fake = FakeBackend::denying(SECOND);
    for limiter in [on(Later(fake.clone())), on(AtOnce(fake.clone())), on(fake.clone())] {
        let limiter = limiter.build().unwrap();
        assert_eq!(asked(&limiter, || fake.checks().len()).await, 10);
    }
}

#[test]
fn a_limiter_can_be_built_outside_a_runtime_and_asked_within_one() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let remote = Remote::new();
    let limiter = on(remote.clone()).build().unwrap();
    for run in [runtime(), runtime()] {
        run.block_on(async { assert!(!check(&limiter, 11).await.is_admitted()) });
    }
    assert_eq!(remote.asked(), 1);
}
