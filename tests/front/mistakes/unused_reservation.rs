//! A reservation that is not settled.
#![deny(unused_must_use)]

use tower_sliding_window::{Limiter, PartitionKey, Rejection};

async fn mistake(limiter: Limiter, user: PartitionKey) -> Result<(), Rejection> {
    limiter.reserve((user, 500)).await?; //~ unused `Reservation` that must be used
    //~ note: call `settle(..)`
    Ok(())
}

fn main() {}
