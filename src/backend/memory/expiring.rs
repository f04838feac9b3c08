//! A map whose entries expire. Those that have expired are removed when there is to be room for another one.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

use crate::backend::{BackendError, Reason};

/// The most entries that are removed for one that is added: two, so that expired ones become fewer.
const MAX_REMOVED: usize = 2;

/// The entries that have not expired, and some that have.
pub(super) struct Expiring<K, V> {
    /// Each with its key in `by_expiry`.
    entries: HashMap<K, (ExpiryKey, V)>,
    by_expiry: BTreeMap<ExpiryKey, K>,
    /// The number of entries that were added so far.
    added: u64,
}

/// When an entry expires, in microseconds, and its number.
type ExpiryKey = (u64, u64);

impl<K, V> Default for Expiring<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), by_expiry: BTreeMap::new(), added: 0 }
    }
}

impl<K: Clone + Eq + Hash, V> Expiring<K, V> {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|(_, value)| value)
    }

    /// Removes expired entries, at most [`MAX_REMOVED`]. Returns [`Reason::Full`] if `max` are left.
    pub(super) fn make_room(&mut self, now: u64, max: usize) -> Result<(), BackendError> {
        for _ in 0..MAX_REMOVED {
            let Some(first) = self.by_expiry.first_entry().filter(|first| first.key().0 <= now) else {
                break;
            };
            self.entries.remove(&first.remove());
        }
        if self.entries.capacity() > 1_024 && self.entries.len() < self.entries.capacity() / 8 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
        if self.entries.len() < max { Ok(()) } else { Err(BackendError::new(Reason::Full)) }
    }

    /// Adds or replaces an entry.
    pub(super) fn insert(&mut self, key: K, expires_at: u64, value: V) {
        self.added += 1;
        let expiry = (expires_at, self.added);
        self.by_expiry.insert(expiry, key.clone());
        if let Some((replaced, _)) = self.entries.insert(key, (expiry, value)) {
            self.by_expiry.remove(&replaced);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expired_entries_are_removed_and_others_stay() {
        let mut map = Expiring::default();
        for i in 0..1_000_u64 {
            assert!(map.make_room(i, 500).is_ok(), "{i}");
            map.insert(i, i + 100, i);
            assert_eq!(map.get(&i), Some(&i));
        }
        assert!(map.len() <= 100, "{}", map.len());
        assert!((900..1_000).all(|i| map.get(&i) == Some(&i)));
    }

    /// Otherwise, one entry would wait for the removal of all others.
    #[test]
    fn entry_removes_few_others() {
        let mut map = Expiring::default();
        for i in 0..100_u64 {
            assert!(map.make_room(0, 100).is_ok());
            map.insert(i, 1_000 + i, ());
        }
        assert!(map.make_room(999, 100).is_err());
        assert!(map.make_room(1_000, 100).is_ok() && map.len() == 99);
        assert!(map.make_room(5_000, 100).is_ok() && map.len() == 97);
    }

    #[test]
    fn removed_entries_free_their_memory() {
        let mut map = Expiring::default();
        (0..10_000_u64).for_each(|i| map.insert(i, 100, [0_u64; 8]));
        assert!(map.entries.capacity() >= 10_000);
        for i in 0..10_000_u64 {
            assert!(map.make_room(100, usize::MAX).is_ok());
            map.insert(i % 10, 200, [0; 8]);
        }
        assert_eq!(map.len(), 10);
        assert!(map.entries.capacity() <= 1_024, "{}", map.entries.capacity());
    }

    #[test]
    fn replaced_entry_expires_at_its_new_instant() {
        let mut map = Expiring::default();
        map.insert(1, 10, "first");
        map.insert(1, 20, "second");
        assert!(map.make_room(15, 1).is_err() && map.get(&1) == Some(&"second"));
        assert!(map.make_room(20, 1).is_ok() && map.get(&1).is_none() && map.by_expiry.is_empty());
    }
}
