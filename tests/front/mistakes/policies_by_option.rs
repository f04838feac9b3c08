//! No policies for a customer that is missing: is it limited, or not?

use tower_sliding_window::{ConfigError, MemoryBackend, Policies, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .policies_by(|head| head.extension::<Policies>().cloned()) //~ `Option<Policies>` is not a tier
        //~ note: for no further policies, write `Tier::Unlimited`
        .build()?;
    Ok(())
}

fn main() {}
