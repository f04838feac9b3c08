//! Bodies that are not HTTP bodies.

use std::convert::Infallible;

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::layers;

#[tokio::test]
async fn response_body_is_string() {
    for (limits, verdicts) in layers() {
        let strings = async |_: Request<()>| Ok::<_, Infallible>(Response::new("hello".to_owned()));
        let service = limits.layer(service_fn(strings));
        for is_admitted in verdicts {
            let response = service.clone().oneshot(Request::new(())).await.unwrap();
            match response.into_body().into_inner() {
                Ok(body) => assert!(is_admitted && body == "hello"),
                Err(body) => assert!(!is_admitted && body.starts_with(b"{")),
            }
        }
    }
}

#[tokio::test]
async fn bodies_are_numbers() {
    for (limits, verdicts) in layers() {
        let double = async |request: Request<u8>| Ok::<_, Infallible>(Response::new(2 * request.into_body()));
        let service = limits.layer(service_fn(double));
        for is_admitted in verdicts {
            let response = service.clone().oneshot(Request::new(21)).await.unwrap();
            assert_eq!(response.into_body().into_inner().ok(), is_admitted.then_some(42));
        }
    }
}
