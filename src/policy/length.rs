//! Lengths of time in configuration files.

use std::{fmt, time::Duration};

use serde::{
    Deserializer, Serializer,
    de::{Error, Visitor},
};

/// The form of a length of time.
pub(super) const LENGTH: &str = r#"a number and a unit, such as "500ms", "90s", "15m", "1h" or "30d""#;

/// Reads a length of time. The error is what is allowed.
pub(super) fn length(text: &str) -> Result<Duration, String> {
    let mut units = text.split(|c: char| !c.is_alphabetic());
    // Such a month has 30.44 days, and `1M` is easily taken for a minute.
    if units.any(|unit| unit == "M" || unit.starts_with("mo") || unit.starts_with('y')) {
        return Err(r#"months and years differ in length: use days, such as "30d""#.to_owned());
    }
    humantime::parse_duration(text).map_err(|_| format!("it must be {LENGTH}"))
}

/// Returns the text of a length of whole microseconds, in its largest unit.
pub(super) fn length_text(length: Duration) -> String {
    const UNITS: [(u128, &str); 5] =
        [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s"), (1_000, "ms")];
    let micros = length.as_micros();
    let unit = UNITS.iter().find(|(unit, _)| micros.is_multiple_of(*unit));
    let (unit, name) = unit.unwrap_or(&(1, "us"));
    format!("{}{name}", micros / unit)
}

/// The visitor of the text of a field with this name.
struct LengthVisitor(&'static str);

impl Visitor<'_> for LengthVisitor {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {}: {LENGTH}", self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
        length(text).map_err(|reason| E::custom(format_args!("{} {text:?}: {reason}", self.0)))
    }
}

/// Reads the text of a field with this name.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    field: &'static str,
    deserializer: D,
) -> Result<Duration, D::Error> {
    deserializer.deserialize_str(LengthVisitor(field))
}

pub(super) fn serialize<S: Serializer>(length: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&length_text(*length))
}
