//! The example as its users run it: a process of its own, in memory and on Redis.

mod limits;
mod mistakes;
mod process;
mod stopping;
