//! The key that an earlier layer has left in the request's extensions.

use super::{KeyClosure, KeyExtractor, PartitionKey, partition::KeyValue};
use crate::head::Head;

/// Counts by a value that an earlier layer has verified and left in the request's extensions: a user, a tenant.
///
/// This is the key for a quota that belongs to one client. A client can write any header and any path, so with such a key it can use up
/// the quota of another client, and read its usage in the response. It cannot write an extension. The layer that verifies the client
/// must be outside the rate limit layer: `.layer(limits).layer(auth)` in axum, where the last layer runs first. See
/// [the guide](crate::guide::keys#limit-tenants-and-users-after-authentication).
///
/// The closure returns an owned text or bytes, such as a `String`: a reference into the value does not compile. If the value is
/// optional, use [`key_by`](crate::RateLimitLayerBuilder::key_by).
///
/// `kind` names the value and is a part of the key. Other processes that share these limits must use the same kind. A request
/// without the extension has no key of this kind, and neither has a request whose value is empty. If the first 100 requests that
/// need the extension lack it, one warning states the order of the layers (feature `tracing`).
///
/// ```
/// use tower_sliding_window::{KeyExtractor, PartitionKey, extension};
///
/// #[derive(Clone)]
/// struct User { id: String }
///
/// let by_user = extension("user", |user: &User| user.id.clone());
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(User { id: "alice".into() });
/// assert_eq!(by_user.extract(&(&request).into())?, Some(PartitionKey::new("user", "alice")));
/// # Ok::<(), tower_sliding_window::key::KeyError>(())
/// ```
pub fn extension<T, F, V>(kind: &str, value: F) -> impl KeyExtractor + Clone + use<T, F, V>
where
    T: Clone + Send + Sync + 'static,
    F: Fn(&T) -> V + Send + Sync + 'static,
    V: KeyValue,
{
    let missing = format!("extension {kind:?}");
    let kind = kind.to_owned();
    let key = move |head: &Head<'_>| {
        let value = head.extension::<T>().map(&value).filter(|value| !value.as_ref().is_empty());
        value.map(|value| PartitionKey::new(&kind, value))
    };
    KeyClosure { is_extension: true, ..KeyClosure::new(key, missing) }
}
