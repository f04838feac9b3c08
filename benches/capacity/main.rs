//! Measures what one Redis server can decide, what it stores, and what a hot key costs: the figures of a capacity plan.
//!
//! ```text
//! cargo bench --bench capacity             # everything, some ten minutes
//! cargo bench --bench capacity -- one-core # or: curves, example, shards
//! ```
//!
//! The benchmark starts its own Redis server. It counts the processor time of that server, which a busy machine changes less than
//! a rate.
#![allow(missing_docs, unreachable_pub, dead_code, clippy::unwrap_used, clippy::expect_used)]

mod curves;
mod example;
mod load;
mod one_core;
#[path = "../../tests/support/server.rs"]
mod server;
mod shards;

#[tokio::main]
async fn main() {
    let chosen = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let is_chosen = |name: &str| chosen.as_deref().is_none_or(|chosen| chosen == name);
    if is_chosen("one-core") {
        one_core::print().await;
    }
    if is_chosen("curves") {
        curves::print().await;
    }
    if is_chosen("example") {
        example::print().await;
    }
    if is_chosen("shards") {
        shards::print().await;
    }
}
