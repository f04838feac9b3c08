//! Boxed services, boxed bodies, and stacks that allow one body type only.

use std::convert::Infallible;

use axum::{Router, body::Body, routing::get};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use tower::{
    Layer, ServiceBuilder, ServiceExt,
    make::Shared,
    service_fn,
    util::{BoxCloneService, BoxCloneSyncService, option_layer},
};
use tower_sliding_window::LimitedBody;

use crate::support::{Site, client, each, hello, layers, request, verify};

async fn full(_: Request<Body>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

#[tokio::test]
async fn boxed_service_names_limited_body() {
    each(|limits| -> BoxCloneService<Request<Body>, Response<LimitedBody<Full<Bytes>>>, Infallible> {
        ServiceBuilder::new().boxed_clone().layer(limits).service(service_fn(full))
    })
    .await;
}

#[tokio::test]
async fn boxed_service_keeps_body() {
    each(|limits| -> BoxCloneSyncService<Request<Body>, Response<Body>, Infallible> {
        BoxCloneSyncService::new(limits.same_body().unwrap().layer(Router::new().route("/", get(hello))))
    })
    .await;
    each(|limits| -> BoxCloneService<Request<Body>, Response<Body>, Infallible> {
        let to_axum = |response: Response<LimitedBody<Full<Bytes>>>| response.map(Body::new);
        ServiceBuilder::new().boxed_clone().map_response(to_axum).layer(limits).service(service_fn(full))
    })
    .await;
}

#[tokio::test]
async fn boxed_body_is_inside_and_outside() {
    each(|limits| {
        let boxed = service_fn(async |_: Request<Body>| {
            Ok::<_, Infallible>(Response::new(BoxBody::new(Full::new(Bytes::from("hello")))))
        });
        limits.layer(boxed)
    })
    .await;
    each(|limits| -> BoxCloneService<Request<Body>, Response<BoxBody<Bytes, Infallible>>, Infallible> {
        let to_box = |response: Response<LimitedBody<Full<Bytes>>>| response.map(BodyExt::boxed);
        ServiceBuilder::new().boxed_clone().map_response(to_box).layer(limits).service(service_fn(full))
    })
    .await;
}

#[tokio::test]
async fn optional_layer_keeps_body() {
    each(|limits| {
        Router::new().route("/", get(hello)).layer(option_layer(Some(limits.same_body().unwrap())))
    })
    .await;
    for (limits, _) in layers() {
        let disabled = option_layer(false.then(|| limits.same_body().unwrap()));
        let app: Router = Router::new().route("/", get(hello)).layer(disabled);
        for _ in 0..4 {
            let response = app.clone().oneshot(request()).await.unwrap();
            assert_eq!((response.status().as_u16(), response.headers().get("ratelimit")), (200, None));
        }
    }
}

#[tokio::test]
async fn server_of_axum_takes_limited_router() {
    for (limits, verdicts) in layers() {
        let limited = limits.same_body().unwrap().layer(Router::new().route("/", get(hello)));
        let site =
            Site::spawn(async |listener| axum::serve(listener, Shared::new(limited)).await.unwrap()).await;
        for is_admitted in verdicts {
            let response = client().get(site.url()).send().await.unwrap();
            verify(Response::<reqwest::Body>::from(response), is_admitted).await;
        }
    }
}
