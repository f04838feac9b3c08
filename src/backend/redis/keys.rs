//! The names of keys in Redis, and the hash in them that hides the partition key.

use std::{fmt::Write, sync::Arc};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::{
    error::ConfigError,
    key::PartitionKey,
    policy::{Algorithm, Policy},
};

/// The version of the storage format. It changes with the meaning of a stored value.
const STORAGE_VERSION: &str = "1";

/// The shortest secret, in bytes: as long as the hash, and the length of 128 random bits in hexadecimal.
const MIN_SECRET: usize = 32;

/// The rule that names keys. It has no `Debug`, because it may contain a secret.
#[derive(Clone, Default)]
pub(super) struct KeyNames {
    /// The HMAC state after the secret. None for a hash without a secret.
    secret: Option<Arc<Hmac<Sha256>>>,
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
        Ok(Self { secret: Some(Arc::new(hmac)) })
    }

    pub(super) fn has_secret(&self) -> bool {
        self.secret.is_some()
    }

    /// Returns the keys of pairs: `namespace:version:{hash}:policy:algorithm:window`, and for buckets `:precision`.
    ///
    /// The hash of the partition key is between braces, so all keys of one partition key are in one slot of a cluster. Its
    /// length is fixed: no input of a client can close the braces, choose a slot, or fill the memory.
    pub(super) fn keys<'a>(
        &self,
        namespace: &str,
        pairs: impl ExactSizeIterator<Item = (&'a PartitionKey, &'a Policy)>,
    ) -> Vec<String> {
        let mut keys = Vec::with_capacity(pairs.len());
        // Usually all pairs have the same partition key, which is hashed once.
        let mut hashed: Option<(&PartitionKey, String)> = None;
        for (partition, policy) in pairs {
            let tag = match hashed.take() {
                Some((other, tag)) if other == partition => tag,
                _ => self.tag(partition),
            };
            keys.push(key(namespace, &tag, policy));
            hashed = Some((partition, tag));
        }
        keys
    }

    /// Returns the key of one pair.
    pub(super) fn key(&self, namespace: &str, partition: &PartitionKey, policy: &Policy) -> String {
        key(namespace, &self.tag(partition), policy)
    }

    /// Returns the hash tag, the text between the braces: 128 bits in hexadecimal, the first half of the SHA-256 of a partition
    /// key, or of its HMAC-SHA-256 under the secret.
    pub(super) fn tag(&self, partition: &PartitionKey) -> String {
        match &self.secret {
            None => hexadecimal(&Sha256::digest(partition.as_bytes())),
            Some(hmac) => {
                let mut mac = Hmac::clone(hmac);
                mac.update(partition.as_bytes());
                hexadecimal(&mac.finalize().into_bytes())
            }
        }
    }
}

fn hexadecimal(hash: &[u8]) -> String {
    let mut text = String::with_capacity(32);
    for byte in hash.iter().take(16) {
        // Writing into a string never fails.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn key(namespace: &str, tag: &str, policy: &Policy) -> String {
    let algorithm = match policy.algorithm() {
        Algorithm::SlidingLog => "log",
        Algorithm::SlidingBuckets { .. } => "buckets",
        Algorithm::SlidingCounter => "counter",
        Algorithm::FixedWindow => "fixed",
    };
    let mut key = String::with_capacity(128);
    let _ = write!(
        key,
        "{namespace}:{STORAGE_VERSION}:{{{tag}}}:{}:{algorithm}:{}",
        policy.name(),
        policy.window_micros()
    );
    if let Algorithm::SlidingBuckets { precision } = policy.algorithm() {
        let _ = write!(key, ":{}", precision.as_micros());
    }
    key
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
        assert_eq!(
            keys,
            [
                "tsw:1:{2d4cfc522819a2c3c1ae8f168eac7df8}:burst:log:1000000",
                "tsw:1:{2d4cfc522819a2c3c1ae8f168eac7df8}:burst:buckets:1000000:7000",
                "tsw:1:{228fadf6e7af8120b4f6d3d557bf1c48}:burst:counter:1000000",
                "tsw:1:{2d4cfc522819a2c3c1ae8f168eac7df8}:burst:fixed:1000000",
            ]
        );
        assert_eq!(pairs.map(|(key, policy)| names.key("tsw", key, policy)), *keys);
    }

    /// The expected value was computed with Python's `hmac`.
    #[test]
    fn tag_under_a_secret_is_half_of_an_hmac() {
        let secret = b"a secret of at least 32 bytes, or more";
        let names = KeyNames::with_secret(secret).unwrap();
        let alice = PartitionKey::new("user", "alice");
        assert_eq!(names.tag(&alice), "d5aa60f5a1a8eab39bc8640cd15ef8cb");
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
