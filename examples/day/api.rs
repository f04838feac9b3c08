//! A model of the remote API. It uses nothing of the crate: it has its own clock, its own day, and 10,000 units for each day.

use http::{Response, StatusCode};

use crate::time::{BEHIND_UTC, DAY, SECOND};

pub(crate) const QUOTA: u32 = 10_000;

/// Who sends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    Job(usize),
    /// A program of another owner, with the same account.
    Stranger,
}

/// A request in the log of the API.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Logged {
    /// By the clock of the API.
    pub(crate) at: u64,
    pub(crate) sender: Sender,
    pub(crate) cost: u32,
    pub(crate) is_served: bool,
}

pub(crate) struct Api {
    /// By how much its clock is ahead of that of the clients, in microseconds.
    ahead: i64,
    day: u64,
    used: u32,
    pub(crate) log: Vec<Logged>,
}

impl Api {
    pub(crate) fn new(ahead: i64) -> Self {
        Self { ahead, day: 0, used: 0, log: Vec::new() }
    }

    /// Answers a request that arrives at this instant of the clock of the clients.
    pub(crate) fn answer(&mut self, at: u64, sender: Sender, cost: u32) -> Result<Response<()>, http::Error> {
        let at = at.saturating_add_signed(self.ahead);
        let since_midnight = (at - BEHIND_UTC) % DAY;
        let day = at - since_midnight;
        if day != self.day {
            (self.day, self.used) = (day, 0);
        }
        let is_served = self.used + cost <= QUOTA;
        if is_served {
            self.used += cost;
        }
        self.log.push(Logged { at, sender, cost, is_served });
        let (remaining, reset) = (QUOTA - self.used, (DAY - since_midnight).div_ceil(SECOND));
        let response = Response::builder()
            .header("RateLimit-Policy", format!("\"daily\";q={QUOTA};w=86400"))
            .header("RateLimit", format!("\"daily\";r={remaining};t={reset}"));
        match is_served {
            true => response.body(()),
            false => response.status(StatusCode::TOO_MANY_REQUESTS).header("Retry-After", reset).body(()),
        }
    }
}
