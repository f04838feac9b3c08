//! Shadow policies of a limiter: counters, events, reservations, the deny cache and outages.

use bytes::Bytes;
use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{
    Limiter, MemoryBackend, OutageRule, PartitionKey, Policy, RateLimitLayer, Rejection, Wait,
    backend::{Backend, Pair, Purpose, Reason},
    by,
    key::KeyError,
    observe::DeniedKey,
    outage::Share,
    protocol::Draft,
    testing::{
        FakeAnswer::{Admit, Deny, DenyShadow},
        FakeBackend, ManualClock,
    },
    wait::WaitLayer,
};

use super::{alice, policy};
use crate::{
    http::{Later, MINUTE, SECOND},
    support::events::Events,
};

#[tokio::test]
async fn shadow_denials_of_admitted_checks_are_counted_and_logged() {
    let (events, _guard) = Events::collect();
    let [short, long] = [SECOND, MINUTE].map(Wait::For);
    let backend = FakeBackend::scripted([Admit, DenyShadow(short), DenyShadow(short), Deny(long)]);
    let limiter = Limiter::builder(backend).policy(policy("ten", 10)).policy(policy("canary", 5).shadow());
    let limiter = limiter.build().unwrap();
    assert_eq!(limiter.peek((alice(), 3)).await.unwrap().shadow_denied().count(), 0);
    for _ in 0..2 {
        let decision = limiter.check((alice(), 3)).await.unwrap();
        assert!(decision.is_admitted());
        let waits: Vec<_> = decision.shadow_denied().map(|status| status.retry_after()).collect();
        assert_eq!(waits, [short]);
    }
    assert!(!limiter.check((alice(), 3)).await.unwrap().is_admitted());
    let stats = limiter.stats();
    assert_eq!((stats.admitted, stats.shadow_denied, stats.denied), (2, 2, 1));
    let [first, second, denied] = &events.take()[..] else { panic!("three events") };
    for event in [first, second] {
        for part in ["DEBUG", "shadow policy would have denied", r#"policy="canary""#, "cost=3", "wait=1s"] {
            assert!(event.contains(part), "{event}");
        }
    }
    assert!(denied.contains(r#"policy="ten""#) && denied.contains("wait=60s"), "{denied}");
}

#[tokio::test]
async fn misconfigured_shadow_limit_is_logged_and_admits() {
    let (events, _guard) = Events::collect();
    let error = || KeyError::misconfigured("no address");
    let layer = RateLimitLayer::builder(FakeBackend::admitting())
        .policy(policy("canary", 5))
        .key_by(move |_| Err::<PartitionKey, _>(error()))
        .shadow()
        .build()
        .unwrap();
    let ok = async |_: Request<()>| Ok::<_, std::convert::Infallible>(Response::new(Bytes::new()));
    for _ in 0..2 {
        let response = layer.layer(service_fn(ok)).oneshot(Request::new(())).await.unwrap();
        assert_eq!(response.status(), 200);
    }
    let [event] = &events.take()[..] else { panic!("one event") };
    assert!(
        event.contains("WARN") && event.contains("not counted") && event.contains("no address"),
        "{event}"
    );
}

#[tokio::test]
async fn mistake_in_any_shadow_part_is_logged() {
    let check = || Draft::check(alice(), 1);
    let nothing = || Draft::pairs(vec![]).shadow();
    for draft in [check().and(nothing()), nothing().and(check())] {
        let (events, _guard) = Events::collect();
        let backend = FakeBackend::admitting();
        let limiter = Limiter::builder(backend.clone()).policy(policy("ten", 10)).build().unwrap();
        let _ = limiter.admit(draft).await.unwrap();
        let [event] = &events.take()[..] else { panic!("one event") };
        assert!(event.contains("WARN") && event.contains("not counted"), "{event}");
        assert_eq!(backend.checks()[0].pairs.len(), 1, "the other part is checked");
    }
}

#[tokio::test]
async fn denied_key_is_that_of_enforcing_policy() {
    let (user, route) = (alice(), PartitionKey::new("route", "/"));
    let pairs =
        [Pair::new(route, policy("canary", 1).shadow(), 2), Pair::new(user.clone(), policy("ten", 10), 11)];
    let backend = tower_sliding_window::MemoryBackend::new();
    let limiter = Limiter::builder(backend).without_policies().build().unwrap();
    assert!(!limiter.check(pairs).await.unwrap().is_admitted());
    assert_eq!(limiter.most_denied(9).iter().map(|denied| &denied.key).collect::<Vec<_>>(), [&user]);
}

/// Returns the keys and the numbers of their denials.
fn counts(keys: Vec<DeniedKey>) -> Vec<(PartitionKey, u64)> {
    keys.into_iter().map(|denied| (denied.key, denied.denials)).collect()
}

/// Checks two keys against shadow policies with quotas of 1 and 2, and one key against an enforced policy with a quota of 8.
async fn keys_denied_in_shadow_mode(backend: impl Backend) -> [Vec<(PartitionKey, u64)>; 2] {
    let limiter = Limiter::builder(backend).without_policies().build().unwrap();
    let [route, tenant] = ["route", "tenant"].map(|kind| PartitionKey::new(kind, "a"));
    for _ in 0..10 {
        let pairs = [
            Pair::new(alice(), policy("enforced", 8), 1),
            Pair::new(route.clone(), policy("short", 1).shadow(), 1),
            Pair::new(tenant.clone(), Policy::new("long", 2, 2 * MINUTE).unwrap().shadow(), 1),
        ];
        let _ = limiter.check(pairs).await.unwrap();
    }
    let stats = limiter.stats();
    assert_eq!((stats.admitted, stats.shadow_denied, stats.denied), (8, 7, 2));
    [counts(limiter.most_denied(9)), counts(limiter.most_shadow_denied(9))]
}

/// Of the eight admitted checks, the first shadow policy alone would have denied one, and both would have denied six.
#[tokio::test]
async fn keys_denied_in_shadow_mode_have_a_list_of_their_own() {
    let [route, tenant] = ["route", "tenant"].map(|kind| PartitionKey::new(kind, "a"));
    let expected = [vec![(alice(), 2)], vec![(tenant, 6), (route, 1)]];
    let memory = || MemoryBackend::new().with_clock(&ManualClock::new());
    assert_eq!(keys_denied_in_shadow_mode(memory()).await, expected);
    assert_eq!(keys_denied_in_shadow_mode(Later(memory())).await, expected);
}

/// With one policy, a memory decides without a list of pairs.
#[tokio::test]
async fn key_denied_by_only_policy_in_shadow_mode_is_listed() {
    for is_peek in [false, true] {
        let limiter =
            Limiter::builder(MemoryBackend::new()).policy(policy("canary", 2).shadow()).build().unwrap();
        for _ in 0..5 {
            let decision =
                if is_peek { limiter.peek((alice(), 3)).await } else { limiter.check(alice()).await };
            assert!(decision.unwrap().is_admitted());
        }
        let expected = if is_peek { vec![] } else { vec![(alice(), 3)] };
        assert_eq!(counts(limiter.most_shadow_denied(9)), expected);
        assert_eq!(counts(limiter.most_denied(9)), []);
    }
}

#[tokio::test]
async fn settlement_leaves_out_uncharged_shadow_pair() {
    let backend = FakeBackend::scripted([DenyShadow(Wait::For(SECOND))]);
    let limiter =
        Limiter::builder(backend.clone()).policy(policy("ten", 10)).policy(policy("canary", 5).shadow());
    let limiter = limiter.build().unwrap();
    limiter.reserve((alice(), 3)).await.unwrap().settle(1).await;
    let [refund] = &backend.refunds()[..] else { panic!("one refund") };
    assert_eq!(refund.pairs.iter().map(|pair| pair.policy.name()).collect::<Vec<_>>(), ["ten"]);
    limiter.reserve((alice(), 3)).await.unwrap().settle(4).await;
    let checks = backend.checks();
    let overage = checks.iter().find(|check| check.purpose == Purpose::Overage).unwrap();
    assert_eq!(overage.pairs.iter().map(|pair| pair.policy.name()).collect::<Vec<_>>(), ["ten"]);
}

#[tokio::test]
async fn check_of_shadows_only_is_admitted_in_outage() {
    for reason in [Reason::Connection, Reason::Full] {
        for rule in [OutageRule::FailClosed, OutageRule::LocalFallback(Share::among(100).unwrap())] {
            let backend = Later(FakeBackend::unavailable(reason));
            let limiter =
                Limiter::builder(backend).outage(rule).policy(policy("canary", 5).shadow()).build().unwrap();
            let admission = limiter.admit(alice()).await.unwrap();
            assert_eq!(admission.unchecked().map(|it| it.reason()), Some(reason), "{rule:?}");
            assert!(limiter.reserve(alice()).await.is_ok());
            // `check` returns the error: the caller decides.
            assert_eq!(limiter.check(alice()).await.unwrap_err().reason(), reason);
        }
    }
    let limiter = Limiter::builder(FakeBackend::unavailable(Reason::Connection));
    let limiter = limiter.policy(policy("canary", 5).shadow()).policy(policy("ten", 10)).build().unwrap();
    assert!(matches!(limiter.admit(alice()).await, Err(Rejection::Unavailable(_))));
}

#[tokio::test]
async fn local_fallback_ignores_shadow_without_share() {
    let rule = OutageRule::LocalFallback(Share::among(5).unwrap());
    let limiter = Limiter::builder(FakeBackend::unavailable(Reason::Connection)).outage(rule);
    let limiter = limiter.policy(policy("canary", 4).shadow()).policy(policy("ten", 10)).build().unwrap();
    for _ in 0..2 {
        let admission = limiter.admit(alice()).await.unwrap();
        let statuses = admission.local().unwrap().decision().statuses().len();
        assert_eq!(statuses, 1);
    }
    assert!(matches!(limiter.admit(alice()).await, Err(Rejection::LocalFallbackDenied(_))));
}

#[tokio::test]
async fn wait_layer_passes_misconfigured_shadow_request() {
    let (events, _guard) = Events::collect();
    let limiter = Limiter::builder(FakeBackend::admitting()).policy(policy("ten", 10)).build().unwrap();
    // A check cannot have the same pair twice.
    let twice = by(|is_shadow: &bool| {
        let check = || Draft::check(alice(), 1);
        if *is_shadow { check().and(check()).shadow() } else { check().and(check()) }
    });
    let client = service_fn(async |_: bool| Ok::<_, std::convert::Infallible>(()));
    let client = WaitLayer::new(limiter, twice).layer(client);
    client.clone().oneshot(true).await.unwrap();
    let [event] = &events.take()[..] else { panic!("one event") };
    assert!(event.contains("WARN") && event.contains("not counted"), "{event}");
    let error = client.oneshot(false).await.unwrap_err();
    assert!(matches!(error.rejection(), Some(Rejection::Misconfigured(_))), "{error:?}");
}

#[tokio::test]
async fn warning_about_cost_names_shadow_policy() {
    let (events, _guard) = Events::collect();
    let limiter = Limiter::builder(tower_sliding_window::MemoryBackend::new());
    let limiter = limiter.policy(policy("canary", 5).shadow()).build().unwrap();
    for _ in 0..2 {
        assert!(limiter.check((alice(), 6)).await.unwrap().is_admitted());
    }
    let events = events.take();
    let warnings: Vec<_> = events.iter().filter(|event| event.contains("WARN")).collect();
    let [warning] = warnings[..] else { panic!("one warning: {events:?}") };
    assert!(warning.contains("shadow policy: the policy would never admit it"), "{warning}");
}
