//! A cost that is no `u32`.

use tower_sliding_window::{ConfigError, Limiter, PartitionKey};

fn mistake(limiter: Limiter) -> Result<(), ConfigError> {
    limiter.check((PartitionKey::new("user", "alice"), 5_u64)); //~ `u64` is not an amount of quota units
    //~ note: quota units are `u32`: convert the number
    Ok(())
}

fn main() {}
