//! A pointer to a text as the value of a key.

use std::borrow::Cow;

use tower_sliding_window::{ConfigError, Limiter, PartitionKey};

fn mistake(limiter: Limiter, user: Cow<'static, str>) -> Result<(), ConfigError> {
    limiter.check(PartitionKey::new("user", user)); //~ `Cow<'_, str>` is not the value of a key
    //~ note: write a number, an identifier, a `Cow<str>` or an `Arc<str>` as text: `.to_string()`
    Ok(())
}

fn main() {}
