//! The configuration of the deny cache.

use std::time::Duration;

use tower_sliding_window::{
    Decision, Limiter,
    backend::{Backend, BackendError, Check},
    outage::DenyCacheConfig,
    testing::FakeBackend,
};

use super::{Remote, SECOND, TICK, check, on, with_max_age};
use crate::http::Later;

#[test]
fn build_rejects_settings_out_of_range() {
    let text = |cache: DenyCacheConfig| {
        on(FakeBackend::admitting()).deny_cache(cache).build().unwrap_err().to_string()
    };
    for max_age in [Duration::ZERO, Duration::from_micros(999), 60 * SECOND + TICK, Duration::MAX] {
        assert_eq!(
            text(with_max_age(max_age)),
            format!(
                "deny cache: max_age {max_age:?}: it must be 1 ms to 60 s; `.deny_cache(None)` disables the cache"
            )
        );
    }
    for max_entries in [0, (1 << 20) + 1] {
        assert_eq!(
            text(DenyCacheConfig::new(DenyCacheConfig::default().max_age, max_entries)),
            format!("deny cache: max_entries {max_entries}: it must be 1 to 1048576")
        );
    }
    for cache in [DenyCacheConfig::new(TICK, 1), DenyCacheConfig::new(60 * SECOND, 1 << 20)] {
        on(FakeBackend::admitting()).deny_cache(cache).build().unwrap();
    }
    assert_eq!(DenyCacheConfig::default(), DenyCacheConfig::new(SECOND, 65_536));
}

/// Returns how many of ten denied checks the limiter sends to the store.
async fn sent_checks(limiter: &Limiter, count: impl Fn() -> usize) -> usize {
    let before = count();
    for _ in 0..10 {
        let denied = check(limiter, 11).await;
        assert!(!denied.is_admitted());
    }
    count() - before
}

#[tokio::test(start_paused = true)]
async fn limiter_uses_deny_cache_by_default() {
    let remote = Remote::new();
    let limiter = on(remote.clone()).build().unwrap();
    assert_eq!(sent_checks(&limiter, || remote.checks()).await, 1);
    let limiter = on(remote.clone()).deny_cache(None).build().unwrap();
    assert_eq!(sent_checks(&limiter, || remote.checks()).await, 10);
}

#[tokio::test(start_paused = true)]
async fn immediate_and_unmarked_backends_bypass_deny_cache() {
    /// A backend that answers immediately.
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
        assert_eq!(sent_checks(&limiter, || fake.checks().len()).await, 10);
    }
}

#[test]
fn limiter_built_outside_runtime_serves_several_runtimes() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let remote = Remote::new();
    let limiter = on(remote.clone()).build().unwrap();
    for run in [runtime(), runtime()] {
        run.block_on(async { assert!(!check(&limiter, 11).await.is_admitted()) });
    }
    assert_eq!(remote.checks(), 1);
}
