//! A check whose decision is not read.
#![deny(unused_must_use)]

use tower_sliding_window::{Limiter, PartitionKey, backend::BackendError};

async fn mistake(limiter: Limiter, user: PartitionKey) -> Result<(), BackendError> {
    limiter.check(user).await?; //~ unused `Decision` that must be used
    //~ note: a denied check is a decision too: read `is_admitted()`
    Ok(())
}

fn main() {}
