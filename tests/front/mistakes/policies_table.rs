//! A table without the rule that chooses.

use tower_sliding_window::{ConfigError, MemoryBackend, PolicyTable, RateLimitLayer, peer_ip};

fn mistake(tiers: PolicyTable) -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .policies(tiers) //~ `PolicyTable` does not choose policies
        //~ note: such as `table.choose_by(|head| ..)`
        .build()?;
    Ok(())
}

fn main() {}
