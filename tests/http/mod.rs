//! The layer as its users meet it: over axum and tonic on real sockets, over other services, and in their unit tests.

mod answers;
mod cors;
mod costs;
mod exemptions;
mod extensions;
mod extractor;
mod fake;
mod grpc;
mod jobs;
mod invented_keys;
mod keys;
mod nested;
mod outcomes;
pub mod probe;
mod readiness;
mod rejection;
mod services;
mod settings;
mod settling;
mod several_keys;
mod tiers;
mod traps;
mod types;
mod waits;
mod without_key;

pub mod wire;

use std::time::Duration;

use tower_sliding_window::{
    Decision, Policy,
    backend::{Backend, BackendError, Check, Refund},
    header,
    key::Header,
};

pub const SECOND: Duration = Duration::from_secs(1);
pub const MINUTE: Duration = Duration::from_secs(60);
const ALICE: (&str, &str) = ("x-api-key", "alice");
const BOB: (&str, &str) = ("x-api-key", "bob");

fn policy(name: &str, quota: u32, window: Duration) -> Policy {
    Policy::new(name, quota, window).unwrap()
}

fn api_key() -> Header {
    header("x-api-key").unwrap()
}

/// A backend that answers as another one does, but not at once: as one must that asks a server.
#[derive(Clone)]
pub struct Later<B>(pub B);

impl<B: Backend> Backend for Later<B> {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        tokio::task::yield_now().await;
        self.0.check(check).await
    }

    fn changes_charges(&self) -> bool {
        self.0.changes_charges()
    }

    async fn refund(&self, refund: &Refund) -> Result<(), BackendError> {
        tokio::task::yield_now().await;
        self.0.refund(refund).await
    }

    async fn reset(&self, pairs: &Check) -> Result<(), BackendError> {
        tokio::task::yield_now().await;
        self.0.reset(pairs).await
    }
}
