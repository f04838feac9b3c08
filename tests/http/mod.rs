//! The layer over axum and tonic on sockets, over other services, and in unit tests.

mod allocations;
mod calendar;
mod client_ip;
mod clients;
mod composition;
mod cors;
mod costs;
mod dialects;
mod embedded_ipv4;
mod exemptions;
mod extensions;
mod extractor;
mod fake_backend;
mod gateway;
mod grpc;
mod in_flight;
mod invented_keys;
mod jobs;
mod keys;
mod learning;
mod limits_nothing;
mod meters;
mod metrics;
mod missing_key;
mod multiple_keys;
mod nested;
mod outcomes;
mod pitfalls;
pub mod probe;
mod readiness;
mod readme;
mod readme_unit_test;
mod rejection;
mod reload;
mod responses;
mod retry_after;
mod services;
mod settings;
mod settlement;
mod shadow;
mod spellings;
mod table_costs;
mod table_mistakes;
mod tiers;
mod types;
mod waiting;

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

/// A backend that forwards each call to another one, after it has yielded once.
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

    async fn refund(&self, refund: &Refund) -> Result<u64, BackendError> {
        tokio::task::yield_now().await;
        self.0.refund(refund).await
    }

    async fn reset(&self, pairs: &Check) -> Result<(), BackendError> {
        tokio::task::yield_now().await;
        self.0.reset(pairs).await
    }
}
