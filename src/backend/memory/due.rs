//! When each group of a shard is inspected next: a binary heap that knows the position of every group.

/// The instants at which the groups of a shard are due, one for each group. A group is named by its index in the map of the shard: the
/// indices are 0 to the number of groups less one.
#[derive(Default)]
pub(super) struct DueGroups {
    /// A binary heap: no entry is due before its parent, which is at `(position - 1) / 2`.
    heap: Vec<DueGroup>,
    /// The position of each group in the heap. A backend has fewer than 2^32 groups.
    positions: Vec<u32>,
}

#[derive(Clone, Copy)]
struct DueGroup {
    /// The lower and the upper half of the instant: with a `u64`, an entry would take 16 bytes instead of 12.
    halves: [u32; 2],
    group: u32,
}

impl DueGroup {
    #[inline]
    fn new(due: u64, group: usize) -> Self {
        Self { halves: [due as u32, (due >> 32) as u32], group: group as u32 }
    }

    #[inline]
    fn due(self) -> u64 {
        let [lower, upper] = self.halves.map(u64::from);
        upper << 32 | lower
    }
}

impl DueGroups {
    /// Returns the earliest instant at which a group is due, and the index of this group. `None` if there is no group.
    #[inline]
    pub(super) fn first(&self) -> Option<(u64, usize)> {
        self.heap.first().map(|entry| (entry.due(), entry.group as usize))
    }

    /// Adds a group with the next index.
    pub(super) fn push(&mut self, due: u64) {
        let last = self.positions.len();
        let entry = DueGroup::new(due, last);
        self.positions.push(last as u32);
        self.heap.push(entry);
        self.rise(last, entry);
    }

    /// Changes when a group is due.
    pub(super) fn set(&mut self, group: usize, due: u64) {
        let Some(position) = self.positions.get(group) else { return };
        self.settle(*position as usize, DueGroup::new(due, group));
    }

    /// Changes when a group is due, if this is earlier than before.
    pub(super) fn lower(&mut self, group: usize, due: u64) {
        if self.positions.get(group).is_some_and(|position| due < self.heap[*position as usize].due()) {
            self.set(group, due);
        }
    }

    /// Removes a group. The group with the last index receives the index of the removed group.
    pub(super) fn swap_remove(&mut self, group: usize) {
        if group >= self.positions.len() {
            return;
        }
        let position = self.positions.swap_remove(group) as usize;
        // The last index is that of the removed group now.
        if let Some(moved) = self.positions.get(group) {
            self.heap[*moved as usize].group = group as u32;
        }
        // The last entry of the heap takes the position of the removed one.
        if let Some(last) = self.heap.pop().filter(|_| position < self.heap.len()) {
            self.settle(position, last);
        }
    }

    /// Reduces the memory to that of this many groups, or of all groups if there are more.
    pub(super) fn shrink_to(&mut self, groups: usize) {
        self.heap.shrink_to(groups);
        self.positions.shrink_to(groups);
    }

    /// Puts an entry at this position of the heap, or where the order needs it.
    fn settle(&mut self, position: usize, entry: DueGroup) {
        let position = self.rise(position, entry);
        self.sink(position, entry);
    }

    /// Puts an entry at this position, or closer to the root. Returns its position.
    fn rise(&mut self, mut position: usize, entry: DueGroup) -> usize {
        while let Some(above) = position.checked_sub(1).map(|below| below / 2)
            && entry.due() < self.heap[above].due()
        {
            self.put(position, self.heap[above]);
            position = above;
        }
        self.put(position, entry);
        position
    }

    /// Puts an entry at this position, or farther from the root.
    fn sink(&mut self, mut position: usize, entry: DueGroup) {
        loop {
            let (left, right) = (2 * position + 1, 2 * position + 2);
            let due = |position: usize| self.heap.get(position).map_or(u64::MAX, |entry| entry.due());
            let below = if due(right) < due(left) { right } else { left };
            if due(below) >= entry.due() {
                break;
            }
            self.put(position, self.heap[below]);
            position = below;
        }
        self.put(position, entry);
    }

    #[inline]
    fn put(&mut self, position: usize, entry: DueGroup) {
        self.heap[position] = entry;
        self.positions[entry.group as usize] = position as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::{super::numbers, *};

    /// Random changes, compared with a plain list of the same instants.
    #[test]
    fn first_group_is_due_before_all_others() {
        let (mut keys, mut plain) = (DueGroups::default(), Vec::new());
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
            assert_eq!((keys.heap.len(), keys.positions.len()), (plain.len(), plain.len()));
        }
    }
}
