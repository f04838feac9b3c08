//! Keys from the request line, and a key for all requests.

use http::Method;

use super::{KeyClosure, KeyExtractor, PartitionKey, partition::KeyValue};
use crate::head::Head;

/// Counts by the method of the request.
///
/// The methods of RFC 9110 and `PATCH` are separate keys. All other methods share the key `other`: a client can invent methods,
/// and would otherwise get a new quota with each of them.
///
/// ```
/// use tower_sliding_window::{KeyExtractor, PartitionKey, key, peer_ip};
///
/// let reads_and_writes = peer_ip().and(key::method());
///
/// let request = http::Request::post("/").body(()).unwrap();
/// assert_eq!(key::method().extract(&(&request).into())?, Some(PartitionKey::new("method", "POST")));
/// # Ok::<(), tower_sliding_window::key::KeyError>(())
/// ```
pub fn method() -> impl KeyExtractor + Clone {
    KeyClosure::new(|head: &Head<'_>| PartitionKey::method(head.method), "")
}

/// Counts all requests together, under a key of this kind and value: a global limit.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, key, limit, peer_ip};
///
/// let second = Duration::from_secs(1);
/// let limits = RateLimitLayer::builder(MemoryBackend::new())
///     .policy(Policy::new("per-address", 10, second)?)
///     .key(peer_ip())
///     .also(limit(key::constant("limit", "global")).policy(Policy::new("global", 10_000, second)?))
///     .build()?;
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
///
/// In a Redis cluster, all of these requests reach one slot.
pub fn constant<V: KeyValue>(kind: &str, value: V) -> impl KeyExtractor + Clone + use<V> {
    let key = PartitionKey::new(kind, value);
    KeyClosure::new(move |_: &Head<'_>| key.clone(), "")
}

/// Returns the name of a method in its key.
pub(super) fn method_name(method: &Method) -> &str {
    const METHODS: [Method; 9] = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::CONNECT,
        Method::OPTIONS,
        Method::TRACE,
        Method::PATCH,
    ];
    if METHODS.contains(method) { method.as_str() } else { "other" }
}
