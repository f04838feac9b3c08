//! The longest time that a merged call may take on the server. `lua/README.md` has the measurements.

use std::{
    hash::{Hash, Hasher},
    sync::LazyLock,
};

use super::most_in_run;
use crate::{
    backend::redis::{
        mix_hasher::MixHasher,
        script::{
            Call,
            pair_fields::{PAIR_SIZE, PairFields},
        },
    },
    random::random,
};

/// The longest time of a merged call, in microseconds.
const MAX_MICROS: u64 = 2_000;

/// The longest time of a pair, in microseconds, by the number of records that its policy can store. Deep refunds make a search longer by
/// up to two fifths.
const MICROS_BY_RECORDS: [(u64, u64); 5] =
    [(128, 40), (1_024, 66), (4_096, 90), (65_536, 130), (u64::MAX, 290)];

/// The number with which the hash of each identity begins. If it were known, a client could choose different checks with one identity, and so
/// a longer call.
static SEED: LazyLock<u64> = LazyLock::new(random);

/// What a check adds to a merged call.
#[derive(Clone, Copy)]
pub(crate) struct CheckTime {
    /// Equal checks have the same number. Others may have it, too.
    identity: u64,
    /// The longest time of a decision, in microseconds.
    micros: u64,
    /// The most of equal checks in one run, at least 1.
    per_run: u32,
}

/// The longest time of the checks that share a call.
#[derive(Default)]
pub(crate) struct CallTime {
    micros: u64,
    /// The checks that differ, and the number of those that are equal to each.
    checks: Vec<(u64, u32)>,
}

impl CheckTime {
    pub(crate) fn from_call(check: &Call) -> Self {
        let mut identity = MixHasher::new(*SEED);
        (&check.keys, check.fields()).hash(&mut identity);
        let identity = identity.finish();
        let (mut micros, mut per_run) = (0, u32::MAX);
        for pair in check.fields().chunks_exact(PAIR_SIZE) {
            let (of_pair, most) = longest_micros(pair, check.reserves());
            (micros, per_run) = (micros + of_pair, per_run.min(most));
        }
        Self { identity, micros, per_run }
    }

    /// Returns the number that equal checks have.
    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }
}

impl CallTime {
    /// Returns whether the call may decide this check, too: whether it equals one of the call or fewer than `max_different` differ, and
    /// the call stays short.
    pub(crate) fn has_room(&self, check: CheckTime, max_different: Option<usize>) -> bool {
        let is_known = self.checks.iter().any(|(identity, _)| *identity == check.identity);
        (is_known || max_different.is_none_or(|most| self.checks.len() < most))
            && self.micros + self.more_decisions(check) * check.micros <= MAX_MICROS
    }

    pub(crate) fn add(&mut self, check: CheckTime) {
        self.micros += self.more_decisions(check) * check.micros;
        match self.checks.iter_mut().find(|(identity, _)| *identity == check.identity) {
            Some((_, equal)) => *equal += 1,
            None => self.checks.push((check.identity, 1)),
        }
    }

    /// Returns how many decisions a check adds. The script decides a run at most three times: all its checks at once, then those that fit,
    /// and then one that is denied.
    fn more_decisions(&self, check: CheckTime) -> u64 {
        let equal = self.checks.iter().find(|(identity, _)| *identity == check.identity);
        match equal.map_or(0, |(_, equal)| equal % check.per_run) {
            0 => 1,
            1 => 2,
            _ => 0,
        }
    }
}

/// Returns the longest time of a pair, and the most of equal checks in one run, by the fields of a check. A log keeps the records of
/// reservations that were settled to nothing, so its quota does not bound their number.
fn longest_micros(pair: &[u8], reserves: bool) -> (u64, u32) {
    let PairFields { quota, cost, window, redis_type, parameter } = PairFields::read(pair);
    let Some(redis_type) = redis_type else { return (MAX_MICROS, 1) };
    let most_charges = if reserves { u64::MAX } else { quota.into() };
    let records = (redis_type.max_records)(most_charges, window, parameter);
    let of_size = MICROS_BY_RECORDS.into_iter().find(|(most, _)| records <= *most);
    (of_size.map_or(MAX_MICROS, |(_, micros)| micros), most_in_run(redis_type, cost))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        backend::redis::keys::KeyNames,
        check::{Check, Pair, Purpose},
        key::PartitionKey,
        policy::{Algorithm, Policy},
    };

    /// Returns how many of 64 equal checks fit into a call.
    fn fitting(policy: &Policy, cost: u32, purpose: Purpose) -> usize {
        let pair = Pair::new(PartitionKey::new("user", "alice"), policy.clone(), cost);
        let check = Check::new([pair]).unwrap().with_purpose(purpose);
        let call = Call::check(&check, &KeyNames::default(), 1, None, None);
        let (time, mut all) = (CheckTime::from_call(&call), CallTime::default());
        let fits = |_: &usize| {
            let fits = all.has_room(time, None);
            all.add(time);
            fits
        };
        (0..64).take_while(fits).count()
    }

    #[test]
    fn each_run_of_equal_checks_adds_to_time_of_call() {
        let policy = Policy::new("burst", u32::MAX, Duration::from_secs(1)).unwrap();
        assert_eq!(fitting(&policy, 1, Purpose::Charge), 64, "one run");
        assert_eq!(
            fitting(&policy, 1 << 30, Purpose::Charge),
            6,
            "two runs of three, each of three times 290 us"
        );
        assert_eq!(fitting(&policy, 1 << 31, Purpose::Charge), 6, "a run each, of 290 us");
        let counter = policy.with_algorithm(Algorithm::SlidingCounter).unwrap();
        assert_eq!(fitting(&counter, 1, Purpose::Charge), 50, "a run each, of 40 us");
    }

    #[test]
    fn reservations_of_small_quota_may_leave_many_records() {
        let ten = Policy::new("ten", 10, Duration::from_secs(1)).unwrap();
        let one_by_one = |policy: &Policy, purpose| {
            let mut call = CallTime::default();
            let check = |user: u32| {
                let pair = Pair::new(PartitionKey::new("user", user.to_string()), policy.clone(), 1);
                let check = Check::new([pair]).unwrap().with_purpose(purpose);
                CheckTime::from_call(&Call::check(&check, &KeyNames::default(), 1, None, None))
            };
            let fits = |time: &CheckTime| {
                let fits = call.has_room(*time, None);
                call.add(*time);
                fits
            };
            (0..64).map(check).take_while(fits).count()
        };
        assert_eq!(one_by_one(&ten, Purpose::Charge), 50, "at most ten records each");
        assert_eq!(one_by_one(&ten, Purpose::Reserve), 6, "records without units stay");
        let counter = ten.with_algorithm(Algorithm::SlidingCounter).unwrap();
        assert_eq!(one_by_one(&counter, Purpose::Reserve), 50, "one record each");
    }
}
