//! A vector of policies for a limiter.

use tower_sliding_window::{ConfigError, Limiter, MemoryBackend, Policy};

fn mistake(policies: Vec<Policy>) -> Result<(), ConfigError> {
    Limiter::builder(MemoryBackend::new())
        .policies(policies) //~ mismatched types
        //~ note: expected `Policies`, found `Vec<Policy>`
        .build()?;
    Ok(())
}

fn main() {}
