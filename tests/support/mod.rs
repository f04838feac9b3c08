//! What several tests need.

pub mod cluster;
pub mod sentinel;
pub mod server;
