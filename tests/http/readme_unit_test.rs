//! The unit test of the README, word for word. A doc test compiles no function under `#[test]`.

use std::{convert::Infallible, time::Duration};

use http::{Request, Response};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_sliding_window::{Policy, RateLimitLayer, header, testing::FakeBackend};

#[tokio::test]
async fn export_costs_a_hundred() -> Result<(), Box<dyn std::error::Error>> {
    let backend = FakeBackend::denying(Duration::from_secs(7));
    let limits = RateLimitLayer::builder(backend.clone())
        .policy(Policy::new("burst", 1_000, Duration::from_secs(60))?)
        .key(header("x-api-key")?)
        .cost(100)
        .build()?;
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new("done")));
    let service = ServiceBuilder::new().layer(limits).service(inner);

    let request = Request::get("/export").header("x-api-key", "alice").body(())?;
    let response = service.oneshot(request).await?;

    assert_eq!(response.headers()["retry-after"], "7");
    assert_eq!(backend.checks()[0].pairs[0].cost, 100);
    Ok(())
}
