//! When each partition key of a shard is inspected next: a binary heap that knows the place of every key.

/// The instants at which the partition keys of a shard are due, one for each key. A key is named by its index in the map of the
/// shard: the indices are 0 to the number of keys less one.
#[derive(Default)]
pub(super) struct DueKeys {
    /// A binary heap: no entry is due before its parent, which is at `(place - 1) / 2`.
    heap: Vec<Entry>,
    /// The place of each key in the heap. A backend has fewer than 2^32 keys.
    places: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Entry {
    due: u64,
    key: u32,
}

impl DueKeys {
    /// Returns the earliest instant at which a key is due, and the index of this key. `None` if there is no key.
    #[inline]
    pub(super) fn first(&self) -> Option<(u64, usize)> {
        self.heap.first().map(|entry| (entry.due, entry.key as usize))
    }

    /// Adds a key with the next index.
    pub(super) fn push(&mut self, due: u64) {
        let last = self.places.len();
        let entry = Entry { due, key: last as u32 };
        self.places.push(last as u32);
        self.heap.push(entry);
        self.rise(last, entry);
    }

    /// Changes when a key is due.
    pub(super) fn set(&mut self, key: usize, due: u64) {
        let Some(place) = self.places.get(key) else { return };
        self.settle(*place as usize, Entry { due, key: key as u32 });
    }

    /// Removes a key. The key with the last index receives the index of the removed key.
    pub(super) fn swap_remove(&mut self, key: usize) {
        if key >= self.places.len() {
            return;
        }
        let place = self.places.swap_remove(key) as usize;
        // The last index is that of the removed key now.
        if let Some(moved) = self.places.get(key) {
            self.heap[*moved as usize].key = key as u32;
        }
        // The last entry of the heap takes the place of the removed one.
        if let Some(last) = self.heap.pop().filter(|_| place < self.heap.len()) {
            self.settle(place, last);
        }
    }

    /// Reduces the memory to that of this many keys, or of all keys if there are more.
    pub(super) fn shrink_to(&mut self, keys: usize) {
        self.heap.shrink_to(keys);
        self.places.shrink_to(keys);
    }

    /// Puts an entry at this place of the heap, or where the order needs it.
    fn settle(&mut self, place: usize, entry: Entry) {
        let place = self.rise(place, entry);
        self.sink(place, entry);
    }

    /// Puts an entry at this place, or closer to the root. Returns its place.
    fn rise(&mut self, mut place: usize, entry: Entry) -> usize {
        while let Some(above) = place.checked_sub(1).map(|below| below / 2)
            && entry.due < self.heap[above].due
        {
            self.put(place, self.heap[above]);
            place = above;
        }
        self.put(place, entry);
        place
    }

    /// Puts an entry at this place, or farther from the root.
    fn sink(&mut self, mut place: usize, entry: Entry) {
        loop {
            let (left, right) = (2 * place + 1, 2 * place + 2);
            let due = |place: usize| self.heap.get(place).map_or(u64::MAX, |entry| entry.due);
            let below = if due(right) < due(left) { right } else { left };
            if due(below) >= entry.due {
                break;
            }
            self.put(place, self.heap[below]);
            place = below;
        }
        self.put(place, entry);
    }

    #[inline]
    fn put(&mut self, place: usize, entry: Entry) {
        self.heap[place] = entry;
        self.places[entry.key as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::{super::numbers, *};

    /// Random changes, compared with a plain list of the same instants.
    #[test]
    fn first_key_is_due_before_all_others() {
        let (mut keys, mut plain) = (DueKeys::default(), Vec::new());
        let mut random = numbers();
        for step in 0..20_000 {
            // The list grows and shrinks several times, and becomes empty.
            let grows = random(100) < if step / 2_000 % 2 == 0 { 60 } else { 20 };
            let due = random(50) as u64;
            match plain.len() {
                0 => (keys.push(due), plain.push(due)).0,
                _ if grows => (keys.push(due), plain.push(due)).0,
                len if random(2) == 0 => {
                    let key = random(len);
                    keys.set(key, due);
                    plain[key] = due;
                }
                len => {
                    let key = random(len);
                    keys.swap_remove(key);
                    plain.swap_remove(key);
                }
            }
            assert_eq!(keys.first().map(|(due, _)| due), plain.iter().min().copied(), "step {step}");
            assert!(keys.first().is_none_or(|(due, key)| plain[key] == due), "step {step}");
            assert_eq!((keys.heap.len(), keys.places.len()), (plain.len(), plain.len()));
        }
    }
}
