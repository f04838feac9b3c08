//! The warnings of the limiter, and their frequency.

use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicUsize, Ordering},
};

use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{
    Algorithm, Costs, Limiter, LimiterBuilder, MemoryBackend, Policies, Policy, PolicyTable, RateLimitLayer,
    backend::Reason, key, limit, peer_ip, policy::Rate, protocol::Draft, testing::FakeBackend,
};
use tracing::{Dispatch, Event, Metadata, Subscriber, span};

use super::{alice, now, policy, poll_once};
use crate::{
    http::{Later, MINUTE},
    support::events::Events,
};

/// A subscriber that counts warnings.
pub struct Warnings(Arc<AtomicUsize>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "tower_sliding_window" && *metadata.level() <= tracing::Level::WARN
    }
    fn event(&self, event: &Event<'_>) {
        assert_eq!(*event.metadata().level(), tracing::Level::WARN);
        self.0.fetch_add(1, Ordering::SeqCst);
    }
    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}
    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}
    fn enter(&self, _span: &span::Id) {}
    fn exit(&self, _span: &span::Id) {}
}

/// Runs this function, and counts its warnings.
///
/// While a process has one subscriber, tracing asks only the thread that reaches an event first. If that thread has no
/// subscriber, tracing disables the event for all threads. Therefore, two more subscribers exist.
fn counting<T>(warnings: &Arc<AtomicUsize>, run: impl FnOnce() -> T) -> T {
    static OTHERS: LazyLock<[Dispatch; 2]> =
        LazyLock::new(|| [(); 2].map(|()| Dispatch::new(Warnings(Arc::default()))));
    LazyLock::force(&OTHERS);
    tracing::subscriber::with_default(Warnings(warnings.clone()), run)
}

/// Returns the number of warnings after each step.
fn warning_counts(steps: impl IntoIterator<Item = Box<dyn FnOnce()>>) -> Vec<usize> {
    let warnings = Arc::new(AtomicUsize::new(0));
    counting(&warnings, || {
        let after = |step: Box<dyn FnOnce()>| {
            step();
            warnings.load(Ordering::SeqCst)
        };
        steps.into_iter().map(after).collect()
    })
}

#[test]
fn cost_above_quota_causes_one_warning_per_policy() {
    let warnings = Arc::new(AtomicUsize::new(0));
    counting(&warnings, || {
        let builder = Limiter::builder(FakeBackend::admitting());
        let limiter = builder.policy(policy("one", 1)).policy(policy("five", 5)).build().unwrap();
        let count = |cost| {
            let _ = poll_once(limiter.clone().check((alice(), cost)));
            warnings.load(Ordering::SeqCst)
        };
        assert_eq!([count(1), count(5), count(5), count(6), count(6)], [0, 1, 1, 2, 2]);
    });
}

/// A service may make the policy for each request, and a client may choose the cost.
#[tokio::test(start_paused = true)]
async fn policy_per_request_causes_few_warnings() {
    let (events, _guard) = Events::collect();
    let limiter = Limiter::builder(FakeBackend::admitting()).without_policies().build().unwrap();
    for unlogged in [0, 92] {
        for _ in 0..100 {
            let draft = Draft::check_against(alice(), policy("per-request", 1), 2);
            let _ = limiter.check(draft).await.unwrap();
        }
        let warnings = events.take();
        assert_eq!(warnings.len(), 8, "{warnings:?}");
        assert!(warnings[0].contains("above the quota"), "{warnings:?}");
        assert!(warnings[0].contains(&format!("unlogged={unlogged} ")), "{warnings:?}");
        tokio::time::advance(MINUTE).await;
    }
}

#[test]
fn clamped_estimate_logs_no_warning() {
    let warnings = Arc::new(AtomicUsize::new(0));
    counting(&warnings, || {
        let limiter = |builder: LimiterBuilder| builder.policy(policy("clamped", 5)).build().unwrap();
        let clamping = limiter(Limiter::builder(FakeBackend::admitting()).clamp_estimates());
        let _ = now(clamping.reserve((alice(), 6))).unwrap();
        assert_eq!(warnings.load(Ordering::SeqCst), 0);
        let _ = now(limiter(Limiter::builder(FakeBackend::admitting())).reserve((alice(), 6))).unwrap();
        assert_eq!(warnings.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn unknown_policy_name_causes_one_warning_per_limiter() {
    let limiter = || {
        let builder = Limiter::builder(FakeBackend::admitting());
        builder.policy(policy("requests", 10)).policy(policy("tokens", 10)).build().unwrap()
    };
    let (first, second) = (limiter(), limiter());
    let (first_clone, second_clone) = (first.clone(), second.clone());
    let correct = Costs::new().policy("requests", 1).policy("tokens", 5);
    let misspelt = Costs::new().policy("token", 5);
    let also_misspelt = misspelt.clone();
    let steps: [Box<dyn FnOnce()>; 4] = [
        Box::new(move || drop(poll_once(first.check((alice(), correct))))),
        Box::new(move || drop(poll_once(first_clone.check((alice(), misspelt.clone()))))),
        Box::new(move || {
            let reservation = now(second.reserve(alice())).unwrap();
            reservation.settle(also_misspelt);
        }),
        Box::new(move || drop(poll_once(second_clone.check((alice(), Costs::new().policy("request", 2)))))),
    ];
    assert_eq!(warning_counts(steps), [0, 1, 2, 2]);
}

/// A check in memory, a meter and a token search the names in code of their own.
#[test]
fn every_use_of_unknown_policy_name_causes_one_warning() {
    let reserve = |limiter: &Limiter| now(limiter.reserve(alice())).unwrap();
    let cost = |name: &str| Costs::new().policy(name.to_owned(), 1);
    let check = |limiter: &Limiter, name: &str| drop(now(limiter.check((alice(), cost(name)))).unwrap());
    let add = |limiter: &Limiter, name: &str| reserve(limiter).meter().add(cost(name));
    let add_to = |limiter: &Limiter, name: &str| reserve(limiter).meter().add_to(name, 1);
    let settle_token = |limiter: &Limiter, name: &str| {
        let token = reserve(limiter).into_token().unwrap();
        now(limiter.settle_token(&token, cost(name))).unwrap();
    };
    type Use<'a> = &'a dyn Fn(&Limiter, &str);
    let uses: [(&str, Use<'_>); 4] =
        [("check", &check), ("add", &add), ("add_to", &add_to), ("settle_token", &settle_token)];
    for (what, use_name) in uses {
        for (name, expected) in [("requests", 0), ("request", 1)] {
            let builder = Limiter::builder(MemoryBackend::new()).policy(policy("requests", 10));
            let limiter = builder.build().unwrap();
            let warnings = Arc::new(AtomicUsize::new(0));
            counting(&warnings, || {
                for _ in 0..2 {
                    use_name(&limiter, name);
                }
            });
            assert_eq!(warnings.load(Ordering::SeqCst), expected, "{what} of {name:?}");
        }
    }
}

#[test]
fn layer_searches_policy_names_of_all_keys() {
    let warnings = Arc::new(AtomicUsize::new(0));
    let send = |name: &'static str| {
        let limits = RateLimitLayer::builder(FakeBackend::admitting())
            .policy(policy("requests", 10))
            .key_by(|_| alice())
            .policies(Policies::from(policy("tokens", 10)))
            .cost_by(move |_| Costs::new().policy(name, 2))
            .also(limit(key::from_fn(|_| alice())).policy(policy("all", 10)))
            .build()
            .unwrap();
        let answer = |_: http::Request<()>| std::future::ready(Ok::<_, ()>(http::Response::new(())));
        let service = limits.layer(service_fn(answer));
        counting(&warnings, || {
            for _ in 0..2 {
                assert_eq!(now(service.clone().oneshot(http::Request::new(()))).unwrap().status(), 200);
            }
        });
        warnings.load(Ordering::SeqCst)
    };
    assert_eq!(["requests", "tokens", "all", "token"].map(send), [0, 0, 0, 1]);
}

#[tokio::test(start_paused = true)]
async fn lost_settlements_cause_one_warning_per_minute() {
    let backend = FakeBackend::admitting().failing_settlements(Reason::Connection);
    let limiter = Limiter::builder(backend).policy(policy("p", 10)).build().unwrap();
    let (events, _guard) = Events::collect();
    for lost in [1, 10] {
        for _ in 0..9 {
            limiter.reserve(alice()).await.unwrap().settle(0);
        }
        let warnings = events.take();
        assert!(warnings.len() == 1 && warnings[0].contains(&format!("lost={lost} ")), "{warnings:?}");
        tokio::time::advance(MINUTE).await;
    }
    assert_eq!(limiter.lost_settlements(), 18);
}

#[test]
fn conflicting_policies_cause_one_warning() {
    fn build(builder: LimiterBuilder, policy: Policy) -> Limiter {
        builder.policy(policy).build().unwrap()
    }
    let minute = |quota| Policy::new("burst", quota, MINUTE).unwrap();
    let backend = FakeBackend::admitting();
    let shared = backend.clone();
    let on = move || Limiter::builder(backend.clone());
    let warnings = Arc::new(AtomicUsize::new(0));
    let warning_count = || warnings.load(Ordering::SeqCst);
    counting(&warnings, || {
        let first = build(on(), minute(10));
        let same = build(on(), minute(10));
        let other_store = build(Limiter::builder(FakeBackend::admitting()), minute(11));
        let unknown = build(Limiter::builder(Later(FakeBackend::admitting())), minute(11));
        let namespace = build(on().namespace("other"), minute(11));
        let name = build(on(), Policy::new("sustained", 11, MINUTE).unwrap());
        assert_eq!(warning_count(), 0);
        let other_quota = build(on(), minute(11));
        assert_eq!(warning_count(), 1);
        // The limiter has already warned about this name.
        let other_window = build(on(), Policy::new("burst", 10, 2 * MINUTE).unwrap());
        assert_eq!(warning_count(), 1);
        drop((first, same, other_store, unknown, namespace, name, other_quota));
        drop(other_window);

        // The store has no other limiter any more, so no policy conflicts.
        let algorithm = build(on(), minute(12).with_algorithm(Algorithm::FixedWindow).unwrap());
        assert_eq!(warning_count(), 1);
        let conflicting = build(on(), minute(12));
        assert_eq!(warning_count(), 2);
        // A policy of a further key can conflict as well.
        let others = |quota| {
            let builder =
                RateLimitLayer::builder(shared.clone()).policy(policy("own", 1)).key_by(|_| alice());
            builder
                .also(limit(key::from_fn(|_| alice())).policy(minute(quota)))
                .namespace("layer")
                .build()
                .unwrap()
        };
        let layers = (others(1), others(1));
        assert_eq!(warning_count(), 2);
        let conflicting_layer = others(2);
        assert_eq!(warning_count(), 3);
        drop((algorithm, conflicting, layers, conflicting_layer));
    });
}

/// Classes of requests count together on purpose, whether they are limiters or entries of a table.
#[test]
fn classes_of_one_policy_cause_no_warning() {
    let backend = FakeBackend::admitting();
    let on = backend.clone();
    let build = move |policy: Policy| Limiter::builder(on.clone()).policy(policy).build().unwrap();
    let whole = [policy("p", 100), Policy::token_bucket("q", 100, Rate::per_second(5)).unwrap()];
    let warnings = Arc::new(AtomicUsize::new(0));
    counting(&warnings, || {
        for whole in whole {
            let headroom = |percent| whole.clone().headroom_percent(percent).unwrap();
            // A policy keeps its headroom if it is hidden, in shadow mode, or reduced again.
            let again = headroom(20).headroom_percent(50).unwrap();
            let limiters = [headroom(20), whole.clone(), headroom(20).hidden(), headroom(50).shadow(), again];
            let same = Policy::new("r", 80, MINUTE).unwrap();
            let equal = [same, Policy::new("r", 100, MINUTE).unwrap().headroom_percent(20).unwrap()];
            let limiters = (limiters.map(&build), equal.map(&build));
            let classes = PolicyTable::new(whole.clone()).with("batch", headroom(20));
            let layer = RateLimitLayer::builder(backend.clone())
                .policies(classes.choose_by(|_| Some("batch")))
                .key_by(|_| alice())
                .build()
                .unwrap();
            drop((limiters, layer));
        }
    });
    assert_eq!(warnings.load(Ordering::SeqCst), 0);
}

/// A headroom does not excuse another difference, nor does it explain the same quota.
#[test]
fn conflicting_policy_with_headroom_causes_a_warning() {
    let minute = |quota| policy("p", quota);
    let bucket = |rate| Policy::token_bucket("p", 100, rate).unwrap();
    let hour = Policy::new("p", 100, 60 * MINUTE).unwrap();
    let fixed = minute(100).with_algorithm(Algorithm::FixedWindow).unwrap();
    let conflicts = [
        [minute(100), minute(80)],
        [minute(100), minute(90).headroom_percent(20).unwrap()],
        [minute(100), hour.headroom_percent(20).unwrap()],
        [
            minute(100),
            minute(100).headroom_percent(20).unwrap().with_algorithm(Algorithm::FixedWindow).unwrap(),
        ],
        [minute(100).headroom_percent(20).unwrap(), fixed],
        [bucket(Rate::per_second(5)), bucket(Rate::per_second(4)).headroom_percent(20).unwrap()],
    ];
    for policies in conflicts {
        let backend = FakeBackend::admitting();
        let build =
            |policy: &Policy| Limiter::builder(backend.clone()).policy(policy.clone()).build().unwrap();
        let warnings = Arc::new(AtomicUsize::new(0));
        counting(&warnings, || drop(policies.each_ref().map(build)));
        assert_eq!(warnings.load(Ordering::SeqCst), 1, "{policies:?}");
    }
}

#[test]
fn peek_above_quota_causes_no_warning() {
    let build = |builder: LimiterBuilder| builder.policy(policy("p", 1)).build().unwrap();
    let fake = build(Limiter::builder(FakeBackend::admitting()));
    let memory = build(Limiter::builder(MemoryBackend::new()));
    let checking = memory.clone();
    let steps: [Box<dyn FnOnce()>; 3] = [
        Box::new(move || drop(poll_once(fake.peek((alice(), 9))))),
        Box::new(move || drop(poll_once(memory.peek((alice(), 9))))),
        Box::new(move || drop(poll_once(checking.check((alice(), 9))))),
    ];
    assert_eq!(warning_counts(steps), [0, 0, 1]);
}

/// Without connect info, `peer_ip` finds no address, and the response does not state the cause.
#[tokio::test(start_paused = true)]
async fn misconfigured_key_causes_one_warning_per_minute() {
    let limits = RateLimitLayer::builder(FakeBackend::admitting())
        .policy(policy("requests", 10))
        .key(peer_ip())
        .build()
        .unwrap();
    let answer = |_: http::Request<()>| std::future::ready(Ok::<_, ()>(http::Response::new(())));
    let service = limits.layer(service_fn(answer));
    let (events, _guard) = Events::collect();
    for unlogged in [0, 4] {
        for _ in 0..5 {
            assert_eq!(service.clone().oneshot(http::Request::new(())).await.unwrap().status(), 500);
        }
        let warnings = events.take();
        assert!(
            warnings.len() == 1 && warnings[0].contains(&format!("unlogged={unlogged} ")),
            "{warnings:?}"
        );
        tokio::time::advance(MINUTE).await;
    }
}

/// Builds a limiter on this backend, uses it, and drops it.
fn use_once(backend: &MemoryBackend, namespace: &str) {
    let builder = Limiter::builder(backend.clone()).policy(policy("mails", 1_000)).namespace(namespace);
    assert!(now(builder.build().unwrap().check(alice())).unwrap().is_admitted());
}

#[tokio::test(start_paused = true)]
async fn limiter_per_request_causes_one_warning() {
    let (events, _guard) = Events::collect();
    let backend = MemoryBackend::new();
    // At the start, a service may build and keep any number of limiters.
    let kept = [(); 100].map(|()| Limiter::builder(backend.clone()).policy(policy("mails", 1_000)).build());
    for _ in 0..19 {
        use_once(&backend, "tsw");
        use_once(&backend, "other");
    }
    assert_eq!(events.take(), [""; 0]);
    for _ in 0..50 {
        use_once(&backend, "tsw");
    }
    let logged = events.take();
    assert_eq!(logged.len(), 1, "{logged:?}");
    for part in ["WARN", "store=\"memory ", ", namespace tsw\"", "dropped=20", "built and dropped again"] {
        assert!(logged[0].contains(part), "{part}: {logged:?}");
    }
    tokio::time::advance(2 * MINUTE).await;
    for _ in 0..50 {
        use_once(&backend, "tsw");
    }
    assert_eq!(events.take(), [""; 0]);
    drop(kept);
}

#[tokio::test(start_paused = true)]
async fn limiter_of_long_life_causes_no_warning() {
    let (events, _guard) = Events::collect();
    let backend = MemoryBackend::new();
    // Nineteen in each minute.
    for _ in 0..5 {
        for _ in 0..19 {
            use_once(&backend, "tsw");
        }
        tokio::time::advance(MINUTE).await;
    }
    let kept = [(); 100].map(|()| Limiter::builder(backend.clone()).policy(policy("mails", 1_000)).build());
    tokio::time::advance(MINUTE).await;
    drop(kept);
    assert_eq!(events.take(), [""; 0]);
}
