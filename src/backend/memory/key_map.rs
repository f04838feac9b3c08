//! A map from partition keys to values, in which every entry has an index.

use hashbrown::HashTable;

use crate::key::PartitionKey;

/// The number of entries in a chunk.
const CHUNK: usize = 64;

/// A map from partition keys to values. The indices of the entries are 0 to the number of entries less one.
///
/// The entries are in chunks: a map that grows moves none of them, and has room for few that it does not store.
pub(super) struct KeyMap<V> {
    table: HashTable<HashedIndex>,
    /// All chunks are full, except the last one that is not empty. At most one chunk is empty.
    chunks: Vec<Vec<KeyEntry<V>>>,
    len: usize,
    /// The hash and the index of the key that was sought last. A key in use is often sought again.
    recent: (u64, usize),
}

/// A key and its value, from the start of a cache line.
#[repr(C, align(64))]
pub(super) struct KeyEntry<V> {
    pub(super) key: PartitionKey,
    pub(super) value: V,
}

/// The index of an entry, with its hash. The table needs nothing else to grow or to tell most keys apart, so it does not read the entry.
#[derive(Clone, Copy, PartialEq, Eq)]
struct HashedIndex {
    /// A part of the hash of the key.
    hash: u32,
    /// A backend has fewer than 2^32 keys.
    index: u32,
}

impl HashedIndex {
    #[inline]
    fn new(key: &PartitionKey, index: usize) -> Self {
        // The shards use other bits of the hash.
        Self { hash: key.hash_code() as u32, index: index as u32 }
    }

    /// Returns the hash for the table, which uses the lowest and the highest bits.
    #[inline]
    fn table_hash(&self) -> u64 {
        u64::from(self.hash) << 32 | u64::from(self.hash)
    }
}

impl<V> Default for KeyMap<V> {
    fn default() -> Self {
        Self { table: HashTable::new(), chunks: Vec::new(), len: 0, recent: (0, 0) }
    }
}

impl<V> KeyMap<V> {
    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the index of a key, if it is stored. Finds the same key again without the table.
    #[inline]
    pub(super) fn seek(&mut self, key: &PartitionKey) -> Option<usize> {
        let (hash, index) = self.recent;
        if hash == key.hash_code() && self.get(index).is_some_and(|entry| entry.key == *key) {
            return Some(index);
        }
        let index = self.index_of(key)?;
        self.recent = (key.hash_code(), index);
        Some(index)
    }

    /// Returns the index of a key, if it is stored.
    pub(super) fn index_of(&self, key: &PartitionKey) -> Option<usize> {
        let sought = HashedIndex::new(key, 0);
        let is_key = |stored: &HashedIndex| {
            stored.hash == sought.hash
                && self.get(stored.index as usize).is_some_and(|entry| entry.key == *key)
        };
        self.table.find(sought.table_hash(), is_key).map(|stored| stored.index as usize)
    }

    /// Returns the entry with this index.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&KeyEntry<V>> {
        self.chunks.get(index / CHUNK)?.get(index % CHUNK)
    }

    /// Returns the value of the entry with this index.
    #[inline]
    pub(super) fn value_mut(&mut self, index: usize) -> Option<&mut V> {
        self.chunks.get_mut(index / CHUNK)?.get_mut(index % CHUNK).map(|entry| &mut entry.value)
    }

    /// Returns the value of a key, if it is stored.
    #[inline]
    pub(super) fn find(&self, key: &PartitionKey) -> Option<&V> {
        self.get(self.index_of(key)?).map(|entry| &entry.value)
    }

    /// Returns the value of a key, if it is stored.
    #[inline]
    pub(super) fn find_mut(&mut self, key: &PartitionKey) -> Option<&mut V> {
        self.value_mut(self.index_of(key)?)
    }

    /// Adds a key that is not stored. It receives the next index.
    pub(super) fn push(&mut self, key: PartitionKey, value: V) {
        let added = HashedIndex::new(&key, self.len);
        let chunk = self.len / CHUNK;
        if chunk == self.chunks.len() {
            // Many maps stay small: only the first chunk grows.
            let capacity = if chunk == 0 { 0 } else { CHUNK };
            self.chunks.push(Vec::with_capacity(capacity));
        }
        self.chunks[chunk].push(KeyEntry { key, value });
        self.len += 1;
        self.table.insert_unique(added.table_hash(), added, HashedIndex::table_hash);
    }

    /// Removes the entry with this index. The last entry receives its index.
    pub(super) fn swap_remove(&mut self, index: usize) {
        let Some(removed) = self.get(index).map(|entry| HashedIndex::new(&entry.key, index)) else { return };
        if let Ok(entry) = self.table.find_entry(removed.table_hash(), |stored| *stored == removed) {
            entry.remove();
        }
        self.len -= 1;
        let Some(last) = self.chunks[self.len / CHUNK].pop() else { return };
        if index < self.len {
            let moved = HashedIndex::new(&last.key, self.len);
            if let Some(stored) = self.table.find_mut(moved.table_hash(), |stored| *stored == moved) {
                stored.index = index as u32;
            }
            self.chunks[index / CHUNK][index % CHUNK] = last;
        }
        if self.len + 2 * CHUNK <= self.chunks.len() * CHUNK {
            self.chunks.pop();
        }
    }

    /// Returns the number of entries for which the table has room.
    pub(super) fn capacity(&self) -> usize {
        self.table.capacity()
    }

    /// Reduces the memory to that of this many entries, or of all entries if there are more.
    pub(super) fn shrink_to(&mut self, entries: usize) {
        self.table.shrink_to(entries, HashedIndex::table_hash);
        self.chunks.shrink_to(entries.div_ceil(CHUNK));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{super::numbers, *};

    /// Random changes, compared with the map of the standard library.
    #[test]
    fn map_holds_every_key_at_one_index() {
        let (mut map, mut model) = (KeyMap::default(), HashMap::new());
        let mut random = numbers();
        for step in 0..12_000 {
            // The map grows beyond several chunks, and becomes empty, several times.
            let grows = random(100) < if step / 2_000 % 2 == 0 { 70 } else { 20 };
            let key = PartitionKey::new("key", random(100_000).to_string());
            if grows && map.find(&key).is_none() {
                map.push(key.clone(), step);
                model.insert(key, step);
            } else if map.len() > 0 {
                let index = random(map.len());
                let removed = map.get(index).unwrap().key.clone();
                assert!(model.remove(&removed).is_some());
                assert_eq!(map.seek(&removed), Some(index));
                map.swap_remove(index);
                assert_eq!(map.seek(&removed), None);
            }
            assert_eq!(map.len(), model.len());
            assert!(map.chunks.len() * CHUNK < map.len() + 2 * CHUNK, "step {step}");
            if step % 100 == 0 {
                map.shrink_to(map.len());
                assert_eq!(map.table.len(), model.len());
                for (key, value) in &model {
                    let index = map.index_of(key).unwrap();
                    let entry = map.get(index).unwrap();
                    assert_eq!((&entry.key, &entry.value), (key, value));
                    assert_eq!((map.seek(key), map.seek(key)), (Some(index), Some(index)));
                }
            }
        }
    }
}
