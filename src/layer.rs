//! The layer.

use std::{fmt, sync::Arc};

use tower_layer::Layer;

use crate::{
    limiter::Limiter,
    protocol::{AnyProtocol, Fits, Http, SameBody},
    service::RateLimit,
    shared::Shared,
    wait::DenyAtOnce,
};

/// A rate limit layer for tower services. It checks every request, and rejects the requests that exceed a limit.
///
/// `P` is the [`Protocol`](crate::protocol::Protocol) of the service. For HTTP, it is [`Http`], regardless of the closures of the
/// layer. So the type in a struct is `RateLimitLayer`. Cloning is cheap. All clones, and all services that they make, share one
/// state.
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::get};
/// use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, RouteCosts, peer_ip};
///
/// struct App { limits: RateLimitLayer }
///
/// let limits = RateLimitLayer::builder(MemoryBackend::new())
///     .policy(Policy::new("burst", 10, Duration::from_secs(1))?)
///     .policy(Policy::new("sustained", 1_000, Duration::from_secs(3600))?)
///     .key(peer_ip())
///     .cost(RouteCosts::new().route("/search", 10)?)
///     .build()?;
///
/// # async fn search() {}
/// let app: Router = Router::new().route("/search", get(search)).layer(limits.clone());
/// # let _ = App { limits };
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
///
/// # Build a layer once
///
/// Build each layer, and each backend, when the service starts, and clone it. Do not build a layer inside a handler or a middleware
/// function:
///
/// - With a new `RedisBackend` for each request, each request opens a connection, and forgets denials and failures of the server.
/// - With a new [`MemoryBackend`](crate::MemoryBackend) for each request, *nothing is limited*: each one is empty. No event warns
///   about this.
///
/// With the feature `tracing`, the crate logs one warning for each store and namespace, if 20 limiters are dropped within a minute
/// that have lived for less than a minute. A store is a Redis at an address, or a `MemoryBackend` and its clones. A service that
/// builds many layers at its start and keeps them causes no warning.
///
/// # Nested layers
///
/// If a request passes several layers, each of them makes a check of its own. The outer layer has charged the request even if
/// the inner layer denies it. To charge all or nothing, use [one layer with several limits](crate::Builder::also).
///
/// Two nested layers should have different policies. If both charge the same partition key for the same policy, in the same
/// namespace of the same store, every request counts twice. This often happens to a layer that is added to a router and to one
/// of its routes. With the feature `tracing`, the inner layer then logs one warning for each policy. It charges nevertheless: the
/// second charge may be intended, although a [cost](crate::guide::costs) states it better. A layer finds the charges of all outer
/// layers for HTTP whose decisions were made by the store.
pub struct RateLimitLayer<P = Http>(Arc<Shared<P>>);

impl<P> RateLimitLayer<P> {
    /// Creates a layer from a limiter and a protocol: for services that are not HTTP, with [`by`](crate::by).
    pub fn new(limiter: Limiter, protocol: P) -> Self
    where
        P: AnyProtocol,
    {
        Self(Arc::new(Shared::new(limiter, protocol)))
    }

    /// Returns the limiter of this layer.
    pub fn limiter(&self) -> &Limiter {
        &self.0.limiter
    }
}

impl RateLimitLayer {
    /// Returns the same layer for services that must keep their body type, which must be `From<Bytes>`.
    ///
    /// By default, the response body is [`LimitedBody`](crate::LimitedBody), which accepts any inner body. Use `same_body` for
    /// `tower::util::option_layer(limits)`, for `axum::serve` around a limited `Router`, and for boxed services that name
    /// `Response<Body>`.
    pub fn same_body(&self) -> RateLimitLayer<SameBody> {
        RateLimitLayer::new(self.0.limiter.clone(), self.0.protocol.same_body())
    }
}

impl<S, P: Fits<S>> Layer<S> for RateLimitLayer<P> {
    type Service = RateLimit<S, P>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, self.0.clone(), DenyAtOnce)
    }
}

impl<P> Clone for RateLimitLayer<P> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<P> fmt::Debug for RateLimitLayer<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("limiter", &self.0.limiter).finish_non_exhaustive()
    }
}
