//! A layer and a backend that are built for each request, over sockets.

use std::convert::Infallible;

use axum::{
    Router,
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{Policy, RateLimitLayer, RedisBackend, header};

use crate::{
    http::{MINUTE, SECOND, wire::Site},
    redis_server::rig::wait_until,
    support::{
        events::Events,
        server::{Engine, Server},
    },
};

fn layer(backend: RedisBackend, name: &str) -> RateLimitLayer {
    RateLimitLayer::builder(backend)
        .policy(Policy::new(name, 1_000, MINUTE).unwrap())
        .key(header("x-api-key").unwrap())
        .deadline(10 * SECOND)
        .build()
        .unwrap()
}

async fn handle(limits: RateLimitLayer, request: Request) -> Response {
    limits.layer(service_fn(empty)).oneshot(request).await.into_response()
}

// Not an async closure: in a type of this size, it stops an incremental build with an internal error of rustc 1.95.
async fn empty(_: Request) -> Result<Response, Infallible> {
    Ok(Response::new(Body::empty()))
}

async fn send(site: &Site, requests: usize) {
    for _ in 0..requests {
        assert_eq!(site.get("/", &[("x-api-key", "alice")]).await.status, 200, "every request fits");
    }
}

/// Returns the number of connections that the server has accepted.
fn connections(server: &Server) -> u64 {
    let info: redis::InfoDict = redis::cmd("INFO").arg("stats").query(&mut server.connection()).unwrap();
    info.get("total_connections_received").unwrap()
}

#[tokio::test]
async fn backend_per_request_causes_one_event() {
    let server = Server::start(Engine::Redis);
    let (events, _guard) = Events::collect();
    let url = server.url();
    let app = Router::new().fallback(move |request: Request| {
        handle(layer(RedisBackend::lazy(&url).unwrap(), "requests"), request)
    });
    let site = Site::serve(app).await;
    let before = connections(&server);
    send(&site, 19).await;
    assert_eq!(events.take(), [""; 0], "too few layers for an event");
    // Each request has opened a connection, and each call of the function one.
    assert_eq!(connections(&server) - before, 20, "a connection for each request, and one of this test");
    send(&site, 21).await;
    // The limiter of the last request may be dropped after its response.
    let mut logged = Vec::new();
    wait_until("no event", || {
        logged.extend(events.take());
        !logged.is_empty()
    })
    .await;
    assert_eq!(logged.len(), 1, "{logged:?}");
    let store = format!("store=\"redis 127.0.0.1:{}/0, namespace tsw\"", server.port());
    for part in ["WARN", "built and dropped again", &store, "dropped=20"] {
        assert!(logged[0].contains(part), "{part}: {logged:?}");
    }
}

#[tokio::test]
async fn layer_per_request_on_one_backend_causes_one_event() {
    let server = Server::start(Engine::Redis);
    let (events, _guard) = Events::collect();
    let backend = RedisBackend::lazy(&server.url()).unwrap();
    let app =
        Router::new().fallback(move |request: Request| handle(layer(backend.clone(), "requests"), request));
    send(&Site::serve(app).await, 40).await;
    let logged = events.take();
    assert!(logged.len() == 1 && logged[0].contains("built and dropped again"), "{logged:?}");
}

#[tokio::test]
async fn layers_built_at_start_cause_no_event() {
    let server = Server::start(Engine::Redis);
    let (events, _guard) = Events::collect();
    let backend = RedisBackend::lazy(&server.url()).unwrap();
    let app = Router::new().fallback(async || "");
    let names: Vec<_> = (0..5).map(|i| i.to_string()).collect();
    let app = names.iter().fold(app, |app, name| app.layer(layer(backend.clone(), name)));
    send(&Site::serve(app).await, 40).await;
    assert_eq!(events.take(), [""; 0], "layers that live cause no event");
}
