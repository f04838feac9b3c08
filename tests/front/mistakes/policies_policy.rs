//! One policy for a method that chooses policies.

use tower_sliding_window::{ConfigError, MemoryBackend, Policy, RateLimitLayer, peer_ip, policy};

fn mistake(policy: Policy) -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .policies(policy) //~ `Policy` does not choose policies
        //~ note: to add one policy for every request, call `.policy(..)`
        .build()?;
    Ok(())
}

fn main() {}
