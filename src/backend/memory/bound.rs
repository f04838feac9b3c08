//! The bound on the number of partition keys: idle keys are removed, and then other keys are evicted.

use std::sync::atomic::Ordering;

use super::{
    shard::{KeyShard, SHARDS},
    state::{DecisionAttempt, MemoryState, NewShadows, Unreported},
};
use crate::{
    backend::{BackendError, Reason},
    check::{Check, Purpose},
    decision::Decision,
    key::PartitionKey,
};

/// The number of partition keys that are sampled for an eviction.
const SAMPLED_KEYS: usize = 8;
/// A partition key is evicted only if less than this share of each of its quotas is in use.
const MAX_EVICTED_SHARE: f64 = 0.5;

impl MemoryState {
    /// Decides a check for which there was no room: removes the idle keys of all shards, and then evicts keys.
    #[cold]
    pub(super) fn decide_at_bound(
        &self,
        check: &Check,
        unreported: &mut Unreported,
    ) -> Result<Decision, BackendError> {
        self.remove_all_idle();
        // The room of evicted keys. Until this check needs it, no other check takes it.
        let mut room = 0;
        let has_shadows = check.pairs().iter().any(|pair| pair.is_shadow);
        let mut new_shadows = if has_shadows { NewShadows::Charged } else { NewShadows::LeftOut };
        let decided = loop {
            match self.try_decide(check, &mut room, new_shadows) {
                Ok(DecisionAttempt::Decided(decision)) => break Ok(decision),
                // A shadow pair evicts no key, and its lack of room rejects no check.
                Ok(DecisionAttempt::NoRoom { .. }) if new_shadows == NewShadows::Charged => {
                    new_shadows = NewShadows::LeftOut;
                }
                Ok(DecisionAttempt::NoRoom { missing, shard }) => {
                    match self.make_room(check, missing, shard, unreported) {
                        None => break Err(BackendError::new(Reason::Full)),
                        // Fewer than are missing if other checks have evicted or charged them. Then try again.
                        Some(made) => room += made,
                    }
                }
                Err(error) => break Err(error),
            }
        };
        // A peek has evicted nothing.
        if room > 0 && check.purpose() != Purpose::Peek {
            self.keys.fetch_sub(room, Ordering::Relaxed);
        }
        decided
    }

    /// Evicts `missing` partition keys that do not belong to the check: of the sampled keys, those with the smallest shares of
    /// their quotas in use. A peek evicts nothing. Returns how many were evicted, or `None` if the sample has too few.
    ///
    /// The sample is of the shard of the new key, so that the shards keep their sizes. Clients cannot choose it, because the hash
    /// is random. If the shard has few keys, the sample continues in the next ones.
    fn make_room(
        &self,
        check: &Check,
        missing: usize,
        shard: usize,
        unreported: &mut Unreported,
    ) -> Option<usize> {
        if self.rejects_when_full.load(Ordering::Relaxed) {
            return None;
        }
        let clock = self.clock.now_micros();
        let own: Vec<PartitionKey> =
            check.pairs().iter().map(|pair| pair.key.bounded().into_owned()).collect();
        let mut sample: Vec<(f64, usize, PartitionKey)> = Vec::with_capacity(SAMPLED_KEYS);
        // Clients cannot predict it.
        let random = |below: usize| self.generations.draw() as usize % below;
        let mut left = SAMPLED_KEYS;
        for shard in (shard..SHARDS).chain(0..shard) {
            for (key, share) in self.shards[shard].lock().sample(left, clock, random) {
                left -= 1;
                let is_sampled = sample.iter().any(|(_, _, sampled)| *sampled == key);
                if share < MAX_EVICTED_SHARE && !is_sampled && !own.contains(&key) {
                    sample.push((share, shard, key));
                }
            }
            if left == 0 {
                break;
            }
        }
        if sample.len() < missing {
            return None;
        }
        if check.purpose() == Purpose::Peek {
            return Some(missing);
        }
        sample.sort_unstable_by(|(share, ..), (other, ..)| share.total_cmp(other));
        let evict = |(_, shard, key): &(f64, usize, PartitionKey)| {
            self.shards[*shard].lock().evict(key, clock, MAX_EVICTED_SHARE)
        };
        let mut evicted = 0;
        for units in sample.iter().filter_map(evict).take(missing) {
            evicted += 1;
            self.evicted_keys.fetch_add(1, Ordering::Relaxed);
            self.evicted_units.fetch_add(units, Ordering::Relaxed);
            unreported.evicted.push(units);
        }
        Some(evicted)
    }

    /// Reserves room for new partition keys: first that of evicted keys, then free room. A peek only checks that there is room.
    /// Returns how many keys too many there would be, if there is no room.
    pub(super) fn reserve(&self, new_keys: usize, purpose: Purpose, room: &mut usize) -> Result<(), usize> {
        let of_evicted = new_keys.min(*room);
        let added = new_keys - of_evicted;
        let sum = |keys: usize| keys.checked_add(added).filter(|keys| *keys <= self.max_keys);
        let stored = self.keys.load(Ordering::Relaxed);
        let reserved = match (added, purpose) {
            (0, _) => Ok(0),
            (_, Purpose::Peek) => sum(stored).ok_or(stored),
            _ => self.keys.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum),
        };
        match reserved {
            Ok(_) => {
                *room -= of_evicted;
                Ok(())
            }
            Err(keys) => Err(keys.saturating_add(added).saturating_sub(self.max_keys)),
        }
    }

    /// Removes the idle keys of all shards, if a key may be due.
    fn remove_all_idle(&self) {
        // While another check removes them, idle keys are left, and no other key may be evicted.
        let _removal = self.removal.lock();
        let idle_since = self.idle_since(self.clock.now_micros());
        if idle_since < self.next_due.load(Ordering::Relaxed) {
            return;
        }
        // A key that is added from now on lowers it again.
        self.next_due.store(u64::MAX, Ordering::Relaxed);
        for shard in &self.shards {
            let mut shard = shard.lock();
            self.remove_idle(&mut shard, idle_since, usize::MAX);
            self.note_due(&shard);
        }
    }

    /// Lowers the instant before which no key is due.
    pub(super) fn note_due(&self, shard: &KeyShard) {
        let due = shard.first_due();
        // Usually another key is due earlier. Under the lock of the shard, the value read is not older than a search for idle keys that
        // has already passed this shard.
        if due < self.next_due.load(Ordering::Relaxed) {
            self.next_due.fetch_min(due, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{
        MemoryBackend, PartitionKey, Policy,
        backend::{Check, Pair, Purpose, Reason, WhenFull},
        policy::{Algorithm, Rate},
    };

    /// Decides a check of one pair, and returns whether it was admitted.
    fn charge(memory: &MemoryBackend, pair: Pair) -> Result<bool, Reason> {
        let decided = memory.decide(&Check::new([pair]).unwrap());
        decided.map(|decision| decision.is_admitted()).map_err(|error| error.reason())
    }

    fn with_quota(quota: u32) -> [Policy; 3] {
        let log = Policy::new("calls", quota, Duration::from_secs(3_600)).unwrap();
        let bucket = Algorithm::TokenBucket { rate: Rate::new(quota, Duration::from_secs(3_600)) };
        let [window, bucket] =
            [Algorithm::FixedWindow, bucket].map(|algorithm| log.clone().with_algorithm(algorithm).unwrap());
        [log, window, bucket]
    }

    fn pair(key: &str, policy: &Policy, cost: u32) -> Pair {
        Pair::new(PartitionKey::new("user", key), policy.clone(), cost)
    }

    /// Otherwise, a client at the limit of a class would reset it by one request of another class, and by inventing keys. One charge and
    /// several have forms of their own.
    #[test]
    fn charge_of_larger_quota_keeps_key_from_eviction() {
        for all in with_quota(100) {
            let batch = all.clone().headroom_percent(60).unwrap();
            for costs in [&[39][..], &[20, 10, 9]] {
                let memory = MemoryBackend::with_max_keys(1).unwrap();
                costs.iter().for_each(|cost| assert_eq!(charge(&memory, pair("a", &batch, *cost)), Ok(true)));
                assert_eq!(charge(&memory, pair("a", &all, 1)), Ok(true), "{all:?}");
                assert_eq!(charge(&memory, pair("b", &all, 45)), Err(Reason::Full), "{all:?} {costs:?}");
                assert_eq!(charge(&memory, pair("a", &batch, 1)), Ok(false), "{all:?}");
                assert_eq!(charge(&memory, pair("a", &all, 1)), Ok(true), "{all:?}");
                assert_eq!(charge(&memory, pair("b", &all, 45)), Err(Reason::Full), "{all:?} {costs:?}");
            }
        }
    }

    #[test]
    fn shadow_charge_of_any_quota_does_not_decide_about_eviction() {
        for ((ten, hundred), small) in with_quota(10).into_iter().zip(with_quota(100)).zip(with_quota(2)) {
            let memory = MemoryBackend::with_max_keys(1).unwrap();
            assert_eq!(charge(&memory, pair("a", &ten, 5)), Ok(true));
            assert_eq!(charge(&memory, pair("a", &hundred, 1).shadow()), Ok(true));
            assert_eq!(charge(&memory, pair("b", &ten, 1)), Err(Reason::Full), "{ten:?}");
            let memory = MemoryBackend::with_max_keys(1).unwrap();
            assert_eq!(charge(&memory, pair("a", &ten, 1)), Ok(true));
            assert_eq!(charge(&memory, pair("a", &small, 1).shadow()), Ok(true));
            assert_eq!(charge(&memory, pair("b", &ten, 1)), Ok(true), "{ten:?}: less than half of the quota");
        }
    }

    /// What remains of a quota does not show the usage beyond it.
    #[test]
    fn shadow_overage_of_whole_quota_keeps_key_from_eviction() {
        for (ten, hundred) in with_quota(10).into_iter().zip(with_quota(100)) {
            for units in [99, 100, 101] {
                let memory = MemoryBackend::with_max_keys(1).unwrap();
                assert_eq!(charge(&memory, pair("a", &ten, 10)), Ok(true));
                let overage = Check::new([pair("a", &hundred, units).shadow()]).unwrap();
                assert!(memory.decide(&overage.with_purpose(Purpose::Overage)).is_ok());
                assert_eq!(charge(&memory, pair("b", &ten, 1)), Err(Reason::Full), "{units} of {hundred:?}");
            }
        }
    }

    /// A raised quota counts once the usage of the smaller one has left.
    #[test]
    fn smaller_quota_is_forgotten_with_its_usage() {
        for (small, large) in with_quota(4).into_iter().zip(with_quota(100)) {
            let memory = MemoryBackend::with_max_keys(1).unwrap();
            let window = Duration::from_millis(40);
            let [small, large] = [small, large].map(|policy| match policy.algorithm() {
                Algorithm::TokenBucket { .. } => {
                    let (name, quota) = (policy.name(), policy.quota().unwrap());
                    Policy::token_bucket(name, quota, Rate::new(quota, window)).unwrap()
                }
                algorithm => {
                    let policy = Policy::new(policy.name(), policy.quota().unwrap(), window).unwrap();
                    policy.with_algorithm(algorithm).unwrap()
                }
            });
            // The other policy keeps the key, so that no idle key is removed.
            let day = Policy::new("day", 1_000, Duration::from_secs(86_400)).unwrap();
            let both = |policy: &Policy, cost| {
                let check = Check::new([pair("a", &day, 1), pair("a", policy, cost)]).unwrap();
                memory.decide(&check).unwrap().is_admitted()
            };
            assert!(both(&small, 4));
            std::thread::sleep(2 * window);
            assert!(both(&large, 4));
            assert_eq!(charge(&memory, pair("b", &large, 1)), Ok(true), "{large:?}");
        }
    }

    /// Otherwise, a key that a faster rate has made idle would take the place of a new key.
    #[cfg(feature = "test-util")]
    #[test]
    fn key_is_idle_by_its_newest_rate() {
        let bucket = |name, seconds| {
            Policy::token_bucket(name, 10, Rate::new(10, Duration::from_secs(seconds))).unwrap()
        };
        let [slow, fast, other] = [bucket("p", 1_000), bucket("p", 1), bucket("other", 1)];
        let check = |pairs: &[(&str, &Policy, u32)], purpose| {
            let pairs = pairs.iter().map(|(key, policy, cost)| pair(key, policy, *cost));
            Check::new(pairs.collect::<Vec<_>>()).unwrap().with_purpose(purpose)
        };
        let charges = [
            (check(&[("a", &fast, 1)], Purpose::Charge), "a pair"),
            (check(&[("a", &fast, 1), ("a", &other, 1)], Purpose::Charge), "two pairs of a key"),
            (check(&[("a", &fast, 1), ("b", &other, 0)], Purpose::Charge), "two keys"),
            (check(&[("a", &fast, 1)], Purpose::Reserve), "a count that is not packed"),
        ];
        for (when_full, (charge, form)) in [WhenFull::Reject, WhenFull::Evict]
            .into_iter()
            .flat_map(|when_full| charges.iter().map(move |charge| (when_full, charge)))
        {
            let clock = crate::testing::ManualClock::new();
            let memory = MemoryBackend::with_max_keys(1).unwrap().when_full(when_full).with_clock(&clock);
            let decide = |check: &Check| memory.decide(check).map(|decision| decision.is_admitted());
            let first = check(&[("a", &slow, 6)], charge.purpose());
            assert!(decide(&first).unwrap());
            // It notes when the first key is due.
            assert_eq!(
                decide(&check(&[("c", &slow, 6)], Purpose::Charge)).unwrap_err().reason(),
                Reason::Full
            );
            assert!(decide(charge).unwrap());
            clock.advance(Duration::from_secs(5));
            let admitted = decide(&check(&[("c", &slow, 6)], Purpose::Charge));
            assert!(admitted.unwrap_or_default(), "{form}, {when_full:?}");
            assert_eq!(memory.evicted_keys(), 0, "{form}, {when_full:?}");
        }
    }
}
