//! How many exports of a tenant may run at the same time, and what if a process is killed?
//!
//! Each tenant may run 5 exports at a time, and 100 an hour. With Redis, a second process runs three of them and is killed: its units
//! return after the hold time, here 2 s, without a sweeper. Without Redis, the second process is left out.
//!
//! ```text
//! cargo run --example in_flight
//! REDIS_URL=redis://127.0.0.1:6379/ cargo run --example in_flight
//! ```
//!
//! Expected output:
//!
//! ```text
//! 5 exports run, and the next one is denied: retry after 1s
//! one of them ends, and the next one runs
//! all of them end: 5 units are free
//! ```
//!
//! With Redis, it continues:
//!
//! ```text
//! another process runs 3 exports: 2 units are free
//! it is killed: 2 units are free
//! within its hold time of 2s, all 5 units are free
//! ```
//!
//! Type next:
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379/ cargo run --example in_flight
//! ```

#[path = "common/exit.rs"]
mod exit;
#[path = "common/redis.rs"]
mod redis;

use std::{
    env,
    error::Error,
    future::pending,
    io::{BufRead, BufReader},
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use exit::exit;
use redis::redis;
use tower_sliding_window::{Decision, Limiter, LimiterBuilder, MemoryBackend, PartitionKey, Policy};

const HOLD_TIME: Duration = Duration::from_secs(2);

/// The argument that starts the process that is killed. The tenant follows it.
const OTHER: &str = "other";

async fn limiter() -> Result<Limiter, Box<dyn Error>> {
    let builder: LimiterBuilder = match redis().await? {
        Some(backend) => Limiter::builder(backend),
        None => Limiter::builder(MemoryBackend::new()),
    };
    let exports = Policy::in_flight("exports", 5)?.hold_time(HOLD_TIME)?;
    let hourly = Policy::new("hourly", 100, Duration::from_secs(3600))?;
    Ok(builder.deadline(Duration::from_secs(5)).policy(exports).policy(hourly).build()?)
}

/// Starts exports. Each one runs until its decision is dropped.
async fn start(
    limiter: &Limiter,
    tenant: &PartitionKey,
    exports: u32,
) -> Result<Vec<Decision>, Box<dyn Error>> {
    let mut running = Vec::new();
    for _ in 0..exports {
        let decision = limiter.check(tenant).await?;
        if decision.is_admitted() {
            running.push(decision);
        }
    }
    Ok(running)
}

/// Returns how many exports may start.
async fn free(limiter: &Limiter, tenant: &PartitionKey) -> Result<u32, Box<dyn Error>> {
    // The release of an export that has ended is sent in the background.
    limiter.drain().await;
    let usage = limiter.peek((tenant, 0)).await?;
    Ok(usage.status("exports").map_or(0, |status| status.remaining()))
}

#[tokio::main]
async fn main() -> ExitCode {
    exit(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let limiter = limiter().await?;
    let mut arguments = env::args().skip(1);
    if let (Some(OTHER), Some(tenant)) = (arguments.next().as_deref(), arguments.next()) {
        // The other process runs three exports until it is killed.
        let running = start(&limiter, &PartitionKey::new("tenant", tenant), 3).await?;
        println!("{} exports run", running.len());
        return pending().await;
    }

    // Each run has its own tenant, so that it prints the same numbers.
    let name = format!("acme {}", std::process::id());
    let tenant = PartitionKey::new("tenant", name.as_str());
    let mut running = start(&limiter, &tenant, 5).await?;
    let denied = limiter.check(&tenant).await?;
    if let Some(wait) = denied.retry_after().duration() {
        println!("{} exports run, and the next one is denied: retry after {wait:?}", running.len());
    }
    running.pop();
    limiter.drain().await;
    running.extend(start(&limiter, &tenant, 1).await?);
    println!("one of them ends, and the next one runs");
    running.clear();
    println!("all of them end: {} units are free", free(&limiter, &tenant).await?);

    if env::var("REDIS_URL").is_ok() {
        let mut other =
            Command::new(env::current_exe()?).args([OTHER, &name]).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        if let Some(output) = other.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        println!(
            "another process runs {}: {} units are free",
            line.replace(" run", "").trim(),
            free(&limiter, &tenant).await?
        );
        other.kill()?;
        other.wait()?;
        println!("it is killed: {} units are free", free(&limiter, &tenant).await?);
        while free(&limiter, &tenant).await? < 5 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        println!("within its hold time of {HOLD_TIME:?}, all 5 units are free");
    }
    Ok(())
}
