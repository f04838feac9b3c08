//! From a request to the partition key: whose usage is counted.
//!
//! An extractor knows requests. It knows nothing of policies, backends and responses.

mod closure;
mod combine;
mod extension;
mod header;
mod partition;
mod peer_ip;

pub use combine::{And, KeyExt, Or};
pub use extension::{Extension, extension};
pub use header::{Header, header};
pub use partition::PartitionKey;
pub use peer_ip::{PeerIp, peer_ip};

/// Takes the partition key from a request of the type `Req`.
///
/// Every closure `Fn(&Req) -> K` whose `K` is an [`IntoKey`] is an extractor too. Write its parameter's type, or use
/// [`from_head`](crate::from_head), which knows it:
///
/// ```
/// use tower_sliding_window::{KeyExtractor, PartitionKey, from_head};
///
/// struct Job { tenant: String }
///
/// let by_tenant = |job: &Job| PartitionKey::new("tenant", &job.tenant);
/// let key = by_tenant.extract(&Job { tenant: "acme".into() })?;
/// assert_eq!(key, Some(PartitionKey::new("tenant", "acme")));
///
/// let by_host = from_head(|head| head.uri.host().map(|host| PartitionKey::new("host", host)));
/// # let _ = KeyExtractor::<http::Request<()>>::extract(&by_host, &http::Request::new(()))?;
/// # Ok::<(), tower_sliding_window::KeyError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` takes no partition key from a `{Req}`",
    note = "for an HTTP request use `header`, `peer_ip`, `extension` or `from_head`; a plain closure names its parameter: `|request: &{Req}|`, and returns a `PartitionKey` or an `Option` of one"
)]
pub trait KeyExtractor<Req> {
    /// The partition key of this request, or `None` if the request has none of this kind; then [`or`](KeyExt::or) asks
    /// the next extractor.
    ///
    /// # Errors
    ///
    /// A [`KeyError`] if there is something that cannot be read as a key. Nobody guesses then.
    fn extract(&self, request: &Req) -> Result<Option<PartitionKey>, KeyError>;
}

/// Why a request has no partition key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The request does not say whose it is.
    #[error("the request names nobody whose usage could be counted")]
    Missing,
    /// The request says it in a way that cannot be read.
    #[error("{what}: {why}")]
    Malformed {
        /// Where in the request: the header's name, for example.
        what: String,
        /// What is wrong there.
        why: String,
    },
    /// The server is not set up to know it.
    #[error("{what}")]
    Misconfigured {
        /// What is missing in the set-up.
        what: String,
    },
}

/// What a closure may return for a key: a [`PartitionKey`], or an `Option` or a `Result` of one. A key always says of
/// which kind it is, so that what two closures find can never be one key by accident.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` is no partition key",
    note = "a key says of which kind it is: return `PartitionKey::new(\"tenant\", value)`, or an `Option` of it"
)]
pub trait IntoKey {
    /// Turns it into what an extractor returns.
    ///
    /// # Errors
    ///
    /// Those of the `Result` that it was.
    fn into_key(self) -> Result<Option<PartitionKey>, KeyError>;
}

impl IntoKey for PartitionKey {
    fn into_key(self) -> Result<Option<PartitionKey>, KeyError> {
        Ok(Some(self))
    }
}

impl<K: IntoKey> IntoKey for Option<K> {
    fn into_key(self) -> Result<Option<PartitionKey>, KeyError> {
        self.map_or(Ok(None), K::into_key)
    }
}

impl<K: IntoKey> IntoKey for Result<K, KeyError> {
    fn into_key(self) -> Result<Option<PartitionKey>, KeyError> {
        self.and_then(K::into_key)
    }
}
