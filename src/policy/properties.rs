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
    #[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "only the Redis backend needs them"))]
    pub(crate) redis: &'static RedisProperties,
}

impl Properties {
    /// The properties of a type whose charges leave after one window, in their order.
    pub(super) fn new(redis: &'static RedisProperties) -> Self {
        Self {
            bucket_micros: None,
            max_charges: u32::MAX,
            quotas_in_window: 1,
            expiry: Expiry::InOrder,
            redis,
        }
    }
}

/// What Redis needs to know of a type.
#[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "only the Redis backend needs them"))]
pub(crate) struct RedisProperties {
    /// The number of the type in the arguments of a script, 0 to 7. `lua/types.lua` and `lua/refund.lua` map the same numbers to
    /// functions.
    pub(crate) number: u8,
    /// The file in `lua` that decides a pair of this type: its name and text.
    pub(crate) script: (&'static str, &'static str),
    /// The letters of a day, an hour, a minute, a second, a millisecond and a microsecond in the window of a key. They state the type,
    /// so no other type has one of them. None of them is a digit or a capital letter.
    pub(crate) key_letters: &'static [u8; 6],
    /// Whether the statuses of equal checks differ in `remaining` alone, so that a merged call can decide them as one.
    pub(crate) joins_equal_checks: bool,
    /// Returns the largest number of records of a pair, by quota, window and length of a bucket. Durations are in microseconds.
    pub(crate) max_records: fn(u64, u64, u64) -> u64,
    /// The commands that this type needs, and a sliding log does not. If the user may not call one, other types still work.
    pub(crate) optional_commands: &'static [&'static str],
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
