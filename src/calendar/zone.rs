//! Time zones.

use jiff::tz::{TimeZone, TimeZoneDatabase};

/// A time zone, by its name in the IANA time zone database. The crate contains the database, so all processes of one build have the
/// same one.
///
/// With the feature `serde`, its text is the name.
///
/// ```
/// use tower_sliding_window::policy::Zone;
///
/// assert_eq!(Zone::new("europe/berlin")?.name(), "Europe/Berlin");
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(transparent))]
pub struct Zone(pub(crate) &'static str);

impl Zone {
    /// Returns UTC, whose days have 24 hours.
    pub const fn utc() -> Self {
        Self("UTC")
    }

    /// Returns the name as the database spells it.
    pub const fn name(self) -> &'static str {
        self.0
    }

    pub(super) fn rules(self) -> TimeZone {
        // The name is one of this database. `TimeZone::get` reads that of the system if another crate has enabled it, which may lack the
        // name.
        TimeZoneDatabase::bundled().get(self.0).unwrap_or(TimeZone::UTC)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Zone {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = <std::borrow::Cow<'_, str>>::deserialize(deserializer)?;
        Self::new(&name).map_err(serde::de::Error::custom)
    }
}
