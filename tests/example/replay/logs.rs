//! Generated logs: bursts at the edges of windows, several costs, equal instants, and lines out of order.

use std::collections::BTreeMap;

use super::model::{Event, Kind, ModelPolicy};

/// 2026-03-02T09:00:00Z, in microseconds. It is an edge of every calendar window of the tests.
pub const START: u64 = 1_772_442_000_000_000;

pub const SECOND: u64 = 1_000_000;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Common,
    Combined,
    Json,
}

/// A log and what its lines mean.
pub struct Generated {
    pub lines: Vec<String>,
    pub events: Vec<Event>,
}

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number below a bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// The policies of the file of [`plan`].
pub fn policies() -> Vec<ModelPolicy> {
    let policy = |name, quota, window, kind| ModelPolicy { name, quota, window: window * SECOND, kind };
    vec![
        policy("burst", 12, 2, Kind::Log),
        policy("sustained", 50, 30, Kind::Log),
        policy("exports", 40, 60, Kind::Log),
        policy("calendar", 40, 60, Kind::Fixed),
        policy("buckets", 70, 120, Kind::Buckets(10 * SECOND)),
    ]
}

/// A file with five policies and several costs.
pub const PLAN: &str = r#"
key = ["user", "address"]

[[policies]]
name = "burst"
quota = 12
window = "2s"

[[policies]]
name = "sustained"
quota = 50
window = "30s"

[[policies]]
name = "exports"
quota = 40
window = "1m"

[[policies]]
name = "calendar"
quota = 40
window = "60s"
algorithm = "fixed-window"

[[policies]]
name = "buckets"
quota = 70
window = "2m"
algorithm = { sliding-buckets = { precision = "10s" } }

[costs]
"/search" = 5
"POST /search" = 7
"/free/{*path}" = 0
"/export/{id}" = { burst = 0, sustained = 12, exports = 3 }
otherwise = { burst = 1, sustained = 2, exports = 0, calendar = 1, buckets = 1 }

[fields]
time = "ts"
method = "request.method"
path = "request.uri"
"#;

/// The requests, and their costs by policy in the order of the file.
const ROUTES: [(&str, &str, [u64; 5]); 6] = [
    ("GET", "/search?q=%22a%22", [5, 5, 5, 5, 5]),
    ("POST", "/search", [7, 7, 7, 7, 7]),
    ("GET", "/free/a/b", [0, 0, 0, 0, 0]),
    ("DELETE", "/export/7", [0, 12, 3, 1, 1]),
    ("GET", "/", [1, 2, 0, 1, 1]),
    ("HEAD", "/other/page?x=1", [1, 2, 0, 1, 1]),
];

const BROKEN: [&str; 5] = [
    "",
    r#"{"ts": 1"#,
    "10.0.0.1 - - [02/Mar/2026:09:00:00 +0000] \"GET /",
    r#"10.0.0.1 - - [32/Mar/2026:09:00:00 +0000] "GET / HTTP/1.1" 200 5"#,
    r#"10.0.0.1 - - [02/Mar/2026:09:00:00 +0000] "\x16\x03" 400 5"#,
];

/// Generates a log of this many requests.
pub fn generate(seed: u64, requests: u64, format: Format) -> Generated {
    let mut random = Random::new(seed);
    // The common format has whole seconds.
    let unit = if format == Format::Json { 1 } else { SECOND };
    let (mut now, mut edge) = (START, START);
    let (mut lines, mut events) = (Vec::new(), Vec::new());
    while (events.len() as u64) < requests {
        match random.below(30) {
            // To the edge of a window, or next to it.
            0..2 => {
                edge = (edge.max(now) / (30 * SECOND) + 1) * 30 * SECOND;
                now = edge - unit;
            }
            2..12 => now += unit,
            12..13 => now += 2 * SECOND - (now % SECOND).min(unit),
            13..15 => now += random.below(3) * SECOND,
            15 => now += random.below(20) * SECOND + random.below(SECOND) / unit * unit,
            17 => lines.push(random.one(&BROKEN).to_owned()),
            // Equal instants.
            _ => {}
        }
        // Some lines come late, and a few of them too late.
        let at = match random.below(20) {
            0 => now - random.below(60) * SECOND,
            1 if random.below(10) == 0 => now - (60 + random.below(30)) * SECOND,
            _ => now,
        };
        let user = random.one(&["ann", "ann", "bob"]);
        let address = random.one(&["10.0.0.1", "2001:db8::1"]);
        let (method, path, costs) = random.one(&ROUTES);
        // An IPv6 address counts by its /64 network.
        let counted = address.replace("::1", "::");
        let key = BTreeMap::from([("user", user.to_owned()), ("address", counted)]);
        let line = lines.len() as u64 + 1;
        events.push(Event { line, at, key, costs: costs.to_vec() });
        lines.push(match format {
            Format::Json => json_line(&mut random, at, user, address, method, path),
            _ => {
                let offset = random.one(&[0, 0, 330, -480]);
                let time = common_time(at, offset);
                let combined = if format == Format::Combined { r#" "-" "agent \"x\"""# } else { "" };
                format!(r#"{address} - {user} [{time}] "{method} {path} HTTP/1.1" 200 17{combined}"#)
            }
        });
    }
    Generated { lines, events }
}

fn json_line(random: &mut Random, at: u64, user: &str, address: &str, method: &str, path: &str) -> String {
    let time = match random.below(6) {
        0 => format!("\"{}\"", rfc3339(at)),
        1 => format!("{}.{:06}", at / SECOND, at % SECOND),
        2 if at.is_multiple_of(1_000) => (at / 1_000).to_string(),
        3 => format!("{at}"),
        4 => format!("{at}123"),
        5 => format!("\"{}.{:06}\"", at / SECOND, at % SECOND),
        _ => format!("\"{}+05:30\"", rfc3339(at + 330 * 60 * SECOND).trim_end_matches('Z')),
    };
    let request = format!(r#"{{"method": "{method}", "uri": "{path}"}}"#);
    format!(
        r#"{{"user": "{user}", "ts": {time}, "request": {request}, "address": "{address}", "more": [1]}}"#
    )
}

/// Returns the year, the month and the day of a number of days since 1970.
fn date(days: u64) -> (u64, u64, u64) {
    let (mut year, mut left) = (1970, days);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while left >= lengths[month] {
        left -= lengths[month];
        month += 1;
    }
    (year, month as u64 + 1, left + 1)
}

fn clock(micros: u64) -> String {
    let seconds = micros / SECOND;
    format!("{:02}:{:02}:{:02}", seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60)
}

/// Returns an instant as the example writes it.
pub fn rfc3339(at: u64) -> String {
    let (year, month, day) = date(at / SECOND / 86_400);
    let fraction = format!(".{:06}", at % SECOND);
    let fraction = if at.is_multiple_of(SECOND) { "" } else { fraction.trim_end_matches('0') };
    format!("{year}-{month:02}-{day:02}T{}{fraction}Z", clock(at))
}

/// Returns an instant in the common log format, with an offset in minutes.
fn common_time(at: u64, offset: i64) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let local = at.checked_add_signed(offset * 60 * SECOND as i64).unwrap();
    let (year, month, day) = date(local / SECOND / 86_400);
    let sign = if offset < 0 { '-' } else { '+' };
    let (hours, minutes) = (offset.abs() / 60, offset.abs() % 60);
    let month = MONTHS[month as usize - 1];
    format!("{day:02}/{month}/{year}:{} {sign}{hours:02}{minutes:02}", clock(local))
}
