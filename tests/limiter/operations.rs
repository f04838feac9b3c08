//! The operations of a limiter: check, peek, reserve and reset, for its own policies and for explicit pairs.

use tower_sliding_window::{
    Costs, Decision, Limiter, MemoryBackend, PartitionKey, Policies, Policy, Rejection, Status, Wait,
    backend::{Backend, BackendError, Check, Pair, Purpose, Reason},
    testing::{FakeBackend, ManualClock, RecordedCheck},
};

use super::{ChargeOnly, alice, now, policy};
use crate::http::MINUTE;

fn fake() -> (FakeBackend, Limiter) {
    let backend = FakeBackend::admitting();
    let builder = Limiter::builder(backend.clone()).namespace("shop");
    (backend, builder.policy(policy("requests", 10)).policy(policy("tokens", 1_000)).build().unwrap())
}

fn memory(quota: u32) -> (ManualClock, Limiter) {
    let clock = ManualClock::new();
    let backend = MemoryBackend::new().with_clock(&clock);
    (clock, Limiter::builder(backend).policy(policy("ten", quota)).build().unwrap())
}

fn costs(check: &RecordedCheck) -> Vec<(&str, u32)> {
    check.pairs.iter().map(|pair| (pair.policy.name(), pair.cost)).collect()
}

#[test]
fn limiter_accepts_one_cost_or_costs_per_policy() {
    let (backend, limiter) = fake();
    let named = Costs::new().policy("tokens", 500);
    for cost in [Costs::from(3), named.clone(), named.otherwise(0), Costs::new()] {
        let _ = now(limiter.check((alice(), cost))).unwrap();
    }
    let checks = backend.checks();
    let recorded: Vec<_> = checks.iter().map(costs).collect();
    let expected = [(3, 3), (1, 500), (0, 500), (1, 1)];
    assert_eq!(recorded, expected.map(|(requests, tokens)| vec![("requests", requests), ("tokens", tokens)]));
}

#[test]
fn memory_changes_usage_and_gates_at_once() {
    let clock = ManualClock::new();
    let limiter = Limiter::builder(MemoryBackend::new().with_clock(&clock))
        .policy(policy("one", 1))
        .policy(Policy::gate("stop").unwrap())
        .build()
        .unwrap();
    // No runtime, and no future is polled.
    let is_admitted = || limiter.check(alice()).now().unwrap().unwrap().is_admitted();
    assert_eq!([is_admitted(), is_admitted()], [true, false]);
    limiter.reset(alice()).now().unwrap().unwrap();
    assert!(is_admitted(), "the usage is cleared");
    limiter.reset(alice()).now().unwrap().unwrap();
    limiter.block(alice(), MINUTE).now().unwrap().unwrap();
    assert!(!is_admitted(), "the gate blocks");
    limiter.unblock(alice()).now().unwrap().unwrap();
    assert!(is_admitted(), "the gate blocks no longer");
}

/// Returns the error of a rejection without a decision.
fn error_of(rejection: Rejection) -> BackendError {
    assert!(matches!(rejection, Rejection::Unavailable(_)), "{rejection:?}");
    rejection.error().unwrap().clone()
}

#[test]
fn each_operation_sends_its_purpose_and_costs() {
    let (backend, limiter) = fake();
    assert!(now(limiter.check(alice())).unwrap().is_admitted());
    assert!(now(limiter.peek((alice(), 2))).unwrap().is_admitted());
    assert!(now(limiter.reserve((alice(), 3))).unwrap().decision().is_some());
    now(limiter.reset(alice())).unwrap();

    let pairs = || vec![Pair::new(alice(), policy("other", 5), 4)];
    assert!(now(limiter.check(pairs())).unwrap().is_admitted());
    assert!(now(limiter.peek(pairs())).unwrap().is_admitted());
    assert!(now(limiter.reserve(pairs())).is_ok());
    now(limiter.reset(pairs())).unwrap();

    let own = |cost| vec![("requests", cost), ("tokens", cost)];
    let other = || vec![("other", 4)];
    let checks = backend.checks();
    let recorded: Vec<_> = checks.iter().map(|check| (check.purpose, costs(check))).collect();
    let expected = [
        (Purpose::Charge, own(1)),
        (Purpose::Peek, own(2)),
        (Purpose::Reserve, own(3)),
        (Purpose::Charge, other()),
        (Purpose::Peek, other()),
        (Purpose::Reserve, other()),
    ];
    assert_eq!(recorded, expected);
    let resets = backend.resets();
    let reset: Vec<_> = resets.iter().map(|pairs| pairs.pairs[0].policy.name()).collect();
    assert_eq!(reset, ["requests", "other"]);
    assert_eq!((resets[0].pairs.len(), resets[1].pairs.len()), (2, 1));
    assert!(checks.iter().chain(&resets).all(|recorded| recorded.namespace == "shop"));
}

#[test]
fn charge_only_backend_receives_no_other_operation() {
    /// A backend that the limiter must not call.
    struct Never;
    impl Backend for Never {
        async fn check(&self, _check: &Check) -> Result<Decision, BackendError> {
            panic!("the backend was called")
        }
        async fn reset(&self, _pairs: &Check) -> Result<(), BackendError> {
            panic!("the backend was called")
        }
    }
    let limiter = Limiter::builder(Never).policy(policy("p", 1)).build().unwrap();
    let pairs = || vec![Pair::new(alice(), policy("other", 5), 4)];
    let reasons = [
        now(limiter.peek(alice())).map(drop),
        now(limiter.reserve(alice())).map(drop).map_err(error_of),
        now(limiter.reset(alice())),
        now(limiter.peek(pairs())).map(drop),
        now(limiter.reserve(pairs())).map(drop).map_err(error_of),
        now(limiter.reset(pairs())),
    ]
    .map(|outcome| outcome.unwrap_err().reason());
    assert_eq!(reasons, [Reason::Unsupported; 6]);

    let limiter = Limiter::builder(ChargeOnly).policy(policy("p", 1)).build().unwrap();
    assert!(now(limiter.check(alice())).unwrap().is_admitted());
}

/// Returns the text of the source of an error for which the backend was not asked.
fn source(outcome: Result<(), BackendError>) -> String {
    let error = outcome.unwrap_err();
    assert_eq!(error.reason(), Reason::Misconfigured, "the mistake is in the server");
    std::error::Error::source(&error).unwrap().to_string()
}

#[test]
fn limiter_rejects_invalid_pairs_before_check() {
    let (backend, limiter) = fake();
    let pair = |name: &str| Pair::new(alice(), policy(name, 5), 1);
    let nine: Vec<_> = (0..9).map(|i| pair(&i.to_string())).collect();
    for (pairs, text) in [
        (vec![], "check of 0 pairs"),
        (nine, "check of 9 pairs"),
        (vec![pair("a"), pair("a")], r#"policy "a" occurs twice"#),
    ] {
        let errors = [
            source(now(limiter.check(pairs.clone())).map(drop)),
            source(now(limiter.peek(pairs.clone())).map(drop)),
            source(now(limiter.reset(pairs.clone()))),
            now(limiter.admit(pairs.clone())).map(drop).unwrap_err().to_string(),
            now(limiter.reserve(pairs)).map(drop).unwrap_err().to_string(),
        ];
        assert!(
            errors.iter().all(|error| error.contains(text)),
            "each method must state {text:?}: {errors:?}"
        );
    }
    assert_eq!((backend.checks().len(), backend.resets().len()), (0, 0));
}

#[test]
fn key_and_its_reference_have_the_same_check() {
    let (backend, limiter) = fake();
    let costs = || Costs::new().policy("tokens", 7);
    let key = alice();
    let _ = (now(limiter.check((&key, 4))).unwrap(), now(limiter.check((key.clone(), 4))).unwrap());
    let _ = (now(limiter.check((&key, costs()))).unwrap(), now(limiter.check((key, costs()))).unwrap());
    let [a, b, c, d] = &backend.checks()[..] else { panic!("four checks") };
    assert_eq!((a, c), (b, d));
    let sent = [a, c].map(|check| check.pairs.iter().map(|pair| (&pair.key, pair.cost)).collect::<Vec<_>>());
    assert_eq!(sent, [vec![(&alice(), 4); 2], vec![(&alice(), 1), (&alice(), 7)]]);
}

#[test]
fn limiter_without_policies_checks_only_pairs() {
    let backend = FakeBackend::admitting();
    let limiter = Limiter::builder(backend.clone()).without_policies().build().unwrap();
    let tier = Policies::new([policy("requests", 10), policy("tokens", 100)]).unwrap();
    let pairs = tier.pairs(&alice(), Costs::new().policy("tokens", 7));
    assert!(now(limiter.check(pairs)).unwrap().is_admitted());
    assert_eq!(costs(&backend.checks()[0]), [("requests", 1), ("tokens", 7)]);

    for text in [
        source(now(limiter.check(alice())).map(drop)),
        source(now(limiter.peek(alice())).map(drop)),
        source(now(limiter.reset(alice()))),
        now(limiter.reserve(alice())).map(drop).unwrap_err().to_string(),
    ] {
        assert!(text.starts_with("no policy"), "a key needs policies: {text}");
    }
    assert_eq!((backend.checks().len(), backend.resets().len()), (1, 0));
}

#[test]
fn policy_set_requires_valid_size_and_unique_names() {
    let text = |policies: Vec<_>| Policies::new(policies).unwrap_err().to_string();
    let many = |count: u32| (0..count).map(|i| policy(&i.to_string(), 1)).collect::<Vec<_>>();
    assert!(text(vec![]).starts_with("no policy"));
    assert_eq!(text(many(9)), "9 policies: a limiter needs 1 to 8 policies");
    assert!(text(vec![policy("a", 1), policy("a", 2)]).starts_with(r#"policy "a" occurs twice"#));
    assert_eq!(Policies::new(many(8)).unwrap().as_slice(), many(8));
    assert_eq!(Policies::from(policy("a", 1)), Policies::new([policy("a", 1)]).unwrap());
}

#[test]
fn peek_decides_like_check_and_charges_nothing() {
    let (_clock, limiter) = memory(10);
    let _ = now(limiter.check((alice(), 7))).unwrap();
    for _ in 0..3 {
        let peeked = now(limiter.peek((alice(), 4))).unwrap();
        assert_eq!((peeked.retry_after(), peeked.statuses()[0].remaining()), (Wait::For(MINUTE), 3));
        assert!(now(limiter.peek((alice(), 3))).unwrap().is_admitted());
    }
    assert_eq!(now(limiter.check((alice(), 3))).unwrap().statuses()[0].remaining(), 0);
}

#[test]
fn reset_clears_usage_of_one_key() {
    let (_clock, limiter) = memory(10);
    let bob = PartitionKey::new("user", "bob");
    for key in [alice(), bob.clone()] {
        assert!(now(limiter.check((key, 10))).unwrap().is_admitted());
    }
    now(limiter.reset(alice())).unwrap();
    assert!(now(limiter.check((alice(), 10))).unwrap().is_admitted());
    assert!(!now(limiter.check(bob)).unwrap().is_admitted());
}

#[test]
fn denied_reservation_charges_nothing() {
    let (_clock, limiter) = memory(10);
    let denied = now(limiter.reserve((alice(), 11))).unwrap_err();
    assert!(matches!(&denied, Rejection::Denied(_)));
    assert_eq!(denied.decision().unwrap().retry_after(), Wait::Never);
    assert!(now(limiter.check((alice(), 10))).unwrap().is_admitted());
}

#[test]
fn limiter_rejects_reservation_without_every_receipt() {
    struct Incomplete;
    impl Backend for Incomplete {
        async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
            Ok(Decision::new(0, [Status::new(&check.pairs()[0], 1, Wait::ZERO, MINUTE, MINUTE)]))
        }
        fn changes_charges(&self) -> bool {
            true
        }
    }
    let limiter = Limiter::builder(Incomplete).policy(policy("p", 5)).build().unwrap();
    let error = error_of(now(limiter.reserve(alice())).unwrap_err());
    assert_eq!(error.reason(), Reason::BrokenReply);
    assert!(now(limiter.check(alice())).unwrap().is_admitted());
    assert!(now(limiter.peek(alice())).unwrap().is_admitted());
}
