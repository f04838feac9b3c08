//! One sliding log: an entry for every charge, whatever its cost.
//!
//! A record holds the instant of its charge and the *running total* of all costs up to and including it. So what is
//! used, and what has to leave before a cost fits, are differences of two totals, found by bisection.

use std::collections::VecDeque;

/// A log holds at most this many records.
pub(crate) const MAX_RECORDS: usize = 1 << 20;

/// The charges of one partition key under one policy, oldest first.
#[derive(Default)]
pub(super) struct Log {
    records: VecDeque<Record>,
    /// The running total before the oldest record.
    before: u64,
}

#[derive(Clone, Copy)]
struct Record {
    at: u64,
    total: u64,
}

/// What a log says at one instant. Reading changes nothing.
pub(super) struct Reading {
    /// The clock as read.
    clock: u64,
    /// The instant for which this is true: the clock, or the last record's instant while the clock is behind it.
    now: u64,
    window: u64,
    /// How many of the oldest records have left.
    left: usize,
    /// The running total before the oldest record that counts.
    before: u64,
    /// What is used, in quota units.
    pub(super) used: u64,
}

impl Reading {
    /// How long until a charge that is recorded now has left, counted from the clock as read.
    pub(super) fn wait_for_new(&self) -> u64 {
        self.now + self.window - self.clock
    }
}

impl Log {
    /// Reads the log at `clock`, in microseconds like `window`.
    ///
    /// A log whose last record lies more than a window ahead of the clock is foreign, and counts as empty.
    pub(super) fn read(&self, clock: u64, window: u64) -> Reading {
        let empty = Reading { clock, now: clock, window, left: self.records.len(), before: 0, used: 0 };
        let (Some(oldest), Some(newest)) = (self.records.front(), self.records.back()) else {
            return empty;
        };
        if newest.at > clock + window {
            return empty;
        }
        let now = clock.max(newest.at);
        let has_left = |record: &Record| record.at + window <= now;
        let left = if has_left(oldest) { self.records.partition_point(has_left) } else { 0 };
        let before = if left == 0 { self.before } else { self.records[left - 1].total };
        Reading { now, left, before, used: newest.total.wrapping_sub(before), ..empty }
    }

    /// How long until `units` of those that are used have left, counted from the clock as read; zero for none.
    pub(super) fn wait_for(&self, reading: &Reading, units: u64) -> u64 {
        if units == 0 {
            return 0;
        }
        // Those that have left come first, and their totals are behind `before`: bisect among the others.
        let (mut low, mut high) = (reading.left, self.records.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.records[middle].total.wrapping_sub(reading.before) < units {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        match self.records.get(low) {
            Some(record) => record.at + reading.window - reading.clock,
            None => 0,
        }
    }

    /// Whether one more record has room.
    pub(super) fn has_room(&self, reading: &Reading) -> bool {
        self.records.len() - reading.left < MAX_RECORDS
    }

    /// Records a charge at the instant of the reading, and drops what has left.
    pub(super) fn charge(&mut self, reading: &Reading, cost: u32) {
        self.records.drain(..reading.left);
        self.before = reading.before;
        let total = self.before.wrapping_add(reading.used).wrapping_add(u64::from(cost));
        self.records.push_back(Record { at: reading.now, total });
        if self.records.capacity() > 64 && self.records.len() < self.records.capacity() / 4 {
            self.records.shrink_to(self.records.len() * 2);
        }
    }

    /// The instant at which everything stored here will have left.
    pub(super) fn empty_at(&self, window: u64) -> u64 {
        self.records.back().map_or(0, |newest| newest.at + window)
    }
}
