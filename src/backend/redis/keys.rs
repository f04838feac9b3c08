//! The names of keys in Redis, and the hash in them that hides the partition key.

use std::{iter, sync::Arc};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use super::{recent_tags::RecentTags, slot, tag::Tag};
use crate::{
    error::ConfigError,
    key::PartitionKey,
    policy::{Algorithm, Policy},
};

/// The version of the storage format. It changes with the meaning of a stored value.
const STORAGE_VERSION: u8 = b'1';

/// The shortest secret, in bytes: as long as the hash, and the length of 128 random bits in hexadecimal.
const MIN_SECRET: usize = 32;

/// The rule that names keys. It has no `Debug`, because it may contain a secret.
#[derive(Clone, Default)]
pub(super) struct KeyNames {
    /// The HMAC state after the secret. None for a hash without a secret.
    secret: Option<Arc<Hmac<Sha256>>>,
    recent: Arc<RecentTags>,
}

impl KeyNames {
    /// Returns names whose hash is made under a secret.
    ///
    /// # Errors
    ///
    /// [`ConfigError::HashSecret`] if the secret is too short.
    pub(super) fn with_secret(secret: &[u8]) -> Result<Self, ConfigError> {
        let too_short = || ConfigError::HashSecret { given: secret.len(), min: MIN_SECRET };
        if secret.len() < MIN_SECRET {
            return Err(too_short());
        }
        // HMAC accepts a secret of any length.
        let hmac = Hmac::new_from_slice(secret).map_err(|_| too_short())?;
        Ok(Self { secret: Some(Arc::new(hmac)), recent: Arc::default() })
    }

    pub(super) fn has_secret(&self) -> bool {
        self.secret.is_some()
    }

    /// Returns the keys of pairs: `namespace:version:{hash}:policy:algorithm:window`, and for buckets `:precision`.
    ///
    /// The hash of the partition key is between braces, so all keys of one partition key are in one slot of a cluster. Its
    /// length is fixed: no input of a client can close the braces or fill the memory. Without a secret, a client can choose the slot.
    pub(super) fn keys<'a>(
        &self,
        namespace: &str,
        pairs: impl Iterator<Item = (&'a PartitionKey, &'a Policy)>,
    ) -> Keys {
        let mut keys = Keys::default();
        // Usually all pairs have the same partition key, which is hashed once.
        let mut hashed: Option<(&PartitionKey, Tag)> = None;
        for (partition, policy) in pairs {
            let tag = match hashed {
                Some((other, tag)) if other == partition => tag,
                _ => self.tag(partition),
            };
            keys.push(namespace, tag, policy);
            hashed = Some((partition, tag));
        }
        keys
    }

    /// Returns the key of one pair.
    pub(super) fn key(&self, namespace: &str, partition: &PartitionKey, policy: &Policy) -> String {
        let keys = self.keys(namespace, [(partition, policy)].into_iter());
        String::from_utf8_lossy(&keys.text).into_owned()
    }

    /// Returns the hash tag of a partition key.
    pub(super) fn tag(&self, partition: &PartitionKey) -> Tag {
        self.recent.tag(partition, || self.hash(partition))
    }

    fn hash(&self, partition: &PartitionKey) -> Tag {
        match &self.secret {
            None => Tag::of(&Sha256::digest(partition.as_bytes())),
            Some(hmac) => {
                let mut mac = Hmac::clone(hmac);
                mac.update(partition.as_bytes());
                Tag::of(&mac.finalize().into_bytes())
            }
        }
    }
}

/// The names of some keys in Redis, as arguments of a command. A usual name needs no allocation.
#[derive(Default, PartialEq, Eq, Hash)]
pub(super) struct Keys {
    /// The names, one after the other.
    text: SmallVec<[u8; 96]>,
    /// The end of each name.
    ends: SmallVec<[usize; 2]>,
    /// The hash tag of the first name.
    first_tag: Option<Tag>,
}

impl Keys {
    fn push(&mut self, namespace: &str, tag: Tag, policy: &Policy) {
        let algorithm = match policy.algorithm() {
            Algorithm::SlidingLog => ":log:",
            Algorithm::SlidingBuckets { .. } => ":buckets:",
            Algorithm::SlidingCounter => ":counter:",
            Algorithm::FixedWindow => ":fixed:",
        };
        let mut middle = *b":1:{................................}:";
        middle[1] = STORAGE_VERSION;
        middle[4..36].copy_from_slice(tag.as_bytes());
        let mut digits = itoa::Buffer::new();
        self.text.extend_from_slice(namespace.as_bytes());
        self.text.extend_from_slice(&middle);
        self.text.extend_from_slice(policy.name().as_bytes());
        self.text.extend_from_slice(algorithm.as_bytes());
        self.text.extend_from_slice(digits.format(policy.window_micros()).as_bytes());
        if let Algorithm::SlidingBuckets { precision } = policy.algorithm() {
            self.text.push(b':');
            self.text.extend_from_slice(digits.format(precision.as_micros()).as_bytes());
        }
        self.ends.push(self.text.len());
        self.first_tag.get_or_insert(tag);
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
        self.first_tag.map_or(0, |tag| slot::of_tag(tag.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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
        ]
        .map(policy);
        let [alice, bob] = ["}{alice", "bob"].map(|value| PartitionKey::new("user", value));
        let pairs =
            [(&alice, &policies[0]), (&alice, &policies[1]), (&bob, &policies[2]), (&alice, &policies[3])];
        let names = KeyNames::default();
        let keys = names.keys("tsw", pairs.into_iter());
        let texts: Vec<_> = keys.iter().map(|key| str::from_utf8(key).unwrap()).collect();
        assert_eq!(
            texts,
            [
                "tsw:1:{76cc5e5296f23c3b90ff80f159229c23}:burst:log:1000000",
                "tsw:1:{76cc5e5296f23c3b90ff80f159229c23}:burst:buckets:1000000:7000",
                "tsw:1:{4155b6a8c540f6bd04ba6ef493bf4c64}:burst:counter:1000000",
                "tsw:1:{76cc5e5296f23c3b90ff80f159229c23}:burst:fixed:1000000",
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
        assert_eq!(names.tag(&alice).to_string(), "da14f8991a8bd0744b980ff09d2609d9");
        assert_ne!(names.tag(&alice), KeyNames::default().tag(&alice));
        let other = KeyNames::with_secret(&secret[1..]).unwrap();
        assert_ne!(names.tag(&alice), other.tag(&alice));
    }

    #[test]
    fn short_secret_is_an_error() {
        for secret in ["", "s3cret", &"s".repeat(31)] {
            let Err(error) = KeyNames::with_secret(secret.as_bytes()) else { panic!("{secret}") };
            assert_eq!(
                error.to_string(),
                format!(
                    "hash secret of {} bytes: it must have at least 32 random bytes, for example from `openssl rand -hex 32`",
                    secret.len()
                )
            );
        }
        for long in [32, 64, 65, 10_000] {
            assert!(KeyNames::with_secret(&vec![7; long]).is_ok_and(|names| names.has_secret()));
        }
    }
}
