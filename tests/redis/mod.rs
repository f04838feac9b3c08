//! Tests that need real servers: stored data, commands on the wire, and server failures.

pub mod admin;
mod layout;
pub mod proxy;
mod reference_log;
pub mod rig;

mod access;
pub mod cluster;
mod cluster_slots;
mod connecting;
mod connection_loss;
mod cost;
mod cross_slot;
mod deadline;
mod denial;
mod deny_cache;
mod eviction;
mod failover;
mod foreign_value;
mod isolation;
mod keys;
mod large_log;
mod lost_reply;
mod lua_files;
mod outage_events;
mod record_positions;
mod reservations;
mod resharding;
mod rollback;
mod runtimes;
mod script_cache;
mod server_errors;
mod sharing;
mod storage;
mod time_to_live;
mod tls;
mod verification;
