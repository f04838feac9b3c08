//! Servers, clusters, Sentinels and the browser that several tests use.

pub mod browser;
pub mod cluster;
pub mod cluster_rows;
pub mod delay;
pub mod events;
pub mod scrape;
pub mod sentinel;
pub mod server;
