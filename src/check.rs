//! The question that a limiter asks a backend.

use std::sync::Arc;

use crate::{error::ConfigError, key::PartitionKey, policy::Policy};

/// The largest number of pairs in one check, and so of policies in one limiter.
pub const MAX_PAIRS: usize = 8;

/// One request against one or more pairs of a partition key and a policy, with one cost for each.
///
/// It is admitted as a whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    namespace: Namespace,
    pairs: Box<[Pair]>,
}

/// Whose usage is counted under which policy, and how much the request takes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pair {
    /// Whose usage is counted.
    pub key: PartitionKey,
    /// Under which policy.
    pub policy: Policy,
    /// What the request takes, in quota units, 0 to 2^32-1. A cost of 0 admits and records nothing.
    pub cost: u32,
}

/// What keeps two applications on one store apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Namespace(Arc<str>);

impl Pair {
    /// A pair with its cost in quota units.
    pub fn new(key: PartitionKey, policy: Policy, cost: u32) -> Self {
        Self { key, policy, cost }
    }
}

impl Check {
    /// A check in the default namespace, for a [`Backend`](crate::Backend) that is asked directly.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Pairs`] unless there are 1 to [`MAX_PAIRS`] pairs, and [`ConfigError::DuplicatePair`] if two
    /// of them have the same partition key and the same policy name.
    pub fn new(pairs: impl Into<Box<[Pair]>>) -> Result<Self, ConfigError> {
        let pairs = pairs.into();
        if !(1..=MAX_PAIRS).contains(&pairs.len()) {
            return Err(ConfigError::Pairs { given: pairs.len(), max: MAX_PAIRS });
        }
        for (i, pair) in pairs.iter().enumerate() {
            let same = |other: &Pair| other.key == pair.key && other.policy.name() == pair.policy.name();
            if pairs[..i].iter().any(same) {
                return Err(ConfigError::DuplicatePair { policy: pair.policy.name().to_owned() });
            }
        }
        Ok(Self { namespace: Namespace::default(), pairs })
    }

    /// A check whose pairs were seen to be 1 to [`MAX_PAIRS`] and different when the limiter was built.
    pub(crate) fn of_limiter(namespace: Namespace, pairs: Box<[Pair]>) -> Self {
        debug_assert!((1..=MAX_PAIRS).contains(&pairs.len()));
        Self { namespace, pairs }
    }

    /// The pairs, 1 to [`MAX_PAIRS`], all different.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// What keeps two applications on one store apart; a backend makes it part of what it stores under.
    pub fn namespace(&self) -> &str {
        &self.namespace.0
    }

    pub(crate) fn namespace_shared(&self) -> &Arc<str> {
        &self.namespace.0
    }
}

impl Namespace {
    /// # Errors
    ///
    /// [`ConfigError::Namespace`] unless it is 1 to 64 printable ASCII characters without `{`, `}` and space: braces
    /// would choose the slot of a key in a cluster.
    pub(crate) fn new(namespace: &str) -> Result<Self, ConfigError> {
        let allowed = |b: u8| b.is_ascii_graphic() && b != b'{' && b != b'}';
        if (1..=64).contains(&namespace.len()) && namespace.bytes().all(allowed) {
            Ok(Self(namespace.into()))
        } else {
            Err(ConfigError::Namespace { namespace: namespace.to_owned() })
        }
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self("tsw".into())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_check_holds_one_to_eight_different_pairs() {
        let key = |value: &str| PartitionKey::new("user", value);
        let policy = |name: &str| Policy::new(name, 1, Duration::from_secs(1)).unwrap();
        let pair = |value: &str, name: &str| Pair::new(key(value), policy(name), 1);
        let text = |pairs: Vec<Pair>| Check::new(pairs).unwrap_err().to_string();

        assert_eq!(
            text(vec![]),
            "a check of 0 pairs: it must hold 1 to 8 pairs of a partition key and a policy"
        );
        let nine: Vec<_> = (0..9).map(|i| pair(&i.to_string(), "p")).collect();
        assert_eq!(
            text(nine.clone()),
            "a check of 9 pairs: it must hold 1 to 8 pairs of a partition key and a policy"
        );
        assert_eq!(Check::new(&nine[..8]).unwrap().pairs().len(), 8);
        assert_eq!(
            text(vec![pair("a", "p"), pair("b", "p"), pair("a", "p")]),
            r#"policy "p" is there twice for one partition key: the pairs of a check must differ"#
        );
    }

    #[test]
    fn a_namespace_cannot_choose_a_slot() {
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
}
