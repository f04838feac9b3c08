//! The records of a log: a queue whose first records need no memory of their own.

use std::{collections::VecDeque, ops::Range};

/// The number of records that need no memory of their own. A queue has the size of as many.
const FEW: usize = 2;

/// A charge, or the charges of one bucket.
#[derive(Clone, Copy)]
pub(super) struct Record {
    /// In microseconds: the instant of the charge, or the end of its bucket.
    pub(super) at: u64,
    /// The running total before it.
    pub(super) start: u64,
}

/// Records, oldest first.
pub(super) enum Records {
    Few { len: u8, records: [Record; FEW] },
    Many(VecDeque<Record>),
}

impl Records {
    pub(super) const EMPTY: Self = Self::Few { len: 0, records: [Record { at: 0, start: 0 }; FEW] };

    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Few { len, .. } => usize::from(*len),
            Self::Many(records) => records.len(),
        }
    }

    /// Returns the record with this index.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<Record> {
        match self {
            Self::Few { len, records } if index < usize::from(*len) => records.get(index).copied(),
            Self::Few { .. } => None,
            Self::Many(records) => records.get(index).copied(),
        }
    }

    /// Returns the newest record.
    #[inline]
    pub(super) fn newest(&self) -> Option<Record> {
        self.get(self.len().checked_sub(1)?)
    }

    /// Returns the number of records that are `older`. These must come first.
    pub(super) fn partition_point(&self, older: impl Fn(&Record) -> bool) -> usize {
        match self {
            Self::Few { len, records } => {
                records.iter().take(usize::from(*len)).take_while(|it| older(it)).count()
            }
            Self::Many(records) => records.partition_point(older),
        }
    }

    /// Calls a function with each record of a range.
    pub(super) fn change(&mut self, range: Range<usize>, change: impl FnMut(&mut Record)) {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        match self {
            Self::Few { records, .. } => records.iter_mut().take(end).skip(start).for_each(change),
            Self::Many(records) => records.range_mut(start..end).for_each(change),
        }
    }

    /// Adds a record after the newest one.
    #[inline]
    pub(super) fn push(&mut self, record: Record) {
        match self {
            Self::Few { len, records } => match records.get_mut(usize::from(*len)) {
                Some(free) => {
                    *free = record;
                    *len += 1;
                }
                None => *self = Self::Many(records.iter().copied().chain([record]).collect()),
            },
            Self::Many(records) => records.push_back(record),
        }
    }

    /// Removes the newest record.
    pub(super) fn drop_newest(&mut self) {
        match self {
            Self::Few { len, .. } => *len = len.saturating_sub(1),
            Self::Many(records) => {
                records.pop_back();
                shrink(records);
            }
        }
    }

    /// Removes this many of the oldest records.
    pub(super) fn drop_oldest(&mut self, dropped: usize) {
        let dropped = dropped.min(self.len());
        match self {
            Self::Few { len, records } => {
                records.rotate_left(dropped);
                // At most `len`.
                *len -= dropped as u8;
            }
            Self::Many(records) => {
                records.drain(..dropped);
                shrink(records);
            }
        }
    }
}

/// Frees memory if most of it is unused.
fn shrink(records: &mut VecDeque<Record>) {
    if records.capacity() > 64 && records.len() < records.capacity() / 4 {
        records.shrink_to(records.len() * 2);
    }
}
