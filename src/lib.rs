//! Exact sliding-window rate limiting as a [tower](https://docs.rs/tower) layer: in memory, or shared by any number of
//! processes through Redis, in one atomic round trip.
//!
//! A [`RateLimitLayer`] takes a [key](KeyExtractor) and a [cost](CostFunction) from every request and asks a [`Backend`]
//! whether all its [policies](Policy) have room. A request that is admitted goes on; one that is not is answered at once,
//! with 429 and the time after which it will be admitted.
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::time::Duration;
//! use axum::{Router, routing::get};
//! use tower_sliding_window::{KeyExt, MemoryBackend, Policy, RateLimitLayer, RouteCosts, header, peer_ip};
//!
//! # async fn search() {}
//! let limits = RateLimitLayer::builder(MemoryBackend::new())
//!     .policy(Policy::new("burst", 10, Duration::from_secs(1))?)
//!     .policy(Policy::new("sustained", 1_000, Duration::from_secs(3600))?)
//!     .key(header("x-api-key")?.or(peer_ip()))
//!     .cost(RouteCosts::new().route("/search", 10)?)
//!     .build()?;
//!
//! let app: Router = Router::new().route("/search", get(search)).layer(limits);
//! # Ok::<(), tower_sliding_window::ConfigError>(())
//! ```
//!
//! # What is promised
//!
//! - **Never too many.** No interval of a window's length holds more than the quota, wherever it begins.
//! - **Never too few.** Whoever is refused would have exceeded the quota. (Both for the sliding log, which is the default;
//!   what another [`Algorithm`] promises is told there.)
//! - **An honest wait.** After the wait that a refusal tells, and not a microsecond earlier, the same cost is admitted,
//!   unless somebody else has charged in between. For a cost of 100 this is when 100 units have room. Where no wait
//!   helps, for the cost is above the quota, none is told.
//! - **All or nothing.** Of several policies all are charged, at one instant, or none is. A refused request leaves no trace.
//! - **An outage is no refusal.** A store that cannot answer is a 503, or what you say instead, within one deadline, and never
//!   a 429. See [below](#when-the-store-cannot-answer).
//!
//! A request whose future is dropped while its check is under way, as when a client goes away, may stay charged.
//!
//! # Which backend?
//!
//! | one process | [`MemoryBackend`] | exact, bounded, answers at once |
//! | --- | --- | --- |
//! | several processes | `RedisBackend` (feature `redis`) | the same answers; one script call on the server's own clock |
//! | unit tests | `FakeBackend` (feature `test-util`) | says what the test tells it to, and remembers what it was asked |
//! | something else | your own [`Backend`] | one method, written as an `async fn` |
//!
//! Two applications on one Redis are kept apart by a [namespace](Builder::namespace). Limits cannot be kept in a replica
//! or across regions: give each region its own.
//!
//! # Which algorithm?
//!
//! The sliding log, unless there is a reason: it is exact, and a check on it costs Redis little more than a token bucket. It
//! keeps a record of some 16 bytes for each charge of the window, and at most 1,048,576 of them. For more, or for less
//! memory, there are [sliding buckets](Algorithm::SlidingBuckets), which never admit too many; the
//! [sliding counter](Algorithm::SlidingCounter) and the [fixed window](Algorithm::FixedWindow) keep two numbers or one, and
//! admit up to twice the quota around an edge. `cargo run --example boundary` shows them side by side. The policies of one
//! check may count in different ways.
//!
//! # Whose usage is counted?
//!
//! [`header`] takes an API key, [`extension`] what an earlier layer has verified, [`peer_ip`] the address of the peer,
//! [`from_head`] whatever a closure finds. [`KeyExt::or`] takes the second where the first is missing, [`KeyExt::and`]
//! takes both. A key always includes its kind, so nobody can pose as somebody else's address by writing it into a header.
//!
//! A request without a key is refused with 400 unless [`WithoutKey`] says otherwise. Behind a proxy, the peer is the
//! proxy: count by something else there.
//!
//! # What does a request cost?
//!
//! 1 unit, or a number, or what a [table of routes](RouteCosts) says, or a closure; the same of every policy, or of each its own:
//! [`Costs`]. A cost of 0 is admitted and not counted. Requests for which [`exempt`](Builder::exempt) says so pass without
//! asking the backend at all.
//!
//! Where the cost is known only afterwards, it is estimated and [settled](Builder::settle): a failed login counts and a good
//! one does not, a 304 is free, model tokens are reserved by estimate and settled by count. The layer settles by the
//! response, or whoever holds the [`Reservation`] does; nobody waits for it, and a charge that is not settled stands.
//!
//! | what happens | which charge stands |
//! | --- | --- |
//! | the response says what was used | that |
//! | the response says nothing; the inner service fails or panics; the request is dropped before its response | the whole estimate, unless the [`Reservation`] was taken and is settled |
//! | a streamed body is dropped | the same: only what settles at its end knows that there was one |
//! | it is settled again | what was settled first |
//! | it is settled after the charge has left its window, or after a reset | nothing goes back; what is more is charged |
//! | the settlement is [lost](Limiter::lost_settlements): no answer from the backend, a full queue, the end of the runtime | the whole estimate, or what was settled if only the answer was lost |
//!
//! # Which policies are in force?
//!
//! Those of the builder, for every request; and those that are [chosen by the request](Builder::policies), by its tier, for
//! example, from a [`PolicyTable`] that changes while the service runs. A further key has policies of its own, as in
//! [`also`](Builder::also)`(`[`limit`]`(peer_ip()).policy(..))`. Whatever there is, a request is one check, and all of it is
//! charged or nothing. Another quota keeps what was used; another window counts afresh.
//!
//! # What does a client see?
//!
//! What [`Http`] says, or with the feature `tonic` `Grpc`. [`Builder::rejection`] makes another body and keeps the headers;
//! a [`Respond`] of your own says everything in its own way. The handler finds the [`Decision`] in the request's extensions, in
//! axum as an extractor (feature `axum`), and a layer further out finds it in the response's, with the [`Refusal`] if there
//! was one.
//!
//! For browsers, put the limit inside CORS, `.layer(limits).layer(cors)`, so that a preflight is not counted and a 429 can be
//! read, and expose `ratelimit`, `ratelimit-policy` and `retry-after`.
//!
//! # When the store cannot answer
//!
//! A backend that waits, as Redis does, may not answer. Then nobody waits for long, and nobody is told what is not known.
//!
//! | | | unless it is said |
//! | --- | --- | --- |
//! | one [deadline](Builder::deadline) around the whole check, whatever the backend does inside | [`Reason::Timeout`] | 100 ms |
//! | a [`Breaker`]: after failures in a row the store is left alone; one check at a time probes whether it is back | the reason of the failure, within microseconds | 5 failures, 250 ms |
//! | a bound on [checks under way](Builder::max_in_flight) | [`Reason::Shed`], at once | 4,096 |
//!
//! The deadline should be shorter than the patience of those who ask: a check that is dropped before it tells the breaker
//! nothing. What becomes of a request without a decision is said by an [`OutageRule`], for a
//! [layer](Builder::outage) or for [each request](Builder::outage_by), so that what is cheap may go on while what is dear is
//! refused (`examples/outage.rs`):
//!
//! | rule | outcome | in the extensions | fields |
//! | --- | --- | --- | --- |
//! | refuse, the default | 503 with the problem type `temporary-reduced-capacity`; `UNAVAILABLE` over gRPC | [`Refusal::Unavailable`] | none |
//! | admit | goes on, counted nowhere | [`Unchecked`], of request and response | none |
//! | local, by `floor(quota / n)` for `n` processes | goes on, counted in this process | [`LocalDecision`], of request and response | none |
//! | local, and the share has no room | 503, as above | [`Refusal::BeyondShare`] | none |
//!
//! Refusing is the default, for a limit protects something, and that an attacker could switch off by overloading the store. A
//! [`Decision`] in the extensions is always one of the store. A handler that takes it as an extractor must not demand it where
//! requests may go on without: `Option<Decision>`. There are no `RateLimit` fields without it, not even of a local decision:
//! the next request may meet another process, with another share, or the store, with the whole quota. Nor is there a
//! `Retry-After`, for nobody knows when the store is back.
//!
//! **How much is admitted.** With the right `n`, all processes together admit no more than the quota in any window by local
//! decisions. The store and the memories know nothing of each other: a window that touches a seam between them may hold
//! twice the quota, and three times if Redis lost its data meanwhile (what it granted before, what was granted locally,
//! what it grants afterwards). Where the share is 0, or the cost is above it, a request that costs something is a 503: it
//! can be admitted when the store is back, so it is never told that no wait helps.
//!
//! **What is charged that nobody was told of.** Redis charges nothing for a check that comes after its deadline, however much has
//! piled up while it hung. A check that ran in time and whose answer was lost stands, and is
//! counted (`RedisBackend::unanswered_checks`); it is never sent again. A failover to a replica may lose what was not replicated
//! yet, and then so much more is admitted.
//!
//! **One key is not the store.** A key with a foreign value, a log that is full, keys on different nodes: these are
//! [errors of one check](Reason::is_of_one_check). They never open the breaker, and are refused even where the rule is to
//! admit, or a client could fill its own log to be rid of its limit.
//!
//! **Reservations.** A layer that settles gives one in any case. One that was decided locally is settled in the memory of the
//! process, one that was not checked has nothing to settle ([`Settled::Uncharged`]); neither is ever sent to the store.
//!
//! **What it costs**, as `cargo bench --bench outage` has measured it on a machine with two cores, and what is aimed at:
//!
//! | | measured | aim |
//! | --- | --- | --- |
//! | wait beyond the deadline while Redis hangs | 2 ms at most | 2 ms |
//! | wait while the breaker is open, of 99 in 100 requests | less than 1 us | 50 us |
//! | from the end of a hang, or a restart, to a decision | 0.1 s, 0.25 s at most | 0.5 s |
//! | charges made after their deadline, of 2,000 checks that a stopped server finds when it goes on | 0 | 0 |
//! | charges that stand untold, of 500 checks whose answers are swallowed | 500, all counted | those under way, counted |
//! | commands to Redis for 50,000 refusals of one key in 5 s | 6 | 1 in a second |
//! | admitted over the quota in any window while Redis is killed and restarted, `appendfsync always` | 0 | 0 |
//! | charges lost by a failover to a replica that was near | 0 of 5,800 | what was not replicated |
//! | admitted over the quota by two processes with half of it each, within an outage | 0 | 0 |
//! | the most in a window at the seams of that outage, of a quota of 200 | 226 | 400 |
//!
//! The [`Limiter`] itself knows the rule only in [`admit`](Limiter::admit); its other questions are answered by the store, or by
//! a [`BackendError`], which says [whether the store was asked](BackendError::was_asked). Clones of a limiter share all of this.
//!
//! # Who is over a limit costs the store nothing
//!
//! What a store such as Redis has denied it goes on denying until the wait is over. So the process repeats it, by a
//! [`DenyCache`], without asking: a client that sends 10,000 requests a second over its limit costs Redis about one command in a
//! second. This is on unless [`deny_cache(None)`](Builder::deny_cache) is said, and it is no estimate:
//!
//! - **The verdict is the store's.** Only a denial is repeated, for the same pair of key and policy, at a cost that leaves no more of
//!   the quota, and no longer than its wait. Nothing is ever admitted without asking, and a peek is always asked for.
//! - **It is at most a second old**, or what [`max_age`](DenyCache::max_age) says. So long it may be wrong if *another* process gave
//!   units back or reset the key, if the store lost its keys, or if its clock was stepped. What this process settles and
//!   resets is seen at once, and so is another quota.
//! - **It says that it is one**, by [`Decision::is_cached`]. It tells of those policies that are known to deny, and what is left of
//!   their waits.
//! - **In an outage it stands.** A denial that is known is a 429 while its wait runs, up to the maximum age, even if the breaker is open: it
//!   is still true.
//!
//! A backend of your own is remembered if it says that its [denials hold](Backend::denials_hold). The memory answers at once,
//! and needs none of this.
//!
//! # Where does the layer go?
//!
//! Around what is to be protected: `Router::layer` for all routes, `Router::route_layer` for those that exist,
//! `ServiceBuilder` for anything else. Layers may be nested; each asks for itself, and their fields join. A layer that is
//! cloned, as axum does for every route, shares its state with its clones. Two layers that are built apart share theirs
//! only through one backend, and then they share the policies that have the same name, window and algorithm.
//!
//! # Features
//!
//! `redis` (default), `tls`, `axum`, `tonic`, `tracing`, `test-util`. A feature adds items and never changes the meaning of one.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod backend;
mod check;
mod cost;
mod decision;
mod deny_cache;
mod error;
#[cfg(feature = "axum")]
mod extract;
mod future;
mod head;
mod key;
mod layer;
mod limiter;
mod observe;
mod outage;
mod plan;
mod policies;
mod policy;
mod respond;
mod service;
mod settle;

// The public interface, all of it.
#[cfg(feature = "tls")]
#[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
pub use backend::redis::Tls;
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use backend::redis::{ConnectError, RedisBackend};
pub use backend::{Backend, BackendError, Reason, memory::MemoryBackend};
#[cfg(feature = "test-util")]
pub use backend::{
    fake::{Answer, FakeBackend, RecordedCheck, RecordedRefund},
    memory::ManualClock,
};
pub use check::{Check, MAX_PAIRS, Pair, Purpose, Receipt, Refund, RefundPair};
pub use cost::{CostFunction, Costs, RouteCosts};
pub use decision::{Decision, Status, Wait};
pub use deny_cache::DenyCache;
pub use error::ConfigError;
#[cfg(feature = "axum")]
pub use extract::{NoDecision, NoReservation};
pub use future::ResponseFuture;
pub use head::{FromHead, Head, from_head};
pub use key::{
    And, Extension, Header, IntoKey, KeyError, KeyExt, KeyExtractor, Or, PartitionKey, PeerIp, extension,
    header, peer_ip,
};
pub use layer::{Builder, Planned, RateLimitLayer, Unkeyed};
pub use limiter::{
    AdmitFuture, CheckFuture, Limiter, LimiterBuilder, ReserveFuture, Reserved, ResetFuture, Verdict,
};
pub use outage::{Admission, Breaker, LocalDecision, OutageRule, Share, Unchecked};
pub use plan::{
    Draft, Exemption, Keyed, Limit, NoExemptions, OutageBy, OutageSelector, Plan, WithoutKey, limit,
};
pub use policies::{Fixed, Policies, PolicySelector, PolicyTable};
pub use policy::{Algorithm, Policy};
#[cfg(feature = "tonic")]
pub use respond::{Grpc, HttpOrGrpc};
pub use respond::{Http, Outcome, Refusal, RefuseWith, Respond, WithRejection, refuse_with};
pub use service::RateLimit;
pub use settle::{
    ActualCost, ByHand, FromResponse, ReadActualCost, Reservation, ResponseHead, Settled, Settlement,
    Settling, Used, actual_cost, by_hand, from_response,
};

#[cfg(all(doctest, feature = "axum", feature = "redis", feature = "test-util"))]
#[doc = include_str!("../README.md")]
struct Readme;
