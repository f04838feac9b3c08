//! The examples as their users run them: each a process of its own, in memory and on Redis.

mod boundary;
mod inspect;
mod limits;
mod mistakes;
mod outage;
mod process;
mod settling;
mod stopping;
