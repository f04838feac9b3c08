//! The layer and its service.

use std::{
    fmt, mem,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tower_layer::Layer;
use tower_service::Service;

use super::{error::WaitError, future::ResponseFuture};
use crate::{
    limiter::{Limiter, WaitFuture},
    protocol::{AnyProtocol, Protocol},
    shared::Shared,
};

/// A layer that lets requests wait until their limit admits them, as [`Limiter::wait`] does. It belongs around a client.
///
/// The [`Protocol`] states the keys and costs of a request. For a client, it is [`by`](crate::by), with everything that it can do.
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
pub struct WaitLayer<P> {
    shared: Arc<Shared<P>>,
    at_most: Duration,
}

/// A service whose requests wait for their limit. Made by [`WaitLayer`].
pub struct WaitService<S, P> {
    inner: S,
    shared: Arc<Shared<P>>,
    at_most: Duration,
}

impl<P> WaitLayer<P> {
    /// The default of [`at_most`](Self::at_most): 60 s.
    pub const DEFAULT_AT_MOST: Duration = Duration::from_secs(60);

    /// Creates a layer from a limiter and a protocol, such as [`by`](crate::by).
    pub fn new(limiter: Limiter, protocol: P) -> Self
    where
        P: AnyProtocol,
    {
        Self { shared: Arc::new(Shared::new(limiter, protocol)), at_most: Self::DEFAULT_AT_MOST }
    }

    /// Sets the longest wait of a request. The default is [`DEFAULT_AT_MOST`](Self::DEFAULT_AT_MOST). A request whose wait is longer is
    /// rejected at once, as [`Limiter::wait`] states. `Duration::MAX` is no bound.
    #[must_use]
    pub fn at_most(self, at_most: Duration) -> Self {
        Self { at_most, ..self }
    }

    /// Returns the limiter of this layer.
    pub fn limiter(&self) -> &Limiter {
        &self.shared.limiter
    }
}

impl<S, P> Layer<S> for WaitLayer<P> {
    type Service = WaitService<S, P>;

    fn layer(&self, inner: S) -> Self::Service {
        WaitService { inner, shared: self.shared.clone(), at_most: self.at_most }
    }
}

impl<S, P, Req> Service<Req> for WaitService<S, P>
where
    S: Service<Req> + Clone,
    P: Protocol<Req, S::Response, WaitError<S::Error>>,
{
    type Response = P::Response;
    type Error = WaitError<S::Error>;
    type Future = ResponseFuture<S, Req, P>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(WaitError::Inner)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let Shared { limiter, protocol, .. } = &*self.shared;
        let waiting = match protocol.plan(&request) {
            Ok(draft) => match limiter.start_waiting(draft, self.at_most) {
                Some(waiting) => waiting,
                None => {
                    self.shared.responded(None, || protocol.route(&request));
                    return ResponseFuture::running(self.inner.call(request), self.shared.clone(), None);
                }
            },
            Err(error) => WaitFuture::rejected(limiter.reject_key(error)),
        };
        // Takes the service that `poll_ready` has made ready. Its clone is not ready.
        let unready = self.inner.clone();
        let ready = mem::replace(&mut self.inner, unready);
        ResponseFuture::waiting(waiting, ready, request, self.shared.clone())
    }
}

impl<P> Clone for WaitLayer<P> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), at_most: self.at_most }
    }
}

impl<S: Clone, P> Clone for WaitService<S, P> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: self.shared.clone(), at_most: self.at_most }
    }
}

impl<P> fmt::Debug for WaitLayer<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitLayer")
            .field("limiter", &self.shared.limiter)
            .field("at_most", &self.at_most)
            .finish_non_exhaustive()
    }
}

impl<S: fmt::Debug, P> fmt::Debug for WaitService<S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitService")
            .field("inner", &self.inner)
            .field("limiter", &self.shared.limiter)
            .field("at_most", &self.at_most)
            .finish_non_exhaustive()
    }
}
