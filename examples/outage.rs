//! What happens in an outage of Redis, under each outage rule?
//!
//! Cheap requests fail open, expensive requests fail closed, and logins use the local fallback. No server listens at the address of Redis.
//!
//! ```text
//! cargo run --example outage
//! ```
//!
//! Expected output:
//!
//! ```text
//! /        200 after 9.396242ms
//!          admitted unchecked: no rate limit decision: the store cannot be reached
//! /export  503 after 143.053µs
//!          {"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity", ...}
//! /login   200 after 154.96µs
//!          6 units left in the local fallback
//! /login   200 after 41.642µs
//!          0 units left in the local fallback
//! /login   503 after 35.242µs
//!          {"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity", ...}
//! /        200 after 21.371µs
//!          admitted unchecked: no rate limit decision: the store cannot be reached (circuit breaker is open)
//! ```
//!
//! Type next:
//!
//! ```text
//! cargo run --example playground    # stop the backend in a browser, and watch the recovery
//! ```

#[path = "common/exit.rs"]
mod exit;

use std::{convert::Infallible, error::Error, process::ExitCode, time::Duration};

use axum::body::Body;
use exit::exit;
use http::{Request, Response};
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sliding_window::{
    OutageRule, Policy, RateLimitLayer, RedisBackend, RouteCosts, header,
    outage::{Breaker, LocalDecision, Share, Unchecked},
};

/// Reports how the layer has admitted the request.
async fn answer(request: Request<Body>) -> Result<Response<Body>, Infallible> {
    let unchecked = request.extensions().get::<Unchecked>();
    let local = request.extensions().get::<LocalDecision>();
    Ok(Response::new(Body::from(match (unchecked, local) {
        (Some(unchecked), _) => format!("admitted unchecked: {}", unchecked.error()),
        (_, Some(local)) => {
            let left = local.decision().status("requests").map_or(0, |status| status.remaining());
            format!("{left} units left in the local fallback")
        }
        _ => "decided by Redis".to_owned(),
    })))
}

#[tokio::main]
async fn main() -> ExitCode {
    exit(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    // The service runs in eight processes.
    let share = OutageRule::LocalFallback(Share::among(8)?);
    // No server listens at this address. A real server may start later, or restart.
    let limits = RateLimitLayer::builder(RedisBackend::lazy("redis://127.0.0.1:1/")?)
        .policy(Policy::new("requests", 100, Duration::from_secs(60))?)
        .deadline(Duration::from_millis(50))
        // Three consecutive failures open the circuit breaker. One second later, one request probes Redis.
        .breaker(Breaker::new(3, Duration::from_secs(1)))
        .key(header("x-api-key")?)
        .cost(RouteCosts::new().route("/export", 20)?.route("/login", 6)?)
        .outage_by(move |head| match head.uri.path() {
            "/export" => OutageRule::FailClosed,
            "/login" => share,
            _ => OutageRule::FailOpen,
        })
        .build()?;
    let mut service = limits.layer(service_fn(answer));

    for path in ["/", "/export", "/login", "/login", "/login", "/"] {
        let request = Request::get(path).header("x-api-key", "alice").body(Body::empty())?;
        let start = Instant::now();
        let response = service.ready().await?.call(request).await?;
        let (waited, status) = (start.elapsed(), response.status().as_u16());
        let body = axum::body::to_bytes(Body::new(response.into_body()), 1_000).await?;
        println!("{path:8} {status} after {waited:?}\n         {}", String::from_utf8_lossy(&body));
    }
    Ok(())
}
