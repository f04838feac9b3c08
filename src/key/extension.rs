//! The key that an earlier layer has left in the request's extensions.

use std::{fmt, marker::PhantomData};

use http::Request;

use super::{KeyError, KeyExtractor, PartitionKey};

/// A value in the request's extensions as the key; made by [`extension`].
pub struct Extension<T, F> {
    kind: Box<str>,
    value: F,
    extension: PhantomData<fn(&T)>,
}

/// Counts by something that an earlier layer has verified and left in the request's extensions: a user, a tenant.
///
/// `kind` names what it is, and is part of the key: other processes that share these limits must use the same one.
/// A request without the extension has no key of this kind, and neither has one whose value is empty.
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
/// assert_eq!(by_user.extract(&request)?, Some(PartitionKey::new("user", "alice")));
/// # Ok::<(), tower_sliding_window::KeyError>(())
/// ```
pub fn extension<T, F, V>(kind: &str, value: F) -> Extension<T, F>
where
    T: Clone + Send + Sync + 'static,
    F: Fn(&T) -> V,
    V: AsRef<[u8]>,
{
    Extension { kind: kind.into(), value, extension: PhantomData }
}

impl<B, T, F, V> KeyExtractor<Request<B>> for Extension<T, F>
where
    T: Clone + Send + Sync + 'static,
    F: Fn(&T) -> V,
    V: AsRef<[u8]>,
{
    fn extract(&self, request: &Request<B>) -> Result<Option<PartitionKey>, KeyError> {
        let value = request.extensions().get::<T>().map(&self.value);
        let value = value.filter(|value| !value.as_ref().is_empty());
        Ok(value.map(|value| PartitionKey::new(&self.kind, value)))
    }
}

impl<T, F: Clone> Clone for Extension<T, F> {
    fn clone(&self) -> Self {
        Self { kind: self.kind.clone(), value: self.value.clone(), extension: PhantomData }
    }
}

impl<T, F> fmt::Debug for Extension<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extension").field("kind", &self.kind).finish_non_exhaustive()
    }
}
