//! A closure for a method that takes a value, which returns no key either.

use tower_sliding_window::{ConfigError, Head, MemoryBackend, RateLimitLayer};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(|head: &Head<'_>| head.header("x-tenant").map(str::to_owned)) //~ is not a key extractor
        //~ note: if it is a closure, call `.key_by(|head| ..)` instead
        .build()?;
    Ok(())
}

fn main() {}
