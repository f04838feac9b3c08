//! Hash tags of keys.

use std::fmt;

/// A hash tag, the text between the braces of a key: 128 bits in hexadecimal, the first half of the SHA-256 of a partition key, or
/// of its HMAC-SHA-256 under the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tag([u8; 32]);

impl Tag {
    /// Returns the tag of a hash of at least 16 bytes.
    pub(super) fn of(hash: &[u8]) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 32];
        for (digits, byte) in text.chunks_exact_mut(2).zip(hash) {
            digits.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
        Self(text)
    }

    pub(super) fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}
