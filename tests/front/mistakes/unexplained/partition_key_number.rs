//! A number as the value of a key.

use tower_sliding_window::{ConfigError, Limiter, PartitionKey};

fn mistake(limiter: Limiter, user: u64) -> Result<(), ConfigError> {
    limiter.check(PartitionKey::new("user", user)); //~ the trait bound `u64: AsRef<[u8]>` is not satisfied
    Ok(())
}

fn main() {}
