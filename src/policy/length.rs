//! Lengths of time in configuration files.

use std::time::Duration;

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
