//! Leased units, on a store whose clock the test controls.

mod ahead;
mod ends;
mod failures;
mod grants;
mod quota;
mod simulation;
pub mod store;

use std::time::Duration;

use tower_sliding_window::{
    Algorithm, Decision, Limiter, LimiterBuilder, PartitionKey, Policy, policy::Lease,
};

use store::Store;

pub const MICROSECOND: Duration = Duration::from_micros(1);
pub const MILLISECOND: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);

/// A bucket of [`leased`].
pub const PRECISION: Duration = Duration::from_millis(100);

pub fn alice() -> PartitionKey {
    PartitionKey::new("user", "alice")
}

pub fn buckets(quota: u32, window: Duration, precision: Duration) -> Policy {
    let policy = Policy::new("hot", quota, window).unwrap();
    policy.with_algorithm(Algorithm::SlidingBuckets { precision }).unwrap()
}

/// Returns a policy with a window of a second and buckets of 100 ms.
pub fn leased(quota: u32, up_to: u32) -> Policy {
    buckets(quota, SECOND, PRECISION).leased(Lease::up_to(up_to)).unwrap()
}

pub fn builder(store: &Store, policy: Policy) -> LimiterBuilder {
    Limiter::builder(store.clone()).policy(policy).deadline(SECOND)
}

pub fn limiter(store: &Store, policy: Policy) -> Limiter {
    builder(store, policy).build().unwrap()
}

/// Charges one unit.
pub async fn check(limiter: &Limiter) -> Decision {
    limiter.check(alice()).await.unwrap()
}

/// Charges one unit several times, each of which must be admitted. Returns how many of them were leased.
pub async fn checks(limiter: &Limiter, number: usize) -> usize {
    let mut leased = 0;
    for _ in 0..number {
        let decision = check(limiter).await;
        assert!(decision.is_admitted());
        leased += usize::from(decision.is_leased());
    }
    leased
}

/// Returns the remaining quota in the store.
pub async fn remaining(limiter: &Limiter) -> u32 {
    limiter.peek((alice(), 0)).await.unwrap().statuses()[0].remaining()
}

/// Waits until the server's clock is at the beginning of a bucket.
pub async fn next_bucket(store: &Store) {
    let precision = PRECISION.as_micros() as u64;
    let left = precision - store.now_micros() % precision;
    tokio::time::advance(Duration::from_micros(left)).await;
}
