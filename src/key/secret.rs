//! Hashes of partition keys under a secret.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::PartitionKey;
use crate::error::ConfigError;

/// The shortest secret, in bytes: as long as the hash, and the length of 128 random bits in hexadecimal.
const MIN_SECRET: usize = 32;

/// The HMAC state after a secret. It has no `Debug`.
#[derive(Clone)]
pub(crate) struct HashSecret(Hmac<Sha256>);

/// The length of a secret that is too short, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct TooShort(usize);

impl HashSecret {
    pub(crate) fn new(secret: &[u8]) -> Result<Self, TooShort> {
        // HMAC accepts a secret of any length.
        let hmac = Hmac::new_from_slice(secret).ok().filter(|_| secret.len() >= MIN_SECRET);
        hmac.map(Self).ok_or(TooShort(secret.len()))
    }

    /// Returns the HMAC-SHA-256 of the bytes of a key.
    pub(crate) fn hash(&self, key: &PartitionKey) -> [u8; 32] {
        let mut mac = self.0.clone();
        mac.update(key.as_bytes());
        mac.finalize().into_bytes().into()
    }

    /// Returns the HMAC-SHA-256 of a text for another purpose than the name of a key. The text begins with the purpose.
    pub(crate) fn hash_text(&self, text: &[u8]) -> [u8; 32] {
        let mut mac = self.0.clone();
        // No key begins with this length, so no key has this hash.
        mac.update(&[u8::MAX; 9]);
        mac.update(text);
        mac.finalize().into_bytes().into()
    }

    /// Returns the pseudonym of a key: the second half of the hash, in hexadecimal. The first half names the key in Redis, if the
    /// backend has the same secret. So the pseudonym states neither the name nor the slot. A key that a list in memory keeps as its
    /// digest has the pseudonym of the digest.
    pub(crate) fn pseudonym(&self, key: &PartitionKey) -> String {
        let hash = self
            .hash(&key.bounded())
            .into_iter()
            .skip(16)
            .fold(0, |bits: u128, byte| bits << 8 | u128::from(byte));
        format!("{hash:032x}")
    }
}

impl TooShort {
    pub(crate) fn into_error(self) -> ConfigError {
        ConfigError::HashSecret { given: self.0, min: MIN_SECRET }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8; 32] = b"a secret of 32 bytes, not random";

    /// The expected value was computed with Python's `hmac`.
    #[test]
    fn pseudonym_is_second_half_of_an_hmac() {
        let secret = HashSecret::new(SECRET).ok().unwrap();
        let alice = PartitionKey::new("user", "alice");
        assert_eq!(secret.pseudonym(&alice), "98debb7771ac108dedb50c90e201e823");
        let other = HashSecret::new(b"another secret of 32 bytes and ..").ok().unwrap();
        assert_ne!(secret.pseudonym(&alice), other.pseudonym(&alice));
    }

    #[test]
    fn kept_digest_has_pseudonym_of_its_key() {
        let secret = HashSecret::new(SECRET).ok().unwrap();
        for length in [1, 250, 300, 10_000] {
            let key = PartitionKey::new("user", "x".repeat(length));
            assert_eq!(secret.pseudonym(&key), secret.pseudonym(&key.bounded()), "{length}");
        }
    }

    #[test]
    fn short_secret_is_an_error() {
        for secret in ["", "s3cret", &"s".repeat(31)] {
            let Err(error) = HashSecret::new(secret.as_bytes()) else { panic!("{secret}") };
            assert_eq!(
                error.into_error().to_string(),
                format!(
                    "secret of {} bytes: it must have at least 32 random bytes, for example from `openssl rand -hex 32`",
                    secret.len()
                )
            );
        }
        for long in [32, 64, 65, 10_000] {
            assert!(HashSecret::new(&vec![7; long]).is_ok());
        }
    }
}
