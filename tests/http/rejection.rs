//! Refusals that the user words, and the headers that stay.

use axum::{Router, body::Body, routing::get};
use http::{Response, StatusCode};
use tower_sliding_window::{Answer, FakeBackend, RateLimitLayer, Reason, Refusal, Wait};

use super::{ALICE, MINUTE, SECOND, api_key, policy, wire::Site};

fn reject(refusal: &Refusal) -> Response<Body> {
    let (status, text) = match refusal {
        Refusal::Denied(_) => (StatusCode::IM_A_TEAPOT, "later"),
        Refusal::NoKey(_) => (StatusCode::UNAUTHORIZED, "who are you?"),
        _ => (StatusCode::BAD_GATEWAY, "broken"),
    };
    Response::builder().status(status).header("x-own", "yes").body(text.into()).unwrap()
}

async fn site(backend: FakeBackend) -> Site {
    let limits = RateLimitLayer::builder(backend)
        .policy(policy("ten", 10, MINUTE))
        .key(api_key())
        .rejection(reject)
        .build()
        .unwrap();
    Site::serve(Router::new().route("/", get(async || "hello")).layer(limits)).await
}

#[tokio::test]
async fn a_denial_has_the_users_words_and_our_headers() {
    let answer = site(FakeBackend::denying(7 * SECOND)).await.get("/", &[ALICE]).await;
    assert_eq!((answer.status, &*answer.body), (418, "later"));
    assert_eq!(answer.header("x-own"), Some("yes"));
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""ten";q=10;w=60"#));
    assert_eq!(answer.header("ratelimit"), Some(r#""ten";r=0;t=7"#));
    assert_eq!(answer.header("retry-after"), Some("7"));
    assert_eq!(answer.header("content-type"), None, "the body is not ours");
}

#[tokio::test]
async fn every_refusal_is_the_users_and_an_admission_is_not() {
    let site = site(FakeBackend::scripted([Answer::Unavailable(Reason::Busy), Answer::Admit])).await;
    let answer = site.get("/", &[]).await;
    assert_eq!((answer.status, &*answer.body), (401, "who are you?"));
    assert!(!answer.tells_of_limits(), "{answer:?}");
    let answer = site.get("/", &[ALICE]).await;
    assert_eq!((answer.status, &*answer.body), (502, "broken"));
    assert!(!answer.tells_of_limits(), "{answer:?}");
    let answer = site.get("/", &[ALICE]).await;
    assert_eq!((answer.status, &*answer.body), (200, "hello"));
    assert_eq!(answer.header("ratelimit"), Some(r#""ten";r=9;t=60"#));
}

#[tokio::test]
async fn a_wait_of_the_users_own_stands_if_it_is_the_later_one() {
    for (own, stands) in [("3", "7"), ("7", "7"), ("120", "120")] {
        let limits = RateLimitLayer::builder(FakeBackend::denying(7 * SECOND))
            .policy(policy("ten", 10, MINUTE))
            .key(api_key())
            .rejection(move |_| {
                Response::builder().status(429).header("retry-after", own).body(Body::empty()).unwrap()
            })
            .build()
            .unwrap();
        let site = Site::serve(Router::new().route("/", get(async || "")).layer(limits)).await;
        assert_eq!(site.get("/", &[ALICE]).await.header("retry-after"), Some(stands), "{own}");
    }
}

#[tokio::test]
async fn a_denial_that_no_wait_helps_gets_no_retry_after() {
    let answer = site(FakeBackend::scripted([Answer::Deny(Wait::Never)])).await.get("/", &[ALICE]).await;
    assert_eq!((answer.status, answer.header("retry-after")), (418, None));
}
