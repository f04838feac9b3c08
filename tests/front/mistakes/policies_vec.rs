//! A vector of policies for a method that chooses policies.

use tower_sliding_window::{ConfigError, MemoryBackend, Policy, RateLimitLayer, peer_ip};

fn mistake(policies: Vec<Policy>) -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .policies(policies) //~ `Vec<Policy>` does not choose policies
        //~ note: for several, write `.policies(Policies::new(..)?)`
        .build()?;
    Ok(())
}

fn main() {}
