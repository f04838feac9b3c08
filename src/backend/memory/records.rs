//! The records of a log: a queue that needs no memory of its own for few records.

use std::{collections::VecDeque, ops::Range};

/// The number of records that need no memory of their own. Most keys of a large service have few.
const FEW: usize = 3;

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
        if dropped == 0 {
            return;
        }
        match self {
            Self::Few { len, records } => {
                records.copy_within(dropped.., 0);
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

#[cfg(test)]
mod tests {
    use super::{super::numbers, *};

    /// Random changes, compared with the queue of the standard library.
    #[test]
    fn few_and_many_records_are_one_queue() {
        let (mut records, mut model, mut most) = (Records::EMPTY, VecDeque::new(), 0);
        let mut random = numbers();
        for at in 0..20_000 {
            if at % 1_000 == 0 {
                (records, model) = (Records::EMPTY, VecDeque::new());
            }
            // The queue stays short at first, and grows later.
            match random(if at % 1_000 < 500 { 4 } else { 8 }) {
                0 => {
                    let dropped = random(4);
                    records.drop_oldest(dropped);
                    model.drain(..dropped.min(model.len()));
                }
                1 => {
                    records.drop_newest();
                    model.pop_back();
                }
                2 => {
                    let end = random(model.len() + 1);
                    records.change(1..end, |record| record.start += 1);
                    model.iter_mut().take(end).skip(1).for_each(|(_, start)| *start += 1);
                }
                _ => {
                    records.push(Record { at, start: 0 });
                    model.push_back((at, 0));
                }
            }
            most = most.max(model.len());
            assert_eq!(records.len(), model.len());
            let sought = at.saturating_sub(5);
            let older = model.partition_point(|(at, _)| *at < sought);
            assert_eq!(records.partition_point(|record| record.at < sought), older);
            for index in 0..=model.len() {
                let record = records.get(index).map(|record| (record.at, record.start));
                assert_eq!(record, model.get(index).copied(), "step {at}, index {index}");
            }
            assert_eq!(records.newest().map(|newest| newest.at), model.back().map(|(at, _)| *at));
        }
        assert!(most > 100);
    }
}
