//! What an outage costs: how long a request waits, how soon limits are shared again, and what is charged that nobody was told of.
//!
//! ```text
//! cargo bench --bench outage
//! ```
//!
//! It starts servers of its own, stops and kills them, and takes about a minute. The bounds are those that the tests hold
//! with more patience; here they are measured. Times are wall time: on a busy machine they are longer.
#![allow(missing_docs, unreachable_pub, dead_code, clippy::unwrap_used, clippy::expect_used)]

#[path = "../../tests/redis/proxy.rs"]
mod proxy;
mod seams;
#[path = "../../tests/support/sentinel.rs"]
mod sentinel;
#[path = "../../tests/support/server.rs"]
mod server;
mod standing;
mod waiting;

use tower_sliding_window::{Limiter, LimiterBuilder, PartitionKey, Policy, RedisBackend};

use server::Server;

/// Where the tests find it.
mod support {
    pub(crate) use super::server;
}

/// One line of the table.
pub struct Figure {
    name: &'static str,
    measured: String,
    at_least: &'static str,
    aim: &'static str,
}

impl Figure {
    pub fn new(name: &'static str, measured: String, at_least: &'static str, aim: &'static str) -> Self {
        Self { name, measured, at_least, aim }
    }
}

pub fn policy(quota: u32, window: std::time::Duration) -> Policy {
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
        let mut figures = waiting::figures().await;
        figures.extend(standing::figures().await);
        figures.extend(seams::figures().await);
        figures
    });
    println!("{:66}{:>34}{:>24}{:>18}", "figure", "measured", "at least", "aim");
    for Figure { name, measured, at_least, aim } in figures {
        println!("{name:66}{measured:>34}{at_least:>24}{aim:>18}");
    }
}
