//! Partition keys of requests that arrive over a socket.

use axum::{
    Router,
    extract::Request,
    middleware::{Next, from_fn},
    response::IntoResponse,
    routing::get,
};
use http::StatusCode;
use tower_sliding_window::{
    KeyExtractor, MemoryBackend, PartitionKey, RateLimitLayer, RateLimitLayerBuilder, extension, header, key,
    peer_ip,
    testing::{FakeBackend, ManualClock},
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
async fn site_with(
    set_key: impl FnOnce(RateLimitLayerBuilder) -> RateLimitLayerBuilder,
) -> (Site, FakeBackend) {
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
async fn cookie_value_becomes_key() {
    let (site, backend) = site(key::cookie("session").unwrap()).await;
    assert_eq!(site.get("/", &[("cookie", "theme=dark; session=31d4")]).await.status, 200);
    assert_eq!(site.get("/", &[("cookie", "theme=dark"), ("cookie", "session=31d4")]).await.status, 200);
    // Another form of the same session is no other key.
    assert_eq!(site.get("/", &[("cookie", r#"%73ession="31%64%34""#)]).await.status, 200);
    assert_eq!(recorded_keys(&backend), ["31d4"; 3].map(|value| key("cookie:session", value)));
    let missing = site.get("/", &[("cookie", "session=")]).await;
    assert_eq!(missing.json()["detail"], r#"missing rate limit key: cookie "session" not found"#);
    let twice = site.get("/", &[("cookie", "session=1; session=2")]).await;
    assert_eq!(
        twice.json()["detail"],
        "malformed rate limit key: cookie session: the cookie occurs more than once"
    );
    assert_eq!((missing.status, twice.status, recorded_keys(&backend).len()), (400, 400, 3));
}

#[tokio::test]
async fn method_and_constant_become_keys() {
    let (site, backend) = site(key::method().and(key::constant("limit", "global"))).await;
    for (method, status) in [("GET", 200), ("POST", 405), ("get", 405), ("INVENTED", 405)] {
        assert_eq!(site.send(method, "/", &[]).await.status, status, "{method}");
    }
    let expected =
        ["GET", "POST", "other", "other"].map(|method| key("method", method).and(&key("limit", "global")));
    assert_eq!(recorded_keys(&backend), expected);
}

/// Serves two routes with a parameter, one of them in a nested router, and returns the backend.
async fn site_with_routes(key: impl KeyExtractor) -> (Site, FakeBackend) {
    let backend = FakeBackend::admitting();
    let limits =
        RateLimitLayer::builder(backend.clone()).policy(policy("ten", 10, MINUTE)).key(key).build().unwrap();
    let orders = Router::new().route("/orders/{id}", get(async || ""));
    let app = Router::new().route("/tenants/{tenant}", get(async || "")).nest("/api", orders).layer(limits);
    (Site::serve(app).await, backend)
}

#[tokio::test]
async fn matched_route_becomes_key() {
    let (site, backend) = site_with_routes(key::matched_route()).await;
    for path in ["/tenants/acme?a=b", "/tenants/other", "/api/orders/7"] {
        assert_eq!(site.get(path, &[]).await.status, 200, "{path}");
    }
    let expected =
        ["/tenants/{tenant}", "/tenants/{tenant}", "/api/orders/{id}"].map(|route| key("route", route));
    assert_eq!(recorded_keys(&backend), expected);
    let missing = site.get("/unknown", &[]).await;
    assert_eq!((missing.status, recorded_keys(&backend).len()), (400, 3));
    assert_eq!(missing.json()["detail"], "missing rate limit key: matched route not found");
}

#[tokio::test]
async fn path_parameter_is_decoded_and_becomes_key() {
    let param = key::path_param("tenant", ["/tenants/{tenant}"]).unwrap();
    let (site, backend) = site_with_routes(param).await;
    for path in ["/tenants/acme", "/tenants/%61c%6De", "/tenants/a%2Fb?tenant=c"] {
        assert_eq!(site.get(path, &[]).await.status, 200, "{path}");
    }
    assert_eq!(recorded_keys(&backend), ["acme", "acme", "a/b"].map(|tenant| key("path:tenant", tenant)));
    let missing = site.get("/api/orders/7", &[]).await;
    assert_eq!(missing.json()["detail"], r#"missing rate limit key: path parameter "tenant" not found"#);
}

/// Anonymous requests, which the authentication rejects, for a tenant. The second layer of the guide's page is inside it.
#[tokio::test]
async fn anonymous_request_cannot_use_quota_of_tenant() {
    let limits = |key: &dyn Fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder| {
        let memory = MemoryBackend::new().with_clock(&ManualClock::new());
        key(RateLimitLayer::builder(memory).policy(policy("per-tenant", 5, MINUTE))).build().unwrap()
    };
    let by_path = limits(&|builder| builder.key(key::path_param("tenant", ["/tenants/{tenant}"]).unwrap()));
    let by_user = limits(&|builder| builder.key(extension("tenant", |user: &User| user.0.clone())));
    let app = || Router::new().route("/tenants/{tenant}", get(async || ""));
    let reject_anonymous = async |request: Request, next: Next| match request.extensions().get::<User>() {
        Some(_) => next.run(request).await,
        None => StatusCode::UNAUTHORIZED.into_response(),
    };
    let mistake = app().layer(from_fn(reject_anonymous)).layer(by_path).layer(from_fn(authenticate));
    let remedy = app().layer(by_user).layer(from_fn(reject_anonymous)).layer(from_fn(authenticate));

    for (name, app, is_read, status) in [("mistake", mistake, true, 429), ("remedy", remedy, false, 200)] {
        let site = Site::serve(app).await;
        for i in 0..5 {
            let anonymous = site.get("/tenants/acme", &[]).await;
            assert_eq!(anonymous.status, 401, "{name}");
            let usage = format!(r#""per-tenant";r={};"#, 4 - i);
            let has_read = anonymous.header("ratelimit").is_some_and(|field| field.starts_with(&usage));
            assert_eq!(has_read, is_read, "{name}: an anonymous client reads the usage: {anonymous:?}");
        }
        let tenant = site.get("/tenants/acme", &[("authorization", "token-of-acme")]).await;
        assert_eq!(tenant.status, status, "{name}: the tenant's own first request");
    }
}

#[test]
fn invalid_route_of_path_parameter_is_an_error() {
    let text = |routes: &[&str]| key::path_param("id", routes).unwrap_err().to_string();
    assert_eq!(text(&["users/{id}"]), r#"route "users/{id}": it must begin with `/`"#);
    assert_eq!(
        text(&["/users/:id"]),
        r#"route "/users/:id": segment ":id" has the syntax of axum 0.7: write `{name}`"#
    );
    assert_eq!(text(&["/users/{id}", "/{other}"]), r#"route "/{other}": it must contain the parameter {id}"#);
    assert!(text(&["/users/{id}", "/users/{id}"]).starts_with(r#"route "/users/{id}": Insertion failed"#));
    assert_eq!(
        text(&["/users/{id"]),
        r#"route "/users/{id": `{` and `}` must come in pairs: to match one of them, write it twice"#
    );
    assert_eq!(text(&[]), "path_param no routes: it must be at least one route");
    key::path_param("id", ["/users/{id}", "/files/{*id}", "/{{x}}{id}"]).unwrap();
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
