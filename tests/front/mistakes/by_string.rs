//! A value without its kind.

use tower_sliding_window::{ConfigError, by};

struct Job {
    tenant: String,
}

fn mistake() -> Result<(), ConfigError> {
    by(|job: &Job| job.tenant.clone()); //~ `String` does not state what to check
    //~ note: return `PartitionKey::new("tenant", value)`
    Ok(())
}

fn main() {}
