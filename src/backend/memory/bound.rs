//! The bound on the number of partition keys: idle keys are removed, and then other keys are evicted.

use std::sync::atomic::Ordering;

use super::{
    shard::{KeyShard, SHARDS},
    state::{DecisionAttempt, MemoryState, NewShadows},
};
use crate::{
    backend::{BackendError, Reason},
    check::{Check, Purpose},
    decision::Decision,
    key::PartitionKey,
    observe,
};

/// The number of partition keys that are sampled for an eviction.
const SAMPLED_KEYS: usize = 8;
/// A partition key is evicted only if less than this share of each of its quotas is in use.
const MAX_EVICTED_SHARE: f64 = 0.5;

impl MemoryState {
    /// Decides a check for which there was no room: removes the idle keys of all shards, and then evicts keys.
    #[cold]
    pub(super) fn decide_at_bound(&self, check: &Check) -> Result<Decision, BackendError> {
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
                Ok(DecisionAttempt::NoRoom { missing, shard }) => match self.make_room(check, missing, shard)
                {
                    None => break Err(BackendError::new(Reason::Full)),
                    // Fewer than are missing if other checks have evicted or charged them. Then try again.
                    Some(made) => room += made,
                },
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
    fn make_room(&self, check: &Check, missing: usize, shard: usize) -> Option<usize> {
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
            observe::evicted(units);
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
