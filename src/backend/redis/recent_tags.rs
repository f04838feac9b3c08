//! The hash tags of partition keys that were used a short time ago.
//!
//! A client usually sends several requests, and a hash in software takes longer than all other work for the name of a key. The number
//! of positions is fixed: the memory is bounded, and no key needs to be removed.

use std::sync::Mutex;

use super::tag::Tag;
use crate::key::PartitionKey;

/// The number of positions.
const POSITIONS: usize = 1_024;

/// The hash tags of recent partition keys. Each key has one position, which it shares with others: the last one has it.
pub(super) struct RecentTags(Box<[RecentTag]>);

type RecentTag = Mutex<Option<(PartitionKey, Tag)>>;

impl Default for RecentTags {
    fn default() -> Self {
        Self((0..POSITIONS).map(|_| Mutex::new(None)).collect())
    }
}

impl RecentTags {
    /// Returns the tag of a key, which `hash` computes if it is not known.
    pub(super) fn tag(&self, key: &PartitionKey, hash: impl FnOnce() -> Tag) -> Tag {
        // A thread does not wait for another one that uses the same position.
        let position = self.0.get(index(key)).filter(|_| !key.is_long());
        let Some(mut recent) = position.and_then(|position| position.try_lock().ok()) else { return hash() };
        match &*recent {
            Some((known, tag)) if known == key => *tag,
            _ => recent.insert((key.clone(), hash())).1,
        }
    }
}

/// Returns the position of a key, which a client cannot predict.
fn index(key: &PartitionKey) -> usize {
    key.hash_code() as usize % POSITIONS
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::{super::keys::KeyNames, *};

    #[test]
    fn recent_key_is_hashed_once() {
        let (recent, names) = (RecentTags::default(), KeyNames::default());
        let hashes = Cell::new(0);
        let tag = |key: &PartitionKey| {
            let hash = || {
                hashes.set(hashes.get() + 1);
                names.tag(key)
            };
            assert_eq!(recent.tag(key, hash), names.tag(key));
            hashes.take()
        };
        let alice = PartitionKey::new("user", "alice");
        assert_eq!([tag(&alice), tag(&alice), tag(&PartitionKey::new("user", "alice"))], [1, 0, 0]);
        // A key of the same position replaces it.
        let position = index(&alice);
        let others = (0..).map(|i: u32| PartitionKey::new("user", i.to_string()));
        let other = others.into_iter().find(|other| index(other) == position).unwrap();
        assert_eq!([tag(&other), tag(&other), tag(&alice), tag(&alice)], [1, 0, 1, 0]);
        // A long key takes no memory.
        let long = PartitionKey::new("user", "x".repeat(256));
        assert_eq!([tag(&long), tag(&long)], [1, 1]);
    }
}
