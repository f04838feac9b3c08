//! How do I see metrics, a health page and log events?
//!
//! Metrics are in the Prometheus text format. Log events go to standard error.
//!
//! ```text
//! cargo run --example observability
//! REDIS_URL=redis://127.0.0.1:6379/ PORT=8080 cargo run --example observability
//! ```
//!
//! Expected output:
//!
//! ```text
//! listening on http://127.0.0.1:3000
//! ```
//!
//! Type next:
//!
//! ```text
//! for i in $(seq 12); do curl -s -o /dev/null -w '%{http_code}\n' -H 'x-api-key: alice' http://127.0.0.1:3000/users/7; done
//! curl http://127.0.0.1:3000/metrics    # rate_limit_decisions_total{policy="per-key",outcome="denied"} 2
//! curl http://127.0.0.1:3000/health     # "most_denied":[{"denials":2,"key":"header:x-api-key=alice"}]
//! ```

#[path = "common/exit.rs"]
mod exit;
#[path = "common/listen.rs"]
mod listen;
#[path = "common/redis.rs"]
mod redis;

use std::{env, error::Error, io::Write, net::SocketAddr, process::ExitCode, time::Duration};

use axum::{
    Json, Router,
    extract::{Request, State},
    middleware::{Next, from_fn},
    response::Response,
    routing::get,
};
use exit::exit;
use listen::listen;
use metrics::histogram;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use redis::redis;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tower_sliding_window::{
    Limiter, MemoryBackend, PartitionKey, Policy, RateLimitLayer, RouteCosts, backend::Backend, header,
    key::MissingKey, limit, peer_ip,
};
use tracing_subscriber::{filter::Targets, prelude::*};

/// The buckets of the time until the store has decided a check, in seconds. The last one is the deadline.
const BUCKETS: [f64; 8] = [0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1];

/// The key of pseudonyms, unless `PSEUDONYM_SECRET` has another one. A real service has a random secret.
const EXAMPLE_SECRET: &str = "not random: only for this example";

/// The time until the service has answered, under the name that OpenTelemetry gives it.
const LATENCY: &str = "http_server_request_duration_seconds";
/// Its buckets, in seconds.
const LATENCY_BUCKETS: [f64; 8] = [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.1, 1.0, 10.0];

#[tokio::main]
async fn main() -> ExitCode {
    exit(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    // At the level `debug`, this crate also logs each denial.
    let filter = Targets::new().with_target("tower_sliding_window", tracing::Level::DEBUG);
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(log).with(filter).init();

    // The recorder comes before the limiter, so that all metrics have their help texts.
    let buckets = Matcher::Full("rate_limit_check_duration_seconds".to_owned());
    let metrics = PrometheusBuilder::new()
        .set_buckets_for_metric(buckets, &BUCKETS)?
        .set_buckets_for_metric(Matcher::Full(LATENCY.to_owned()), &LATENCY_BUCKETS)?
        .install_recorder()?;
    tokio::spawn(upkeep(metrics.clone()));

    match redis().await? {
        Some(backend) => serve(backend, metrics).await,
        None => serve(MemoryBackend::new(), metrics).await,
    }
}

async fn serve(backend: impl Backend, metrics: PrometheusHandle) -> Result<(), Box<dyn Error>> {
    let hour = Duration::from_secs(3600);
    let secret = match env::var("PSEUDONYM_SECRET") {
        Ok(secret) => secret,
        Err(env::VarError::NotPresent) => EXAMPLE_SECRET.to_owned(),
        Err(env::VarError::NotUnicode(_)) => return Err("PSEUDONYM_SECRET: the value is not UTF-8".into()),
    };
    let limits = RateLimitLayer::builder(backend)
        .policy(Policy::new("per-address", 1_000, hour)?)
        .key(peer_ip())
        .also(
            limit(header("x-api-key")?)
                .policy(Policy::new("per-key", 10, hour)?)
                .cost(RouteCosts::new().route("/search", 5)?)
                .missing_key(MissingKey::Exempt),
        )
        // From 9 of 10 units on, a client is near its limit.
        .near_limit(0.9)
        // So that the metrics show which keys are denied most, without their values.
        .pseudonyms(secret)
        .build()?;

    let limiter = limits.limiter().clone();
    // Clients must not reach these pages: serve them at another port.
    let internal = Router::new()
        .route("/metrics", get(async move || metrics.render()))
        .route("/health", get(health).with_state(limiter));
    let app = Router::new()
        .route("/users/{id}", get(async || "Hello!"))
        .route("/search", get(async || "Found nothing."))
        .layer(limits)
        .layer(from_fn(timed));
    // The router with the limit comes second: axum keeps its fallback, so requests without a route are limited.
    let app = internal.merge(app);
    // `peer_ip` reads the address from here.
    let app = app.into_make_service_with_connect_info::<SocketAddr>();

    let listener = listen().await?;
    // Ignores the error if standard output is closed.
    let _ = writeln!(std::io::stdout(), "listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

/// Records the latency of the service, with its limit.
async fn timed(request: Request, next: Next) -> Response {
    let start = Instant::now();
    let response = next.run(request).await;
    histogram!(LATENCY).record(start.elapsed());
    response
}

/// Returns what the limiter has done, and the keys that it has denied most.
async fn health(State(limiter): State<Limiter>) -> Json<Value> {
    let stats = limiter.stats();
    let breakers =
        stats.breakers.iter().map(|it| json!({ "server": it.server, "state": it.state.to_string() }));
    let most_denied = limiter.most_denied(10);
    let most_denied = most_denied.iter().map(|it| json!({ "key": text(&it.key), "denials": it.denials }));
    Json(json!({
        "admitted": stats.admitted,
        "denied": stats.denied,
        "unavailable": stats.unavailable,
        "near_limit": stats.near_limit,
        "breakers": breakers.collect::<Vec<_>>(),
        "most_denied": most_denied.collect::<Vec<_>>(),
    }))
}

/// Returns a key as text, such as `header:x-api-key=alice`.
fn text(key: &PartitionKey) -> String {
    let part = |(kind, value): (&str, &[u8])| format!("{kind}={}", String::from_utf8_lossy(value));
    key.parts().map(part).collect::<Vec<_>>().join(" ")
}

/// Moves recorded times into their buckets, so that the memory of the recorder is bounded.
async fn upkeep(metrics: PrometheusHandle) {
    loop {
        sleep(Duration::from_secs(5)).await;
        metrics.run_upkeep();
    }
}
