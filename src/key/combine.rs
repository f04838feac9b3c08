//! Keys of several extractors.

use super::{Extension, Header, KeyError, KeyExtractor, PartitionKey, PeerIp};
use crate::head::FromHead;

/// Combines extractors. It does not name the request, so that types can be inferred.
///
/// Implement it, empty, for an extractor of your own to give it these methods.
pub trait KeyExt: Sized {
    /// This key, or the other one where a request has none of this kind. The kinds are part of the keys, so one
    /// client's header cannot be another one's address. A key that is there but malformed is an error, and the other
    /// one is not asked.
    fn or<E>(self, other: E) -> Or<Self, E> {
        Or { first: self, second: other }
    }

    /// Both keys together: a user *at* an address. A request that lacks one of them has no key.
    fn and<E>(self, other: E) -> And<Self, E> {
        And { first: self, second: other }
    }
}

/// One key or else another; made by [`KeyExt::or`].
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B> {
    first: A,
    second: B,
}

/// Two keys together; made by [`KeyExt::and`].
#[derive(Clone, Copy, Debug)]
pub struct And<A, B> {
    first: A,
    second: B,
}

impl KeyExt for Header {}
impl KeyExt for PeerIp {}
impl<F> KeyExt for FromHead<F> {}
impl<T, F> KeyExt for Extension<T, F> {}
impl<A, B> KeyExt for Or<A, B> {}
impl<A, B> KeyExt for And<A, B> {}

impl<Req, A, B> KeyExtractor<Req> for Or<A, B>
where
    A: KeyExtractor<Req>,
    B: KeyExtractor<Req>,
{
    fn extract(&self, request: &Req) -> Result<Option<PartitionKey>, KeyError> {
        match self.first.extract(request)? {
            Some(key) => Ok(Some(key)),
            None => self.second.extract(request),
        }
    }
}

impl<Req, A, B> KeyExtractor<Req> for And<A, B>
where
    A: KeyExtractor<Req>,
    B: KeyExtractor<Req>,
{
    fn extract(&self, request: &Req) -> Result<Option<PartitionKey>, KeyError> {
        let Some(first) = self.first.extract(request)? else { return Ok(None) };
        Ok(self.second.extract(request)?.map(|second| first.and(&second)))
    }
}
