//! What holds on real servers only: what is stored, what goes over the wire, and what happens when a server fails.

mod look;
mod proxy;
mod rig;

mod access;
mod connecting;
mod cost;
mod denial;
mod foreign_value;
mod losing;
mod script_cache;
mod sent_once;
mod server_errors;
