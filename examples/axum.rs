//! An axum service with two limits, in memory or shared through Redis.
//!
//! ```text
//! cargo run --example axum
//! REDIS_URL=redis://127.0.0.1:6379/ PORT=8080 cargo run --example axum
//! ```

#[path = "common/policies.rs"]
mod policies;

use std::{env, error::Error, io::Write, net::SocketAddr, process::ExitCode, time::Duration};

use axum::{Router, routing::get};
use policies::policies;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    time::sleep,
};
use tower_sliding_window::{
    Decision, KeyExtractor, MemoryBackend, Policy, RateLimitLayer, RedisBackend, RouteCosts, backend::Backend, header,
    limit, peer_ip,
};

/// How long requests under way may take when it is to stop.
const DRAIN_TIME: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> ExitCode {
    let served = match env::var("REDIS_URL") {
        Ok(url) => match RedisBackend::connect(&url).await {
            Ok(backend) => serve(backend).await,
            Err(error) => Err(format!("REDIS_URL: {error}").into()),
        },
        Err(env::VarError::NotPresent) => serve(MemoryBackend::new()).await,
        // The error would repeat the URL, and the URL may hold a password.
        Err(env::VarError::NotUnicode(_)) => Err("REDIS_URL: it is not UTF-8".into()),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

async fn serve(backend: impl Backend) -> Result<(), Box<dyn Error>> {
    let [burst, sustained] = policies()?;
    let per_address = Policy::new("per-address", 1_000, Duration::from_secs(60))?;
    let limits = RateLimitLayer::builder(backend)
        .policy(burst)
        .policy(sustained)
        // The key is the client's to choose, so the address has a limit of its own.
        .key(header("x-api-key")?.or(peer_ip()))
        .also(limit(peer_ip()).policy(per_address))
        .cost(RouteCosts::new().route("/search", 5)?)
        .build()?;

    let app = Router::new()
        .route("/", get(|decision: Decision| async move { left("Hello!", &decision) }))
        .route("/search", get(|decision: Decision| async move { left("Found nothing.", &decision) }))
        .layer(limits)
        // `peer_ip` reads the address from here.
        .into_make_service_with_connect_info::<SocketAddr>();

    let port = port()?;
    let listener =
        TcpListener::bind(("127.0.0.1", port)).await.map_err(|error| format!("PORT {port}: {error}"))?;
    let address = listener.local_addr()?;
    // Whoever reads the lines below may send a signal at once.
    let stop = stop()?;
    say(format_args!(
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
        // Nobody who holds a request open is waited for for ever.
        () = async { _ = drains.await; sleep(DRAIN_TIME).await } => {}
    }
    Ok(())
}

/// Whoever has closed our output does not want to read this.
fn say(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn left(greeting: &str, decision: &Decision) -> String {
    let mut text = format!("{greeting}\n");
    for status in decision.statuses() {
        text += &format!("{}: {} of {} left\n", status.policy().name(), status.remaining(), status.limit());
    }
    text
}

fn port() -> Result<u16, String> {
    match env::var("PORT") {
        Err(env::VarError::NotPresent) => Ok(3000),
        Ok(given) => {
            given.parse().map_err(|_| format!("PORT {given:?}: it must be a number from 0 to 65535"))
        }
        Err(error) => Err(format!("PORT: {error}")),
    }
}

/// Done at Ctrl-C or SIGTERM.
fn stop() -> Result<impl Future<Output = ()>, std::io::Error> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
