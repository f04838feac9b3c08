//! What these tests drive the crate with.

use std::{future::Future, time::Duration};

use tokio::task::JoinSet;
use tower_sliding_window::{
    Backend, BackendError, Decision, Limiter, ManualClock, PartitionKey, Policy, Reason, RedisBackend,
};

use crate::support::server::Server;

/// A deadline that a busy machine does not reach.
pub const UNHURRIED: Duration = Duration::from_secs(20);

pub const HOUR: Duration = Duration::from_secs(3600);

pub fn policy(name: &str, quota: u32, window: Duration) -> Policy {
    Policy::new(name, quota, window).unwrap()
}

pub fn limiter<const N: usize>(backend: impl Backend, policies: [Policy; N]) -> Limiter {
    let builder = Limiter::builder(backend).deadline(UNHURRIED);
    policies.into_iter().fold(builder, |builder, policy| builder.policy(policy)).build().unwrap()
}

/// On the server's own clock.
pub async fn backend(server: &Server) -> RedisBackend {
    RedisBackend::connect(&server.url()).await.unwrap()
}

/// On a clock that the test moves.
pub async fn clocked(server: &Server) -> (RedisBackend, ManualClock) {
    let clock = ManualClock::new();
    (backend(server).await.with_clock(&clock), clock)
}

pub fn alice() -> PartitionKey {
    PartitionKey::new("user", "alice")
}

/// What is left of the quota of the only policy, asked at no cost.
pub async fn remaining(limiter: &Limiter) -> u32 {
    limiter.check(alice(), 0).await.unwrap().statuses()[0].remaining()
}

pub fn reason(outcome: Result<Decision, BackendError>) -> Reason {
    outcome.expect_err("no decision").reason()
}

/// Many checks at once; returns their outcomes in the order in which they came.
pub async fn at_once<F>(checks: impl IntoIterator<Item = F>) -> Vec<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    JoinSet::from_iter(checks).join_all().await
}

/// Time for a connection to notice what has happened to it while nothing is asked.
pub async fn idle() {
    tokio::time::sleep(Duration::from_millis(150)).await;
}
