//! Partition keys of requests that arrive over a socket.

use axum::{
    Router,
    extract::Request,
    middleware::{Next, from_fn},
    routing::get,
};
use tower_sliding_window::{
    Builder, KeyExtractor, PartitionKey, RateLimitLayer, extension, header, key, peer_ip,
    testing::FakeBackend,
};

use super::{ALICE, BOB, MINUTE, api_key, policy, wire::Site};

/// The user that the authentication finds.
#[derive(Clone)]
struct User(String);

/// Authenticates users by their token, in an outer layer.
async fn authenticate(mut request: Request, next: Next) -> axum::response::Response {
    let token = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    if let Some(user) = token.and_then(|token| token.strip_prefix("token-of-")) {
        let user = User(user.to_owned());
        request.extensions_mut().insert(user);
    }
    next.run(request).await
}

/// Serves an app that is limited by this key, inside the authentication, and returns its backend.
async fn site(key: impl KeyExtractor) -> (Site, FakeBackend) {
    site_with(|builder| builder.key(key)).await
}

/// Serves the same app with a key that this function sets.
async fn site_with(set_key: impl FnOnce(Builder) -> Builder) -> (Site, FakeBackend) {
    let backend = FakeBackend::admitting();
    let builder = RateLimitLayer::builder(backend.clone()).policy(policy("ten", 10, MINUTE));
    let limits = set_key(builder).build().unwrap();
    let app = Router::new().route("/", get(async || "")).layer(limits).layer(from_fn(authenticate));
    (Site::serve(app).await, backend)
}

/// Returns the keys of the checks.
fn recorded_keys(backend: &FakeBackend) -> Vec<PartitionKey> {
    backend.checks().iter().map(|check| check.pairs[0].key.clone()).collect()
}

fn key(kind: &str, value: &str) -> PartitionKey {
    PartitionKey::new(kind, value)
}

#[tokio::test]
async fn header_value_becomes_key() {
    let (site, backend) = site(api_key()).await;
    assert_eq!(site.get("/", &[ALICE]).await.status, 200);
    assert_eq!(site.get("/", &[("X-API-KEY", "bob")]).await.status, 200);
    assert_eq!(recorded_keys(&backend), [key("header:x-api-key", "alice"), key("header:x-api-key", "bob")]);
}

#[tokio::test]
async fn extension_key_ignores_claims_of_client() {
    let (site, backend) = site(extension("user", |user: &User| user.0.clone())).await;
    assert_eq!(site.get("/", &[("authorization", "token-of-alice"), ("x-api-key", "bob")]).await.status, 200);
    assert_eq!(recorded_keys(&backend), [key("user", "alice")]);
    assert_eq!(site.get("/", &[BOB]).await.status, 400, "bob has no verified token");
    assert_eq!(recorded_keys(&backend).len(), 1);
}

#[tokio::test]
async fn peer_ip_ignores_forwarded_headers() {
    let (site, backend) = site(peer_ip()).await;
    for claim in
        [("x-forwarded-for", "192.0.2.1"), ("forwarded", "for=192.0.2.1"), ("x-real-ip", "192.0.2.1")]
    {
        assert_eq!(site.get("/", &[claim]).await.status, 200);
    }
    let expected = key("peer-ip", "127.0.0.1");
    assert_eq!(recorded_keys(&backend), [expected.clone(), expected.clone(), expected]);
}

#[tokio::test]
async fn alternative_key_replaces_missing_key_without_collision() {
    let (site, backend) = site(api_key().or(peer_ip())).await;
    for headers in [&[ALICE][..], &[], &[("x-api-key", "")], &[("x-api-key", "127.0.0.1")]] {
        assert_eq!(site.get("/", headers).await.status, 200);
    }
    assert_eq!(
        recorded_keys(&backend),
        [
            key("header:x-api-key", "alice"),
            key("peer-ip", "127.0.0.1"),
            key("peer-ip", "127.0.0.1"),
            key("header:x-api-key", "127.0.0.1"),
        ]
    );
    assert_ne!(recorded_keys(&backend)[1], recorded_keys(&backend)[3]);
}

#[tokio::test]
async fn combined_key_requires_both_parts() {
    let (site, backend) = site(api_key().and(peer_ip())).await;
    assert_eq!(site.get("/", &[ALICE]).await.status, 200);
    assert_eq!(recorded_keys(&backend), [key("header:x-api-key", "alice").and(&key("peer-ip", "127.0.0.1"))]);
    assert_eq!(site.get("/", &[]).await.status, 400);
    assert_eq!(recorded_keys(&backend).len(), 1);
}

#[tokio::test]
async fn closure_extracts_key_alone_and_combined() {
    let by_path = key::from_fn(|head| PartitionKey::new("path", head.uri.path())).and(peer_ip());
    let (by_path, backend) = site(by_path).await;
    assert_eq!(by_path.get("/", &[]).await.status, 200);
    assert_eq!(recorded_keys(&backend), [key("path", "/").and(&key("peer-ip", "127.0.0.1"))]);

    let (by_tenant, backend) = site_with(|builder| {
        builder.key_by(|head| head.headers.get("x-tenant").map(|tenant| PartitionKey::new("tenant", tenant)))
    })
    .await;
    assert_eq!(by_tenant.get("/", &[("x-tenant", "acme")]).await.status, 200);
    assert_eq!(by_tenant.get("/", &[]).await.status, 400);
    assert_eq!(recorded_keys(&backend), [key("tenant", "acme")]);
}

#[tokio::test]
async fn combined_keys_nest() {
    let tenant = || header("x-tenant").unwrap();
    let acme = ("x-tenant", "acme");
    let at_peer = |kind: &str, value: &str| key(kind, value).and(&key("peer-ip", "127.0.0.1"));

    let (site, backend) = self::site(api_key().and(tenant()).or(peer_ip())).await;
    for headers in [&[ALICE, acme][..], &[ALICE], &[acme], &[]] {
        assert_eq!(site.get("/", headers).await.status, 200);
    }
    let both = key("header:x-api-key", "alice").and(&key("header:x-tenant", "acme"));
    let peer = || key("peer-ip", "127.0.0.1");
    assert_eq!(recorded_keys(&backend), [both, peer(), peer(), peer()]);

    let (site, backend) = self::site(api_key().or(tenant()).and(peer_ip())).await;
    for headers in [&[ALICE, acme][..], &[acme]] {
        assert_eq!(site.get("/", headers).await.status, 200);
    }
    assert_eq!(site.get("/", &[]).await.status, 400);
    assert_eq!(
        recorded_keys(&backend),
        [at_peer("header:x-api-key", "alice"), at_peer("header:x-tenant", "acme")]
    );
}

#[tokio::test]
async fn combined_keys_reject_malformed_part() {
    let tenant = || header("x-tenant").unwrap();
    let twice = [("x-tenant", "acme"), ("x-tenant", "other")];
    let (either, either_backend) = site(api_key().or(tenant())).await;
    assert_eq!(either.get("/", &twice).await.status, 400);
    // The first key exists, so the layer does not read the second one.
    assert_eq!(either.get("/", &[ALICE, twice[0], twice[1]]).await.status, 200);
    assert_eq!(recorded_keys(&either_backend), [key("header:x-api-key", "alice")]);

    let (both, both_backend) = site(api_key().and(tenant())).await;
    assert_eq!(both.get("/", &[ALICE, twice[0], twice[1]]).await.status, 400);
    assert_eq!(recorded_keys(&both_backend), []);
}

#[tokio::test]
async fn empty_extension_value_is_missing_key() {
    let (site, backend) = site(extension("user", |user: &User| user.0.clone())).await;
    assert_eq!(site.get("/", &[("authorization", "token-of-")]).await.status, 400);
    assert_eq!(recorded_keys(&backend), []);
}
