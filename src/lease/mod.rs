//! Leased units: a process charges units of a pair in advance, and grants them without asking the store.
//!
//! A lease belongs to one bucket of the pair. Its units count until one window after the end of the bucket, so the process may grant
//! them until the bucket ends on the server's clock. The process knows a bound of this instant: it is not before the local instant of
//! the request plus the rest of the bucket at the script, if the local clock counts suspended time.
//!
//! No caller waits for another one. While a lease request is in flight, other checks of the pair ask the store.

mod clock;
mod due;
mod entry;
mod request;
mod returns;
mod table;

pub(crate) use request::{Lookup, Miss};
pub(crate) use table::Leases;

/// Microseconds of the local clock.
type Micros = u64;
