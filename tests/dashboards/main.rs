//! The tests of the dashboard and the rules for Prometheus: with the names of the metrics, with `promtool`, and with a Prometheus that
//! scrapes services before, during and after an outage of Redis.
#![allow(missing_docs, unreachable_pub, dead_code, clippy::unwrap_used, clippy::expect_used)]

mod expressions;
mod known;
mod picture;
mod prometheus;
mod promtool;
mod scraped;
mod service;

#[path = "../example"]
mod example {
    pub mod process;
}

#[path = "../http"]
mod http {
    pub mod wire;
}

#[path = "../support"]
mod support {
    pub mod server;
}
