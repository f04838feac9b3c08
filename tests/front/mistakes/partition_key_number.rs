//! A number as the value of a key.

use tower_sliding_window::{ConfigError, Limiter, PartitionKey};

fn mistake(limiter: Limiter, user: u64) -> Result<(), ConfigError> {
    limiter.check(PartitionKey::new("user", user)); //~ `u64` is not the value of a key
    //~ note: write a number, an identifier, a `Cow<str>` or an `Arc<str>` as text: `.to_string()`
    Ok(())
}

fn main() {}
