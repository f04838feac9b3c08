//! What holds on real servers only: what is stored, what goes over the wire, and what happens when a server fails.

mod events;
mod expected;
mod layout;
pub mod look;
pub mod proxy;
pub mod rig;

mod access;
mod cluster;
mod connecting;
mod cost;
mod denial;
mod deny_cache;
mod eviction;
mod failover;
mod foreign_value;
mod large_log;
mod late;
mod losing;
mod names;
mod places;
mod resharding;
mod script_cache;
mod sent_once;
mod server_errors;
mod sharing;
mod storage;
mod time_to_live;
mod tls;
