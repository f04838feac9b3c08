//! The rule for requests without a key.

use super::PartitionKey;

/// The rule for a request that has no key of the kind that a limit counts by.
///
/// If a key exists but cannot be read, the request is rejected in any case. Otherwise a client could choose, by sending a
/// malformed value, to share a limit or to avoid it. A request is also rejected if the server is not set up to read the key,
/// for example the peer's address without connect info.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingKey {
    /// The layer rejects the request, over HTTP with 400. The default: no request passes uncounted or shares a limit
    /// unnoticed.
    #[default]
    Reject,
    /// This limit does not count the request. Other limits of the layer still do. Without another limit, a client that omits its key is
    /// [not limited](crate::guide::limits_nothing#exempt-requests-without-a-key).
    Exempt,
    /// The request shares this key with all other requests that have none.
    Shared(PartitionKey),
}
