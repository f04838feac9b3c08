//! axum: all places in which a router takes a layer.

use axum::{
    Router,
    extract::Request,
    handler::{Handler, HandlerWithoutStateExt},
    middleware::{Next, from_fn},
    response::Response,
    routing::get,
};
use tower::{Layer, ServiceBuilder, ServiceExt};

use crate::support::{admitting, each, hello};

#[tokio::test]
async fn router_takes_layer() {
    each(|limits| Router::new().route("/", get(hello)).layer(limits)).await;
    each(|limits| Router::new().route("/", get(hello)).route_layer(limits)).await;
    each(|limits| Router::new().fallback(hello).layer(limits)).await;
}

#[tokio::test]
async fn nested_router_takes_layer() {
    each(|limits| {
        let inner = Router::new().route("/hello", get(hello)).layer(limits);
        Router::new().nest("/inner", inner).map_request(|mut request: Request| {
            *request.uri_mut() = "/inner/hello".parse().unwrap();
            request
        })
    })
    .await;
    each(|limits| Router::new().fallback_service(Router::new().fallback(hello).layer(limits))).await;
}

#[tokio::test]
async fn method_router_and_handler_take_layer() {
    each(|limits| Router::new().route("/", get(hello).layer(limits))).await;
    each(|limits| Router::new().route("/", get(hello.layer(limits)))).await;
    each(|limits| Router::new().route_service("/", limits.layer(get(hello)))).await;
    each(|limits| Router::new().fallback_service(limits.layer(hello.into_service()))).await;
}

#[tokio::test]
async fn router_takes_two_layers() {
    each(|limits| Router::new().route("/", get(hello)).layer(limits).layer(admitting())).await;
    each(|limits| {
        let both = ServiceBuilder::new().layer(limits).layer(admitting());
        Router::new().route("/", get(hello)).layer(both)
    })
    .await;
}

#[tokio::test]
async fn layer_runs_between_middleware_of_axum() {
    async fn pass(request: Request, next: Next) -> Response {
        next.run(request).await
    }
    each(|limits| {
        let stack = ServiceBuilder::new().layer(from_fn(pass)).layer(limits).layer(from_fn(pass));
        Router::new().route("/", get(hello)).layer(stack)
    })
    .await;
}
