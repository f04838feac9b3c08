//! An admission that is not read: it may be unchecked.
#![deny(unused_must_use)]

use tower_sliding_window::{Limiter, PartitionKey, Rejection};

async fn mistake(limiter: Limiter, user: PartitionKey) -> Result<(), Rejection> {
    limiter.admit(user).await?; //~ unused `Admission` that must be used
    //~ note: an admission may be unchecked
    Ok(())
}

fn main() {}
