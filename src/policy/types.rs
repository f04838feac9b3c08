//! The table of the types of policies.
//!
//! A type is one file in this folder, one in the folder of the memory backend, one in the scripts, and one entry here: a variant of
//! [`Algorithm`] and its line in `for_each_type`.

use std::time::Duration;

#[cfg(feature = "calendar")]
use crate::calendar::{Anchor, Period, Zone};

/// Calls a macro with all types: for each one, its attributes, its variant of [`Algorithm`], each field with an example, and the name of
/// its modules.
/// The examples are possible in a window of one second.
macro_rules! for_each_type {
    ($macro:ident) => {
        $macro! {
            SlidingLog => sliding_log,
            SlidingBuckets { precision: Duration::from_secs(1) } => sliding_buckets,
            SlidingCounter => sliding_counter,
            FixedWindow => fixed_window,
            TokenBucket { rate: Rate::per_second(1) } => token_bucket,
            Gate => gate,
            InFlight { hold_time: Duration::from_secs(30), retry_after: Duration::from_secs(1) } => in_flight,
            #[cfg(feature = "calendar")]
            CalendarPeriod { period: Period::Month, zone: Zone::utc(), anchor: Anchor::default() } => calendar_period,
        }
    };
}
pub(crate) use for_each_type;

#[cfg(feature = "serde")]
use super::in_flight;
use super::rate::Rate;

/// The algorithm that counts usage.
///
/// | algorithm | guarantee | stored for each partition key |
/// | --- | --- | --- |
/// | [`SlidingLog`](Self::SlidingLog) | exact: never too many, never too few | a record for each charge |
/// | [`SlidingBuckets`](Self::SlidingBuckets) | never too many; capacity returns up to a precision late | a counter for each bucket |
/// | [`SlidingCounter`](Self::SlidingCounter) | approximate: up to twice the quota less one in a window | two counters |
/// | [`FixedWindow`](Self::FixedWindow) | exact in a calendar window; up to twice the quota across a window boundary | one counter |
/// | [`TokenBucket`](Self::TokenBucket) | a capacity at once, and then a rate: up to twice the capacity less one while it is refilled once | one counter |
/// | [`Gate`](Self::Gate) | counts nothing, and denies everything while it blocks | one instant |
/// | [`InFlight`](Self::InFlight) | at most the quota at the same time | a number for each unit |
/// | `CalendarPeriod`, with the feature `calendar` | exact in a day, week, month or year; up to twice the quota across a boundary | one counter |
///
/// Every algorithm, except `InFlight`, computes waits that are exact to the microsecond: if there are no other charges, the same cost is
/// admitted after the wait, and not before.
///
/// With the feature `serde`, the text of an algorithm is `"sliding-log"`, `{"sliding-buckets": {"precision": "1s"}}`,
/// `"sliding-counter"`, `"fixed-window"`, `{"token-bucket": {"rate": "7/s"}}`, `"gate"`, `{"in-flight": {"hold-time": "30s",
/// "retry-after": "1s"}}`, of which both fields are optional, or `{"calendar-period": {"period": "month", "zone": "Europe/Berlin",
/// "anchor": "17 08:00"}}`, of which the anchor is optional.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case", deny_unknown_fields))]
#[non_exhaustive]
pub enum Algorithm {
    /// Counts every charge for one window from its own instant. The default.
    #[default]
    SlidingLog,
    /// Groups charges into buckets of the given precision. A bucket counts for one window from its *end*. Therefore, no interval
    /// of a window's length contains more than the quota, and capacity returns up to one precision late.
    SlidingBuckets {
        /// The length of a bucket: 1 ms to the window, in whole microseconds, and at most 4,096 buckets in a window. It
        /// need not divide the window.
        #[cfg_attr(feature = "serde", serde(with = "super::sliding_buckets"))]
        precision: Duration,
    },
    /// Adds the usage of the current calendar window and a share of the previous one: `current + previous * left / whole`, where
    /// `left` of `whole` ticks remain of the current window.
    ///
    /// This is an approximation: it assumes that the charges of the previous window are spread evenly. The worst case is
    /// `2 * quota - 1` units in one window. If the whole quota is charged in the last microsecond of a calendar window, it
    /// counts in full at the start of the next one. During the last of the `whole` ticks, `1 / whole` of it still counts, which
    /// rounds up to one unit. By then, `quota - 1` further units were admitted, less than one window after the burst. There
    /// cannot be more, because the units of the next window alone never exceed the quota less the rest of the burst.
    ///
    /// A tick is `ceil(window / 2^20)` microseconds.
    SlidingCounter,
    /// Counts the usage of the current calendar window. Calendar windows begin at multiples of the window since the Unix epoch.
    /// Up to twice the quota is admitted across the boundary between two of them.
    FixedWindow,
    /// Holds up to the quota, which is the capacity, and returns units at a rate. See [`Policy::token_bucket`](super::Policy::token_bucket).
    TokenBucket {
        /// The rate at which units return.
        rate: Rate,
    },
    /// Counts nothing. It denies every request while it blocks. See [`Policy::gate`](super::Policy::gate).
    Gate,
    /// Counts the units of requests that run. See [`Policy::in_flight`](super::Policy::in_flight).
    #[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
    #[non_exhaustive]
    InFlight {
        /// How long a unit is held after its process has died: 1 s to 1 h, 30 s by default.
        #[cfg_attr(
            feature = "serde",
            serde(
                serialize_with = "in_flight::serialize",
                deserialize_with = "in_flight::read_hold_time",
                default = "in_flight::hold_time"
            )
        )]
        hold_time: Duration,
        /// The wait that the response to a denied request states: 1 ms to 1 h, 1 s by default.
        #[cfg_attr(
            feature = "serde",
            serde(
                serialize_with = "in_flight::serialize",
                deserialize_with = "in_flight::read_retry_after",
                default = "in_flight::retry_after"
            )
        )]
        retry_after: Duration,
    },
    /// Counts the usage of the current day, week, month or year. See [`Policy::calendar_period`](super::Policy::calendar_period).
    #[cfg(feature = "calendar")]
    #[cfg_attr(docsrs, doc(cfg(feature = "calendar")))]
    #[non_exhaustive]
    CalendarPeriod {
        /// The length of a period.
        period: Period,
        /// The time zone.
        zone: Zone,
        /// Where a period begins. The default is the begin of the calendar.
        #[cfg_attr(feature = "serde", serde(default))]
        anchor: Anchor,
    },
}

impl Algorithm {
    /// Returns whether a policy has a window, which responses state. Under another one, counting starts from zero.
    pub(super) fn has_window(self) -> bool {
        matches!(
            self,
            Self::SlidingLog | Self::SlidingBuckets { .. } | Self::SlidingCounter | Self::FixedWindow
        )
    }

    /// Returns whether a policy has a quota.
    #[cfg(feature = "serde")]
    pub(super) fn has_quota(self) -> bool {
        self != Self::Gate
    }
}
