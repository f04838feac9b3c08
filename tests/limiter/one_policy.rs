//! A limiter of one policy asks a memory backend without a list of pairs. No caller sees a difference.

use std::time::Duration;

use tower_sliding_window::{
    Algorithm, Costs, Decision, Limiter, LimiterBuilder, MemoryBackend, PartitionKey, Policy, Rejection,
    backend::{Backend, BackendError, Check, Reason, WhenFull},
    policy::Rate,
    testing::ManualClock,
};

use super::{alice, now, policy};
use crate::http::SECOND;

/// A backend that is not a memory backend for the limiter, so that it receives every check.
pub(super) struct Wrapped(pub(super) MemoryBackend);

impl Backend for Wrapped {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        self.0.check(check).await
    }

    fn check_now(&self, check: &Check) -> Option<Result<Decision, BackendError>> {
        self.0.check_now(check)
    }

    fn changes_charges(&self) -> bool {
        true
    }
}

/// Returns numbers below a bound, which are the same in every run.
fn numbers() -> impl FnMut(u32) -> u32 {
    let mut state = 7_u64;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % below
    }
}

fn reason(outcome: Result<Decision, BackendError>) -> Result<Decision, Reason> {
    outcome.map_err(|error| error.reason())
}

fn admission(limiter: &Limiter, key: PartitionKey, cost: u32) -> Result<Decision, Reason> {
    match now(limiter.admit((key, cost))) {
        Ok(admission) => Ok(admission.decision().unwrap().clone()),
        Err(Rejection::Denied(decision)) => Ok(decision),
        Err(rejection) => Err(rejection.error().unwrap().reason()),
    }
}

/// Two limiters receive the same random operations, on memories that have room for four of six keys.
#[test]
fn memory_backend_decides_as_any_other_backend() {
    let algorithms = [
        Algorithm::SlidingLog,
        Algorithm::SlidingBuckets { precision: Duration::from_millis(300) },
        Algorithm::SlidingCounter,
        Algorithm::FixedWindow,
        Algorithm::TokenBucket { rate: Rate::per_second(5) },
    ];
    for (algorithm, is_shadow) in algorithms.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let clock = ManualClock::new();
        let memory =
            || MemoryBackend::with_max_keys(4).unwrap().when_full(WhenFull::Reject).with_clock(&clock);
        let policy = Policy::new("p", 5, SECOND).unwrap().with_algorithm(algorithm).unwrap();
        let policy = if is_shadow { policy.shadow() } else { policy };
        let of_memory = Limiter::builder(memory()).policy(policy.clone()).build().unwrap();
        let of_wrapped = Limiter::builder(Wrapped(memory())).policy(policy).build().unwrap();
        let (mut random, mut full) = (numbers(), 0);
        for step in 0..4_000 {
            clock.advance(Duration::from_micros(random(200_000).into()));
            // Two of the costs are above the quota.
            let (key, cost) = (PartitionKey::new("user", random(6).to_string()), random(8));
            let outcomes = match random(3) {
                0 if cost == 1 => [&of_memory, &of_wrapped].map(|it| reason(now(it.check(&key)))),
                0 => [&of_memory, &of_wrapped].map(|it| reason(now(it.check((key.clone(), cost))))),
                1 => [&of_memory, &of_wrapped].map(|it| reason(now(it.peek((key.clone(), cost))))),
                _ => [&of_memory, &of_wrapped].map(|it| admission(it, key.clone(), cost)),
            };
            assert_eq!(outcomes[0], outcomes[1], "{algorithm:?}, step {step}");
            full += u32::from(outcomes[0] == Err(Reason::Full));
        }
        let counters = |limiter: &Limiter| {
            let mut stats = limiter.stats();
            // They have the names of the backends.
            stats.breakers.clear();
            stats
        };
        assert_eq!(counters(&of_memory), counters(&of_wrapped));
        assert_eq!(of_memory.most_denied(9), of_wrapped.most_denied(9));
        let stats = of_memory.stats();
        assert!(stats.admitted > 500 && stats.denied > 200 || is_shadow, "{stats:?}");
        // Shadow pairs reject nothing.
        assert_eq!(full > 0, !is_shadow);
    }
}

/// The costs of all methods name policies, and a region is a part of every key.
#[test]
fn memory_backend_uses_named_costs_and_region() {
    let memory = MemoryBackend::new();
    let limiter = |builder: LimiterBuilder| builder.policy(policy("p", 10)).build();
    let plain = limiter(Limiter::builder(memory.clone())).unwrap();
    let in_region = limiter(Limiter::builder(memory.clone()).region("eu")).unwrap();
    let other = limiter(Limiter::builder(memory).namespace("other")).unwrap();
    let costs = || Costs::new().policy("p", 4);
    for limiter in [plain, in_region, other] {
        assert_eq!(now(limiter.check((alice(), costs()))).unwrap().statuses()[0].remaining(), 6);
        assert_eq!(
            now(limiter.admit((alice(), costs()))).unwrap().decision().unwrap().statuses()[0].cost(),
            4
        );
        assert!(!now(limiter.peek((alice(), costs()))).unwrap().is_admitted());
        // A key alone costs 1 unit, as a reference and as a value.
        let key = alice();
        assert_eq!(now(limiter.check(&key)).unwrap().statuses()[0].remaining(), 1);
        assert_eq!(now(limiter.check(key)).unwrap().statuses()[0].remaining(), 0);
        assert!(!now(limiter.check(alice())).unwrap().is_admitted());
    }
}
