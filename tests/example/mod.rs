//! The examples as child processes, in memory and on Redis.

mod boundary;
mod client_quota;
mod day;
mod in_flight;
mod inspect;
mod job_queue;
mod limits;
mod observability;
mod outage;
mod output;
mod process;
mod reload;
mod replay;
mod settlement;
mod shutdown;
mod startup_errors;
