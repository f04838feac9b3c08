//! Lengths of time in configuration files.

use std::{fmt, mem, time::Duration};

use serde::{
    Deserializer, Serializer,
    de::{Error, Visitor},
};

/// The form of a length of time.
pub(super) const LENGTH: &str = r#"a number and a unit, such as "500ms", "90s", "15m", "1h" or "30d""#;

/// Reads a length of time. The error is what is allowed.
pub(super) fn length(text: &str) -> Result<Duration, String> {
    let units = || text.split(|c: char| !c.is_alphabetic()).filter(|unit| !unit.is_empty());
    // Such a month has 30.44 days, and `1M` is easily taken for a minute.
    if units().any(|unit| unit == "M" || unit.starts_with("mo") || unit.starts_with('y')) {
        return Err(r#"months and years differ in length: use days, such as "30d""#.to_owned());
    }
    // `humantime` reads "1 30m" as 130 minutes.
    if has_separated_digits(text) {
        return Err(
            r#"white space separates two digits: state the unit of each number, such as "1h 30m""#.to_owned()
        );
    }
    let length = humantime::parse_duration(text).map_err(|_| format!("it must be {LENGTH}"))?;
    // A unit has several spellings.
    let mut seen = Vec::new();
    for unit in units() {
        let one = humantime::parse_duration(&format!("1{unit}")).ok();
        if seen.contains(&one) {
            return Err(format!("unit {unit:?} occurs twice"));
        }
        seen.push(one);
    }
    Ok(length)
}

/// Returns whether white space is inside of a number.
fn has_separated_digits(text: &str) -> bool {
    let is_digit = |c: char| c.is_ascii_digit() || c == '.';
    let mut words = text.split_whitespace();
    let Some(mut word) = words.next() else { return false };
    words.any(|next| mem::replace(&mut word, next).ends_with(is_digit) && next.starts_with(is_digit))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_adds_numbers_with_units() {
        for (text, seconds) in [
            ("90s", 90.0),
            ("1h 30m", 5_400.0),
            ("30m 1h", 5_400.0),
            ("1h30m", 5_400.0),
            (" 15 m ", 900.0),
            ("1 hour 5 sec", 3_605.0),
            ("1.5h", 5_400.0),
            ("1.5s 2ms", 1.502),
        ] {
            assert_eq!(length(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
    }

    #[test]
    fn white_space_inside_of_number_is_an_error() {
        for text in ["1 30m", "1 5s", "10 000ms", "1h 1\u{a0}5m", "1. 5h", "1 .5h", "1.5 5s"] {
            let reason = length(text).unwrap_err();
            assert!(reason.starts_with("white space separates two digits"), "{text}: {reason}");
        }
    }

    #[test]
    fn repeated_unit_is_an_error() {
        for (text, unit) in [("1h1h", "h"), ("1m 30s 1m", "m"), ("1h 2hours", "hours"), ("1us 1µs", "µs")] {
            assert_eq!(length(text), Err(format!("unit {unit:?} occurs twice")));
        }
    }

    #[test]
    fn other_text_is_an_error() {
        for text in ["", " ", "60", ".5s", "1.s", "1,5h", "-1s", "1q", "s"] {
            assert_eq!(length(text), Err(format!("it must be {LENGTH}")), "{text}");
        }
    }
}
