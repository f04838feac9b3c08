//! Requests with a missing key, a malformed key or an unknown peer, and the rules for them.

use std::sync::Arc;

use axum::{Router, routing::get};
use serde_json::json;
use tower::ServiceExt;
use tower_sliding_window::{
    Head, KeyExtractor, MemoryBackend, PartitionKey, RateLimitLayer,
    backend::Backend,
    extension, header,
    key::{self, KeyError, MissingKey},
    limit, peer_ip,
    testing::{FakeBackend, ManualClock},
};

use super::{ALICE, BOB, MINUTE, api_key, policy, wire::Site};
use crate::support::events::Events;

fn app() -> Router {
    Router::new().route("/", get(async || "hello"))
}

/// Builds a layer that counts the API key, and the project by this rule.
fn limits_with_project(backend: impl Backend, rule: MissingKey) -> RateLimitLayer {
    let per_project = limit(header("x-project").unwrap()).policy(policy("per-project", 2, MINUTE));
    RateLimitLayer::builder(backend)
        .policy(policy("per-key", 10, MINUTE))
        .key(api_key())
        .also(per_project.missing_key(rule))
        .build()
        .unwrap()
}

/// Builds a layer that counts the API key, and the address by this rule.
fn limits_with_address(backend: impl Backend, rule: MissingKey) -> RateLimitLayer {
    let per_address = limit(peer_ip()).policy(policy("per-address", 2, MINUTE));
    RateLimitLayer::builder(backend)
        .policy(policy("per-key", 10, MINUTE))
        .key(api_key())
        .also(per_address.missing_key(rule))
        .build()
        .unwrap()
}

/// Returns all rules.
fn rules() -> [MissingKey; 3] {
    [MissingKey::Reject, MissingKey::Exempt, MissingKey::Shared(PartitionKey::new("shared", "anonymous"))]
}

/// The text of the warning names the order of the layers.
const WRONG_ORDER: &str = "must be outside the rate limit layer";

#[tokio::test]
async fn missing_extension_causes_one_warning_until_a_request_has_it() {
    let by_tenant = || extension("tenant", |tenant: &String| tenant.clone());
    fn app_of(key: impl KeyExtractor) -> Router {
        let builder = RateLimitLayer::builder(MemoryBackend::new()).policy(policy("ten", 10, MINUTE));
        app().layer(builder.key(key).build().unwrap())
    }
    let send = async |app: &Router, tenant: Option<&str>| {
        let mut request = http::Request::get("/").body(axum::body::Body::empty()).unwrap();
        tenant.map(|tenant| request.extensions_mut().insert(tenant.to_owned()));
        let response = app.clone().oneshot(request).await.unwrap();
        let text = axum::body::to_bytes(response.into_body(), 1_000).await.unwrap();
        String::from_utf8(text.to_vec()).unwrap()
    };
    let (events, _guard) = Events::collect();
    let (wrong, right) = (app_of(by_tenant()), app_of(by_tenant()));
    for _ in 0..99 {
        let text = send(&wrong, None).await;
        assert!(text.contains(r#"extension \"tenant\" not found"#), "{text}");
    }
    assert!(!events.text().contains(WRONG_ORDER), "{}", events.text());
    for _ in 0..3 {
        send(&wrong, None).await;
    }
    let logged = events.take();
    assert_eq!(logged.len(), 1, "{logged:?}");
    assert!(logged[0].starts_with("WARN ") && logged[0].contains(WRONG_ORDER), "{logged:?}");
    assert!(
        logged[0].contains(r#"extension "tenant""#) || logged[0].contains(r#"extension \"tenant\""#),
        "{logged:?}"
    );
    // The order is right, and many requests are anonymous.
    for tenant in [None, Some("acme"), None] {
        for _ in 0..99 {
            send(&right, tenant).await;
        }
    }
    // The other part of the key is missing.
    let with_token = app_of(by_tenant().and(key::header("x-api-key").unwrap()));
    for _ in 0..200 {
        assert!(send(&with_token, Some("acme")).await.contains(r#"header \"x-api-key\" not found"#));
    }
    assert!(!events.text().contains(WRONG_ORDER), "{}", events.text());
    // A malformed key does not state that the order is right.
    let malformed = app_of(
        by_tenant()
            .and(key::from_fn(|_: &Head<'_>| Err::<PartitionKey, _>(KeyError::malformed("token", "x")))),
    );
    assert!(send(&malformed, Some("acme")).await.contains("malformed"));
    for _ in 0..100 {
        send(&malformed, None).await;
    }
    assert!(events.text().contains(WRONG_ORDER), "{}", events.text());
    events.take();
    // A key that is optional is not missing.
    let optional = app_of(by_tenant().or(key::constant("all", "anonymous")));
    assert_eq!(send(&optional, None).await, "hello");
    assert!(!events.text().contains(WRONG_ORDER), "{}", events.text());
}

#[tokio::test]
async fn default_rule_rejects_missing_key() {
    let backend = FakeBackend::admitting();
    let limits = RateLimitLayer::builder(backend.clone())
        .policy(policy("ten", 10, MINUTE))
        .key(api_key())
        .build()
        .unwrap();
    let site = Site::serve(app().layer(limits)).await;
    for headers in [&[][..], &[("x-api-key", "")]] {
        let answer = site.get("/", headers).await;
        assert_eq!(answer.status, 400);
        assert!(!answer.has_limit_fields(), "{answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        let detail = r#"missing rate limit key: header "x-api-key" not found"#;
        assert_eq!(answer.json(), json!({ "title": "Bad Request", "status": 400, "detail": detail }));
    }
    assert_eq!(backend.checks(), []);
}

/// A key, the header fields of a request, and the detail of the response.
type Case<'a> = (Arc<dyn KeyExtractor>, &'a [(&'a str, &'a str)], &'a str);

#[tokio::test]
async fn rejection_names_what_is_missing() {
    let tenant = || header("x-tenant").unwrap();
    let user = || extension("user", |user: &String| user.clone());
    let closure = || key::from_fn(|_| None::<PartitionKey>);
    let acme = ("x-tenant", "acme");
    let (none, alice) = ("missing rate limit key", [ALICE]);
    let cases: [Case; 7] = [
        (Arc::new(api_key().and(tenant())), &alice, r#": header "x-tenant" not found"#),
        (Arc::new(api_key().and(tenant())), &[acme], r#": header "x-api-key" not found"#),
        (Arc::new(user().or(tenant())), &alice, r#": extension "user" or header "x-tenant" not found"#),
        (Arc::new(closure()), &[], ""),
        (Arc::new(closure().or(tenant())), &[], r#": header "x-tenant" not found"#),
        (
            Arc::new(key::from_fn(|_| Err::<PartitionKey, _>(KeyError::missing("a token")))),
            &[],
            ": a token not found",
        ),
        (Arc::new(Arc::new(tenant())), &[], r#": header "x-tenant" not found"#),
    ];
    for (key, headers, detail) in cases {
        let limits = RateLimitLayer::builder(FakeBackend::admitting())
            .policy(policy("ten", 10, MINUTE))
            .key(key)
            .build()
            .unwrap();
        let answer = Site::serve(app().layer(limits)).await.get("/", headers).await;
        assert_eq!((answer.status, &answer.json()["detail"]), (400, &json!(format!("{none}{detail}"))));
    }
}

#[tokio::test]
async fn exempt_rule_admits_missing_key_and_counts_others() {
    let limits = RateLimitLayer::builder(MemoryBackend::new().with_clock(&ManualClock::new()))
        .policy(policy("one", 1, MINUTE))
        .key(api_key())
        .missing_key(MissingKey::Exempt)
        .build()
        .unwrap();
    let site = Site::serve(app().layer(limits)).await;
    for _ in 0..3 {
        let answer = site.get("/", &[]).await;
        assert_eq!((answer.status, &*answer.body), (200, "hello"));
        assert!(!answer.has_limit_fields(), "{answer:?}");
    }
    assert_eq!(site.get("/", &[ALICE]).await.status, 200);
    assert_eq!(site.get("/", &[ALICE]).await.status, 429);
}

#[tokio::test]
async fn shared_rule_counts_missing_keys_together() {
    let limits = RateLimitLayer::builder(MemoryBackend::new().with_clock(&ManualClock::new()))
        .policy(policy("two", 2, MINUTE))
        .key(api_key())
        .missing_key(MissingKey::Shared(PartitionKey::new("shared", "anonymous")))
        .build()
        .unwrap();
    let site = Site::serve(app().layer(limits)).await;
    let mut statuses = Vec::new();
    for headers in [&[][..], &[("x-api-key", "")], &[], &[ALICE], &[BOB]] {
        statuses.push(site.get("/", headers).await.status);
    }
    assert_eq!(statuses, [200, 200, 429, 200, 200]);
}

#[tokio::test]
async fn every_rule_rejects_key_that_occurs_twice() {
    for rule in rules() {
        let backend = FakeBackend::admitting();
        let limits = RateLimitLayer::builder(backend.clone())
            .policy(policy("ten", 10, MINUTE))
            .key(api_key().or(peer_ip()))
            .missing_key(rule.clone())
            .build()
            .unwrap();
        let site = Site::serve(app().layer(limits)).await;
        let answer = site.get("/", &[ALICE, BOB]).await;
        assert_eq!(answer.status, 400, "{rule:?}");
        assert_eq!(
            answer.json()["detail"],
            "malformed rate limit key: header x-api-key: the header occurs more than once"
        );
        assert!(!answer.body.contains("alice") && !answer.body.contains("bob"), "{answer:?}");
        assert_eq!(backend.checks(), [], "{rule:?}");
    }
}

#[tokio::test]
async fn every_rule_rejects_unknown_peer_with_server_error() {
    for rule in rules() {
        let backend = FakeBackend::admitting();
        let limits = RateLimitLayer::builder(backend.clone())
            .policy(policy("ten", 10, MINUTE))
            .key(peer_ip())
            .missing_key(rule.clone())
            .build()
            .unwrap();
        let site = Site::serve_without_connect_info(app().layer(limits)).await;
        let answer = site.get("/", &[ALICE]).await;
        assert_eq!(answer.status, 500, "{rule:?}");
        assert!(!answer.has_limit_fields(), "{answer:?}");
        assert_eq!(answer.json(), json!({ "title": "Internal Server Error", "status": 500 }));
        assert_eq!(backend.checks(), [], "{rule:?}");
    }
}

#[tokio::test]
async fn event_of_unknown_peer_names_missing_call() {
    // Two more subscribers exist: tracing would otherwise ask only the first thread that reaches the event.
    let (events, others) = (Events::default(), [(); 2].map(|()| tracing::Dispatch::new(Events::default())));
    let guard = tracing::subscriber::set_default(events.clone());
    for key in [Arc::new(peer_ip()) as Arc<dyn KeyExtractor>, Arc::new(key::client_ip())] {
        let limits = RateLimitLayer::builder(FakeBackend::admitting())
            .policy(policy("ten", 10, MINUTE))
            .key(key)
            .build()
            .unwrap();
        let site = Site::serve_without_connect_info(app().layer(limits)).await;
        for _ in 0..2 {
            assert_eq!(site.get("/", &[]).await.status, 500);
        }
    }
    drop((guard, others));
    let text = events.text();
    let named: Vec<_> = text.lines().filter(|line| line.contains("misconfigured rate limit")).collect();
    assert_eq!(named.len(), 2, "one event per limiter: {text}");
    for line in named {
        assert!(line.contains("`into_make_service_with_connect_info::<SocketAddr>()`"), "{line}");
    }
}

/// A custom extractor with its own errors.
struct Signed;

impl KeyExtractor for Signed {
    fn extract(&self, head: &Head<'_>) -> Result<Option<PartitionKey>, KeyError> {
        let Some(value) = head.headers.get("x-signed") else { return Ok(None) };
        let signed = value.to_str().ok().and_then(|value| value.strip_suffix(".signature"));
        let malformed = || KeyError::malformed("x-signed", "the signature is wrong");
        signed.map(|user| Some(PartitionKey::new("user", user))).ok_or_else(malformed)
    }
}

#[tokio::test]
async fn custom_extractor_returns_its_own_error_text() {
    let backend = FakeBackend::admitting();
    let limits = RateLimitLayer::builder(backend.clone())
        .policy(policy("ten", 10, MINUTE))
        .key(Signed.or(peer_ip()))
        .build()
        .unwrap();
    let site = Site::serve(app().layer(limits)).await;
    let answer = site.get("/", &[("x-signed", "alice.forged")]).await;
    assert_eq!(
        (answer.status, &answer.json()["detail"]),
        (400, &json!("malformed rate limit key: x-signed: the signature is wrong"))
    );
    assert_eq!(site.get("/", &[("x-signed", "alice.signature")]).await.status, 200);
    assert_eq!(site.get("/", &[]).await.status, 200);
    let keys: Vec<_> = backend.checks().iter().map(|check| check.pairs[0].key.clone()).collect();
    assert_eq!(keys, [PartitionKey::new("user", "alice"), PartitionKey::new("peer-ip", "127.0.0.1")]);
}

#[tokio::test]
async fn limit_has_rule_for_missing_key() {
    let shared = MissingKey::Shared(PartitionKey::new("shared", "no project"));
    for (rule, statuses) in [
        (MissingKey::Reject, [400, 400, 400, 200]),
        (MissingKey::Exempt, [200, 200, 200, 200]),
        (shared, [200, 200, 429, 200]),
    ] {
        let memory = MemoryBackend::new().with_clock(&ManualClock::new());
        let site = Site::serve(app().layer(limits_with_project(memory, rule.clone()))).await;
        let mut answers = Vec::new();
        for headers in [&[ALICE][..], &[BOB], &[ALICE, ("x-project", "")], &[ALICE, ("x-project", "one")]] {
            answers.push(site.get("/", headers).await);
        }
        assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), statuses, "{rule:?}");
        // A rejected request charges no key, and an exempt one is charged to the other key.
        let charged = match rule {
            MissingKey::Reject => 9,
            MissingKey::Exempt => 7,
            _ => 8,
        };
        let fields = answers[3].header("ratelimit").unwrap();
        assert!(fields.starts_with(&format!(r#""per-key";r={charged};"#)), "{rule:?}: {fields}");
        assert!(fields.contains(r#""per-project";r=1;"#), "{rule:?}: {fields}");
    }
}

#[tokio::test]
async fn limit_rejects_malformed_key_by_every_rule() {
    for rule in rules() {
        let backend = FakeBackend::admitting();
        let site = Site::serve(app().layer(limits_with_project(backend.clone(), rule.clone()))).await;
        let answer = site.get("/", &[ALICE, ("x-project", "one"), ("x-project", "two")]).await;
        assert_eq!(answer.status, 400, "{rule:?}");
        assert_eq!(
            answer.json()["detail"],
            "malformed rate limit key: header x-project: the header occurs more than once"
        );
        assert_eq!(backend.checks(), [], "{rule:?}");
    }
}

#[tokio::test]
async fn limit_rejects_unknown_peer_by_every_rule() {
    for rule in rules() {
        let backend = FakeBackend::admitting();
        let app = app().layer(limits_with_address(backend.clone(), rule.clone()));
        let answer = Site::serve_without_connect_info(app).await.get("/", &[ALICE]).await;
        assert_eq!((answer.status, backend.checks().len()), (500, 0), "{rule:?}");
    }
}
