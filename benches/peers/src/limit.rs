//! The limits. Every subject of a cell has the same one, of its own type.

use std::time::Duration;

/// The verdict of the measured requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Admitted,
    Denied,
}

impl Verdict {
    pub const BOTH: [Self; 2] = [Self::Admitted, Self::Denied];

    pub fn name(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Denied => "denied",
        }
    }
}

/// How a limiter counts. A GCRA is a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitType {
    Log,
    TokenBucket,
}

/// The settings of a limit.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// The number of policies. The other crates have one policy for each layer, so their layers are nested.
    pub policies: usize,
    /// Whether requests after the first one of a key are denied.
    pub denies: bool,
}

impl Limit {
    /// Describes the limits for the introduction of the results.
    pub const TEXT: &str = "Every subject of a cell has the same limit. Where requests are admitted, a key may use 1,048,576 units at \
        once in memory. On Redis, these are 65,535, because tower-rate-limit-redis counts them in 16 bits. A unit of a token bucket or a \
        GCRA returns every 10 s, so a key is still stored when its next request comes. A log has as large a quota, and a window of an \
        hour. Where requests are denied, a key has one unit, which returns after an hour. Three policies are three equal token buckets \
        or GCRAs, or logs of an hour, a minute and a second.";

    /// Returns a limit that never denies.
    pub fn admitting(policies: usize) -> Self {
        Self { policies, denies: false }
    }

    /// Returns a limit whose quota one request uses up for an hour.
    pub fn denying(policies: usize) -> Self {
        Self { policies, denies: true }
    }

    /// Returns the number of units that a key may use at once in memory. It is larger than the number of requests of any load.
    pub fn capacity(self) -> u32 {
        if self.denies { 1 } else { 1 << 20 }
    }

    /// Returns the number of units that a key may use at once on Redis, where one of the crates has a capacity of 16 bits.
    pub fn redis_capacity(self) -> u16 {
        if self.denies { 1 } else { u16::MAX }
    }

    /// Returns the time in which a unit of a token bucket returns. If all units returned between two requests of a key, some crates
    /// would remove the key and add it again, and others would keep it.
    pub fn interval(self) -> Duration {
        Duration::from_secs(if self.denies { 3_600 } else { 10 })
    }
}
