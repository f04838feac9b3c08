//! An amount for every policy.

use std::borrow::Cow;

/// What a request takes, or has taken: so many quota units of all policies, or of each its own.
///
/// A number is the same for all policies. Requests a minute and model tokens a minute are two:
///
/// ```
/// use tower_sliding_window::Costs;
///
/// let costs = Costs::new().policy("requests", 1).policy("tokens", 500);
/// assert_eq!((costs.of("tokens"), costs.of("bytes")), (Some(500), None));
/// assert_eq!(Costs::from(3).of("requests"), Some(3));
/// ```
///
/// Of a policy that is not named, a request takes 1 unit, and a [settlement](crate::Reservation::settle) leaves what was
/// charged, unless [`otherwise`](Self::otherwise) says so. A name that no policy of the check has is warned about once for
/// each limiter (feature `tracing`): it may be misspelt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Of the policies that are not named.
    otherwise: Option<u32>,
    /// Ordered by name, each there once. It holds nothing, and so allocates nothing, for a plain number.
    named: Vec<(Cow<'static, str>, u32)>,
}

impl Costs {
    /// Nothing said of any policy.
    pub fn new() -> Self {
        Self::default()
    }

    /// So many quota units, 0 to 2^32-1, of the policy with this name. Said twice, the later one stands.
    #[must_use]
    pub fn policy(mut self, name: impl Into<Cow<'static, str>>, units: u32) -> Self {
        let name = name.into();
        match self.place(&name) {
            Ok(there) => self.named[there].1 = units,
            Err(free) => self.named.insert(free, (name, units)),
        }
        self
    }

    /// So many quota units, 0 to 2^32-1, of every policy that is not named.
    #[must_use]
    pub fn otherwise(mut self, units: u32) -> Self {
        self.otherwise = Some(units);
        self
    }

    /// What is said of the policy with this name, in quota units. None if nothing is.
    pub fn of(&self, policy: &str) -> Option<u32> {
        self.place(policy).ok().map(|place| self.named[place].1).or(self.otherwise)
    }

    /// The names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.named.iter().map(|(name, _)| &**name)
    }

    fn place(&self, name: &str) -> Result<usize, usize> {
        self.named.binary_search_by(|(there, _)| (**there).cmp(name))
    }
}

/// So many quota units of every policy.
impl From<u32> for Costs {
    fn from(units: u32) -> Self {
        Self::new().otherwise(units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_in_which_policies_are_named_makes_no_difference_and_the_later_amount_stands() {
        let one = Costs::new().policy("b", 2).policy("a", 1).policy("c", 3);
        assert_eq!(one, Costs::new().policy("c", 9).policy("a", 1).policy("b", 2).policy("c", 3));
        assert_eq!(["a", "b", "c", "d"].map(|name| one.of(name)), [Some(1), Some(2), Some(3), None]);
    }

    #[test]
    fn what_is_not_named_is_otherwise_or_nothing() {
        let costs = Costs::new().policy("a", 1);
        assert_eq!(costs.of("b"), None);
        let costs = costs.otherwise(0);
        assert_eq!((costs.of("a"), costs.of("b")), (Some(1), Some(0)));
    }
}
