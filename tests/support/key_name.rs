//! The names of keys in Redis, parsed as `lua/README.md` describes them.

use std::time::Duration;

use tower_sliding_window::{
    Algorithm, Policy,
    policy::{Period, Rate, Zone},
};

/// What the name of a key states.
#[derive(Debug, PartialEq)]
pub struct KeyName {
    pub namespace: String,
    pub version: u32,
    /// The first half of the hash of the partition key.
    pub hash: u128,
    /// `None` for a token bucket and a calendar period.
    pub window: Option<Duration>,
    /// Without the rate of a token bucket, and the zone and the anchor of a calendar period.
    pub algorithm: Algorithm,
    pub policy: String,
}

/// The letters of the units of a sliding log, of buckets, of a sliding counter and of a fixed window.
const LETTERS: [&str; 4] = ["dhmsiu", "abcefg", "jklnop", "qrtvwx"];
/// The units, in microseconds.
const UNITS: [u64; 6] = [86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000, 1_000, 1];

impl KeyName {
    /// A token bucket of any rate.
    pub const TOKEN_BUCKET: Algorithm = Algorithm::TokenBucket { rate: Rate::per_second(1) };

    /// Parses a name. Returns `None` if it has another form.
    pub fn parse(name: &str) -> Option<Self> {
        let (namespace, rest) = name.split_once('{')?;
        let (tag, rest) = rest.split_once('}')?;
        let digits = tag.bytes().map(base64_digit).collect::<Option<Vec<_>>>()?;
        let (last, first) = digits.split_last().filter(|(_, first)| first.len() == 21)?;
        let hash = first.iter().fold(0, |hash: u128, digit| hash << 6 | u128::from(*digit));
        let (window, algorithm, policy) = if let Some(policy) = rest.strip_prefix('y') {
            (None, Self::TOKEN_BUCKET, policy)
        } else if let Some(rest) = rest.strip_prefix('z') {
            let (period, policy) = period(rest)?;
            let algorithm = Policy::calendar_period("p", 1, period, Zone::utc()).ok()?.algorithm();
            (None, algorithm, policy)
        } else {
            let (row, window, rest) = duration(rest)?;
            let (algorithm, policy) = match row {
                0 => (Algorithm::SlidingLog, rest),
                1 => {
                    let (_, precision, rest) = duration(rest).filter(|(row, ..)| *row == 0)?;
                    (Algorithm::SlidingBuckets { precision }, rest)
                }
                2 => (Algorithm::SlidingCounter, rest),
                _ => (Algorithm::FixedWindow, rest),
            };
            (Some(window), algorithm, policy)
        };
        let (namespace, policy) = (namespace.to_owned(), policy.to_owned());
        let (hash, version) = (hash << 2 | u128::from(last >> 4), last & 15);
        Some(Self { namespace, version, hash, window, algorithm, policy })
    }
}

/// Parses the letter of a calendar period. Returns the period and the rest.
fn period(text: &str) -> Option<(Period, &str)> {
    let periods = [("d", Period::Day), ("w", Period::Week), ("m", Period::Month), ("y", Period::Year)];
    periods.into_iter().find_map(|(letter, period)| Some((period, text.strip_prefix(letter)?)))
}

/// Parses a window or a precision. Returns the row of its letter, the duration and the rest.
fn duration(text: &str) -> Option<(usize, Duration, &str)> {
    let end = text.find(|character: char| character.is_ascii_lowercase())?;
    let (number, letter, rest) = (&text[..end], &text[end..=end], &text[end + 1..]);
    let number = if number.is_empty() { 1 } else { u64::from_str_radix(number, 36).ok()? };
    let place = |(row, letters): (usize, &&str)| Some((row, letters.find(letter)?));
    let (row, column) = LETTERS.iter().enumerate().find_map(place)?;
    Some((row, Duration::from_micros(number.checked_mul(UNITS[column])?), rest))
}

fn base64_digit(byte: u8) -> Option<u32> {
    let (first, digit) = match byte {
        b'A'..=b'Z' => (b'A', 0),
        b'a'..=b'z' => (b'a', 26),
        b'0'..=b'9' => (b'0', 52),
        b'-' => (b'-', 62),
        b'_' => (b'_', 63),
        _ => return None,
    };
    Some(u32::from(byte - first) + digit)
}
