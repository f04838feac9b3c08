//! The guide: one page per topic, with examples that compile.
//!
//! | question | page |
//! | --- | --- |
//! | Which algorithm suits my limit? | [`algorithms`] |
//! | How do I limit by tier or by route? How do I change policies while the service runs? | [`policies`] |
//! | Whose usage is counted? How do I limit by user *and* by address? | [`keys`] |
//! | How do I weight requests? | [`costs`] |
//! | What happens if Redis does not answer? | [`outages`] |
//! | What do I measure, and when do I raise an alert? | [`observability`] |
//! | How do I charge what a request has actually used, also in another process? | [`settling`] |
//! | How does a gateway limit tokens and dollars? How does it charge a streamed answer? | [`language_models`] |
//! | One key has more requests than Redis can decide. What can I do? | [`leases`] |
//! | Can three regions share one Redis? What do their requests wait for? | [`regions`] |
//! | How do I connect to Redis, to Sentinel, to a cluster, or to a managed Redis? | [`cluster`] |
//! | What do I configure on Redis, and where do I place it? What about several regions? | [`deployment`] |
//! | How do I limit a gRPC service? | [`grpc`] |
//! | How do I limit by address behind a proxy? How do I combine the layer with CORS? | [`proxies`] |
//! | Which header fields does a client see? How do I hide a policy? Why is a request rejected with 400, 500 or 503? | [`responses`] |
//! | How do I try a limit before it rejects requests? | [`rollout`] |
//! | How does an outgoing call or a job wait for its limit? How does it obey the limits that an API states, and use a whole daily quota? | [`waiting`] |
//! | How do I limit the requests that run at the same time? | [`in_flight`] |
//! | How do I limit a worker, a cron run, a serverless function or a synchronous caller? | [`jobs`] |
//! | Why does my limit admit every request? | [`limits_nothing`] |
//! | How many decisions can one Redis make? What do I do with a hot key? | [`capacity`] |
//! | How do I test a limited service? | [`testing`] |
//! | How do I limit logins by the body, a WebSocket, GraphQL, or several routers? How do I look up or reset a usage? | [`cookbook`] |
//! | How do I choose between memory and Redis at run time? | [`cookbook`] |
//! | Where does the layer belong among CORS, authentication and timeouts? | [`cookbook`] |
//! | How do batch requests or retries leave room for others? | [`cookbook`] |
//! | How do I migrate from tower_governor, governor, redis-cell, or a script of my own? | [`migration`] |
//! | Is `INCREX` a rate limiter? Why not Envoy? What does this crate not do? | [`alternatives`] |
//!
//! The examples use [`MemoryBackend`](crate::MemoryBackend) where the backend makes no difference. They compile with any other
//! backend, too.
//!
//! # Examples
//!
//! To try an example, paste it into an `async` function that returns `Result<(), Box<dyn std::error::Error>>`, under `#[tokio::main]`
//! or `#[tokio::test]`. The `use` lines of an example name its crates. Most of them need:
//!
//! ```sh
//! cargo add tower-sliding-window --features axum
//! cargo add axum http
//! cargo add tokio --features full
//! cargo add tower --features util
//! cargo add serde --features derive
//! ```
//!
//! If an example ends with an `app`, serve it with the address of the peer, which [`peer_ip`](crate::peer_ip) reads:
//!
//! ```no_run
//! # async fn serve(app: axum::Router) -> Result<(), Box<dyn std::error::Error>> {
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//! axum::serve(listener, app.into_make_service_with_connect_info::<std::net::SocketAddr>()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Larger examples are programs in the folder `examples` of the repository. In a clone of it, run `cargo run --example axum`. The other
//! commands of this guide, such as `cargo bench`, run in a clone as well.

// Rustdoc copies no files, so a page contains its pictures. `tests/pictures` makes them. `cargo run --example playground -- charts
// src/guide/pictures` makes only the charts, and `cargo run --example day -- chart src/guide/pictures` that of a day.
// `dashboards/README.md` states how the picture of the dashboard is made.

// A page without a feature that it needs would contain broken links. It links to docs.rs instead.

#[doc = concat!(
    include_str!("algorithms.md"),
    "\n[bursts]: ",
    include_str!("pictures/bursts.txt"),
    "\n\n[stream]: ",
    include_str!("pictures/stream.txt")
)]
pub mod algorithms {}

#[doc = include_str!("alternatives.md")]
pub mod alternatives {}

#[doc = include_str!("capacity.md")]
pub mod capacity {}

#[cfg_attr(feature = "redis", doc = include_str!("cluster.md"))]
#[cfg_attr(
    not(feature = "redis"),
    doc = "Redis: the [page](https://docs.rs/tower-sliding-window/latest/tower_sliding_window/guide/cluster/) needs the feature `redis`."
)]
pub mod cluster {}

#[doc = include_str!("cookbook.md")]
pub mod cookbook {}

#[doc = include_str!("costs.md")]
pub mod costs {}

#[doc = include_str!("deployment.md")]
pub mod deployment {}

#[cfg_attr(feature = "tonic", doc = include_str!("grpc.md"))]
#[cfg_attr(
    not(feature = "tonic"),
    doc = "gRPC: the [page](https://docs.rs/tower-sliding-window/latest/tower_sliding_window/guide/grpc/) needs the feature `tonic`."
)]
pub mod grpc {}

#[doc = include_str!("in_flight.md")]
pub mod in_flight {}

#[doc = include_str!("jobs.md")]
pub mod jobs {}

#[doc = include_str!("keys.md")]
pub mod keys {}

#[doc = include_str!("language_models.md")]
pub mod language_models {}

#[doc = include_str!("leases.md")]
pub mod leases {}

#[doc = include_str!("limits_nothing.md")]
pub mod limits_nothing {}

#[doc = include_str!("migration.md")]
pub mod migration {}

#[doc = concat!(include_str!("observability.md"), "\n[dashboard]: ", include_str!("pictures/dashboard.txt"))]
pub mod observability {}

#[doc = concat!(include_str!("outages.md"), "\n[playground]: ", include_str!("pictures/outage.txt"))]
pub mod outages {}

#[doc = include_str!("policies.md")]
pub mod policies {}

#[doc = include_str!("proxies.md")]
pub mod proxies {}

#[doc = include_str!("regions.md")]
pub mod regions {}

#[doc = include_str!("responses.md")]
pub mod responses {}

#[doc = include_str!("settling.md")]
pub mod settling {}

#[doc = include_str!("rollout.md")]
pub mod rollout {}

#[cfg_attr(feature = "test-util", doc = include_str!("testing.md"))]
#[cfg_attr(
    not(feature = "test-util"),
    doc = "Unit tests: the [page](https://docs.rs/tower-sliding-window/latest/tower_sliding_window/guide/testing/) needs the feature `test-util`."
)]
pub mod testing {}

#[doc = concat!(include_str!("waiting.md"), "\n[day]: ", include_str!("pictures/day.txt"))]
pub mod waiting {}
