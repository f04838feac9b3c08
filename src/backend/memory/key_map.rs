//! The slots of the partition keys of a shard. Every slot has an index.

use std::mem;

use hashbrown::HashTable;

use crate::key::{PartitionKey, hash_code};

/// The number of slots in a chunk.
const CHUNK: usize = 16;

/// The slots of a shard. Their indices are 0 to the number of slots less one.
///
/// The slots are in chunks: a map that grows moves none of them, and has room for few that it does not store.
pub(super) struct KeyMap<S> {
    /// The indices by the hashes of the keys. A backend has fewer than 2^32 keys.
    table: HashTable<u32>,
    /// All chunks are full, except the last one that is not empty. At most one chunk is empty.
    chunks: Vec<Chunk<S>>,
    len: usize,
    /// The hash and the index of the key that was sought last. A key in use is often sought again.
    recent: (u64, usize),
}

/// Some slots in a row, and then room for more.
type Chunk<S> = Box<[Option<S>; CHUNK]>;

/// A slot, which stores the bytes of its key.
pub(super) trait Keyed {
    /// Returns the bytes of the key.
    fn key(&self) -> &[u8];

    /// Returns whether the key is this one.
    fn has_key(&self, key: &PartitionKey) -> bool;
}

impl<S> Default for KeyMap<S> {
    fn default() -> Self {
        Self { table: HashTable::new(), chunks: Vec::new(), len: 0, recent: (0, 0) }
    }
}

impl<S: Keyed> KeyMap<S> {
    /// Returns the number of slots.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the index of a key, if it is stored. Finds the same key again without the table.
    #[inline(always)]
    pub(super) fn seek(&mut self, key: &PartitionKey) -> Option<usize> {
        let (hash, index) = self.recent;
        if hash == key.hash_code() && self.get(index).is_some_and(|slot| slot.has_key(key)) {
            return Some(index);
        }
        let index = self.index_of(key)?;
        self.recent = (key.hash_code(), index);
        Some(index)
    }

    /// Returns the index of a key, if it is stored.
    pub(super) fn index_of(&self, key: &PartitionKey) -> Option<usize> {
        let is_key = |index: &u32| self.get(*index as usize).is_some_and(|slot| slot.has_key(key));
        self.table.find(key.hash_code(), is_key).map(|index| *index as usize)
    }

    /// Returns the slot with this index.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&S> {
        self.chunks.get(index / CHUNK)?[index % CHUNK].as_ref()
    }

    /// Returns the slot with this index.
    #[inline]
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut S> {
        self.chunks.get_mut(index / CHUNK)?[index % CHUNK].as_mut()
    }

    /// Adds the slot of a key that is not stored. It receives the next index.
    pub(super) fn push(&mut self, slot: S) {
        let (index, chunk, hash) = (self.len, self.len / CHUNK, hash_code(slot.key()));
        if chunk == self.chunks.len() {
            self.chunks.push(Box::new([const { None }; CHUNK]));
        }
        self.chunks[chunk][index % CHUNK] = Some(slot);
        self.len += 1;
        self.table.insert_unique(hash, index as u32, hash_of(&self.chunks));
    }

    /// Removes the slot with this index, and returns it. The last slot receives its index.
    pub(super) fn swap_remove(&mut self, index: usize) -> Option<S> {
        let hash = hash_code(self.get(index)?.key());
        if let Ok(entry) = self.table.find_entry(hash, |stored| *stored as usize == index) {
            entry.remove();
        }
        let last = self.len - 1;
        let mut removed = self.chunks[last / CHUNK][last % CHUNK].take()?;
        self.len = last;
        if index < last {
            let hash = hash_code(removed.key());
            if let Some(stored) = self.table.find_mut(hash, |stored| *stored as usize == last) {
                *stored = index as u32;
            }
            mem::swap(&mut removed, self.get_mut(index)?);
        }
        if self.len + 2 * CHUNK <= self.chunks.len() * CHUNK {
            self.chunks.pop();
        }
        Some(removed)
    }

    /// Returns the number of slots for which the table has room.
    pub(super) fn capacity(&self) -> usize {
        self.table.capacity()
    }

    /// Reduces the memory to that of this many slots, or of all slots if there are more.
    pub(super) fn shrink_to(&mut self, slots: usize) {
        self.table.shrink_to(slots, hash_of(&self.chunks));
        self.chunks.shrink_to(slots.div_ceil(CHUNK));
    }
}

/// Returns the hash of the key of a stored slot. The slots do not store their hashes: the table needs them only to grow.
fn hash_of<S: Keyed>(chunks: &[Chunk<S>]) -> impl Fn(&u32) -> u64 {
    |index| {
        let slot = &chunks[*index as usize / CHUNK][*index as usize % CHUNK];
        slot.as_ref().map_or(0, |slot| hash_code(slot.key()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{super::numbers, *};

    impl Keyed for (PartitionKey, u64) {
        fn key(&self) -> &[u8] {
            self.0.as_bytes()
        }

        fn has_key(&self, key: &PartitionKey) -> bool {
            self.0 == *key
        }
    }

    /// Random changes, compared with the map of the standard library.
    #[test]
    fn map_holds_every_key_at_one_index() {
        let (mut map, mut model) = (KeyMap::default(), HashMap::new());
        let mut random = numbers();
        for step in 0..12_000 {
            // The map grows beyond several chunks, and becomes empty, several times.
            let grows = random(100) < if step / 2_000 % 2 == 0 { 70 } else { 20 };
            let key = PartitionKey::new("key", random(100_000).to_string());
            if grows && map.index_of(&key).is_none() {
                map.push((key.clone(), step));
                model.insert(key, step);
            } else if map.len() > 0 {
                let index = random(map.len());
                let removed = map.get(index).unwrap().0.clone();
                assert!(model.remove(&removed).is_some());
                assert_eq!(map.seek(&removed), Some(index));
                let slot = map.swap_remove(index);
                assert_eq!(slot.unwrap().key(), removed.as_bytes());
                assert_eq!(map.seek(&removed), None);
            }
            assert_eq!(map.len(), model.len());
            assert!(map.chunks.len() * CHUNK < map.len() + 2 * CHUNK, "step {step}");
            if step % 100 == 0 {
                map.shrink_to(map.len());
                assert_eq!(map.table.len(), model.len());
                for (key, value) in &model {
                    let index = map.index_of(key).unwrap();
                    assert_eq!(map.get(index), Some(&(key.clone(), *value)));
                    assert_eq!((map.seek(key), map.seek(key)), (Some(index), Some(index)));
                }
            }
        }
    }
}
