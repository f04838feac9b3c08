//! Hash tags of keys.

use std::fmt;

/// The version of the storage format. It changes with the meaning of a stored value. It has 4 bits.
const STORAGE_VERSION: u8 = 2;

/// The alphabet of base64 for names (RFC 4648, base64url).
const CHARACTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The number of characters: 6 bits each.
const LENGTH: usize = 22;

/// A hash tag, the text between the braces of a key, in base64url: 128 bits of the hash of a partition key, and then the version of
/// the storage format. The hash is the first half of a SHA-256, or of an HMAC-SHA-256 under the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Tag([u8; LENGTH]);

impl Tag {
    /// Returns the tag of the first half of a hash.
    pub(super) fn from_half(half: [u8; 16]) -> Self {
        let mut bits = u128::from_be_bytes(half);
        let mut text = [0; LENGTH];
        // From the last character, which has two bits of the hash and the version.
        let mut character = (bits as u8 & 3) << 4 | STORAGE_VERSION;
        bits >>= 2;
        for byte in text.iter_mut().rev() {
            *byte = CHARACTERS[usize::from(character)];
            character = bits as u8 & 63;
            bits >>= 6;
        }
        Self(text)
    }

    pub(super) fn as_bytes(&self) -> &[u8; LENGTH] {
        &self.0
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}
