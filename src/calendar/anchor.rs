//! The anchor of a period: where in the calendar it begins.

use std::fmt;

/// The form of an anchor as a text.
pub(crate) const FORM: &str =
    r#"a day, a month and a day, a time, or a day with a time, such as "17", "04-06", "08:00" or "17 08:00""#;

/// Where a calendar period begins: a day of the week, the month or the year, and a time of day in the zone of the policy.
///
/// | period | day | default |
/// | --- | --- | --- |
/// | day | none | 00:00 |
/// | week | 1 (Monday) to 7 (Sunday) | Monday, 00:00 |
/// | month | 1 to 31. In a shorter month, a later day is the last one | the first day, 00:00 |
/// | year | a month and a day, up to 29 February | 1 January, 00:00 |
///
/// If a change of the clocks skips the time of day, the period begins later by the length of the change. If the time occurs twice, the
/// period begins at the first one.
///
/// The text of an anchor, also with the feature `serde`, is `"17"`, `"04-06"`, `"08:00"`, `"17 08:00"` or `"04-06 08:00"`. In a file, a
/// day may be a number.
///
/// ```
/// use tower_sliding_window::policy::Anchor;
///
/// let billing_day: Anchor = "17 08:00".parse()?;
/// assert_eq!(billing_day, Anchor::day(17).at(8, 0));
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Anchor {
    pub(crate) month: u8,
    pub(crate) day: u8,
    pub(crate) hour: u8,
    pub(crate) minute: u8,
}

impl Anchor {
    /// Returns an anchor on a day of the week, 1 (Monday) to 7, or of the month, 1 to 31, at 00:00.
    /// [`Policy::anchored`](crate::Policy::anchored) returns an error for any other value.
    pub const fn day(day: u8) -> Self {
        Self::date(1, day)
    }

    /// Returns an anchor on a day of the year, at 00:00: a month, 1 to 12, and a day of this month.
    pub const fn date(month: u8, day: u8) -> Self {
        Self { month, day, hour: 0, minute: 0 }
    }

    /// Returns this anchor at a time of day: an hour, 0 to 23, and a minute, 0 to 59.
    #[must_use]
    pub const fn at(self, hour: u8, minute: u8) -> Self {
        Self { hour, minute, ..self }
    }
}

/// The begin of the calendar: 00:00 on Monday, on the first day of the month, or on 1 January.
impl Default for Anchor {
    fn default() -> Self {
        Self::day(1)
    }
}

impl fmt::Display for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { month, day, hour, minute } = self;
        match month {
            1 => write!(f, "{day}")?,
            _ => write!(f, "{month:02}-{day:02}")?,
        }
        if (*hour, *minute) == (0, 0) { Ok(()) } else { write!(f, " {hour:02}:{minute:02}") }
    }
}

#[cfg(feature = "serde")]
mod form {
    use serde::{
        Deserialize, Deserializer, Serialize, Serializer,
        de::{Error, Visitor},
    };

    use super::{Anchor, FORM, fmt};

    struct AnchorVisitor;

    impl Visitor<'_> for AnchorVisitor {
        type Value = Anchor;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "the anchor: {FORM}")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Anchor, E> {
            text.parse().map_err(E::custom)
        }

        fn visit_u64<E: Error>(self, day: u64) -> Result<Anchor, E> {
            self.visit_str(&day.to_string())
        }

        fn visit_i64<E: Error>(self, day: i64) -> Result<Anchor, E> {
            self.visit_str(&day.to_string())
        }
    }

    impl<'de> Deserialize<'de> for Anchor {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_any(AnchorVisitor)
        }
    }

    impl Serialize for Anchor {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(self)
        }
    }
}
