//! Rate limiting for [tower](https://docs.rs/tower) services: exact sliding windows, in memory or shared through Redis.
//!
//! A [`RateLimitLayer`] takes a [partition key](guide::keys) and a [cost](guide::costs) from every request. It asks a
//! [backend](backend::Backend) whether all [policies](Policy) have room. The layer passes an admitted request to the inner
//! service. It rejects a denied request at once, with a 429 and the exact wait.
//!
//! # Quick start
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::time::Duration;
//! use axum::{Router, routing::get};
//! use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, RouteCosts, header, key::MissingKey, limit, peer_ip};
//!
//! let limits = RateLimitLayer::builder(MemoryBackend::new()) // or RedisBackend::connect("redis://127.0.0.1/").await?
//!     .policy(Policy::new("burst", 10, Duration::from_secs(1))?)
//!     .policy(Policy::new("sustained", 1_000, Duration::from_secs(3600))?)
//!     .key(peer_ip())
//!     .cost(RouteCosts::new().route("/search", 10)?)
//!     .also(
//!         limit(header("x-api-key")?)
//!             .policy(Policy::new("per-key", 100, Duration::from_secs(60))?)
//!             .missing_key(MissingKey::Exempt),
//!     )
//!     .build()?;
//!
//! let app: Router = Router::new().route("/search", get(async || "found nothing")).layer(limits);
//! # Ok::<(), tower_sliding_window::ConfigError>(())
//! ```
//!
//! The example limits the address as well as the API key, because a client can invent a new API key for every request.
//! [`peer_ip`] reads the address; in axum, serve the app with `into_make_service_with_connect_info::<SocketAddr>()`.
//!
//! # Guarantees
//!
//! - **Never too many.** No interval as long as the window contains more than the quota, wherever the interval begins, with
//!   [these exceptions](#exceptions).
//! - **Never too few.** The sliding log, the default, denies a request only if the request would exceed the quota.
//! - **Exact wait.** If there are no other charges, the same cost is admitted after the wait of a denial, and denied one
//!   microsecond earlier. A [cached denial](outage::DenyCacheConfig) states a lower bound. For a cost above the quota, no wait
//!   helps, and the response contains none.
//! - **All or nothing.** An admitted request is charged to all policies. A denied request is charged to none.
//! - **An outage is never a denial.** If the backend makes no decision within the deadline, the response is a 503, or what
//!   you choose, and never a 429, unless the key is [known to be denied](guide::outages#deny-cache-in-an-outage).
//!
//! For other algorithms, see [`guide::algorithms`]; for keys in several slots of a Redis cluster, see [`guide::cluster`]. If
//! a client disconnects during the check of its request, the charge may stand.
//!
//! ## Exceptions
//!
//! More than the quota may be used in one window in the following cases:
//!
//! - **Lost data.** A key that the store has lost starts from zero: Redis has [evicted](guide::cluster#eviction-use-noeviction) or flushed it,
//!   or a [failover](guide::cluster#failover) has lost the last charges. A [`MemoryBackend`] at its
//!   [bound](MemoryBackend#bound-on-partition-keys) evicts keys that use less than half of their quotas.
//! - **Settled amounts above the estimate.** The [difference](guide::settling#choose-an-estimate) is charged beyond the quota, because the
//!   client has already used it.
//! - **Outage rules.** [Fail open](OutageRule::FailOpen) admits without a count. The
//!   [local fallback](guide::outages#local-fallback-how-much-is-admitted) grants up to another quota.
//! - **Leased units.** If the clock of Redis is stepped, data is lost, or another process resets the key, the
//!   [units leased](guide::leases#never-too-many-and-its-exceptions) at that moment may exceed the quota.
//! - **Clock steps.** If the clock of Redis jumps forward, units leave the window earlier by this step. If it is set back by more than one
//!   window, the key [starts from zero](guide::algorithms#edge-cases-lost-keys-clock-steps-odd-windows).
//! - **Changes and resets.** A [changed](guide::policies#change-a-policy-at-run-time) name, window or algorithm, and a
//!   [reset](Limiter::reset), start from zero.
//! - **Other algorithms.** The sliding counter, the fixed window, the token bucket and the calendar period
//!   [admit more](guide::algorithms#guarantees-and-storage) by design. A policy in flight has
//!   [exceptions of its own](guide::in_flight#several-processes-the-hold-time).
//!
//! # Backends: in memory or Redis
//!
//! | for | backend | properties |
//! | --- | --- | --- |
//! | one process | [`MemoryBackend`] | exact, bounded, answers at once, starts empty after a restart |
//! | several processes | `RedisBackend` (feature `redis`) | the same decisions, in one script call on the clock of Redis |
//! | unit tests | `testing::FakeBackend` (feature `test-util`) | returns what the test configures, and records every check |
//! | another store | your own [`Backend`](backend::Backend) | one method, written as an `async fn` |
//!
//! # Layer order
//!
//! Add the layer around the routes to protect. In axum, use `Router::layer`, or `Router::route_layer` for existing routes
//! only. For any other service, use `tower::ServiceBuilder`. Add the layer inside CORS: `.layer(limits).layer(cors)`. Clones
//! of a layer share one state. [Nested layers](RateLimitLayer#nested-layers) make one check each, and join their header fields.
//!
//! # Guide
//!
//! | question | guide | types |
//! | --- | --- | --- |
//! | Which algorithm? | [`guide::algorithms`] | [`Policy`], [`Algorithm`] |
//! | Which policies, by tier or route, or from a file? | [`guide::policies`] | [`PolicyTable`], [`Tier`](policy::Tier) |
//! | Whose usage is counted? Which address, behind a proxy? | [`guide::keys`], [`guide::proxies`] | [`header`], [`extension`], [`peer_ip`], [`client_ip`](key::client_ip), [`limit`] |
//! | What does a request cost? | [`guide::costs`] | [`Costs`], [`RouteCosts`], [`CostFunction`] |
//! | How do I charge the actual cost, or only failures? | [`guide::settling`], [`guide::language_models`] | [`Reservation`], [`ActualCost`](settle::ActualCost), [`Meter`](settle::Meter) |
//! | What happens if Redis does not answer? | [`guide::outages`] | [`OutageRule`], [`Breaker`](outage::Breaker), [`DenyCacheConfig`](outage::DenyCacheConfig) |
//! | How do I connect to Redis, to Sentinel or to a cluster? Where do I place it? | [`guide::cluster`], [`guide::deployment`] | `RedisBackend` |
//! | How many decisions can Redis make? What about a hot key? | [`guide::capacity`], [`guide::leases`] | [`Lease`](policy::Lease) |
//! | Can three regions share one Redis? | [`guide::regions`] | [`Lease::ahead`](policy::Lease::ahead) |
//! | What do I measure? When do I raise an alert? | [`guide::observability`] | [`Stats`](observe::Stats) |
//! | What does a client see, also over gRPC? What does a handler see? | [`guide::responses`], [`guide::grpc`] | [`Dialect`](answer::Dialect), [`Rejection`], [`Decision`], [`Http`](protocol::Http#extensions) |
//! | How do I try a limit first? How do I test my service? | [`guide::rollout`], [`guide::testing`] | [`Policy::shadow`], `FakeBackend`, `ManualClock` |
//! | Why does my limit admit every request? | [`guide::limits_nothing`] | |
//! | How does an outgoing call wait for its limit? | [`guide::waiting`] | [`Limiter::wait`], [`WaitLayer`](wait::WaitLayer) |
//! | How does a client obey the limits that an API states? | [`guide::waiting`](guide::waiting#obey-what-an-api-answers) | [`Limiter::learn`], [`Stated`](learn::Stated) |
//! | How do I limit the requests that run at the same time? | [`guide::in_flight`] | [`Policy::in_flight`], [`hold::Hold`] |
//! | How do I limit a worker, a cron run, a serverless function or a synchronous caller? | [`guide::jobs`] | [`RateLimitLayer::new`], [`by`], [`Limiter`] |
//! | How do I look up or reset a usage, or limit a WebSocket? | [`guide::cookbook`] | [`Limiter::peek`], [`Limiter::reset`] |
//! | Is this the right crate? How do I migrate to it? | [`guide::alternatives`], [`guide::migration`] | |
//!
//! # Features
//!
//! - `redis` (default): `RedisBackend`. `redis-1`: your own connection of `redis` 1.x. `tls`: `rediss://`, your own certificate
//!   authorities, client certificates. `tracing` (default): [events](guide::outages#events).
//! - `axum`: [`Decision`] and [`Reservation`] as extractors; [`Rejection`] as a response; `key::matched_route`; `peer_ip` reads
//!   `ConnectInfo`.
//! - `tonic`: answers over gRPC; `peer_ip` reads `TcpConnectInfo`. `metrics`: [`guide::observability`]. `serde`:
//!   [policies from a file](guide::policies#policies-from-a-file). `test-util`: [`guide::testing`].
//! - `calendar`: [`policy`] has quotas of a [day, week, month or year](guide::algorithms#calendar-period), with the time zone database.
//!
//! A feature never changes the meaning of an existing item.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod builder;
#[cfg(feature = "calendar")]
mod calendar;
mod check;
mod decision;
mod deny_cache;
mod drift;
mod error;
#[cfg(feature = "axum")]
mod extract;
mod foreign;
mod guard;
mod head;
mod layer;
mod layer_core;
mod lease;
mod limit;
mod limiter;
mod lock;
mod now_or_later;
mod parameter;
mod pattern;
mod per_thread;
mod random;
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "the Redis backend uses all of it"))]
mod single_flight;

// The public interface. A type that most users name is also at the root.
pub mod answer;
pub mod backend;
pub mod cost;
pub mod future;
pub mod guide;
pub mod hold;
pub mod key;
pub mod learn;
pub mod observe;
pub mod outage;
pub mod policy;
pub mod protocol;
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub mod redis {
    //! The Redis backend: limits that several processes share.

    #[cfg(feature = "tls")]
    pub use crate::backend::redis::Tls;
    pub use crate::backend::redis::{
        ConnectError, Merging, RedisBackend, RedisBackendBuilder, RedisServers, ServerProblem,
        ServerProblemKind,
    };
}
pub mod settle;
#[cfg(feature = "test-util")]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub mod testing {
    //! A fake backend and a clock for unit tests.

    pub use crate::backend::{
        fake::{FakeAnswer, FakeBackend, RecordedCheck, RecordedRefund},
        memory::ManualClock,
    };
}
pub mod wait;
mod when_denied;

#[cfg(feature = "redis")]
#[doc(inline)]
pub use crate::redis::RedisBackend;
#[doc(inline)]
pub use crate::{
    backend::MemoryBackend,
    builder::RateLimitLayerBuilder,
    cost::{CostFunction, Costs, RouteCosts},
    decision::{Decision, Status, Wait},
    error::ConfigError,
    head::{Head, ResponseHead},
    key::{KeyExtractor, PartitionKey, extension, header, peer_ip},
    layer::{RateLimit, RateLimitLayer},
    limit::{Limit, limit},
    limiter::{Admission, Limiter, LimiterBuilder, Rejection},
    outage::OutageRule,
    policy::{Algorithm, Policies, Policy, PolicyTable},
    protocol::{LimitedBody, by},
    settle::Reservation,
};

#[cfg(all(doctest, feature = "axum", feature = "redis", feature = "test-util"))]
#[doc = include_str!("../README.md")]
struct Readme;
