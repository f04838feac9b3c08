//! Measures what an outage costs: waits and recovery, charges without a response, and admissions beyond the quota.
//!
//! ```text
//! cargo bench --bench outage
//! ```
//!
//! The benchmark starts its own servers, stops and kills them, and takes less than three minutes. Times are wall time, and longer on a busy
//! machine. The tests check the same limits with larger tolerances.
#![allow(missing_docs, unreachable_pub, dead_code, unused_imports, clippy::unwrap_used, clippy::expect_used)]

mod admissions;
mod charges;
#[path = "../../tests/support/cluster.rs"]
mod cluster;
#[path = "../../tests/support/cluster_rows.rs"]
mod cluster_rows;
#[path = "../../tests/support/delay.rs"]
mod delay;
mod latency;
#[path = "../../tests/redis/proxy.rs"]
mod proxy;
#[path = "../../tests/support/sentinel.rs"]
mod sentinel;
#[path = "../../tests/support/server.rs"]
mod server;
mod slots;

use std::time::Duration;

use tower_sliding_window::{Limiter, LimiterBuilder, PartitionKey, Policy, RedisBackend};

use server::Server;

/// The path by which the test helpers import the server.
mod support {
    pub(crate) use super::server;
}

pub const HOUR: Duration = Duration::from_secs(3600);

/// A quota that no measurement reaches.
pub const UNREACHED: u32 = 1_000_000_000;

/// One row of the table.
pub struct Figure {
    name: &'static str,
    measured: String,
    limit: &'static str,
    goal: &'static str,
}

impl Figure {
    pub fn new(name: &'static str, measured: String, limit: &'static str, goal: &'static str) -> Self {
        Self { name, measured, limit, goal }
    }
}

pub fn policy(quota: u32, window: Duration) -> Policy {
    Policy::new("measured", quota, window).unwrap()
}

pub fn alice() -> PartitionKey {
    PartitionKey::new("user", "alice")
}

pub async fn backend(server: &Server) -> RedisBackend {
    RedisBackend::connect(&server.url()).await.unwrap()
}

pub fn limiter(backend: &RedisBackend, policy: Policy) -> LimiterBuilder {
    Limiter::builder(backend.clone()).policy(policy)
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let figures = runtime.block_on(async {
        let mut figures = latency::figures().await;
        figures.extend(charges::figures().await);
        figures.extend(admissions::figures().await);
        figures.extend(slots::figures().await);
        figures
    });
    println!("{:66}{:>34}{:>24}{:>24}", "figure", "measured", "limit", "goal");
    for Figure { name, measured, limit, goal } in figures {
        println!("{name:66}{measured:>34}{limit:>24}{goal:>24}");
    }
}
