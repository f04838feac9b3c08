//! A cost that is no `u32`.

use tower_sliding_window::{ConfigError, PartitionKey, by};

struct Job {
    tenant: String,
}

fn mistake() -> Result<(), ConfigError> {
    by(|job: &Job| (PartitionKey::new("tenant", &job.tenant), 5_u64)); //~ `u64` is not an amount of quota units
    //~ note: quota units are `u32`: convert the number
    Ok(())
}

fn main() {}
