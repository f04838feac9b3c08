//! How do several workers stay within the quota of a remote API?
//!
//! The API grants 10,000 units a day. A search costs 100, a read 1, and a deletion 50. A pace limits the workers to 3,000 units in half a
//! second, so that a worker waits before it calls. If the daily quota is used up, a worker gives up at once. If the store fails, the
//! reads fail open, and the searches and the deletions fail closed.
//!
//! ```text
//! cargo run --example client_quota
//! REDIS_URL=redis://127.0.0.1:6379/ cargo run --example client_quota
//! ```
//!
//! Expected output:
//!
//! ```text
//! The workers share 10,000 units:
//!   clean      35 calls of  50   rate limit exceeded: policy "daily"; retry after 86398.494913s
//!   index      60 calls of 100   all calls made
//!   suggest    22 calls of 100   rate limit exceeded: policy "daily"; retry after 86398.495273s
//!   sync       50 calls of   1   rate limit exceeded: policy "daily"; retry after 86398.494962s
//!   10000 units in 1.5 s
//!
//! The store fails:
//!   clean       0 calls of  50   no rate limit decision: the store cannot be reached (circuit breaker is open)
//!   index       0 calls of 100   no rate limit decision: the store cannot be reached (circuit breaker is open)
//!   suggest     0 calls of 100   no rate limit decision: the store cannot be reached (circuit breaker is open)
//!   sync      500 calls of   1   all calls made
//!   500 units in 0.0 s
//! ```
//!
//! Type next:
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379/ cargo run --example client_quota    # twice: the second run finds the quota used up
//! ```

#[path = "common/exit.rs"]
mod exit;
#[path = "common/redis.rs"]
mod redis;

use std::{
    error::Error,
    process::ExitCode,
    time::{Duration, Instant},
};

use exit::exit;
use redis::redis;
use tokio::task::JoinSet;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_sliding_window::{
    ConfigError, Limiter, LimiterBuilder, MemoryBackend, OutageRule, PartitionKey, Policy, RedisBackend, by,
    protocol::Draft, wait::WaitLayer,
};

/// A call of the remote API.
#[derive(Clone, Copy)]
enum Call {
    Search,
    Read,
    Delete,
}

impl Call {
    fn cost(self) -> u32 {
        match self {
            Self::Search => 100,
            Self::Read => 1,
            Self::Delete => 50,
        }
    }

    /// In an outage of the store, nothing counts the calls. A worker with a bug, such as a search that never reaches its last page,
    /// would then use up the quota of the day within 100 calls. So expensive calls fail closed. A read costs one unit, so reads
    /// may fail open.
    fn rule(self) -> OutageRule {
        match self {
            Self::Search | Self::Delete => OutageRule::FailClosed,
            Self::Read => OutageRule::FailOpen,
        }
    }
}

/// The work of one worker.
#[derive(Clone, Copy)]
struct Worker {
    name: &'static str,
    call: Call,
    calls: u32,
}

/// What a worker has done.
#[derive(Default)]
struct Report {
    calls: u32,
    stopped: Option<String>,
}

const WORKERS: [Worker; 4] = [
    Worker { name: "index", call: Call::Search, calls: 60 },
    Worker { name: "suggest", call: Call::Search, calls: 60 },
    Worker { name: "clean", call: Call::Delete, calls: 60 },
    Worker { name: "sync", call: Call::Read, calls: 500 },
];

fn limiter(builder: LimiterBuilder) -> Result<Limiter, ConfigError> {
    builder
        .namespace("client-quota")
        // A worker waits anyway.
        .deadline(Duration::from_secs(1))
        .policy(Policy::new("pace", 3_000, Duration::from_millis(500))?)
        .policy(Policy::new("daily", 10_000, Duration::from_secs(24 * 3600))?)
        .build()
}

/// Makes the calls of a worker, until one is rejected.
async fn work(worker: Worker, limiter: Limiter) -> (Worker, Report) {
    // A real program has its client here, such as `reqwest::Client`.
    let api = service_fn(async |_: Call| Ok::<_, std::io::Error>(()));
    let account =
        |call: &Call| Draft::check(PartitionKey::new("account", "42"), call.cost()).outage(call.rule());
    let limits = WaitLayer::new(limiter, by(account)).at_most(Duration::from_secs(5));
    let mut api = ServiceBuilder::new().layer(limits).service(api);

    let mut report = Report::default();
    while report.calls < worker.calls && report.stopped.is_none() {
        let outcome = match api.ready().await {
            Ok(api) => api.call(worker.call).await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => report.calls += 1,
            Err(error) => report.stopped = Some(error.to_string()),
        }
    }
    (worker, report)
}

/// Runs all workers and prints what they have done.
async fn run_workers(title: &str, limiter: &Limiter) -> Result<(), Box<dyn Error>> {
    let (start, mut workers) = (Instant::now(), JoinSet::new());
    for worker in WORKERS {
        workers.spawn(work(worker, limiter.clone()));
    }
    let mut reports = Vec::new();
    while let Some(report) = workers.join_next().await {
        reports.push(report?);
    }
    reports.sort_by_key(|(worker, _)| worker.name);
    println!("{title}");
    let mut units = 0;
    for (Worker { name, call, .. }, Report { calls, stopped }) in reports {
        units += calls * call.cost();
        let stopped = stopped.unwrap_or_else(|| "all calls made".to_owned());
        println!("  {name:8} {calls:4} calls of {:3}   {stopped}", call.cost());
    }
    println!("  {units} units in {:.1} s\n", start.elapsed().as_secs_f64());
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    exit(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let shared = match redis().await? {
        Some(backend) => limiter(Limiter::builder(backend))?,
        None => limiter(Limiter::builder(MemoryBackend::new()))?,
    };
    run_workers("The workers share 10,000 units:", &shared).await?;

    // No server listens at this address.
    let broken = limiter(Limiter::builder(RedisBackend::lazy("redis://127.0.0.1:1/")?))?;
    run_workers("The store fails:", &broken).await
}
