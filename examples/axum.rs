//! What does a limited service look like?
//!
//! An axum service with a limit by API key and a limit by address, in memory or shared through Redis.
//!
//! ```text
//! cargo run --example axum
//! REDIS_URL=redis://127.0.0.1:6379/ PORT=8080 cargo run --example axum
//! ```
//!
//! Expected output:
//!
//! ```text
//! listening on http://127.0.0.1:3000
//!   curl -i http://127.0.0.1:3000/
//!   curl -i -H 'x-api-key: alice' http://127.0.0.1:3000/search
//!   for i in $(seq 11); do curl -s -o /dev/null -w '%{http_code}\n' -H 'x-api-key: bob' http://127.0.0.1:3000/; done
//! ```
//!
//! Type next:
//!
//! ```text
//! curl -i http://127.0.0.1:3000/    # 200, with the remaining units in the header fields
//! for i in $(seq 11); do curl -s -o /dev/null -w '%{http_code}\n' -H 'x-api-key: bob' http://127.0.0.1:3000/; done    # 429 at the end
//! ```

#[path = "common/exit.rs"]
mod exit;
#[path = "common/listen.rs"]
mod listen;
#[path = "common/policies.rs"]
mod policies;
#[path = "common/redis.rs"]
mod redis;
#[path = "common/stop.rs"]
mod stop;

use std::{error::Error, io::Write, net::SocketAddr, process::ExitCode, time::Duration};

use axum::{Router, routing::get};
use exit::exit;
use listen::listen;
use policies::{per_address, policies};
use redis::redis;
use stop::stop;
use tokio::{sync::oneshot, time::sleep};
use tower_sliding_window::{
    Decision, KeyExtractor, MemoryBackend, RateLimitLayer, RouteCosts, backend::Backend, header, limit,
    peer_ip,
};

/// The time that open requests have after a stop signal.
const DRAIN_TIME: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> ExitCode {
    exit(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    match redis().await? {
        Some(backend) => serve(backend).await,
        None => serve(MemoryBackend::new()).await,
    }
}

async fn serve(backend: impl Backend) -> Result<(), Box<dyn Error>> {
    let [burst, sustained] = policies()?;
    let limits = RateLimitLayer::builder(backend)
        .policy(burst)
        .policy(sustained)
        // A client chooses its key freely, so its address has a separate limit.
        .key(header("x-api-key")?.or(peer_ip()))
        .also(limit(peer_ip()).policy(per_address()?))
        .cost(RouteCosts::new().route("/search", 5)?)
        .build()?;

    let app = Router::new()
        .route("/", get(async |decision: Option<Decision>| response_text("Hello!", decision.as_ref())))
        .route(
            "/search",
            get(async |decision: Option<Decision>| response_text("Found nothing.", decision.as_ref())),
        )
        .layer(limits)
        // `peer_ip` reads the address from here.
        .into_make_service_with_connect_info::<SocketAddr>();

    let listener = listen().await?;
    let address = listener.local_addr()?;
    // A signal may arrive as soon as the lines below are printed.
    let stop = stop()?;
    print_text(format_args!(
        "listening on http://{address}\n  \
         curl -i http://{address}/\n  \
         curl -i -H 'x-api-key: alice' http://{address}/search\n  \
         for i in $(seq 11); do curl -s -o /dev/null -w '%{{http_code}}\\n' -H 'x-api-key: bob' http://{address}/; done"
    ));

    let (signalled, drains) = oneshot::channel::<()>();
    let serving = axum::serve(listener, app).with_graceful_shutdown(async {
        stop.await;
        drop(signalled);
    });
    tokio::select! {
        served = serving.into_future() => served?,
        // After the drain time, the service stops although requests are open.
        () = async { _ = drains.await; sleep(DRAIN_TIME).await } => {}
    }
    Ok(())
}

/// Prints a text. Ignores the error if standard output is closed.
fn print_text(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Returns the body of a response. There is no decision if the layer exempts the request, or admits it in an outage.
fn response_text(greeting: &str, decision: Option<&Decision>) -> String {
    let mut text = format!("{greeting}\n");
    for status in decision.map(Decision::statuses).unwrap_or_default() {
        let quota = status.quota().unwrap_or_default();
        text += &format!("{}: {} of {quota} left\n", status.policy().name(), status.remaining());
    }
    text
}
