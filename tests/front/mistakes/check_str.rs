//! A string in place of a key.

use tower_sliding_window::{ConfigError, Limiter};

fn mistake(limiter: Limiter) -> Result<(), ConfigError> {
    limiter.check("alice"); //~ `&str` does not state what to check
    //~ note: return `PartitionKey::new("tenant", value)`
    Ok(())
}

fn main() {}
