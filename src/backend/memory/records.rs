//! The records of a log: a queue that needs no memory of its own for few records.

use std::collections::VecDeque;

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
    /// The units and the instant of each. The running total before the oldest one is 0. The unused units are 0.
    Few { len: u8, units: [u32; FEW], at: [u64; FEW] },
    /// More than a few, or one with more than `u32::MAX` units. They never become few again.
    Many(Box<Many>),
}

pub(super) struct Many {
    records: VecDeque<Record>,
    /// The running total after the newest record.
    total: u64,
}

impl Records {
    pub(super) const EMPTY: Self = Self::Few { len: 0, units: [0; FEW], at: [0; FEW] };

    /// Returns one record of these units.
    #[inline]
    pub(super) fn one(instant: u64, charged: u32) -> Self {
        Self::Few { len: 1, units: [charged, 0, 0], at: [instant, 0, 0] }
    }

    /// Returns the units of the only record. `None` if there is none, if there are several, or if there were many.
    #[inline]
    pub(super) fn only_units(&self) -> Option<u32> {
        match self {
            Self::Few { len: 1, units: [units, ..], .. } => Some(*units),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Few { len, .. } => usize::from(*len),
            Self::Many(many) => many.records.len(),
        }
    }

    /// Returns the record with this index.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<Record> {
        match self {
            Self::Few { len, at, .. } if index < usize::from(*len) => {
                Some(Record { at: *at.get(index)?, start: self.start(index) })
            }
            Self::Few { .. } => None,
            Self::Many(many) => many.records.get(index).copied(),
        }
    }

    /// Returns the newest record.
    #[inline]
    pub(super) fn newest(&self) -> Option<Record> {
        self.get(self.len().checked_sub(1)?)
    }

    /// Returns the running total before the record with this index, or after all of them. Totals wrap, and a change of the records
    /// may change all of them: only the differences have a meaning.
    #[inline]
    pub(super) fn start(&self, index: usize) -> u64 {
        match self {
            Self::Few { units, .. } => units.iter().take(index).copied().map(u64::from).sum(),
            Self::Many(many) => many.records.get(index).map_or(many.total, |record| record.start),
        }
    }

    /// Returns the running total after the newest record.
    #[inline]
    pub(super) fn total(&self) -> u64 {
        match self {
            Self::Few { units, .. } => units.iter().copied().map(u64::from).sum(),
            Self::Many(many) => many.total,
        }
    }

    /// Returns the number of records whose instant `is_older`. These must come first.
    pub(super) fn partition_point(&self, is_older: impl Fn(u64) -> bool) -> usize {
        match self {
            Self::Few { len, at, .. } => {
                at.iter().take(usize::from(*len)).take_while(|at| is_older(**at)).count()
            }
            Self::Many(many) => many.records.partition_point(|record| is_older(record.at)),
        }
    }

    /// Adds a record of these units after the newest one.
    #[inline(always)]
    pub(super) fn push(&mut self, instant: u64, charged: u32) {
        if let Self::Few { len, units, at } = self
            && let (Some(units), Some(at)) = (units.get_mut(usize::from(*len)), at.get_mut(usize::from(*len)))
        {
            (*units, *at) = (charged, instant);
            *len += 1;
            return;
        }
        self.change_many(|many| {
            many.records.push_back(Record { at: instant, start: many.total });
            many.total = many.total.wrapping_add(u64::from(charged));
        });
    }

    /// Adds units to the newest record. Without records, adds nothing.
    pub(super) fn add_to_newest(&mut self, charged: u32) {
        let Some(newest) = self.len().checked_sub(1) else { return };
        if let Self::Few { units, .. } = self
            && let Some(units) = units.get_mut(newest)
            && let Some(sum) = units.checked_add(charged)
        {
            *units = sum;
            return;
        }
        self.change_many(|many| many.total = many.total.wrapping_add(u64::from(charged)));
    }

    /// Removes up to this many units from the record with this index.
    pub(super) fn refund(&mut self, index: usize, refunded: u32) {
        match self {
            Self::Few { units, .. } => {
                if let Some(units) = units.get_mut(index) {
                    *units = units.saturating_sub(refunded);
                }
            }
            Self::Many(many) => many.refund(index, refunded),
        }
    }

    /// Removes the newest record and its units.
    pub(super) fn drop_newest(&mut self) {
        match self {
            Self::Few { len, units, .. } => {
                *len = len.saturating_sub(1);
                units.iter_mut().skip(usize::from(*len)).for_each(|units| *units = 0);
            }
            Self::Many(many) => {
                if let Some(newest) = many.records.pop_back() {
                    many.total = newest.start;
                }
                many.shrink();
            }
        }
    }

    /// Removes this many of the oldest records and their units.
    pub(super) fn drop_oldest(&mut self, dropped: usize) {
        let dropped = dropped.min(self.len());
        if dropped == 0 {
            return;
        }
        match self {
            Self::Few { len, units, at } => {
                at.copy_within(dropped.., 0);
                units.copy_within(dropped.., 0);
                // At most `len`.
                *len -= dropped as u8;
                units.iter_mut().skip(usize::from(*len)).for_each(|units| *units = 0);
            }
            Self::Many(many) => {
                many.records.drain(..dropped);
                many.shrink();
            }
        }
    }

    /// Changes many records, or few that become many.
    #[inline(always)]
    fn change_many(&mut self, change: impl FnOnce(&mut Many)) {
        match self {
            Self::Many(many) => change(many),
            Self::Few { .. } => {
                let records = (0..self.len()).filter_map(|index| self.get(index)).collect();
                let mut many = Box::new(Many { records, total: self.total() });
                change(&mut many);
                *self = Self::Many(many);
            }
        }
    }
}

impl Many {
    /// Removes up to this many units from the record with this index: raises the totals up to the record, or lowers the totals after
    /// it, whichever are fewer.
    fn refund(&mut self, index: usize, units: u32) {
        let Some(start) = self.records.get(index).map(|record| record.start) else { return };
        let end = self.records.get(index + 1).map_or(self.total, |record| record.start);
        let units = u64::from(units).min(end.wrapping_sub(start));
        if index < self.records.len() / 2 {
            let older = self.records.range_mut(..=index);
            older.for_each(|record| record.start = record.start.wrapping_add(units));
        } else {
            let newer = self.records.range_mut(index + 1..);
            newer.for_each(|record| record.start = record.start.wrapping_sub(units));
            self.total = self.total.wrapping_sub(units);
        }
    }

    /// Frees memory if most of it is unused.
    fn shrink(&mut self) {
        let Self { records, .. } = self;
        if records.capacity() > 64 && records.len() < records.capacity() / 4 {
            records.shrink_to(records.len() * 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::numbers, *};

    /// Random changes, compared with a list of the units of each record.
    #[test]
    fn few_and_many_records_are_one_queue() {
        let (mut records, mut model, mut most) = (Records::EMPTY, VecDeque::<(u64, u64)>::new(), 0);
        let mut random = numbers();
        for at in 0..20_000 {
            if at % 1_000 == 0 {
                (records, model) = (Records::EMPTY, VecDeque::new());
            }
            // The queue stays short at first, and grows later. At first, some records hold more units than `Few` can.
            match random(if at % 1_000 < 500 { 5 } else { 10 }) {
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
                    let (index, refunded) = (random(model.len() + 1), random(9) as u32);
                    records.refund(index, refunded);
                    if let Some((_, units)) = model.get_mut(index) {
                        *units = units.saturating_sub(refunded.into());
                    }
                }
                3 => {
                    let charged = if random(20) == 0 { u32::MAX } else { 1 };
                    records.add_to_newest(charged);
                    if let Some((_, units)) = model.back_mut() {
                        *units += u64::from(charged);
                    }
                }
                _ => {
                    let charged = random(9) as u32;
                    records.push(at, charged);
                    model.push_back((at, charged.into()));
                }
            }
            most = most.max(model.len());
            assert_eq!(records.len(), model.len());
            let sought = at.saturating_sub(5);
            let older = model.partition_point(|(at, _)| *at < sought);
            assert_eq!(records.partition_point(|at| at < sought), older);
            for index in 0..=model.len() {
                let record = records.get(index).map(|record| record.at);
                assert_eq!(record, model.get(index).map(|(at, _)| *at), "step {at}, index {index}");
                let units = records.start(index + 1).wrapping_sub(records.start(index));
                let expected = model.get(index).map_or(0, |(_, units)| *units);
                assert_eq!(units, expected, "step {at}, index {index}");
                assert!(record.is_none_or(|_| records.get(index).unwrap().start == records.start(index)));
            }
            assert_eq!(records.start(model.len()), records.total());
            assert_eq!(records.newest().map(|newest| newest.at), model.back().map(|(at, _)| *at));
        }
        assert!(most > 100);
    }
}
