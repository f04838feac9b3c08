//! How does a worker in another process settle what a web request has reserved?
//!
//! A web request reserves 40 pages and puts a job into a queue, with the token of its reservation. A worker prints 12 pages and settles
//! the token. The queue delivers the job twice, and the second settlement changes nothing. With Redis, the worker is a process of its
//! own: this program starts itself, and the queue is a pipe. Without Redis, the worker is a part of the same process.
//!
//! ```text
//! cargo run --example job_queue
//! REDIS_URL=redis://127.0.0.1:6379/ cargo run --example job_queue
//! ```
//!
//! Expected output:
//!
//! ```text
//! web:    40 pages are reserved, 60 of 100 are left
//! web:    the token of the job has 96 characters
//! worker: 12 pages are printed, and the token is settled
//! worker: 12 pages are printed, but the token was settled before
//! web:    88 of 100 pages are left
//! ```
//!
//! Type next:
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379/ cargo run --example job_queue    # the worker is another process
//! ```

#[path = "common/exit.rs"]
mod exit;
#[path = "common/redis.rs"]
mod redis;

use std::{
    env,
    error::Error,
    io::{self, BufRead, Write},
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use exit::exit;
use redis::redis;
use tower_sliding_window::{Limiter, LimiterBuilder, MemoryBackend, PartitionKey, Policy, settle::Settled};

/// The argument that starts a worker.
const WORKER: &str = "worker";

/// Web and worker need the same settings: the namespace, the policies, and the hash secret of the backend, if it has one.
async fn limiter() -> Result<Limiter, Box<dyn Error>> {
    let builder: LimiterBuilder = match redis().await? {
        Some(backend) => Limiter::builder(backend),
        None => Limiter::builder(MemoryBackend::new()),
    };
    let pages = Policy::new("pages", 100, Duration::from_secs(3600))?;
    // A job is no request that waits, so a slow machine may take its time.
    Ok(builder.namespace("job-queue").deadline(Duration::from_secs(5)).policy(pages).build()?)
}

/// Works on the jobs of a queue. Each job is a token.
async fn work(
    limiter: &Limiter,
    jobs: impl Iterator<Item = io::Result<String>>,
) -> Result<(), Box<dyn Error>> {
    for job in jobs {
        let printed = 12;
        // After an error of the store, a worker leaves the job in the queue: it is safe to settle the token again.
        let result = match limiter.settle_token(&job?, printed).await? {
            Settled::Done { .. } => "and the token is settled",
            Settled::Already => "but the token was settled before",
            Settled::Expired => "but the window of the reservation has passed",
            _ => "and there is nothing to settle",
        };
        println!("worker: {printed} pages are printed, {result}");
    }
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    exit(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let limiter = limiter().await?;
    if env::args().nth(1).as_deref() == Some(WORKER) {
        return work(&limiter, io::stdin().lock().lines()).await;
    }

    // Each run has its own key, so that it prints the same numbers.
    let user = PartitionKey::new("user", format!("alice {}", std::process::id()));
    let reservation = limiter.reserve((&user, 40)).await?;
    let status = reservation.decision().and_then(|decision| decision.status("pages"));
    let left = status.map_or(0, |status| status.remaining());
    println!("web:    40 pages are reserved, {left} of 100 are left");
    let token = reservation.into_token()?;
    println!("web:    the token of the job has {} characters", token.len());

    let deliveries = [token.clone(), token];
    if env::var("REDIS_URL").is_ok() {
        let mut worker = Command::new(env::current_exe()?).arg(WORKER).stdin(Stdio::piped()).spawn()?;
        if let Some(mut queue) = worker.stdin.take() {
            for job in deliveries {
                writeln!(queue, "{job}")?;
            }
        }
        let status = worker.wait()?;
        if !status.success() {
            return Err(format!("the worker has failed: {status}").into());
        }
    } else {
        work(&limiter, deliveries.into_iter().map(Ok)).await?;
    }
    let usage = limiter.peek((&user, 0)).await?;
    let left = usage.status("pages").map_or(0, |status| status.remaining());
    println!("web:    {left} of 100 pages are left");
    Ok(())
}
