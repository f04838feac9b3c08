//! Instants in logs, in microseconds of Unix time.

use std::sync::LazyLock;

use serde_json::Number;
use time::{
    OffsetDateTime,
    format_description::{BorrowedFormatItem, parse_strftime_borrowed, well_known::Rfc3339},
};

use super::shortened;

/// The end of the instants that a `ManualClock` may have.
const END: u64 = 1 << 51;

const FORMS: &str = r#"such as "31/Dec/2025:23:59:59 +0000", "2025-12-31T23:59:59.999Z", or Unix time"#;

/// The time of the common log format.
static COMMON: LazyLock<Vec<BorrowedFormatItem<'static>>> =
    LazyLock::new(|| parse_strftime_borrowed("%d/%b/%Y:%H:%M:%S %z").unwrap_or_default());

/// Reads the time of the common log format, of RFC 3339, or Unix time.
pub(super) fn from_text(text: &str) -> Result<u64, String> {
    let parsed = match text.as_bytes() {
        [_, _, b'/', ..] => OffsetDateTime::parse(text, &COMMON),
        [_, _, _, _, b'-', ..] => OffsetDateTime::parse(text, &Rfc3339),
        _ => match text.parse() {
            Ok(number) => return from_number(&number),
            Err(_) => return Err(invalid(text)),
        },
    };
    let nanos = parsed.map_err(|_| invalid(text))?.unix_timestamp_nanos();
    let micros = u64::try_from(nanos / 1_000).ok().filter(|_| nanos >= 0);
    micros.filter(|micros| *micros < END).ok_or_else(|| out_of_range(text))
}

/// Reads Unix time in seconds, milliseconds, microseconds or nanoseconds. Seconds have 11 digits at most, milliseconds 14, and
/// microseconds 17.
pub(super) fn from_number(number: &Number) -> Result<u64, String> {
    let micros = match (number.as_u64(), number.as_f64()) {
        (Some(whole), _) => match whole {
            0..100_000_000_000 => whole * 1_000_000,
            100_000_000_000..100_000_000_000_000 => whole * 1_000,
            100_000_000_000_000..100_000_000_000_000_000 => whole,
            _ => whole / 1_000,
        },
        // A double has room for every microsecond of the range.
        (None, Some(given)) if given >= 0.0 => {
            let scale = match given {
                ..1e11 => 1e6,
                ..1e14 => 1e3,
                ..1e17 => 1.0,
                _ => 1e-3,
            };
            (given * scale).round() as u64
        }
        _ => return Err(out_of_range(&number.to_string())),
    };
    Some(micros).filter(|micros| *micros < END).ok_or_else(|| out_of_range(&number.to_string()))
}

/// Returns the text of an instant.
pub(crate) fn text(micros: u64) -> String {
    let instant = OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1_000);
    instant.ok().and_then(|instant| instant.format(&Rfc3339).ok()).unwrap_or_else(|| micros.to_string())
}

fn invalid(text: &str) -> String {
    format!("time {:?}: it must be a time with an offset, {FORMS}", shortened(text))
}

fn out_of_range(text: &str) -> String {
    format!("time {:?}: it must be from 1970 to {}", shortened(text), self::text(END - 1))
}
