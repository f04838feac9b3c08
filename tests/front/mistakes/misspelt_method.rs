//! A misspelt method.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .bild()?; //~ no method named `bild` found
    //~ note: there is a method `build` with a similar name
    Ok(())
}

fn main() {}
