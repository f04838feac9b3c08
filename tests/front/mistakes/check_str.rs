//! A string in place of a key.

use tower_sliding_window::{ConfigError, Limiter};

fn mistake(limiter: Limiter) -> Result<(), ConfigError> {
    limiter.check("alice"); //~ mismatched types
    //~ note: expected `PartitionKey`, found `&str`
    Ok(())
}

fn main() {}
