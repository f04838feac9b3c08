//! A truth value in place of the settings of the deny cache.

use tower_sliding_window::{ConfigError, Limiter, MemoryBackend};

fn mistake() -> Result<(), ConfigError> {
    Limiter::builder(MemoryBackend::new())
        .deny_cache(false) //~ `bool` is not a `DenyCacheConfig`
        //~ note: expected a `DenyCacheConfig`, or `None` to disable it
        .build()?;
    Ok(())
}

fn main() {}
