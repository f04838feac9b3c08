//! A policy without `?`.

use std::time::Duration;

use tower_sliding_window::{ConfigError, Policy, PolicyTable};

fn mistake() -> Result<(), ConfigError> {
    let minute = Duration::from_secs(60);
    let table = PolicyTable::new(Policy::new("requests", 10, minute)?);
    table.with("gold", Policy::new("requests", 1_000, minute)); //~ `Result<Policy, ConfigError>` is not a tier
    //~ note: if the value is a `Result`, add `?`
    Ok(())
}

fn main() {}
