//! Waiting in front of a client: each request is sent at the instant at which its limit admits it.
//!
//! [`WaitLayer`] suits every client that is a tower service, such as `reqwest::Client`, the client of `hyper-util`, or a channel of
//! tonic. To wait without a service, use [`Limiter::wait`](crate::Limiter::wait), which also states the order of requests and when
//! a request gives up. For details, see [the guide](crate::guide::waiting).

use std::{fmt, time::Duration};

use tower_layer::Layer;

pub use crate::when_denied::{WaitAtMost, WaitError};
use crate::{
    layer::RateLimit,
    layer_core::{LayerCore, SharedCore},
    limiter::Limiter,
    protocol::AnyProtocol,
};

/// A layer that lets requests wait until their limit admits them, as [`Limiter::wait`] does. It belongs around a client.
///
/// The [`Protocol`](crate::protocol::Protocol) states the keys and costs of a request. For a client, it is [`by`](crate::by), with
/// everything that it can do.
/// The error of the service is [`WaitError`], so that any client fits. Clones of the layer, all services that they make, and the
/// limiter share their queues.
///
/// ```
/// use std::time::Duration;
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy, by, wait::WaitLayer};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// # let client = service_fn(async |_: http::Request<()>| Ok::<_, std::io::Error>(http::Response::new(())));
/// let policy = Policy::new("calls", 5, Duration::from_millis(20))?;
/// let limiter = Limiter::builder(MemoryBackend::new()).policy(policy).build()?;
/// // The key is the host, and a request costs 1 unit.
/// let host = by(|request: &http::Request<()>| PartitionKey::new("host", request.uri().host().unwrap_or_default()));
/// let mut client = ServiceBuilder::new().layer(WaitLayer::new(limiter, host)).service(client);
///
/// for _ in 0..12 {
///     let request = http::Request::get("http://api.example/search").body(())?;
///     client.ready().await?.call(request).await?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Readiness
///
/// The service is ready when the inner service is. A waiting request keeps the inner service that is ready for it. If readiness
/// is a permit, as in `tower::limit::ConcurrencyLimit`, a waiting request holds a permit. With the layer inside such a limit, the limit
/// also bounds the waiting requests.
///
/// # Units in flight
///
/// A unit [in flight](crate::Policy::in_flight) is held until the future of the call is complete. For an HTTP client, this is the head of the
/// response, and its body may still be read. To hold the unit until the end of the body, call
/// [`Limiter::wait`](crate::Limiter::wait) and keep the [`Hold`](crate::hold::Hold) with the body, as in
/// [this example](crate::guide::in_flight#hold-a-unit-until-the-body-of-a-client-has-ended).
///
/// # Timeouts
///
/// If a timeout around the layer drops a call that waits, the request leaves the queue, and the
/// [metric of requests](crate::guide::observability#outcomes-of-a-request) does not count it.
pub struct WaitLayer<P> {
    shared: SharedCore<P>,
    wait: WaitAtMost,
}

impl<P> WaitLayer<P> {
    /// The default of [`at_most`](Self::at_most): 60 s.
    pub const DEFAULT_AT_MOST: Duration = Duration::from_secs(60);

    /// Creates a layer from a limiter and a protocol, such as [`by`](crate::by).
    pub fn new(limiter: Limiter, protocol: P) -> Self
    where
        P: AnyProtocol,
    {
        Self { shared: LayerCore::shared(limiter, protocol), wait: WaitAtMost(Self::DEFAULT_AT_MOST) }
    }

    /// Sets the longest wait of a request. The default is [`DEFAULT_AT_MOST`](Self::DEFAULT_AT_MOST). A request whose wait is longer is
    /// rejected at once, as [`Limiter::wait`] states. `Duration::MAX` is no bound.
    #[must_use]
    pub fn at_most(self, at_most: Duration) -> Self {
        Self { wait: WaitAtMost(at_most), ..self }
    }

    /// Returns the limiter of this layer.
    pub fn limiter(&self) -> &Limiter {
        &self.shared.local().limiter
    }
}

impl<S, P> Layer<S> for WaitLayer<P> {
    type Service = RateLimit<S, P, WaitAtMost>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit { inner, shared: self.shared.clone(), when_denied: self.wait }
    }
}

impl<P> Clone for WaitLayer<P> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), wait: self.wait }
    }
}

impl<P> fmt::Debug for WaitLayer<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitLayer")
            .field("limiter", self.limiter())
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}
