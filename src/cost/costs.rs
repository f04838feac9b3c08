//! An amount for every policy.

use std::borrow::Cow;

/// An amount of quota units for every policy.
///
/// A plain number applies to all policies. Requests per minute and model tokens per minute need two amounts:
///
/// ```
/// use tower_sliding_window::Costs;
///
/// let costs = Costs::new().policy("requests", 1).policy("tokens", 500);
/// assert_eq!((costs.amount("tokens"), costs.amount("bytes")), (Some(500), None));
/// assert_eq!(Costs::from(3).amount("requests"), Some(3));
/// ```
///
/// For a policy that is not named, a request costs 1 unit, and a [settlement](crate::Reservation::settle) leaves the charge
/// unchanged, unless [`otherwise`](Self::otherwise) sets an amount. If the layer has no policy with a given name, which may be misspelt, a
/// constant cost is an error when the layer is built. If it chooses policies from
/// [tables](crate::PolicyTable#changes-that-do-not-suit-a-layer) or by a closure, or if the cost is that of a closure, the limiter logs one
/// warning (feature `tracing`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// The amount for policies that are not named.
    otherwise: Option<u32>,
    /// Sorted by name, without duplicates. A plain number leaves it empty, so nothing is allocated.
    named: Vec<(Cow<'static, str>, u32)>,
}

impl Costs {
    /// Creates an empty set of amounts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the amount for the policy with this name, in quota units, 0 to 2^32-1. A later call replaces an earlier one.
    #[must_use]
    pub fn policy(mut self, name: impl Into<Cow<'static, str>>, units: u32) -> Self {
        let name = name.into();
        match self.index(&name) {
            Ok(there) => self.named[there].1 = units,
            Err(free) => self.named.insert(free, (name, units)),
        }
        self
    }

    /// Sets the amount for every policy that is not named, in quota units, 0 to 2^32-1.
    #[must_use]
    pub fn otherwise(mut self, units: u32) -> Self {
        self.otherwise = Some(units);
        self
    }

    /// Returns the amount for the policy with this name, in quota units, or `None` if no amount is set.
    #[inline]
    pub fn amount(&self, policy: &str) -> Option<u32> {
        // The usual case.
        if self.named.is_empty() {
            return self.otherwise;
        }
        self.index(policy).ok().map(|index| self.named[index].1).or(self.otherwise)
    }

    /// Returns the names.
    #[inline]
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.named.iter().map(|(name, _)| &**name)
    }

    /// Returns the amounts as a short text: `1`, or `requests=1 tokens=50`.
    pub(super) fn summary(&self) -> String {
        let named = self.named.iter().map(|(name, units)| format!("{name}={units}"));
        let otherwise = self.otherwise.map(|units| match self.named.is_empty() {
            true => units.to_string(),
            false => format!("otherwise={units}"),
        });
        named.chain(otherwise).collect::<Vec<_>>().join(" ")
    }

    #[inline]
    fn index(&self, name: &str) -> Result<usize, usize> {
        self.named.binary_search_by(|(there, _)| (**there).cmp(name))
    }
}

/// Sets the same amount, in quota units, for every policy.
impl From<u32> for Costs {
    fn from(units: u32) -> Self {
        Self::new().otherwise(units)
    }
}

/// Converts an amount to [`Costs`]: a `u32` for all policies, or `Costs` with an amount for each.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an amount of quota units",
    label = "expected a `u32` or `Costs`",
    note = "quota units are `u32`: convert the number, for example with `u32::try_from(..)`, and decide what to do with a value that does not fit",
    note = "for an `Option`, state the amount for `None`: `.unwrap_or(1)`"
)]
pub trait IntoCosts {
    /// Converts the amount.
    fn into_costs(self) -> Costs;
}

#[diagnostic::do_not_recommend]
impl<T: Into<Costs>> IntoCosts for T {
    fn into_costs(self) -> Costs {
        self.into()
    }
}

/// Converts the amount that a request has used: an amount, or an `Option` of one. It exists for its error message.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the amount that a request has used",
    label = "expected a `u32` or `Costs`, or an `Option` of one",
    note = "return the amount that replaces the charge, or `None` to leave the charge: `.then_some(0)` on a condition makes a request free",
    note = "quota units are `u32`: convert other numbers"
)]
pub trait IntoUsed {
    fn into_used(self) -> Option<Costs>;
}

impl IntoUsed for u32 {
    fn into_used(self) -> Option<Costs> {
        Some(self.into())
    }
}

impl IntoUsed for Costs {
    fn into_used(self) -> Option<Costs> {
        Some(self)
    }
}

impl<C: IntoCosts> IntoUsed for Option<C> {
    fn into_used(self) -> Option<Costs> {
        self.map(C::into_costs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_of_names_has_no_effect_and_later_amount_wins() {
        let one = Costs::new().policy("b", 2).policy("a", 1).policy("c", 3);
        assert_eq!(one, Costs::new().policy("c", 9).policy("a", 1).policy("b", 2).policy("c", 3));
        assert_eq!(["a", "b", "c", "d"].map(|name| one.amount(name)), [Some(1), Some(2), Some(3), None]);
    }

    #[test]
    fn unnamed_policy_has_other_amount_or_none() {
        let costs = Costs::new().policy("a", 1);
        assert_eq!(costs.amount("b"), None);
        let costs = costs.otherwise(0);
        assert_eq!((costs.amount("a"), costs.amount("b")), (Some(1), Some(0)));
    }
}
