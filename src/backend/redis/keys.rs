//! The names of keys in Redis, and the hash in them that hides the partition key.

use std::{
    hash::{Hash, Hasher},
    iter,
    sync::Arc,
};

use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use super::{recent_tags::RecentTags, slot, tag::Tag};
use crate::{
    error::ConfigError,
    key::{HashSecret, PartitionKey, TooShort},
    policy::{Policy, Properties},
};

/// The units of windows and precisions, in microseconds: day, hour, minute, second, millisecond and microsecond.
const UNITS: [u64; 6] = [86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000, 1_000, 1];

/// The letters of the units in a parameter, in the same order. In a window, the letters state the type of the policy.
const PARAMETER: &[u8; 6] = b"dhmsiu";

/// The digits of a number of units. None of them is a letter of a unit, so a unit ends its number.
const DIGITS: &[u8; 36] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// The hexadecimal digits of the identity of a holder.
const HOLDER_DIGITS: u32 = 16;

/// The rule that names keys. It has no `Debug`, because it may contain a secret.
#[derive(Clone, Default)]
pub(super) struct KeyNames {
    /// None for a hash without a secret.
    secret: Option<Arc<HashSecret>>,
    recent: Arc<RecentTags>,
}

impl KeyNames {
    /// Returns names whose hash is made under a secret.
    ///
    /// # Errors
    ///
    /// [`ConfigError::HashSecret`] if the secret is too short.
    pub(super) fn with_secret(secret: &[u8]) -> Result<Self, ConfigError> {
        let secret = HashSecret::new(secret).map_err(TooShort::into_error)?;
        Ok(Self { secret: Some(Arc::new(secret)), recent: Arc::default() })
    }

    pub(super) fn secret(&self) -> Option<&HashSecret> {
        self.secret.as_deref()
    }

    /// Returns the keys of pairs: the namespace, the hash tag between braces, the window with its type, for buckets the precision,
    /// and the name of the policy.
    ///
    /// The hash of the partition key is between braces, so all keys of one partition key are in one slot of a cluster. Its
    /// length is fixed: no input of a client can close the braces or fill the memory. Without a secret, a client can choose the slot.
    ///
    /// Different pairs have different keys: a namespace contains no brace, a unit ends its number, and the name is the rest.
    ///
    /// With a holder, the key of its numbers is before that of each pair in flight.
    pub(super) fn keys<'a>(
        &self,
        namespace: &str,
        pairs: impl Iterator<Item = (&'a PartitionKey, &'a Policy)>,
        holder: Option<u64>,
    ) -> Keys {
        let mut keys = Keys::default();
        // Usually all pairs have the same partition key, which is hashed once.
        let mut hashed: Option<(&PartitionKey, Tag)> = None;
        for (partition, policy) in pairs {
            let tag = match hashed {
                Some((other, tag)) if other == partition => tag,
                _ => self.tag(partition),
            };
            if let Some(holder) = holder.filter(|_| policy.properties().is_held) {
                keys.push_numbers(namespace, tag, policy, holder);
            }
            keys.push(namespace, tag, policy);
            hashed = Some((partition, tag));
        }
        keys
    }

    /// Returns the key of one pair.
    pub(super) fn key(&self, namespace: &str, partition: &PartitionKey, policy: &Policy) -> String {
        let keys = self.keys(namespace, [(partition, policy)].into_iter(), None);
        String::from_utf8_lossy(&keys.text).into_owned()
    }

    /// Returns the hash tag of a partition key.
    pub(super) fn tag(&self, partition: &PartitionKey) -> Tag {
        self.recent.tag(partition, || Tag::from_half(self.key_id(partition)))
    }

    /// Returns the slot of a partition key.
    pub(super) fn slot(&self, partition: &PartitionKey) -> u16 {
        slot::from_tag(self.tag(partition).as_bytes())
    }

    /// Returns the indices of partition keys by slot, in the order of the first key of each slot.
    pub(super) fn group_by_slot<'a>(&self, keys: impl Iterator<Item = &'a PartitionKey>) -> Vec<Vec<usize>> {
        let mut slots: Vec<(u16, Vec<usize>)> = Vec::new();
        for (i, slot) in keys.map(|key| self.slot(key)).enumerate() {
            match slots.iter_mut().find(|(other, _)| *other == slot) {
                Some((_, pairs)) => pairs.push(i),
                None => slots.push((slot, vec![i])),
            }
        }
        slots.into_iter().map(|(_, pairs)| pairs).collect()
    }

    /// Returns the first half of the hash of a partition key, which names it.
    pub(super) fn key_id(&self, partition: &PartitionKey) -> [u8; 16] {
        let hash: [u8; 32] = match &self.secret {
            None => Sha256::digest(partition.as_bytes()).into(),
            Some(secret) => secret.hash(partition),
        };
        hash.first_chunk().copied().unwrap_or_default()
    }
}

/// The names of some keys in Redis, as arguments of a command. A usual name needs no allocation.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Keys {
    /// The names, one after the other.
    text: SmallVec<[u8; 96]>,
    /// The end of each name.
    ends: SmallVec<[usize; 2]>,
    /// The hash tag of the first name.
    first_tag: Option<Tag>,
}

/// The text alone distinguishes almost all lists.
impl Hash for Keys {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.text);
    }
}

impl Keys {
    pub(super) fn push(&mut self, namespace: &str, tag: Tag, policy: &Policy) {
        self.push_marked(namespace, tag, b"", policy);
    }

    /// Adds the key of a pair with a mark in front of its window.
    pub(super) fn push_marked(&mut self, namespace: &str, tag: Tag, mark: &[u8], policy: &Policy) {
        let Properties { bucket_micros, period_letter, redis, window_micros, .. } = policy.properties();
        self.push_tag(namespace, tag);
        self.text.extend_from_slice(mark);
        match redis.key_letters {
            [letter] => self.text.push(*letter),
            letters => self.push_duration(*window_micros, letters),
        }
        self.text.extend(*period_letter);
        if let Some(micros) = bucket_micros {
            self.push_duration(micros.get(), PARAMETER);
        }
        self.text.extend_from_slice(policy.name().as_bytes());
        self.ends.push(self.text.len());
    }

    /// Adds the key of the numbers that a holder holds of a pair in flight. No pair has such a key.
    pub(super) fn push_numbers(&mut self, namespace: &str, tag: Tag, policy: &Policy, holder: u64) {
        self.push_tag(namespace, tag);
        self.text.push(b'=');
        // The length is fixed, so the name is the rest.
        let digits = (0..HOLDER_DIGITS).map(|i| DIGITS[(holder >> (4 * i) & 15) as usize]);
        self.text.extend(digits);
        self.text.extend_from_slice(policy.name().as_bytes());
        self.ends.push(self.text.len());
    }

    /// Adds the key that remembers that a part of a token is settled. No pair has such a key: a window begins with a digit or a letter.
    pub(super) fn push_token(&mut self, namespace: &str, tag: Tag, id: u64, part: usize) {
        self.push_tag(namespace, tag);
        self.text.push(b'!');
        // A token has at most eight pairs.
        self.push_number(id << 3 | part as u64);
        self.ends.push(self.text.len());
    }

    fn push_tag(&mut self, namespace: &str, tag: Tag) {
        self.text.extend_from_slice(namespace.as_bytes());
        self.text.push(b'{');
        self.text.extend_from_slice(tag.as_bytes());
        self.text.push(b'}');
        self.first_tag.get_or_insert(tag);
    }

    /// Adds a window or a parameter: the number of the largest unit that divides it, and the letter of this unit. No number stands
    /// for one.
    fn push_duration(&mut self, micros: u64, letters: &[u8]) {
        for (unit, letter) in UNITS.into_iter().zip(letters) {
            if micros.is_multiple_of(unit) {
                self.push_number(micros / unit);
                self.text.push(*letter);
                return;
            }
        }
    }

    /// Adds a number to base 36, unless it is one.
    fn push_number(&mut self, number: u64) {
        if number == 1 {
            return;
        }
        let mut power = 1;
        while power <= number / 36 {
            power *= 36;
        }
        while power > 0 {
            self.text.push(DIGITS[(number / power % 36) as usize]);
            power /= 36;
        }
    }

    /// Reserves the memory for the names of other lists.
    pub(super) fn reserve_for<'a>(&mut self, others: impl Iterator<Item = &'a Self> + Clone) {
        self.text.reserve(others.clone().map(|keys| keys.text.len()).sum());
        self.ends.reserve(others.map(|keys| keys.ends.len()).sum());
    }

    /// Adds the names of another list.
    pub(super) fn append(&mut self, other: &Self) {
        let start = self.text.len();
        self.text.extend_from_slice(&other.text);
        self.ends.extend(other.ends.iter().map(|end| start + end));
        self.first_tag = self.first_tag.or(other.first_tag);
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the size of all names, in bytes.
    pub(super) fn size(&self) -> usize {
        self.text.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).filter_map(|(start, end)| self.text.get(start..*end))
    }

    /// Returns the slot of the first key.
    pub(super) fn slot(&self) -> u16 {
        self.first_tag.map_or(0, |tag| slot::from_tag(tag.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::policy::Algorithm;

    #[test]
    fn key_names_every_part_of_a_pair_and_hashes_the_client_input() {
        let policy = |algorithm| {
            let policy = Policy::new("burst", 10, Duration::from_secs(1)).unwrap();
            policy.with_algorithm(algorithm).unwrap()
        };
        let precision = Duration::from_millis(7);
        let policies = [
            Algorithm::SlidingLog,
            Algorithm::SlidingBuckets { precision },
            Algorithm::SlidingCounter,
            Algorithm::FixedWindow,
            Algorithm::TokenBucket { rate: crate::policy::Rate::per_second(7) },
        ]
        .map(policy);
        let [alice, bob] = ["}{alice", "bob"].map(|value| PartitionKey::new("user", value));
        let pairs = [
            (&alice, &policies[0]),
            (&alice, &policies[1]),
            (&bob, &policies[2]),
            (&alice, &policies[3]),
            (&bob, &policies[4]),
        ];
        let names = KeyNames::default();
        let keys = names.keys("tsw", pairs.into_iter(), None);
        let texts: Vec<_> = keys.iter().map(|key| str::from_utf8(key).unwrap()).collect();
        assert_eq!(
            texts,
            [
                "tsw{dsxeUpbyPDuQ_4DxWSKcIy}sburst",
                "tsw{dsxeUpbyPDuQ_4DxWSKcIy}e7iburst",
                "tsw{QVW2qMVA9r0Eum70k79MZC}nburst",
                "tsw{dsxeUpbyPDuQ_4DxWSKcIy}vburst",
                "tsw{QVW2qMVA9r0Eum70k79MZC}yburst",
            ]
        );
        assert_eq!(pairs.map(|(key, policy)| names.key("tsw", key, policy)), *texts);
    }

    /// The expected value was computed with Python's `hmac`.
    #[test]
    fn tag_under_a_secret_is_half_of_an_hmac() {
        let secret = b"a secret of at least 32 bytes, or more";
        let names = KeyNames::with_secret(secret).unwrap();
        let alice = PartitionKey::new("user", "alice");
        assert_eq!(names.tag(&alice).to_string(), "2hT4mRqL0HRLmA_wnSYJ2S");
        assert_ne!(names.tag(&alice), KeyNames::default().tag(&alice));
        let other = KeyNames::with_secret(&secret[1..]).unwrap();
        assert_ne!(names.tag(&alice), other.tag(&alice));
    }

    #[test]
    fn keys_are_grouped_in_the_order_of_their_slots() {
        let keys = ["a", "b", "a"].map(|value| PartitionKey::new("user", value));
        assert_eq!(KeyNames::default().group_by_slot(keys.iter()), [vec![0, 2], vec![1]]);
    }
}
