//! tower-http and tower: other layers on both sides of the layer.

use std::convert::Infallible;

use axum::{Router, body::Body, routing::get};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use tower::{BoxError, ServiceBuilder, service_fn};
use tower_http::{
    catch_panic::CatchPanicLayer, compression::CompressionLayer, cors::CorsLayer,
    limit::RequestBodyLimitLayer, set_header::SetResponseHeaderLayer, timeout::TimeoutLayer,
    trace::TraceLayer,
};

use crate::support::{MINUTE, each, hello};

fn timeout() -> TimeoutLayer {
    TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, MINUTE)
}

fn set_header() -> SetResponseHeaderLayer<HeaderValue> {
    SetResponseHeaderLayer::overriding(header::SERVER, HeaderValue::from_static("stacks"))
}

async fn full<B>(_: Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

/// Puts a layer outside and inside of the limits, in a router.
macro_rules! on_both_sides {
    ($layer:expr) => {
        each(|limits| {
            Router::new().route("/", get(hello)).layer(ServiceBuilder::new().layer($layer).layer(limits))
        })
        .await;
        each(|limits| {
            Router::new().route("/", get(hello)).layer(ServiceBuilder::new().layer(limits).layer($layer))
        })
        .await;
    };
}

#[tokio::test]
async fn layers_of_tower_http_run_on_both_sides() {
    on_both_sides!(TraceLayer::new_for_http());
    on_both_sides!(CompressionLayer::new());
    on_both_sides!(timeout());
    on_both_sides!(CorsLayer::permissive());
    on_both_sides!(RequestBodyLimitLayer::new(1_000));
    on_both_sides!(CatchPanicLayer::new());
    on_both_sides!(set_header());
}

#[tokio::test]
async fn layers_of_tower_http_run_without_router() {
    each(|limits| {
        ServiceBuilder::new()
            .layer(RequestBodyLimitLayer::new(1_000))
            .layer(set_header())
            .layer(TraceLayer::new_for_http())
            .layer(CorsLayer::permissive())
            .layer(CompressionLayer::new())
            .layer(CatchPanicLayer::new())
            .layer(timeout())
            .layer(limits)
            .layer(set_header())
            .layer(TraceLayer::new_for_http())
            .layer(CorsLayer::permissive())
            .layer(CompressionLayer::new())
            .layer(CatchPanicLayer::new())
            .layer(timeout())
            .layer(RequestBodyLimitLayer::new(1_000))
            .service(service_fn(full))
    })
    .await;
}

#[tokio::test]
async fn layers_of_tower_run_on_both_sides() {
    each(|limits| {
        ServiceBuilder::new()
            .buffer(4)
            .timeout(MINUTE)
            .concurrency_limit(1)
            .layer(limits)
            .concurrency_limit(1)
            .service(service_fn(full::<Body>))
    })
    .await;
    each(|limits| {
        ServiceBuilder::new()
            .layer(limits)
            .buffer(4)
            .timeout(MINUTE)
            .concurrency_limit(1)
            .service(service_fn(async |request: Request<Body>| full(request).await.map_err(BoxError::from)))
    })
    .await;
}
