//! Helpers that build backends, limiters and checks for these tests.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use tokio::{task::JoinSet, time::sleep};
use tower_sliding_window::{
    Algorithm, Decision, Limiter, PartitionKey, Policy, RedisBackend,
    backend::{Backend, BackendError, Check, Pair, Purpose, Reason, Refund},
    policy::{Period, Rate, Zone},
    redis::{Merging, RedisServers},
    testing::ManualClock,
};

use crate::support::server::Server;

/// A deadline that a busy machine does not reach.
pub const LONG_DEADLINE: Duration = Duration::from_secs(20);

/// Stops a test that hangs. Even nodes of a cluster on a busy machine agree within this time.
pub const TIMEOUT: Duration = Duration::from_secs(60);

pub const HOUR: Duration = Duration::from_secs(3600);

/// A window so long that a test crosses no boundary of a calendar window.
pub const LONG_WINDOW: Duration = Duration::from_secs(366 * 24 * 3600);

/// An admitted check that can be settled.
pub struct Reserved {
    pub check: Check,
    pub decision: Decision,
}

impl Reserved {
    /// Returns the refund of a reservation that used this many units of each pair.
    pub fn refund(&self, used: u32) -> Refund {
        let used = vec![used; self.check.pairs().len()];
        Refund::new(&self.check, self.decision.receipts(), &used).expect("units to refund")
    }
}

pub fn policy(name: &str, quota: u32, window: Duration) -> Policy {
    Policy::new(name, quota, window).unwrap()
}

/// Returns a policy of every type that counts units, named after it: those of `every_type_with_window`, and a calendar year.
pub fn every_type(quota: u32, window: Duration) -> [Policy; 6] {
    let [log, buckets, counter, fixed, tokens] = every_type_with_window(quota, window);
    let period = Policy::calendar_period("period", quota, Period::Year, Zone::utc()).unwrap();
    [log, buckets, counter, fixed, tokens, period]
}

/// Returns the policies of `every_type`, each with the purpose of its charges, so that every form of a stored value occurs: without
/// receipts, a token bucket has a form of its own.
pub fn every_form(quota: u32, window: Duration) -> [(Policy, Purpose); 7] {
    let [log, buckets, counter, fixed, tokens, period] =
        every_type(quota, window).map(|policy| (policy, Purpose::Reserve));
    let plain_tokens = (tokens.0.clone(), Purpose::Charge);
    [log, buckets, counter, fixed, tokens, plain_tokens, period]
}

/// Returns a policy of every type whose units return within a window: those of `every_algorithm`, and a token bucket.
pub fn every_type_with_window(quota: u32, window: Duration) -> [Policy; 5] {
    let [log, buckets, counter, fixed] = every_algorithm(quota, window);
    // A full quota returns in one window.
    let tokens = Algorithm::TokenBucket { rate: rate(quota, window) };
    [log, buckets, counter, fixed, policy("tokens", quota, window).with_algorithm(tokens).unwrap()]
}

/// Returns a policy of every algorithm with a window, named after it. A bucket is an eighth of the window wide.
pub fn every_algorithm(quota: u32, window: Duration) -> [Policy; 4] {
    let precision = Duration::from_micros((window / 8).as_micros() as u64);
    let algorithms = [
        ("log", Algorithm::SlidingLog),
        ("buckets", Algorithm::SlidingBuckets { precision }),
        ("counter", Algorithm::SlidingCounter),
        ("fixed", Algorithm::FixedWindow),
    ];
    algorithms.map(|(name, algorithm)| policy(name, quota, window).with_algorithm(algorithm).unwrap())
}

/// Returns a rate of about this quota for each window.
fn rate(quota: u32, window: Duration) -> Rate {
    let micros = window.as_micros() as u64 / u64::from(quota);
    if micros > 0 { Rate::new(1, Duration::from_micros(micros)) } else { Rate::new(quota, window) }
}

/// Returns a check of Alice under these policies, each at this cost.
pub fn check(policies: &[Policy], cost: u32, purpose: Purpose) -> Check {
    let pairs = policies.iter().map(|policy| Pair::new(alice(), policy.clone(), cost));
    Check::new(pairs.collect::<Vec<_>>()).unwrap().with_purpose(purpose)
}

pub async fn reserve(backend: &impl Backend, policies: &[Policy], cost: u32) -> Reserved {
    let check = check(policies, cost, Purpose::Reserve);
    let decision = backend.check(&check).await.unwrap();
    assert!(decision.is_admitted(), "the reservation fits: {decision:?}");
    Reserved { check, decision }
}

pub async fn peek(backend: &impl Backend, policies: &[Policy], cost: u32) -> Decision {
    backend.check(&check(policies, cost, Purpose::Peek)).await.unwrap()
}

/// Returns a limiter without a deny cache: every check reaches the server.
pub fn limiter<const N: usize>(backend: impl Backend, policies: [Policy; N]) -> Limiter {
    let builder = Limiter::builder(backend).breaker(None).deadline(LONG_DEADLINE).deny_cache(None);
    policies.into_iter().fold(builder, |builder, policy| builder.policy(policy)).build().unwrap()
}

/// Returns a backend that uses the server's clock. Unlike `connect`, it sends nothing before the first check.
pub async fn backend(server: &Server) -> RedisBackend {
    RedisBackend::lazy(&server.url()).unwrap()
}

/// Returns a backend as [`backend`] does, whose checks share calls in this mode.
pub fn merging_backend(server: &Server, merging: Merging) -> RedisBackend {
    RedisBackend::builder(RedisServers::single(server.url())).merging(merging).lazy().unwrap()
}

/// Returns a backend that uses a clock controlled by the test.
pub async fn with_manual_clock(server: &Server) -> (RedisBackend, ManualClock) {
    let clock = ManualClock::new();
    (backend(server).await.with_clock(&clock), clock)
}

pub fn alice() -> PartitionKey {
    PartitionKey::new("user", "alice")
}

/// Returns the remaining quota of the only policy, with a check of cost 0.
pub async fn remaining(limiter: &Limiter) -> u32 {
    limiter.check((alice(), 0)).await.unwrap().statuses()[0].remaining()
}

pub fn reason(outcome: Result<Decision, BackendError>) -> Reason {
    outcome.expect_err("no decision").reason()
}

/// Runs many checks concurrently. Returns their outcomes in the order of completion.
pub async fn concurrently<F>(checks: impl IntoIterator<Item = F>) -> Vec<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    JoinSet::from_iter(checks).join_all().await
}

/// Waits long enough for an idle connection to notice that it was closed, for bytes to be read, and for the pause after a failed
/// attempt to connect. None of these can be observed from outside.
pub async fn idle() {
    sleep(Duration::from_millis(150)).await;
}

/// Waits until this is true. `otherwise` is the message if it never is.
pub async fn wait_until(otherwise: &str, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < TIMEOUT, "{otherwise}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// A random number generator: splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
