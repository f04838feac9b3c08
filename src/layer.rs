//! The layer and its service: it plans the check of a request, starts it, and takes the ready inner service along.

use std::{
    fmt, mem,
    task::{Context, Poll},
};

use tower_layer::Layer;
use tower_service::Service;

use crate::{
    error::ConfigError,
    future::ResponseFuture,
    layer_core::{LayerCore, SharedCore},
    limiter::Limiter,
    now_or_later::NowOrLater,
    protocol::{AnyProtocol, Fits, Http, Protocol, SameBody},
    when_denied::{DenyAtOnce, WhenDenied},
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
/// the inner layer denies it. To charge all or nothing, use [one layer with several limits](crate::RateLimitLayerBuilder::also).
///
/// Two nested layers should have different policies. If both charge the same partition key for the same policy, in the same
/// namespace of the same store, every request counts twice. This often happens to a layer that is added to a router and to one
/// of its routes. With the feature `tracing`, the inner layer then logs one warning for each policy. It charges nevertheless: the
/// second charge may be intended, although a [cost](crate::guide::costs) states it better. A layer finds the charges of all outer
/// layers for HTTP whose decisions were made by the store.
pub struct RateLimitLayer<P = Http>(SharedCore<P>);

impl<P> RateLimitLayer<P> {
    /// Creates a layer from a limiter and a protocol: for services that are not HTTP, with [`by`](crate::by).
    pub fn new(limiter: Limiter, protocol: P) -> Self
    where
        P: AnyProtocol,
    {
        Self(LayerCore::shared(limiter, protocol))
    }

    /// Returns the limiter of this layer.
    ///
    /// Its policies are those of [`RateLimitLayerBuilder::policy`](crate::RateLimitLayerBuilder::policy), or those of the limiter over which the layer was built. It has
    /// no policies of [further limits](crate::RateLimitLayerBuilder::also), and none that are [chosen for each request](crate::RateLimitLayerBuilder::policies). To
    /// look up or reset their usage, state the policy with [`Draft::check_against`](crate::protocol::Draft::check_against): see [the
    /// guide](crate::guide::cookbook#look-up-or-reset-the-usage-of-a-key).
    pub fn limiter(&self) -> &Limiter {
        &self.0.local().limiter
    }
}

impl RateLimitLayer {
    /// Returns the same layer for services that must keep their body type, which must be `From<Bytes>`.
    ///
    /// By default, the response body is [`LimitedBody`](crate::LimitedBody), which accepts any inner body. Use `same_body` for
    /// `tower::util::option_layer(limits)`, for `axum::serve` around a limited `Router`, and for boxed services that name
    /// `Response<Body>`.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::SameBody`] if a policy is [in flight](crate::Policy::in_flight), and [`ConfigError::InvalidTier`] if that of a
    /// [policy table](crate::policy::PolicyTable) is: without its own type, the layer does not see the end of a body. A later change of
    /// the table that adds one is an error, too. A policy in flight that a closure chooses by the request is held until the head of the
    /// response.
    pub fn same_body(&self) -> Result<RateLimitLayer<SameBody>, ConfigError> {
        let protocol = self.0.local().protocol.same_body(self.limiter().policies())?;
        Ok(RateLimitLayer::new(self.limiter().clone(), protocol))
    }
}

impl<S, P: Fits<S>> Layer<S> for RateLimitLayer<P> {
    type Service = RateLimit<S, P>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit { inner, shared: self.0.clone(), when_denied: DenyAtOnce }
    }
}

impl<P> Clone for RateLimitLayer<P> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<P> fmt::Debug for RateLimitLayer<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("limiter", self.limiter()).finish_non_exhaustive()
    }
}

/// A rate limited service. Made by [`RateLimitLayer`] and [`WaitLayer`](crate::wait::WaitLayer).
///
/// It is ready when the inner service is. The inner service receives the admitted requests, and no others. `W` states what happens to
/// denied ones.
pub struct RateLimit<S, P = Http, W = DenyAtOnce> {
    pub(crate) inner: S,
    pub(crate) shared: SharedCore<P>,
    pub(crate) when_denied: W,
}

impl<S: Clone, P, W> RateLimit<S, P, W> {
    /// Takes the inner service that `poll_ready` has made ready, and leaves a clone that is not ready yet.
    ///
    /// Calling the clone would be wrong: readiness may be a permit, which a clone does not have. If the request is rejected,
    /// dropping the ready service returns the permit.
    fn take_ready(&mut self) -> S {
        let unready = self.inner.clone();
        mem::replace(&mut self.inner, unready)
    }
}

impl<S, P, W, Req> Service<Req> for RateLimit<S, P, W>
where
    S: Service<Req> + Clone,
    W: WhenDenied,
    P: Protocol<Req, S::Response, W::Error<S::Error>>,
{
    type Response = P::Response;
    type Error = W::Error<S::Error>;
    type Future = ResponseFuture<S, Req, P, W>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(W::inner_error)
    }

    fn call(&mut self, mut request: Req) -> Self::Future {
        let core = self.shared.local();
        let LayerCore { limiter, protocol, .. }: &LayerCore<P> = core;
        let outcome = match limiter.start(protocol.plan(&request), self.when_denied.at_most()) {
            None => {
                core.responded(None, || protocol.route(&request));
                return ResponseFuture::running(self.inner.call(request), core.clone(), None);
            }
            // Decided at once: the ready service need not be moved into the future, which saves a clone.
            Some(NowOrLater::Now(Some(outcome))) => outcome,
            Some(admitting) => {
                let core = core.clone();
                return ResponseFuture::checking(admitting, self.take_ready(), request, core);
            }
        };
        core.responded(Some(&outcome), || protocol.route(&request));
        match outcome {
            Ok(admission) => {
                protocol.admit(&mut request, &admission);
                ResponseFuture::running(self.inner.call(request), core.clone(), Some(admission))
            }
            Err(rejection) => {
                let core = core.clone();
                // First of all: if building the response panics, the permit is returned.
                drop(self.take_ready());
                ResponseFuture::rejected(&core.protocol, &request, rejection)
            }
        }
    }
}

impl<S: Clone, P, W: Clone> Clone for RateLimit<S, P, W> {
    fn clone(&self) -> Self {
        let Self { inner, shared, when_denied } = self;
        Self { inner: inner.clone(), shared: shared.clone(), when_denied: when_denied.clone() }
    }
}

impl<S: fmt::Debug, P, W: fmt::Debug> fmt::Debug for RateLimit<S, P, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("limiter", &self.shared.local().limiter)
            .field("when_denied", &self.when_denied)
            .finish_non_exhaustive()
    }
}
