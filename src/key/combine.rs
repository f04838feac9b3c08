//! Combinations of extractors.

use super::{KeyError, KeyExtractor, PartitionKey};
use crate::head::Head;

/// One key, or else another.
pub(super) struct Or<A, B> {
    pub(super) first: A,
    pub(super) second: B,
}

/// Two keys together.
pub(super) struct And<A, B> {
    pub(super) first: A,
    pub(super) second: B,
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for Or<A, B> {
    fn extract(&self, head: &Head<'_>) -> Result<Option<PartitionKey>, KeyError> {
        match self.first.extract(head)? {
            Some(key) => Ok(Some(key)),
            None => self.second.extract(head),
        }
    }

    fn missing(&self, head: &Head<'_>) -> String {
        let mut names = vec![self.first.missing(head), self.second.missing(head)];
        names.retain(|name| !name.is_empty());
        names.join(" or ")
    }

    fn is_peer_address(&self) -> bool {
        self.first.is_peer_address() || self.second.is_peer_address()
    }
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for And<A, B> {
    fn extract(&self, head: &Head<'_>) -> Result<Option<PartitionKey>, KeyError> {
        let Some(first) = self.first.extract(head)? else { return Ok(None) };
        Ok(self.second.extract(head)?.map(|second| first.and(&second)))
    }

    fn missing(&self, head: &Head<'_>) -> String {
        match self.first.extract(head) {
            Ok(None) => self.first.missing(head),
            _ => self.second.missing(head),
        }
    }

    fn is_peer_address(&self) -> bool {
        self.first.is_peer_address() || self.second.is_peer_address()
    }
}
