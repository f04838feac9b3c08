//! Exact sliding-window rate limiting as a tower layer.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod backend;
mod check;
mod cost;
mod decision;
mod error;
#[cfg(feature = "axum")]
mod extract;
mod future;
mod head;
mod key;
mod layer;
mod limiter;
mod observe;
mod plan;
mod policy;
mod respond;
mod service;

// The public interface, all of it.
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use backend::redis::{ConnectError, Link, Managed, Own, RedisBackend};
pub use backend::{Backend, BackendError, Reason, memory::MemoryBackend};
#[cfg(feature = "test-util")]
pub use backend::{
    fake::{Answer, FakeBackend, RecordedCheck},
    memory::ManualClock,
};
pub use check::{Check, MAX_PAIRS, Pair};
pub use cost::{CostFunction, RouteCosts};
pub use decision::{Decision, Status, Wait};
pub use error::ConfigError;
#[cfg(feature = "axum")]
pub use extract::NoDecision;
pub use future::ResponseFuture;
pub use head::{FromHead, Head, from_head};
pub use key::{
    And, Extension, Header, IntoKey, KeyError, KeyExt, KeyExtractor, Or, PartitionKey, PeerIp, extension,
    header, peer_ip,
};
pub use layer::{Builder, Planned, RateLimitLayer, Unkeyed};
pub use limiter::{CheckFuture, Limiter, LimiterBuilder};
pub use plan::{Draft, Exemption, Keyed, NoExemptions, Plan, WithoutKey};
pub use policy::Policy;
#[cfg(feature = "tonic")]
pub use respond::{Grpc, HttpOrGrpc};
pub use respond::{Http, Outcome, Refusal, RefuseWith, Respond, WithRejection, refuse_with};
pub use service::RateLimit;
