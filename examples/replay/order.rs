//! Puts requests in the order of their instants.
//!
//! A log has a line when a request ends, with the instant at which it began. So the lines are almost in order.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use crate::requests::{Request, What};

/// The largest number of requests that are held.
pub(crate) const MAX_HELD: usize = 1 << 18;

/// Requests that wait for earlier ones. A request that is earlier than an earlier line by more than the window is late: it counts as
/// if it was earlier by the window.
pub(crate) struct Order {
    held: BinaryHeap<Reverse<Request>>,
    window: u64,
    /// No request that comes is decided before this instant.
    floor: u64,
}

impl Order {
    pub(crate) fn new(window: Duration) -> Self {
        Self { held: BinaryHeap::new(), window: window.as_micros() as u64, floor: 0 }
    }

    /// Adds the request of a line. Returns whether it is late.
    pub(crate) fn add(&mut self, at_micros: u64, line: u64, what: What) -> bool {
        let is_late = at_micros < self.floor;
        self.held.push(Reverse(Request { at_micros: at_micros.max(self.floor), line, what }));
        self.floor = self.floor.max(at_micros.saturating_sub(self.window));
        is_late
    }

    /// Returns the next request that no further line can precede.
    pub(crate) fn next(&mut self) -> Option<Request> {
        let Reverse(first) = self.held.peek()?;
        if self.held.len() > MAX_HELD {
            self.floor = self.floor.max(first.at_micros);
        }
        if first.at_micros <= self.floor { self.rest() } else { None }
    }

    /// Returns the next request after the last line.
    pub(crate) fn rest(&mut self) -> Option<Request> {
        self.held.pop().map(|Reverse(request)| request)
    }
}
