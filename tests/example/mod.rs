//! The examples as child processes, in memory and on Redis.

mod boundary;
mod inspect;
mod limits;
mod observability;
mod outage;
mod process;
mod settlement;
mod shutdown;
mod startup_errors;
