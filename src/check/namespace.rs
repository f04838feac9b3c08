//! The namespace, with the identity of its store.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{Hash, Hasher},
    num::NonZeroU64,
    sync::{
        Arc, LazyLock, MutexGuard, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use tokio::sync::Notify;

use crate::{error::ConfigError, key::PartitionKey, lock::Lock, policy::Policy};

/// The namespace, which separates two applications on one store. It has the size of one pointer: a memory backend stores it with the
/// usage of many keys.
#[derive(Clone, Debug)]
pub(crate) struct Namespace(Arc<Named>);

/// The number of a namespace, with the identity of its store: unique in this process.
pub(crate) type NamespaceNumber = NonZeroU64;

#[derive(Debug)]
struct Named {
    number: NamespaceNumber,
    name: Box<str>,
    /// The name of the store, if it has one.
    store: Option<Box<str>>,
    /// The denials that the limiters of this namespace know.
    known_denials: Lock<Vec<Weak<dyn KnownDenials>>>,
    /// The pairs for which requests of this process wait.
    awaited: Lock<Awaited>,
}

type Awaited = HashMap<PairKey, Listeners>;

/// The listeners of a pair.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    /// What wakes them, by their numbers, in the order of their creation.
    pub(super) all: BTreeMap<u64, Arc<ReleaseSignal>>,
    /// The numbers of those that a release may wake, by what they need.
    pub(super) waiting: BTreeMap<NeededUnits, BTreeSet<u64>>,
    /// The numbers of those that a release has woken, and that have not asked since.
    pub(super) woken: BTreeSet<u64>,
}

/// What a request needs of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NeededUnits {
    pub(super) quota: u32,
    pub(super) cost: u32,
}

/// What wakes a request at a release of any of its pairs.
#[derive(Debug, Default)]
pub(crate) struct ReleaseSignal {
    pub(super) notify: Notify,
    /// The number of its listeners that are woken.
    pub(super) woken: AtomicUsize,
}

/// The denials that a limiter knows.
pub(crate) trait KnownDenials: Send + Sync {
    /// Learns that units of a pair may have been returned. If this is certain, its denials are removed. Otherwise they hold only if the
    /// store makes no decision.
    fn invalidate(&self, pair: &PairKey, is_certain: bool);
}

impl Namespace {
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidValue`] unless it is 1 to 64 printable ASCII characters without `{`, `}` and space: braces
    /// would choose the slot of a key in a cluster.
    pub(crate) fn new(namespace: &str) -> Result<Self, ConfigError> {
        let allowed = |b: u8| b.is_ascii_graphic() && b != b'{' && b != b'}';
        if (1..=64).contains(&namespace.len()) && namespace.bytes().all(allowed) {
            Ok(Self::named(namespace, None))
        } else {
            let valid = "1 to 64 printable ASCII characters without `{`, `}` and space";
            Err(ConfigError::invalid_text("namespace", namespace, valid))
        }
    }

    fn named(name: &str, store: Option<&str>) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        Self(Arc::new(Named {
            number: NamespaceNumber::new(number).unwrap_or(NamespaceNumber::MIN),
            name: name.into(),
            store: store.map(Box::from),
            known_denials: Lock::default(),
            awaited: Lock::default(),
        }))
    }

    #[inline]
    pub(crate) fn number(&self) -> NamespaceNumber {
        self.0.number
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0.name
    }

    /// Returns the one value that all limiters of this process share, if they have this store and this namespace.
    pub(crate) fn in_store(&self, store: &str) -> Self {
        let mut all = Self::all();
        let is_known = |known: &Self| known.0.store.as_deref() == Some(store) && known.0.name == self.0.name;
        // Another thread may drop the known one at any time.
        let known = all.iter().filter_map(Weak::upgrade).map(Self).find(is_known);
        known.unwrap_or_else(|| Self::added(&mut all, self.as_str(), Some(store)))
    }

    /// Returns this namespace in a store without a name, which equals no other store.
    pub(crate) fn in_unnamed_store(&self) -> Self {
        Self::added(&mut Self::all(), self.as_str(), None)
    }

    /// Returns the namespace in a store that has this number, if a limiter has it.
    pub(crate) fn of_number(number: NamespaceNumber) -> Option<Self> {
        Self::all().iter().filter_map(Weak::upgrade).map(Self).find(|known| known.number() == number)
    }

    /// Returns the namespaces of all limiters, each with its store. Limiters are few and are rarely created, so a full scan is cheap.
    fn all() -> MutexGuard<'static, Vec<Weak<Named>>> {
        static ALL: Lock<Vec<Weak<Named>>> = Lock::new(Vec::new());
        let mut all = ALL.lock();
        all.retain(|namespace| namespace.strong_count() > 0);
        all
    }

    fn added(all: &mut Vec<Weak<Named>>, name: &str, store: Option<&str>) -> Self {
        let new = Self::named(name, store);
        all.push(Arc::downgrade(&new.0));
        new
    }

    /// Returns whether both are the same namespace of the same store. A store without a name equals no other one.
    pub(crate) fn is_in_same_store(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Adds the denials that a limiter knows.
    pub(crate) fn add_known_denials(&self, denials: Weak<dyn KnownDenials>) {
        let mut all = self.0.known_denials.lock();
        all.retain(|denials| denials.strong_count() > 0);
        all.push(denials);
    }

    pub(super) fn awaited(&self) -> &Lock<Awaited> {
        &self.0.awaited
    }

    /// Returns the denials that the limiters of this process know, in this namespace of this store.
    pub(super) fn known_denials(&self) -> Vec<Arc<dyn KnownDenials>> {
        let all = self.0.known_denials.lock();
        all.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Default for Namespace {
    /// Returns `"tsw"`. Checks that no limiter makes share it.
    fn default() -> Self {
        static DEFAULT: LazyLock<Namespace> = LazyLock::new(|| Namespace::named("tsw", None));
        DEFAULT.clone()
    }
}

impl PartialEq for Namespace {
    fn eq(&self, other: &Self) -> bool {
        self.is_in_same_store(other) || self.0.name == other.0.name
    }
}

impl Eq for Namespace {}

impl Hash for Namespace {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

/// A partition key and a policy. Nothing of the policy that may change while its usage is kept makes a difference: its quota, its rate, its
/// zone, its anchor and its times.
#[derive(Clone, Debug)]
pub(crate) struct PairKey {
    key: PartitionKey,
    policy: Policy,
}

impl PairKey {
    pub(crate) fn new(key: &PartitionKey, policy: &Policy) -> Self {
        Self { key: key.bounded().into_owned(), policy: policy.clone() }
    }

    /// Returns the length of the key in bytes.
    pub(crate) fn key_bytes(&self) -> usize {
        self.key.as_bytes().len()
    }

    /// Hashes the pair without the hash of its key, which differs between processes.
    pub(crate) fn hash_reproducibly(&self, state: &mut impl Hasher) {
        self.key.as_bytes().hash(state);
        self.hash_policy(state);
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    fn hash_policy(&self, state: &mut impl Hasher) {
        self.policy.name().hash(state);
        self.policy.usage_id().hash(state);
    }
}

impl PartialEq for PairKey {
    fn eq(&self, other: &Self) -> bool {
        self.policy.counts_with(&other.policy) && self.key == other.key
    }
}

impl Eq for PairKey {}

impl Hash for PairKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
        self.hash_policy(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_cannot_choose_slot() {
        for namespace in ["", "a{b", "a}b", "a b", "ä", "a\n", &"x".repeat(65)] {
            let text = Namespace::new(namespace).unwrap_err().to_string();
            assert_eq!(
                text,
                format!(
                    "namespace {namespace:?}: it must be 1 to 64 printable ASCII characters without `{{`, `}}` and space"
                )
            );
        }
        Namespace::new("shop:eu-1").unwrap();
    }

    #[test]
    fn namespaces_of_two_stores_differ() {
        let [one, other, unnamed] = [
            Namespace::default().in_store("the first store"),
            Namespace::default().in_store("the second store"),
            Namespace::default().in_unnamed_store(),
        ];
        assert!(one == other && one == unnamed, "they have the same name");
        for (a, b) in [(&one, &other), (&one, &unnamed), (&one, &Namespace::default())] {
            assert!(!a.is_in_same_store(b), "two stores must share no known denials");
        }
    }

    #[test]
    fn namespace_of_a_store_is_shared_by_all_that_live() {
        let in_store = || Namespace::default().in_store("shared by threads");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let (one, other) = (in_store(), in_store());
                        assert!(one.is_in_same_store(&other));
                    }
                });
            }
        });
    }
}
