//! What the crate needs to know of the type of a policy.

use std::num::NonZeroU64;

/// The properties of the type of a policy, for the fields of this policy.
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    /// The length of a bucket in microseconds, if a charge counts from the end of its bucket. Until then, its units can be leased.
    pub(crate) bucket_micros: Option<NonZeroU64>,
    /// The largest number of charges in one window.
    pub(crate) max_charges: u32,
    /// The largest number of quotas in one window. Each window after it adds one quota.
    pub(crate) quotas_in_window: u64,
    pub(crate) expiry: Expiry,
    /// The commands of Redis that this type needs, and a sliding log does not. If the user may not call one, other types still work.
    #[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "only Redis has commands"))]
    pub(crate) optional_commands: &'static [&'static str],
}

impl Properties {
    /// Those of a type that counts each charge for one window. Its record in Redis is a list.
    pub(super) const SLIDING: Self = Self {
        bucket_micros: None,
        max_charges: u32::MAX,
        quotas_in_window: 1,
        expiry: Expiry::InOrder,
        optional_commands: &[],
    };
    /// Those of a type that counts the charges of a calendar window. Its record in Redis is a string.
    pub(super) const CALENDAR: Self =
        Self { quotas_in_window: 2, optional_commands: &["get", "set", "setrange"], ..Self::SLIDING };
}

/// The order in which charges leave the usage.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// A charge leaves after all older charges, or together with them.
    InOrder,
    /// As `InOrder`. The charges of one bucket leave together.
    ByBucket,
    /// Each charge leaves gradually.
    Gradual,
}
