//! All integration tests, in one binary. `tests/run` gets what they need and runs them.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

// Not called `redis`, which is the client crate.
#[path = "redis/mod.rs"]
mod redis_server;
mod support;

mod contract;
mod deny_cache;
mod example;
mod http;
mod limiter;
mod outage;
mod simulation;
mod tidy;
