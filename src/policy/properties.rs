//! What the crate needs to know of the type of a policy.

use std::{
    num::{NonZeroU32, NonZeroU64},
    time::Duration,
};

/// The fields of a policy of which its type computes its properties.
#[derive(Clone, Copy)]
pub(super) struct GivenFields<'a> {
    pub(super) name: &'a str,
    pub(super) quota: NonZeroU32,
    /// In whole microseconds. A type without a window ignores it.
    pub(super) window: Duration,
}

/// The properties of the type of a policy, for the fields of this policy.
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    /// How long a charge of at most the quota counts, in microseconds: the window, or the time in which a full quota returns.
    pub(crate) window_micros: u64,
    /// Whether the policy has a quota. A policy without one counts no units: a check does not charge it, and no response states it.
    pub(crate) has_quota: bool,
    /// Whether a request holds its units until it has ended. No settlement and no reset changes them.
    pub(crate) is_held: bool,
    /// The letter of the length of a calendar period in a key. Under another one, counting starts from zero.
    pub(crate) period_letter: Option<u8>,
    /// The window and the parameter in the arguments of a check. The contract of each type is in `lua/README.md`.
    pub(crate) arguments: [u64; 2],
    /// `next_after` of a pair of which nothing is used, in microseconds. That of a calendar period is the end of the period.
    pub(crate) next_of_unused: u64,
    /// The length of a bucket in microseconds, if a charge counts from the end of its bucket. Until then, its units can be leased.
    pub(crate) bucket_micros: Option<NonZeroU64>,
    /// The largest number of charges in one window.
    pub(crate) max_charges: u32,
    /// Whether all units return at the end of a window or period, and none before.
    pub(crate) returns_at_end: bool,
    /// The largest number of quotas in one window. Each window after it adds one quota.
    pub(crate) quotas_in_window: u64,
    pub(crate) expiry: Expiry,
    pub(crate) redis: &'static RedisProperties,
}

impl Properties {
    /// Returns whether a settlement may change a charge.
    pub(crate) fn is_settled(&self) -> bool {
        self.has_quota && !self.is_held
    }

    /// Returns the length of a bucket in microseconds, if charges may count from the end of the next bucket: it must be at most a window
    /// after the last charge.
    pub(crate) fn next_bucket_micros(&self) -> Option<u64> {
        self.bucket_micros.map(NonZeroU64::get).filter(|bucket| 2 * bucket <= self.window_micros)
    }

    /// The properties of a type whose charges leave after one window, in their order.
    pub(super) fn new(window: Duration, redis: &'static RedisProperties) -> Self {
        // At most 366 days, or 3.2e13 microseconds.
        let window_micros = window.as_micros() as u64;
        Self {
            window_micros,
            has_quota: true,
            is_held: false,
            period_letter: None,
            arguments: [window_micros, 0],
            next_of_unused: window_micros,
            bucket_micros: None,
            max_charges: u32::MAX,
            returns_at_end: false,
            quotas_in_window: 1,
            expiry: Expiry::InOrder,
            redis,
        }
    }
}

/// What Redis needs to know of a type.
#[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "only the Redis backend needs them"))]
pub(crate) struct RedisProperties {
    /// The number of the type in the arguments of a script, 0 to 7.
    pub(crate) number: u8,
    /// The file in `lua` that decides a pair of this type: its name and text.
    pub(crate) script: (&'static str, &'static str),
    /// The file in `lua` that refunds units to a pair of this type: its name and text. Its function has the same name.
    pub(crate) refund: (&'static str, &'static str),
    /// The number of calendar windows in which a charge counts. Other types ignore it.
    pub(crate) refund_windows: u8,
    /// The letters of a day, an hour, a minute, a second, a millisecond and a microsecond in the window of a key. A type without a window
    /// has one letter. They state the type, so no other type has one of them. None of them is a digit or a capital letter.
    pub(crate) key_letters: &'static [u8],
    pub(crate) equal_checks: EqualChecks,
    /// Returns the largest number of records of a pair, by quota, window and length of a bucket. Durations are in microseconds.
    pub(crate) max_records: fn(u64, u64, u64) -> u64,
    /// The commands that this type needs, and a sliding log does not. If the user may not call one, other types still work.
    pub(crate) optional_commands: &'static [&'static str],
}

/// How the statuses of equal checks differ that are admitted one after another at one instant. If they follow from that of the last one, a
/// merged call can decide the checks as one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EqualChecks {
    /// In `remaining` alone, by the cost.
    Remaining,
    /// In `remaining`, and in `reset_after` by the time in which the parts of the cost return. A script states the time until one more
    /// unit remains in parts.
    Parts,
    /// They do not follow from each other.
    Different,
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
