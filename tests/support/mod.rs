//! Servers, clusters, Sentinels, names of keys and an attack that several tests use.

pub mod cluster;
pub mod cluster_rows;
pub mod delay;
pub mod events;
pub mod key_name;
pub mod observer;
pub mod refund_attack;
pub mod scrape;
pub mod sentinel;
pub mod server;
