//! All integration tests, in one binary. `tests/run` installs what they need and runs them.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

// Not named `redis`: this is the name of the client crate.
#[path = "redis/mod.rs"]
mod redis_server;
mod support;

mod charts;
mod contract;
mod deny_cache;
mod docs;
mod example;
mod http;
mod lease;
mod licences;
mod limiter;
mod outage;
mod public_interface;
mod results;
mod simulation;
mod tidy;
mod types;
