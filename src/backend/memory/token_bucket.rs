//! The count of a token bucket: the units that have not returned, in parts of a unit. `policy/token_bucket.rs` explains the parts.

use super::count::{Count, Forecast, UsageReading, monotonic_instant};
use crate::{
    backend::generation::{Generation, Generations},
    check::Receipt,
    policy::{MAX_PARTS, Policy},
};

/// The units of one partition key under one policy that have not returned.
pub(super) struct TokenBucket {
    /// That of the charges since the bucket was full.
    generation: Generation,
    /// The instant of the last charge.
    last: u64,
    /// The units that had not returned at that instant, in parts.
    used: u64,
    /// The parts of a unit at that instant, at least 1.
    parts: u64,
}

/// A bucket at one instant.
#[derive(Clone, Copy)]
pub(super) struct TokenBucketReading {
    /// The instant of the pair: the clock, or the last charge's instant while the clock is behind it.
    now: u64,
    /// In parts.
    used: u64,
    /// In units.
    capacity: u64,
    /// The parts of a unit.
    parts: u64,
    /// The parts that return in a microsecond.
    returned: u64,
}

impl Count for TokenBucket {
    const EMPTY: Self = Self { generation: Generation::NONE, last: 0, used: 0, parts: 1 };

    type Reading<'a> = TokenBucketReading;
    type Instant = TokenBucketReading;

    fn read(&self, clock: u64, policy: &Policy) -> TokenBucketReading {
        let [parts, returned] = policy.properties().arguments;
        let capacity = u64::from(policy.quota_units());
        let empty = TokenBucketReading { now: clock, used: 0, capacity, parts, returned };
        let Some(now) = monotonic_instant(clock, self.last, policy.window_micros()) else { return empty };
        let used = if self.parts == parts { self.used } else { convert(self.used, self.parts, parts) };
        let used = used.saturating_sub((now - self.last).saturating_mul(returned));
        TokenBucketReading { now, used, ..empty }
    }

    fn instant(reading: &TokenBucketReading) -> TokenBucketReading {
        *reading
    }

    fn charge(&mut self, reading: TokenBucketReading, cost: u32) {
        let TokenBucketReading { now, used, parts, .. } = reading;
        let generation = if used == 0 { Generation::NONE } else { self.generation };
        *self = Self { generation, last: now, used: reading.used_after(u64::from(cost)), parts };
    }

    fn receipt(&mut self, reading: TokenBucketReading, generations: &Generations) -> Receipt {
        // At its bound, not all units of a debit were charged. A refund would return those of other charges.
        let capacity = reading.capacity * reading.parts;
        if self.used > capacity && self.used >= (2 * capacity).min(MAX_PARTS) {
            return Receipt::without_refund(self.last);
        }
        Receipt { generation: self.generation.get(generations), at_micros: self.last, ordinal: 0 }
    }

    fn refund(&mut self, clock: u64, policy: &Policy, receipt: Receipt, units: u32) {
        if monotonic_instant(clock, self.last, policy.window_micros()).is_some()
            && self.generation.is(receipt.generation)
        {
            self.used = self.used.saturating_sub(u64::from(units).saturating_mul(self.parts));
        }
    }

    fn idle_at(&self, policy: &Policy) -> u64 {
        let [_, returned] = policy.properties().arguments;
        // The parts of the policy of the last charge.
        self.last + self.used.div_ceil(returned)
    }

    fn pack(&self, policy: &Policy) -> Option<[u64; 2]> {
        let [parts, _] = policy.properties().arguments;
        (self.generation == Generation::NONE && self.parts == parts).then_some([self.last, self.used])
    }

    fn unpack([last, used]: [u64; 2], policy: &Policy) -> Self {
        let [parts, _] = policy.properties().arguments;
        Self { generation: Generation::NONE, last, used, parts }
    }
}

impl TokenBucketReading {
    /// Returns the usage after a charge, in parts. An overage is at most the capacity beyond the capacity.
    fn used_after(&self, units: u64) -> u64 {
        let Self { used, capacity, parts, .. } = *self;
        // Below 2^55: a usage and the parts of a capacity are at most `MAX_PARTS`.
        let after = used + units.min(2 * capacity) * parts;
        if after <= capacity * parts {
            after
        } else {
            after.min(2 * capacity * parts).min(MAX_PARTS).max(used)
        }
    }

    /// Returns the instant at which this many parts have returned.
    fn returned_at(&self, parts: u64) -> u64 {
        // Most rates return one part in a microsecond, so that there is nothing to divide.
        self.now + if self.returned == 1 { parts } else { parts.div_ceil(self.returned) }
    }
}

impl UsageReading for TokenBucketReading {
    fn used(&self) -> u64 {
        self.used.div_ceil(self.parts)
    }

    fn uses_at_most(&self, units: u64) -> bool {
        self.used <= units.saturating_mul(self.parts)
    }

    fn falls_to(&self, units: u64) -> u64 {
        self.returned_at(self.used.saturating_sub(units.saturating_mul(self.parts)))
    }

    fn forecast(&self, units: u64, quota: u64) -> Forecast {
        let after = self.used_after(units);
        let used = after.div_ceil(self.parts);
        // One more unit of the quota remains when one less than these are used. Their parts are less than `after`, or both are 0.
        let fewer = used.min(quota).saturating_sub(1) * self.parts;
        Forecast { used, next: self.returned_at(after - fewer), reset: self.returned_at(after) }
    }
}

/// Converts a usage to other parts of a unit. Rounds it up.
fn convert(used: u64, from: u64, to: u64) -> u64 {
    let converted = (u128::from(used) * u128::from(to)).div_ceil(u128::from(from));
    converted.min(u128::from(MAX_PARTS)) as u64
}
