//! The partition key itself.

use std::{
    borrow::Cow,
    cmp::Ordering,
    fmt,
    hash::{BuildHasher, Hash, Hasher, RandomState},
    num::NonZeroU64,
    sync::{Arc, LazyLock},
};

use sha2::{Digest, Sha256};
use smallvec::SmallVec;

/// Longer keys are kept as their digest.
const MAX_KEPT: usize = 256;

/// The length of the longest key that needs no memory of the heap.
const MAX_INLINE: usize = 39;

/// The longest length of one byte.
const MAX_SHORT: u8 = 254;

/// The first byte of a length of nine bytes.
const LONG: u8 = 255;

/// The length of the buffer in which most other keys are built.
const SHORT: usize = 128;

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
#[derive(Clone)]
pub struct PartitionKey(Repr);

/// The parts of a key, one after the other, each as two fields; a field is its length and its bytes. A length below 255 is one
/// byte, and another one is the byte 255 and eight bytes. So the list can be read back in one way only.
///
/// Most keys are short: their clones share no counter, and a map finds them without another memory access.
#[derive(Clone)]
enum Repr {
    Inline(Inline),
    Shared(Allocated),
}

/// A short key. It consists of whole words, also without its hash, by which it differs from a long key. So a copy does not read parts of
/// words that were just written.
#[derive(Clone, Copy)]
#[repr(C)]
struct Inline {
    /// The hash of the bytes, computed once for all maps of this process.
    hash: NonZeroU64,
    /// The bytes, and their length in the last one.
    buffer: [u8; MAX_INLINE + 1],
}

#[derive(Clone)]
#[repr(C)]
struct Allocated {
    hash: u64,
    bytes: Arc<[u8]>,
}

impl Repr {
    /// Concatenates the fields. Inlined, so that the compiler knows the number of fields and those of one byte.
    #[inline(always)]
    fn new(fields: [&[u8]; 4]) -> Self {
        let mut buffer = [0; MAX_INLINE + 1];
        match concatenate(&mut buffer[..MAX_INLINE], fields) {
            Some(length) => {
                let hash = nonzero_hash(buffer.get(..length).unwrap_or_default());
                // At most `MAX_INLINE`.
                buffer[MAX_INLINE] = length as u8;
                Self::Inline(Inline { hash, buffer })
            }
            None => Self::shared(fields),
        }
    }

    /// Concatenates fields that are too long to be inline.
    fn shared(fields: [&[u8]; 4]) -> Self {
        let mut buffer = [0; SHORT];
        // Most keys are short, so that only the key itself is allocated.
        let bytes: Arc<[u8]> = match concatenate(&mut buffer, fields) {
            Some(length) => buffer.get(..length).unwrap_or_default().into(),
            None => fields.concat().into(),
        };
        Self::Shared(Allocated { hash: hash_code(&bytes), bytes })
    }
}

/// Returns the hash of the bytes of a key. Clients choose keys. So the hash is one that resists chosen collisions, with secrets of
/// the operating system.
#[inline]
pub(crate) fn hash_code(bytes: &[u8]) -> u64 {
    nonzero_hash(bytes).get()
}

#[inline]
fn nonzero_hash(bytes: &[u8]) -> NonZeroU64 {
    static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let mut hasher = HASHER.build_hasher();
    hasher.write(bytes);
    NonZeroU64::new(hasher.finish()).unwrap_or(NonZeroU64::MIN)
}

/// The value of a key: a text or bytes. It exists for its error message, and every `AsRef<[u8]>` implements it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the value of a key",
    label = "expected a text or bytes",
    note = "write a number, an identifier, a `Cow<str>` or an `Arc<str>` as text: `.to_string()`",
    note = "for an `Option`, map its value to a key: `value.map(|value| PartitionKey::new(..))` in `.key_by(|head| ..)`"
)]
pub trait KeyValue: AsRef<[u8]> {}

#[diagnostic::do_not_recommend]
impl<V: AsRef<[u8]> + ?Sized> KeyValue for V {}

impl PartitionKey {
    /// Creates a key of one part. The value is a text or bytes: any `AsRef<[u8]>`. Kind and value may contain any bytes. An empty value is
    /// valid, but the extractors of this crate never create one.
    #[inline]
    pub fn new(kind: &str, value: impl KeyValue) -> Self {
        let (kind, value) = (kind.as_bytes(), value.as_ref());
        Self(match [kind.len(), value.len()].map(u8::try_from) {
            [Ok(kind_length @ ..=MAX_SHORT), Ok(value_length @ ..=MAX_SHORT)] => {
                Repr::new([&[kind_length], kind, &[value_length], value])
            }
            _ => Repr::shared([&length(kind.len()), kind, &length(value.len()), value]),
        })
    }

    /// Returns the key of these [bytes](Self::as_bytes).
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        Self(Repr::new([bytes, &[], &[], &[]]))
    }

    /// Returns the key of all parts of this key, followed by all parts of the other.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self(Repr::new([self.as_bytes(), other.as_bytes(), &[], &[]]))
    }

    /// Returns a number from 0 to 99 that divides the keys into a hundred parts of about the same size. Use it to treat a percentage of
    /// the keys differently: `key.percentile() < 10` is true for about 10 percent of the keys, and each key stays on its side.
    ///
    /// **A client that can choose its key can choose its percentile**, because the hash has no secret, also if the backend has one. The
    /// parts are then of any size. Use it for a rollout, and not for a rule that a client must not avoid.
    ///
    /// It is the same in every process and every release: the first eight bytes of the SHA-256 of [`as_bytes`](Self::as_bytes), as an
    /// unsigned big-endian number, modulo 100. For another division of the same keys, combine them with a constant:
    /// `key.and(&PartitionKey::new("trial", "2"))`.
    ///
    /// ```
    /// use tower_sliding_window::PartitionKey;
    ///
    /// assert_eq!(PartitionKey::new("user", "alice").percentile(), 60);
    /// ```
    pub fn percentile(&self) -> u8 {
        let hash = Sha256::digest(self.as_bytes());
        let number = hash.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        // Below 100.
        (number % 100) as u8
    }

    /// Returns the canonical bytes: the same for equal keys and different for different keys, in every process and version.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline(Inline { buffer, .. }) => {
                buffer.get(..usize::from(buffer[MAX_INLINE])).unwrap_or_default()
            }
            Repr::Shared(Allocated { bytes, .. }) => bytes,
        }
    }

    /// Returns the length and the bytes of a short key. Zeros follow the bytes.
    #[inline]
    pub(crate) fn as_inline(&self) -> Option<(u8, &[u8; MAX_INLINE])> {
        let Repr::Inline(Inline { buffer: [bytes @ .., length], .. }) = &self.0 else { return None };
        Some((*length, bytes))
    }

    /// Returns a hash of this key, which is the same for equal keys. It differs between processes, and clients cannot predict it.
    #[inline]
    pub(crate) fn hash_code(&self) -> u64 {
        match &self.0 {
            Repr::Inline(Inline { hash, .. }) => hash.get(),
            Repr::Shared(Allocated { hash, .. }) => *hash,
        }
    }

    /// This key as a store in memory keeps it: of bounded size, whatever a client has sent. A long key becomes its
    /// SHA-256, after a field length that no list of parts can have.
    #[inline]
    pub(crate) fn bounded(&self) -> Cow<'_, Self> {
        if self.is_long() { Cow::Owned(self.digest()) } else { Cow::Borrowed(self) }
    }

    /// Returns whether a store in memory keeps this key as its SHA-256.
    #[inline]
    pub(crate) fn is_long(&self) -> bool {
        matches!(&self.0, Repr::Shared(Allocated { bytes, .. }) if bytes.len() > MAX_KEPT)
    }

    #[cold]
    fn digest(&self) -> Self {
        let digest = Sha256::digest(self.as_bytes());
        Self(Repr::new([&long_length(u64::MAX), &digest, &[], &[]]))
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
            match bytes.split_first()? {
                (&LONG, rest) => {
                    let (length, rest) = rest.split_first_chunk::<8>()?;
                    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
                }
                (length, rest) => rest.split_at_checked(usize::from(*length)),
            }
        }
        let mut rest = self.as_bytes();
        std::iter::from_fn(move || {
            let (kind, after_kind) = field(rest)?;
            let (value, after_value) = field(after_kind)?;
            rest = after_value;
            Some((str::from_utf8(kind).ok()?, value))
        })
    }
}

/// The hasher of maps from partition keys. It returns the hash that the key contains.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, bytes: &[u8]) {
        // A partition key writes no bytes.
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Returns a length as it is written in a key.
fn length(length: usize) -> SmallVec<[u8; 9]> {
    match u8::try_from(length) {
        Ok(length @ ..=MAX_SHORT) => [length].as_slice().into(),
        _ => long_length(length as u64).as_slice().into(),
    }
}

/// Returns a length of nine bytes.
fn long_length(length: u64) -> [u8; 9] {
    let mut bytes = [LONG; 9];
    bytes[1..].copy_from_slice(&length.to_le_bytes());
    bytes
}

/// Writes the fields one after the other. Returns their length, or `None` if the buffer is too short.
#[inline(always)]
fn concatenate(buffer: &mut [u8], fields: [&[u8]; 4]) -> Option<usize> {
    let mut end = 0;
    for field in fields {
        match (buffer.get_mut(end..)?.get_mut(..field.len())?, field) {
            // Most lengths are one byte. A call of memcpy costs more than such a copy.
            ([to], [byte]) => *to = *byte,
            (to, field) => to.copy_from_slice(field),
        }
        end += field.len();
    }
    Some(end)
}

impl PartialEq for PartitionKey {
    fn eq(&self, other: &Self) -> bool {
        self.hash_code() == other.hash_code() && self.as_bytes() == other.as_bytes()
    }
}

impl Eq for PartitionKey {}

/// Hashes a number that was computed when the key was created. It differs between processes.
impl Hash for PartitionKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash_code());
    }
}

impl PartialOrd for PartitionKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Compares the [bytes](PartitionKey::as_bytes).
impl Ord for PartitionKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
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
    use std::{collections::HashMap, hash::BuildHasherDefault};

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

    /// Around the lengths up to which keys are inline, are built in a buffer, and have fields whose length is one byte.
    #[test]
    fn key_of_any_length_holds_its_parts() {
        for length in (0..40).chain(90..140).chain(250..260) {
            let (short, long) = ("s".repeat(length % 7), "l".repeat(length));
            let swapped = PartitionKey::new(&long, &short);
            assert_eq!(swapped.parts().collect::<Vec<_>>(), [(&*long, short.as_bytes())]);
            let key = PartitionKey::new(&short, &long);
            assert_eq!(key.parts().collect::<Vec<_>>(), [(&*short, long.as_bytes())]);
            let lengths = if length < 255 { 2 } else { 10 };
            assert_eq!(key.as_bytes().len(), lengths + short.len() + long.len());
            assert_eq!(matches!(key.0, Repr::Inline(_)), key.as_bytes().len() <= MAX_INLINE);
            let twice = key.and(&key);
            assert_eq!(twice.as_bytes(), [key.as_bytes(), key.as_bytes()].concat());
            assert_eq!(twice.clone(), twice);
            // Six words, if a pointer is one.
            #[cfg(target_pointer_width = "64")]
            assert_eq!(size_of_val(&key), 48);
            assert_ne!(twice, key);
        }
    }

    #[test]
    fn equal_keys_have_equal_hashes() {
        let key = |last: &str| PartitionKey::new("user", "a").and(&PartitionKey::new("route", last));
        assert_eq!((key("b"), key("b").hash_code()), (key("b"), key("b").hash_code()));
        let codes: std::collections::HashSet<u64> =
            (0..1_000).map(|i| key(&i.to_string()).hash_code()).collect();
        assert_eq!(codes.len(), 1_000);
    }

    /// The hash has 64 bits, so two keys may have the same one.
    #[test]
    fn keys_of_equal_hash_are_different() {
        let alice = PartitionKey::new("user", "alice");
        for value in ["bob", &"b".repeat(MAX_INLINE)] {
            let mut bob = PartitionKey::new("user", value);
            match &mut bob.0 {
                Repr::Inline(Inline { hash, .. }) => *hash = NonZeroU64::new(alice.hash_code()).unwrap(),
                Repr::Shared(Allocated { hash, .. }) => *hash = alice.hash_code(),
            }
            assert_ne!(alice, bob);
            let mut map = HashMap::<_, _, BuildHasherDefault<KeyHasher>>::default();
            map.extend([(alice.clone(), 1), (bob.clone(), 2)]);
            assert_eq!((map.get(&alice), map.get(&bob), map.len()), (Some(&1), Some(&2), 2));
        }
    }

    #[test]
    fn bounded_key_is_digest_above_256_bytes() {
        let key = |length: usize| PartitionKey::new("user", "x".repeat(length - "user".len() - 2));
        for length in [255, 256] {
            assert_eq!(*key(length).bounded(), key(length));
        }
        let digest = key(257).bounded().into_owned();
        assert_eq!((digest.as_bytes().len(), digest.parts().count()), (41, 0));
        // The digest is bounded itself, and no list of parts has its bytes.
        assert_eq!(*digest.bounded(), digest);
        assert_ne!(digest, key(258).bounded().into_owned());
    }

    #[test]
    fn bounded_key_keeps_keys_distinct() {
        let long = |last: char| {
            PartitionKey::new("header:x", "x".repeat(100_000) + &last.to_string()).bounded().into_owned()
        };
        assert!(long('a').as_bytes().len() <= MAX_KEPT);
        assert_eq!(long('a'), long('a'));
        assert_ne!(long('a'), long('b'));
        assert_eq!(format!("{:?}", long('a')), "PartitionKey()");
        let short = PartitionKey::new("header:x", "a");
        assert_eq!(*short.bounded(), short);
    }

    /// The expected values were computed with Python's `hashlib`.
    #[test]
    fn percentile_is_stable_and_even() {
        for (user, percentile) in [("alice", 60), ("bob", 81), ("", 37)] {
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
