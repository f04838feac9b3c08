//! Route costs without `?`.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, RouteCosts, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .cost(RouteCosts::new().route("/search", 5)) //~ `Result<RouteCosts, ConfigError>` is not a cost
        //~ note: if the value is a `Result`, add `?`
        .build()?;
    Ok(())
}

fn main() {}
