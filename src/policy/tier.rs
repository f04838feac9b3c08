//! What a table contains for a name.

use super::{Policies, Policy};

/// The policies of a name in a [`PolicyTable`](super::PolicyTable), or none: an unlimited tier.
///
/// [`Policy`] and [`Policies`] convert to a limited tier, so only an unlimited tier is written out.
///
/// With the feature `serde`, a tier is `"unlimited"`, a list of policies, or one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tier {
    /// These policies apply.
    Limited(Policies),
    /// The table adds no policies. The policies that a layer has for every request still apply. If there are none, the request
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
    message = "`{Self}` is not a tier of a table",
    label = "expected a `Policy`, `Policies` or a `Tier`",
    note = "if the value is a `Result`, add `?`: `table.with(\"gold\", Policy::new(..)?)`; for no limit, write `Tier::Unlimited`"
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
