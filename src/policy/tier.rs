//! What a table contains for a name.

use super::{Policies, Policy};

/// The policies of a name in a [`PolicyTable`](super::PolicyTable), or those that a [selector](super::PolicySelector) chooses, or none: an
/// unlimited tier. A missing name or a missing customer is never unlimited by itself, because nothing but this value means it.
///
/// [`Policy`] and [`Policies`] convert to a limited tier, so only an unlimited tier is written out.
///
/// With the feature `serde`, a tier is `"unlimited"`, a list of policies, or one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tier {
    /// These policies apply.
    Limited(Policies),
    /// No policies are added. The policies that a layer has for every request still apply. If there are none, the request
    /// passes uncounted.
    Unlimited,
}

impl Tier {
    /// Returns the policies of this tier, or `None` if it is unlimited.
    pub fn policies(&self) -> Option<&Policies> {
        let Self::Limited(policies) = self else { return None };
        Some(policies)
    }
}

/// A value that converts to a [`Tier`]. It exists for its error message, and everything that is `Into<Tier>` implements it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tier",
    label = "expected a `Policy`, `Policies` or a `Tier`",
    note = "if the value is a `Result`, add `?`: `table.with(\"gold\", Policy::new(..)?)`; for no further policies, write `Tier::Unlimited`"
)]
pub trait IntoTier: Into<Tier> {}

#[diagnostic::do_not_recommend]
impl<T: Into<Tier>> IntoTier for T {}

impl From<Policies> for Tier {
    fn from(policies: Policies) -> Self {
        Self::Limited(policies)
    }
}

impl From<Policy> for Tier {
    fn from(policy: Policy) -> Self {
        Self::Limited(policy.into())
    }
}
