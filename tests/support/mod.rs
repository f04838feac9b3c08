//! What several tests need.

pub mod cluster;
pub mod server;
