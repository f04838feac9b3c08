//! What the keys are called, and whether who reads their names can guess whose they are.

use std::{fmt::Write, sync::Arc};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::script::shape;
use crate::{
    error::ConfigError,
    key::PartitionKey,
    policy::{Algorithm, Policy},
};

/// Changes whenever the meaning of a stored value does.
const STORAGE_VERSION: &str = "1";

/// The shortest secret, in bytes: as long as the hash, and what a random one of 128 bits takes in hexadecimal.
const MIN_SECRET: usize = 32;

/// How keys are named. It has no `Debug`: it may know a secret.
#[derive(Clone, Default)]
pub(super) struct Names {
    /// The hash of nothing under the secret, to go on from. None hashes without one.
    secret: Option<Arc<Hmac<Sha256>>>,
}

impl Names {
    /// # Errors
    ///
    /// [`ConfigError::HashSecret`] if the secret is too short.
    pub(super) fn with_secret(secret: &[u8]) -> Result<Self, ConfigError> {
        let too_short = || ConfigError::HashSecret { given: secret.len(), min: MIN_SECRET };
        if secret.len() < MIN_SECRET {
            return Err(too_short());
        }
        // Every length is one that it takes.
        let begun = Hmac::new_from_slice(secret).map_err(|_| too_short())?;
        Ok(Self { secret: Some(Arc::new(begun)) })
    }

    pub(super) fn have_secret(&self) -> bool {
        self.secret.is_some()
    }

    /// The keys of pairs: `namespace:version:{hash}:policy:algorithm:window`, and for buckets `:precision`.
    ///
    /// The hash of the partition key stands between braces, so all keys of one partition live in one slot of a cluster. It
    /// is of fixed length: nothing that a client sends can end the braces, choose a slot, or fill memory.
    pub(super) fn keys<'a>(
        &self,
        namespace: &str,
        pairs: impl ExactSizeIterator<Item = (&'a PartitionKey, &'a Policy)>,
    ) -> Vec<String> {
        let mut keys = Vec::with_capacity(pairs.len());
        // As a rule all pairs have one partition key, which is hashed once.
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

    /// The key of one pair.
    pub(super) fn key(&self, namespace: &str, partition: &PartitionKey, policy: &Policy) -> String {
        key(namespace, &self.tag(partition), policy)
    }

    /// What stands between the braces, 128 bits in hexadecimal: the first half of the SHA-256 of a partition key, or of its
    /// HMAC-SHA-256 under the secret.
    pub(super) fn tag(&self, partition: &PartitionKey) -> String {
        match &self.secret {
            None => hexadecimal(&Sha256::digest(partition.as_bytes())),
            Some(begun) => {
                let mut mac = Hmac::clone(begun);
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
    if let Algorithm::SlidingBuckets { .. } = policy.algorithm() {
        let _ = write!(key, ":{}", shape(policy));
    }
    key
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_key_is_made_of_what_makes_a_pair_and_no_client_can_write_a_brace_into_it() {
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
        let names = Names::default();
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

    /// Worked out with Python's `hmac`.
    #[test]
    fn under_a_secret_the_tag_is_half_of_an_hmac() {
        let secret = b"a secret of at least 32 bytes, or more";
        let names = Names::with_secret(secret).unwrap();
        let alice = PartitionKey::new("user", "alice");
        assert_eq!(names.tag(&alice), "d5aa60f5a1a8eab39bc8640cd15ef8cb");
        assert_ne!(names.tag(&alice), Names::default().tag(&alice));
        let other = Names::with_secret(&secret[1..]).unwrap();
        assert_ne!(names.tag(&alice), other.tag(&alice));
    }

    #[test]
    fn a_secret_is_long_enough() {
        for secret in ["", "s3cret", &"s".repeat(31)] {
            let Err(error) = Names::with_secret(secret.as_bytes()) else { panic!("{secret}") };
            assert_eq!(
                error.to_string(),
                format!(
                    "a hash secret of {} bytes: it must be at least 32 bytes, made at random, as `openssl rand -hex 32` makes it",
                    secret.len()
                )
            );
        }
        for long in [32, 64, 65, 10_000] {
            assert!(Names::with_secret(&vec![7; long]).is_ok_and(|names| names.have_secret()));
        }
    }
}
