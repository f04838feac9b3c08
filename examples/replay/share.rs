//! A share of the requests, in percent.

use std::{fmt, str::FromStr};

/// The parts of one percent that a share counts.
const PARTS: u32 = 1_000_000;

/// A share, in millionths of a percent.
#[derive(Clone, Copy)]
pub(crate) struct Share(u32);

impl Share {
    /// Returns how many of these requests are at most this share.
    pub(crate) fn of(self, requests: usize) -> u64 {
        (requests as u128 * u128::from(self.0) / (100 * u128::from(PARTS))) as u64
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!(r#"share {text:?}: it must be 0% to 99.999999%, with at most 6 decimals, such as "0.1%""#)
        };
        let number = text.strip_suffix('%').ok_or_else(invalid)?.trim_end();
        let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
        let is_number = |digits: &str, most: usize| {
            (1..=most).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit())
        };
        if !is_number(whole, 2) || !is_number(decimals, 6) {
            return Err(invalid());
        }
        let parse = |digits: &str| digits.parse::<u32>().map_err(|_| invalid());
        Ok(Self(parse(whole)? * PARTS + parse(&format!("{decimals:0<6}"))?))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = format!("{:06}", self.0 % PARTS);
        match decimals.trim_end_matches('0') {
            "" => write!(f, "{} %", self.0 / PARTS),
            decimals => write!(f, "{}.{decimals} %", self.0 / PARTS),
        }
    }
}
