//! What several tests need.

pub mod server;
