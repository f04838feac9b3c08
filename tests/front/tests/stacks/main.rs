//! The layer in the stacks that users build: around and inside the middleware, clients and servers of other crates.
//!
//! Each stack runs over three backends: one that decides from memory, one that answers at once, and one that answers later.
//! The clocks stand still, and sockets are on the loopback address.

mod bodies;
mod boxed;
mod builder;
mod clients;
mod extensions;
mod grpc;
mod jobs;
mod layers;
mod routers;
mod settling;
mod support;
mod upgrades;
