//! The head of an HTTP request, for closures that do not care what its body is.

use http::{Extensions, HeaderMap, Method, Request, Uri};

/// A request without its body.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Head<'a> {
    /// The method.
    pub method: &'a Method,
    /// The URI.
    pub uri: &'a Uri,
    /// The header fields.
    pub headers: &'a HeaderMap,
    /// What earlier layers left for later ones.
    pub extensions: &'a Extensions,
}

/// A closure over the [`Head`] of an HTTP request, made by [`from_head`].
#[derive(Clone, Copy, Debug)]
pub struct FromHead<F>(F);

/// Makes a key, a cost or an exemption of a closure over the head of an HTTP request, whatever its body is. The
/// closure's parameter needs no type; what it returns must be owned.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{MemoryBackend, PartitionKey, Policy, RateLimitLayer, from_head};
///
/// let limits = RateLimitLayer::builder(MemoryBackend::new())
///     .policy(Policy::new("burst", 10, Duration::from_secs(1))?)
///     .key(from_head(|head| Some(PartitionKey::new("tenant", head.headers.get("x-tenant")?))))
///     .cost(from_head(|head| if head.method.is_safe() { 1 } else { 5 }))
///     .exempt(from_head(|head| head.uri.path() == "/health"))
///     .build()?;
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
pub fn from_head<F, T>(closure: F) -> FromHead<F>
where
    F: Fn(&Head<'_>) -> T,
{
    FromHead(closure)
}

impl<F> FromHead<F> {
    pub(crate) fn call<B, T>(&self, request: &Request<B>) -> T
    where
        F: Fn(&Head<'_>) -> T,
    {
        self.0(&Head {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        })
    }
}
