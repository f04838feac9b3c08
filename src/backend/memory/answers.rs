//! The answers of an API that a memory backend has learned.

use super::state::{MemoryState, Unreported};
use crate::{
    backend::BackendError,
    check::{Check, PairKey, Purpose},
    decision::Decision,
};

impl MemoryState {
    /// Decides a check. That of an answer charges the difference if the answer is new and applies, and otherwise peeks.
    pub(super) fn learn(&self, check: &Check) -> Result<Decision, BackendError> {
        let mut unreported = Unreported::default();
        let decided = self.learn_unreported(check, &mut unreported);
        unreported.report();
        decided
    }

    fn learn_unreported(&self, check: &Check, unreported: &mut Unreported) -> Result<Decision, BackendError> {
        let (Purpose::LeaveAtMost { at_micros, holds_micros }, [pair]) = (check.purpose(), check.pairs())
        else {
            return self.decide(check, unreported);
        };
        // Under this lock, so that the second reader of an answer sees the first.
        let mut answers = self.answers.lock();
        let (now, window) = (self.clock.now_micros(), pair.policy.window_micros());
        let key = (check.scope().clone(), PairKey::new(&pair.key, &pair.policy));
        // An answer far ahead of the clock is of another clock.
        let newest = answers.get(&key).copied();
        let is_known = newest.is_some_and(|at| at_micros <= at && at <= now + window);
        let applies = at_micros <= now && now < at_micros.saturating_add(holds_micros.min(window));
        if is_known || !applies {
            return self.decide(&check.clone().costing(0).with_purpose(Purpose::Peek), unreported);
        }
        // A known pair needs no room, but expired answers leave.
        let room = answers.make_room(now, self.max_keys);
        if newest.is_none() {
            room?;
        }
        let decision = self.decide(check, unreported)?;
        answers.insert(key, at_micros + window + self.keep_idle, at_micros);
        Ok(decision)
    }
}

#[cfg(test)]
mod tests {
    use std::{thread::sleep, time::Duration};

    use crate::{
        MemoryBackend, PartitionKey, Policy,
        backend::{Check, Pair, Purpose, Reason},
    };

    #[test]
    fn answers_take_bounded_memory() {
        let memory = MemoryBackend::with_max_keys(1_000).unwrap();
        let policy = Policy::new("calls", 100, Duration::from_secs(3_600)).unwrap();
        let learn = |i: u64, at_micros| {
            let pair = Pair::new(PartitionKey::new("account", i.to_string()), policy.clone(), 100);
            let purpose = Purpose::LeaveAtMost { at_micros, holds_micros: u64::MAX };
            memory.0.learn(&Check::new([pair]).unwrap().with_purpose(purpose)).map_err(|error| error.reason())
        };
        let now = || memory.0.clock.now_micros();
        // These answers will not apply any longer in a moment.
        let old = now() - 3_599_900_000;
        let learned = (0..5_000).filter(|i| learn(*i, old).is_ok()).count();
        assert!(learned >= 1_000 && memory.0.answers.lock().len() <= 1_000);
        sleep(Duration::from_millis(101));
        assert!(learn(5_000, now()).is_ok());
        assert!(memory.0.answers.lock().len() < 1_000, "those that do not apply are removed");
        let full = (5_001..7_000).find_map(|i| learn(i, now()).err());
        assert_eq!(full, Some(Reason::Full));
        assert!(learn(5_000, now()).is_ok(), "a known pair needs no room");
    }

    #[test]
    fn answers_of_known_pairs_remove_expired_ones() {
        let memory = MemoryBackend::new();
        let policy = Policy::new("calls", 100, Duration::from_secs(3_600)).unwrap();
        let learn = |i: u64, at_micros| {
            let pair = Pair::new(PartitionKey::new("account", i.to_string()), policy.clone(), 100);
            let purpose = Purpose::LeaveAtMost { at_micros, holds_micros: u64::MAX };
            assert!(memory.0.learn(&Check::new([pair]).unwrap().with_purpose(purpose)).is_ok());
        };
        let now = || memory.0.clock.now_micros();
        let old = now() - 3_599_000_000;
        (0..100).for_each(|i| learn(i, old));
        sleep(Duration::from_millis(1_001));
        for _ in 0..60 {
            learn(0, now());
            sleep(Duration::from_micros(2));
        }
        assert_eq!(memory.0.answers.lock().len(), 1);
    }
}
