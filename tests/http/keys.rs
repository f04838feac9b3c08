//! Whose usage is counted: what a backend is asked for requests that came over a socket.

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

/// What the authentication below leaves behind.
#[derive(Clone)]
struct User(String);

/// An earlier layer that knows users by their token.
async fn authenticate(mut request: Request, next: Next) -> axum::response::Response {
    let token = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    if let Some(user) = token.and_then(|token| token.strip_prefix("token-of-")) {
        let user = User(user.to_owned());
        request.extensions_mut().insert(user);
    }
    next.run(request).await
}

/// An app that is limited by this key, inside of the authentication, and the backend that it asks.
async fn site(key: impl KeyExtractor) -> (Site, FakeBackend) {
    site_with(|builder| builder.key(key)).await
}

/// The same, with a key that this function sets.
async fn site_with(set_key: impl FnOnce(Builder) -> Builder) -> (Site, FakeBackend) {
    let backend = FakeBackend::admitting();
    let builder = RateLimitLayer::builder(backend.clone()).policy(policy("ten", 10, MINUTE));
    let limits = set_key(builder).build().unwrap();
    let app = Router::new().route("/", get(async || "")).layer(limits).layer(from_fn(authenticate));
    (Site::serve(app).await, backend)
}

/// The keys that the backend was asked.
fn asked(backend: &FakeBackend) -> Vec<PartitionKey> {
    backend.checks().iter().map(|check| check.pairs[0].key.clone()).collect()
}

fn key(kind: &str, value: &str) -> PartitionKey {
    PartitionKey::new(kind, value)
}

#[tokio::test]
async fn by_a_header() {
    let (site, backend) = site(api_key()).await;
    assert_eq!(site.get("/", &[ALICE]).await.status, 200);
    assert_eq!(site.get("/", &[("X-API-KEY", "bob")]).await.status, 200);
    assert_eq!(asked(&backend), [key("header:x-api-key", "alice"), key("header:x-api-key", "bob")]);
}

#[tokio::test]
async fn by_what_an_earlier_layer_has_left_and_not_by_what_the_client_says_of_itself() {
    let (site, backend) = site(extension("user", |user: &User| user.0.clone())).await;
    assert_eq!(site.get("/", &[("authorization", "token-of-alice"), ("x-api-key", "bob")]).await.status, 200);
    assert_eq!(asked(&backend), [key("user", "alice")]);
    assert_eq!(site.get("/", &[BOB]).await.status, 400, "nobody has verified bob");
    assert_eq!(asked(&backend).len(), 1);
}

#[tokio::test]
async fn by_the_address_at_the_other_end_whatever_the_client_claims() {
    let (site, backend) = site(peer_ip()).await;
    for claim in
        [("x-forwarded-for", "192.0.2.1"), ("forwarded", "for=192.0.2.1"), ("x-real-ip", "192.0.2.1")]
    {
        assert_eq!(site.get("/", &[claim]).await.status, 200);
    }
    let expected = key("peer-ip", "127.0.0.1");
    assert_eq!(asked(&backend), [expected.clone(), expected.clone(), expected]);
}

#[tokio::test]
async fn by_one_key_or_else_another_which_cannot_be_mistaken_for_it() {
    let (site, backend) = site(api_key().or(peer_ip())).await;
    for headers in [&[ALICE][..], &[], &[("x-api-key", "")], &[("x-api-key", "127.0.0.1")]] {
        assert_eq!(site.get("/", headers).await.status, 200);
    }
    assert_eq!(
        asked(&backend),
        [
            key("header:x-api-key", "alice"),
            key("peer-ip", "127.0.0.1"),
            key("peer-ip", "127.0.0.1"),
            key("header:x-api-key", "127.0.0.1"),
        ]
    );
    assert_ne!(asked(&backend)[1], asked(&backend)[3]);
}

#[tokio::test]
async fn by_two_keys_together_of_which_none_may_be_missing() {
    let (site, backend) = site(api_key().and(peer_ip())).await;
    assert_eq!(site.get("/", &[ALICE]).await.status, 200);
    assert_eq!(asked(&backend), [key("header:x-api-key", "alice").and(&key("peer-ip", "127.0.0.1"))]);
    assert_eq!(site.get("/", &[]).await.status, 400);
    assert_eq!(asked(&backend).len(), 1);
}

#[tokio::test]
async fn by_closure_and_by_closure_combined_with_other_key() {
    let by_path = key::from_fn(|head| PartitionKey::new("path", head.uri.path())).and(peer_ip());
    let (by_path, backend) = site(by_path).await;
    assert_eq!(by_path.get("/", &[]).await.status, 200);
    assert_eq!(asked(&backend), [key("path", "/").and(&key("peer-ip", "127.0.0.1"))]);

    let (by_tenant, backend) = site_with(|builder| {
        builder.key_by(|head| head.headers.get("x-tenant").map(|it| PartitionKey::new("tenant", it)))
    })
    .await;
    assert_eq!(by_tenant.get("/", &[("x-tenant", "acme")]).await.status, 200);
    assert_eq!(by_tenant.get("/", &[]).await.status, 400);
    assert_eq!(asked(&backend), [key("tenant", "acme")]);
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
    assert_eq!(asked(&backend), [both, peer(), peer(), peer()]);

    let (site, backend) = self::site(api_key().or(tenant()).and(peer_ip())).await;
    for headers in [&[ALICE, acme][..], &[acme]] {
        assert_eq!(site.get("/", headers).await.status, 200);
    }
    assert_eq!(site.get("/", &[]).await.status, 400);
    assert_eq!(asked(&backend), [at_peer("header:x-api-key", "alice"), at_peer("header:x-tenant", "acme")]);
}

#[tokio::test]
async fn combined_keys_reject_malformed_part() {
    let tenant = || header("x-tenant").unwrap();
    let twice = [("x-tenant", "acme"), ("x-tenant", "other")];
    let (either, either_backend) = site(api_key().or(tenant())).await;
    assert_eq!(either.get("/", &twice).await.status, 400);
    // The first key is there, so that the second one is not read.
    assert_eq!(either.get("/", &[ALICE, twice[0], twice[1]]).await.status, 200);
    assert_eq!(asked(&either_backend), [key("header:x-api-key", "alice")]);

    let (both, both_backend) = site(api_key().and(tenant())).await;
    assert_eq!(both.get("/", &[ALICE, twice[0], twice[1]]).await.status, 400);
    assert_eq!(asked(&both_backend), []);
}
