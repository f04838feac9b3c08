//! Partition keys: whose usage is counted.
//!
//! A [`KeyExtractor`] takes the [`PartitionKey`] from the [`Head`] of a request. It knows nothing of policies, backends and
//! responses.
//!
//! | key | extractor |
//! | --- | --- |
//! | the value of a header | [`header`](header()) |
//! | the address of the peer | [`peer_ip`](peer_ip()) |
//! | the address of the client behind trusted proxies | [`client_ip`](client_ip()) |
//! | a value that an earlier layer has verified | [`extension`](extension()) |
//! | the value of a cookie | [`cookie`](cookie()) |
//! | the method | [`method`] |
//! | the route that axum has matched (feature `axum`) | `matched_route` |
//! | a parameter of the path | [`path_param`] |
//! | the same key for all requests | [`constant`] |
//! | anything else | a closure: [`RateLimitLayerBuilder::key_by`](crate::RateLimitLayerBuilder::key_by), or [`from_fn`] where a value is needed |
//! | one key, or else another | [`KeyExtractor::or`] |
//! | two keys together | [`KeyExtractor::and`] |

use std::sync::Arc;

use crate::head::Head;

mod address;
mod client_ip;
mod constructors;
mod cookie;
mod extension;
mod forwarded;
mod header;
mod kinds;
mod missing;
mod partition;
mod peer_ip;
mod request;
mod route;
mod secret;

pub use address::{LOOPBACK_NETWORKS, PRIVATE_NETWORKS};
pub use client_ip::{ClientIp, TrustedProxies, client_ip};
pub use cookie::{Cookie, cookie};
pub use extension::extension;
pub use forwarded::ForwardedHeader;
pub use header::{Header, header};
pub use missing::MissingKey;
pub use partition::PartitionKey;
pub(crate) use partition::{KeyHasher, hash_code};
pub use peer_ip::{PeerIp, peer_ip};
pub use request::{constant, method};
#[cfg(feature = "axum")]
pub use route::matched_route;
pub use route::{PathParam, path_param};
pub(crate) use secret::{HashSecret, TooShort};

/// Extracts the partition key from the [`Head`] of a request.
///
/// The trait is dyn-compatible: `Arc<dyn KeyExtractor>` is an extractor too.
///
/// ```
/// use tower_sliding_window::{Head, KeyExtractor, PartitionKey, key::KeyError};
///
/// struct Tenant;
///
/// impl KeyExtractor for Tenant {
///     fn extract(&self, head: &Head<'_>) -> Result<Option<PartitionKey>, KeyError> {
///         Ok(head.header("x-tenant").map(|tenant| PartitionKey::new("tenant", tenant)))
///     }
/// }
///
/// let request = http::Request::get("/").header("x-tenant", "acme").body(()).unwrap();
/// assert_eq!(Tenant.extract(&(&request).into())?, Some(PartitionKey::new("tenant", "acme")));
/// # Ok::<(), KeyError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key extractor",
    label = "expected a key extractor, such as `header(\"x-api-key\")?` or `peer_ip()`",
    note = "if the value is a `Result`, add `?`; if it is the name of a header, write `header(\"..\")?`",
    note = "if it is a closure, call `.key_by(|head| ..)` instead, or `key::from_fn(|head| ..)` to combine it with other keys",
    note = "if it is a `PartitionKey` that all requests share, call `.key_by(move |_| key.clone())`",
    note = "if it is a `Limit`, add it with `.also(limit(..))`; `.key(..)` takes the key alone"
)]
pub trait KeyExtractor: Send + Sync + 'static {
    /// Returns the partition key of this request, or `None` if the request has no key of this kind.
    ///
    /// # Errors
    ///
    /// Returns a [`KeyError`] if the request has a value that cannot be read as a key. The layer then rejects the request and
    /// does not guess.
    fn extract(&self, head: &Head<'_>) -> Result<Option<PartitionKey>, KeyError>;

    /// Returns what this request lacks, for the text of [`KeyError::Missing`]: `header "x-api-key"`. The layer calls it only to
    /// reject a request for which [`extract`](Self::extract) returned `None`. The client reads the text in the 400.
    ///
    /// By default, it returns an empty string: the text then names nothing.
    fn missing(&self, head: &Head<'_>) -> String {
        let _ = head;
        String::new()
    }

    /// Returns whether this key is, or contains, the address of the peer. By default, it is not.
    ///
    /// If most of the first 1,000 requests of a layer then have a header in which proxies report the address of the client, the layer
    /// logs a warning (feature `tracing`): all clients of a proxy share one key.
    fn is_peer_address(&self) -> bool {
        false
    }

    /// Returns whether a request has no key of this kind because it lacks an [`extension`], which an outer layer inserts. Called only for
    /// a request without a key. False by default.
    ///
    /// If this is so for the first 100 requests that need the key, the layer logs one warning (feature `tracing`): its order among the other
    /// layers may be wrong.
    fn lacks_extension(&self, head: &Head<'_>) -> bool {
        let _ = head;
        false
    }

    /// Uses this key, or the other one if a request has no key of this kind.
    ///
    /// The kind is a part of every key, so one client's header cannot equal another client's address. If this key is
    /// malformed, the request is rejected and the other key is not tried.
    ///
    /// **The client chooses which of the two keys counts.** `header("x-api-key")?.or(peer_ip())` does not limit: a client
    /// that sends a new header value with every request gets a new quota each time. Combine only keys that a client cannot
    /// invent, such as an [`extension`] that an earlier layer has verified. To limit an unverified header *and* the address,
    /// use [`RateLimitLayerBuilder::also`](crate::RateLimitLayerBuilder::also).
    fn or<K: KeyExtractor>(self, other: K) -> impl KeyExtractor + Clone
    where
        Self: Sized,
    {
        Or(Arc::new((self, other)))
    }

    /// Uses both keys together: a user *at* an address. A request that lacks one of them has no key.
    fn and<K: KeyExtractor>(self, other: K) -> impl KeyExtractor + Clone
    where
        Self: Sized,
    {
        And(Arc::new((self, other)))
    }
}

/// The reason why a request has no partition key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The request has no key.
    #[error("missing rate limit key{}", not_found(.what))]
    #[non_exhaustive]
    Missing {
        /// What the request lacks, for example `header "x-api-key"`. May be empty.
        what: String,
    },
    /// The request has a key that cannot be read.
    #[error("malformed rate limit key: {what}: {why}")]
    #[non_exhaustive]
    Malformed {
        /// The part of the request, for example the name of a header.
        what: String,
        /// The problem with it.
        why: String,
    },
    /// The server is not set up to read the key.
    #[error("misconfigured rate limit key: {what}")]
    #[non_exhaustive]
    Misconfigured {
        /// The missing part of the set-up.
        what: String,
    },
}

impl KeyError {
    /// Creates the error of a request without a key. `what` names what it lacks, for example `header "x-tenant"`. The client
    /// reads the name in the 400.
    ///
    /// ```
    /// use tower_sliding_window::key::KeyError;
    ///
    /// let error = KeyError::missing(r#"header "x-tenant""#);
    /// assert_eq!(error.to_string(), r#"missing rate limit key: header "x-tenant" not found"#);
    /// ```
    pub fn missing(what: impl Into<String>) -> Self {
        Self::Missing { what: what.into() }
    }

    /// Creates the error of a request with a key that cannot be read. `what` names the part of the request, and `why` states the problem
    /// with it. The client reads both in the 400.
    ///
    /// ```
    /// use tower_sliding_window::key::KeyError;
    ///
    /// let error = KeyError::malformed(r#"header "x-tenant""#, "the value is no number");
    /// assert_eq!(error.to_string(), r#"malformed rate limit key: header "x-tenant": the value is no number"#);
    /// ```
    pub fn malformed(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Malformed { what: what.into(), why: why.into() }
    }

    /// Creates the error of a server that is not set up to read the key. `what` names the missing part. No client reads it: the response
    /// is a 500.
    pub fn misconfigured(what: impl Into<String>) -> Self {
        Self::Misconfigured { what: what.into() }
    }
}

fn not_found(what: &str) -> String {
    if what.is_empty() { String::new() } else { format!(": {what} not found") }
}

/// Converts the return value of a key closure: a [`PartitionKey`], or an `Option` or a `Result` of one.
///
/// A key always includes its kind, so the keys of two closures are never equal by accident.
#[diagnostic::on_unimplemented(
    message = "a key closure must return a `PartitionKey`, but this one returns `{Self}`",
    label = "expected a `PartitionKey`, an `Option` of one, or a `Result` of one with `KeyError`",
    note = "a partition key includes its kind: return `PartitionKey::new(\"tenant\", value)`, or an `Option` of it"
)]
pub trait IntoKey {
    /// Converts the value to the result of an extractor.
    ///
    /// # Errors
    ///
    /// Returns the [`KeyError`] of a `Result`.
    fn into_key(self) -> Result<Option<PartitionKey>, KeyError>;
}

impl IntoKey for PartitionKey {
    fn into_key(self) -> Result<Option<PartitionKey>, KeyError> {
        Ok(Some(self))
    }
}

#[diagnostic::do_not_recommend]
impl<K: IntoKey> IntoKey for Option<K> {
    fn into_key(self) -> Result<Option<PartitionKey>, KeyError> {
        self.map_or(Ok(None), K::into_key)
    }
}

#[diagnostic::do_not_recommend]
impl<K: IntoKey> IntoKey for Result<K, KeyError> {
    fn into_key(self) -> Result<Option<PartitionKey>, KeyError> {
        self.and_then(K::into_key)
    }
}

#[diagnostic::do_not_recommend]
impl<K: KeyExtractor + ?Sized> KeyExtractor for Arc<K> {
    fn extract(&self, head: &Head<'_>) -> Result<Option<PartitionKey>, KeyError> {
        (**self).extract(head)
    }

    fn missing(&self, head: &Head<'_>) -> String {
        (**self).missing(head)
    }

    fn is_peer_address(&self) -> bool {
        (**self).is_peer_address()
    }

    fn lacks_extension(&self, head: &Head<'_>) -> bool {
        (**self).lacks_extension(head)
    }
}

/// One key, or else another.
struct Or<A, B>(Arc<(A, B)>);

/// Two keys together.
struct And<A, B>(Arc<(A, B)>);

// The keys need not be `Clone`.
impl<A, B> Clone for Or<A, B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<A, B> Clone for And<A, B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for Or<A, B> {
    fn extract(&self, head: &Head<'_>) -> Result<Option<PartitionKey>, KeyError> {
        let (one, other) = &*self.0;
        match one.extract(head)? {
            Some(key) => Ok(Some(key)),
            None => other.extract(head),
        }
    }

    fn missing(&self, head: &Head<'_>) -> String {
        let (one, other) = &*self.0;
        let mut names = vec![one.missing(head), other.missing(head)];
        names.retain(|name| !name.is_empty());
        names.join(" or ")
    }

    fn is_peer_address(&self) -> bool {
        let (one, other) = &*self.0;
        one.is_peer_address() || other.is_peer_address()
    }

    fn lacks_extension(&self, head: &Head<'_>) -> bool {
        let (one, other) = &*self.0;
        one.lacks_extension(head) || other.lacks_extension(head)
    }
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for And<A, B> {
    fn extract(&self, head: &Head<'_>) -> Result<Option<PartitionKey>, KeyError> {
        let (one, other) = &*self.0;
        let Some(first) = one.extract(head)? else { return Ok(None) };
        Ok(other.extract(head)?.map(|second| first.and(&second)))
    }

    fn missing(&self, head: &Head<'_>) -> String {
        let (one, other) = &*self.0;
        match one.extract(head) {
            Ok(None) => one.missing(head),
            _ => other.missing(head),
        }
    }

    fn is_peer_address(&self) -> bool {
        let (one, other) = &*self.0;
        one.is_peer_address() || other.is_peer_address()
    }

    fn lacks_extension(&self, head: &Head<'_>) -> bool {
        let (one, other) = &*self.0;
        match one.extract(head) {
            Ok(None) => one.lacks_extension(head),
            _ => other.lacks_extension(head),
        }
    }
}

/// A closure as a key extractor.
struct KeyClosure<F> {
    key: Arc<F>,
    /// What a request without the key lacks.
    missing: String,
    is_extension: bool,
}

impl<F> KeyClosure<F> {
    fn new(key: F, missing: impl Into<String>) -> Self {
        Self { key: Arc::new(key), missing: missing.into(), is_extension: false }
    }
}

// The closure need not be `Clone`.
impl<F> Clone for KeyClosure<F> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), missing: self.missing.clone(), is_extension: self.is_extension }
    }
}

#[diagnostic::do_not_recommend]
impl<F, K> KeyExtractor for KeyClosure<F>
where
    F: Fn(&Head<'_>) -> K + Send + Sync + 'static,
    K: IntoKey,
{
    fn extract(&self, head: &Head<'_>) -> Result<Option<PartitionKey>, KeyError> {
        (self.key)(head).into_key()
    }

    fn missing(&self, _head: &Head<'_>) -> String {
        self.missing.clone()
    }

    fn lacks_extension(&self, _head: &Head<'_>) -> bool {
        self.is_extension
    }
}

/// Makes a [`KeyExtractor`] from a closure, to combine it with other keys.
///
/// Closures are not extractors by themselves. Otherwise the compiler would report every mistake as a problem with closures.
///
/// ```
/// use tower_sliding_window::{KeyExtractor, PartitionKey, key, peer_ip};
///
/// let access = key::from_fn(|head| {
///     PartitionKey::new("access", if head.method.is_safe() { "read" } else { "write" })
/// });
/// let by_access_and_address = access.and(peer_ip());
/// ```
pub fn from_fn<F, K>(key: F) -> impl KeyExtractor + Clone
where
    F: Fn(&Head<'_>) -> K + Send + Sync + 'static,
    K: IntoKey,
{
    KeyClosure::new(key, "")
}
