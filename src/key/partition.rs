//! The partition key itself.

use std::{fmt, sync::Arc};

use sha2::{Digest, Sha256};
use smallvec::SmallVec;

/// Longer keys are kept as their digest.
const MAX_KEPT: usize = 256;

/// The partition key: whose usage is counted. An API key, a user, an address, a route, or several together.
///
/// A key is a list of parts. Each part has a *kind*, such as `"user"` or `"peer-ip"`, and a *value*. The kind is a part of the
/// key, so the user `1.2.3.4` and the address 1.2.3.4 are different keys. Two different lists are never equal.
///
/// Values identify people, so `Debug` shows the kinds and omits the values.
///
/// ```
/// use tower_sliding_window::PartitionKey;
///
/// let user = PartitionKey::new("user", "1.2.3.4");
/// assert_ne!(user, PartitionKey::new("peer-ip", "1.2.3.4"));
/// assert_ne!(user.and(&PartitionKey::new("route", "/search")), user);
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionKey(
    /// The parts, one after the other, each as two fields; a field is its length in eight bytes and its bytes.
    /// So the list can be read back in one way only.
    Arc<[u8]>,
);

impl PartitionKey {
    /// Creates a key of one part. Kind and value may contain any bytes. An empty value is valid, but the extractors of this
    /// crate never create one.
    pub fn new(kind: &str, value: impl AsRef<[u8]>) -> Self {
        // Most keys are short, so that only the key itself is allocated.
        let mut bytes = SmallVec::<[u8; 128]>::new();
        for field in [kind.as_bytes(), value.as_ref()] {
            bytes.extend_from_slice(&(field.len() as u64).to_le_bytes());
            bytes.extend_from_slice(field);
        }
        Self(bytes.as_slice().into())
    }

    /// Returns the key of all parts of this key, followed by all parts of the other.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self([&self.0[..], &other.0[..]].concat().into())
    }

    /// Returns a number from 0 to 99 that divides all keys into a hundred parts of about the same size. Use it to treat a percentage of
    /// the keys differently: `key.percentile() < 10` is true for 10 percent of the keys, and each key stays on its side.
    ///
    /// It is the same in every process and every release: the first eight bytes of the SHA-256 of [`as_bytes`](Self::as_bytes), as an
    /// unsigned big-endian number, modulo 100. For another division of the same keys, combine them with a constant:
    /// `key.and(&PartitionKey::new("trial", "2"))`.
    ///
    /// ```
    /// use tower_sliding_window::PartitionKey;
    ///
    /// assert_eq!(PartitionKey::new("user", "alice").percentile(), 9);
    /// ```
    pub fn percentile(&self) -> u8 {
        let hash = Sha256::digest(&self.0);
        let number = hash.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        // Below 100.
        (number % 100) as u8
    }

    /// Returns the canonical bytes: the same for equal keys and different for different keys, in every process and version.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// This key as a store in memory keeps it: of bounded size, whatever a client has sent. A long key becomes its
    /// SHA-256, after a field length that no list of parts can have.
    pub(crate) fn bounded(&self) -> Self {
        if self.0.len() <= MAX_KEPT {
            self.clone()
        } else {
            Self([&u64::MAX.to_le_bytes()[..], &Sha256::digest(&self.0)].concat().into())
        }
    }

    /// Returns the parts of this key in their order, each with its kind and its value. Values may identify people.
    ///
    /// ```
    /// use tower_sliding_window::PartitionKey;
    ///
    /// let key = PartitionKey::new("user", "alice").and(&PartitionKey::new("route", "/search"));
    /// assert_eq!(key.parts().collect::<Vec<_>>(), [("user", &b"alice"[..]), ("route", &b"/search"[..])]);
    /// ```
    pub fn parts(&self) -> impl Iterator<Item = (&str, &[u8])> {
        fn field(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
            let (length, rest) = bytes.split_first_chunk::<8>()?;
            rest.split_at_checked(u64::from_le_bytes(*length) as usize)
        }
        let mut rest = &self.0[..];
        std::iter::from_fn(move || {
            let (kind, after_kind) = field(rest)?;
            let (value, after_value) = field(after_kind)?;
            rest = after_value;
            Some((str::from_utf8(kind).ok()?, value))
        })
    }
}

impl fmt::Debug for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PartitionKey(")?;
        for (i, (kind, _)) in self.parts().enumerate() {
            write!(f, "{}{kind}=..", if i == 0 { "" } else { ", " })?;
        }
        write!(f, ")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_lists_of_parts_are_different_keys() {
        let key = |kind: &str, value: &str| PartitionKey::new(kind, value);
        let lists = [
            key("a", "bc"),
            key("ab", "c"),
            key("", "abc"),
            key("abc", ""),
            key("a", "b").and(&key("c", "")),
            key("a", "").and(&key("b", "c")),
            key("a", "b").and(&key("", "c")),
            PartitionKey::new("a", key("b", "c").as_bytes()),
            key("a", "b"),
        ];
        for (i, a) in lists.iter().enumerate() {
            for (j, b) in lists.iter().enumerate() {
                assert_eq!(a == b, i == j, "{i} and {j}");
            }
        }
    }

    #[test]
    fn bounded_key_keeps_keys_distinct() {
        let long =
            |last: char| PartitionKey::new("header:x", "x".repeat(100_000) + &last.to_string()).bounded();
        assert!(long('a').as_bytes().len() <= MAX_KEPT);
        assert_eq!(long('a'), long('a'));
        assert_ne!(long('a'), long('b'));
        assert_eq!(format!("{:?}", long('a')), "PartitionKey()");
        let short = PartitionKey::new("header:x", "a");
        assert_eq!(short.bounded(), short);
    }

    /// The expected values were computed with Python's `hashlib`.
    #[test]
    fn percentile_is_stable_and_even() {
        for (user, percentile) in [("alice", 9), ("bob", 48), ("", 50)] {
            assert_eq!(PartitionKey::new("user", user).percentile(), percentile, "{user}");
        }
        let keys = (0..10_000).map(|i| PartitionKey::new("user", i.to_string()));
        let below_ten = keys.filter(|key| key.percentile() < 10).count();
        assert!((900..1_100).contains(&below_ten), "{below_ten}");
    }

    #[test]
    fn debug_shows_kinds_and_hides_values() {
        let key = PartitionKey::new("user", "alice").and(&PartitionKey::new("peer-ip", "192.0.2.1"));
        assert_eq!(format!("{key:?}"), "PartitionKey(user=.., peer-ip=..)");
    }
}
