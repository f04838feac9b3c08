//! A map whose entries expire. Those that have expired are removed together, from time to time.

use std::{collections::HashMap, hash::Hash};

use crate::backend::{BackendError, Reason};

/// The entries that have not expired, and some that have.
pub(super) struct Expiring<K, V> {
    /// Each with the instant at which it expires.
    entries: HashMap<K, (u64, V)>,
    /// The number of entries from which on expired ones are removed.
    sweep_at: usize,
    /// No entry expires before this instant, in microseconds. 0 before the first search.
    first_expires_at: u64,
}

impl<K, V> Default for Expiring<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), sweep_at: 0, first_expires_at: 0 }
    }
}

impl<K: Eq + Hash, V> Expiring<K, V> {
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

    /// Removes expired entries if there are many. Returns [`Reason::Full`] if `max` are left.
    pub(super) fn make_room(&mut self, now: u64, max: usize) -> Result<(), BackendError> {
        if self.entries.len() >= max.min(self.sweep_at) && now >= self.first_expires_at {
            self.entries.retain(|_, (expires_at, _)| *expires_at > now);
            self.first_expires_at =
                self.entries.values().map(|(expires_at, _)| *expires_at).min().unwrap_or(u64::MAX);
            // The next search comes when as many were added as were kept.
            self.sweep_at = 2 * self.entries.len() + 64;
        }
        if self.entries.len() < max { Ok(()) } else { Err(BackendError::new(Reason::Full)) }
    }

    /// Adds or replaces an entry.
    pub(super) fn insert(&mut self, key: K, expires_at: u64, value: V) {
        self.first_expires_at = self.first_expires_at.min(expires_at);
        self.entries.insert(key, (expires_at, value));
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
        assert!(map.len() <= 2 * 100 + 64, "{}", map.len());
        assert!((900..1_000).all(|i| map.get(&i) == Some(&i)));
    }

    /// Otherwise, each further entry would search all that are stored.
    #[test]
    fn full_map_is_searched_only_when_an_entry_has_expired() {
        let mut map = Expiring::default();
        for i in 0..100_u64 {
            assert!(map.make_room(0, 100).is_ok());
            map.insert(i, 1_000 + i, ());
        }
        assert!(map.make_room(0, 100).is_err());
        assert_eq!(map.first_expires_at, 1_000);
        // A search would find this one.
        map.entries.insert(100, (1, ()));
        assert!(map.make_room(999, 100).is_err() && map.len() == 101);
        assert!(map.make_room(1_000, 100).is_ok());
        assert_eq!((map.len(), map.first_expires_at), (99, 1_001));
    }
}
