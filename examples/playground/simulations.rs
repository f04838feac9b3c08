//! Two counters that other libraries use, as small simulations. They are not part of the crate.

/// A counter that decides requests in the order of their times, in microseconds.
pub(crate) trait Simulation {
    /// Decides a request, and counts it if it is admitted. Returns whether it is admitted.
    fn take(&mut self, at: i64, cost: u32) -> bool;

    /// Returns the units that remain.
    fn remaining(&self) -> u32;

    /// Returns the advertised wait of a denial, or `None` if the counter states none.
    fn wait(&self, at: i64) -> Option<i64>;
}

/// `INCREX` of Redis 8.8: a counter with an upper bound and a time to live.
///
/// The first request creates the counter. The counter expires one window later, regardless of its use. Then the next request
/// creates a new one. This is a fixed window that begins with a request. The reply states no wait.
pub(crate) struct Increx {
    quota: u32,
    window: i64,
    /// The creation of each counter.
    pub(crate) begins: Vec<i64>,
    used: u32,
}

/// The usual sliding window of two counters: that of the current calendar window, and a share of the previous one.
///
/// As the usual scripts do, it rounds the share down, and asks whether the usage is below the quota before it adds the cost. A
/// denial advertises the wait for the next calendar window.
pub(crate) struct TwoCounters {
    quota: u32,
    window: i64,
    /// The number of the current calendar window.
    number: i64,
    previous: u32,
    current: u32,
    used: u32,
}

impl Increx {
    pub(crate) fn new(quota: u32, window: i64) -> Self {
        Self { quota, window, begins: Vec::new(), used: 0 }
    }
}

impl Simulation for Increx {
    fn take(&mut self, at: i64, cost: u32) -> bool {
        if self.begins.last().is_none_or(|begin| begin + self.window <= at) {
            self.begins.push(at);
            self.used = 0;
        }
        let admits = self.used.checked_add(cost).is_some_and(|used| used <= self.quota);
        self.used += if admits { cost } else { 0 };
        admits
    }

    fn remaining(&self) -> u32 {
        self.quota - self.used
    }

    fn wait(&self, _: i64) -> Option<i64> {
        None
    }
}

impl TwoCounters {
    pub(crate) fn new(quota: u32, window: i64) -> Self {
        Self { quota, window, number: i64::MIN, previous: 0, current: 0, used: 0 }
    }
}

impl Simulation for TwoCounters {
    fn take(&mut self, at: i64, cost: u32) -> bool {
        let number = at.div_euclid(self.window);
        if number != self.number {
            self.previous = if self.number.checked_add(1) == Some(number) { self.current } else { 0 };
            (self.number, self.current) = (number, 0);
        }
        let left = self.window - at.rem_euclid(self.window);
        // A share of a number of 32 bits is such a number.
        let share = (i128::from(self.previous) * i128::from(left) / i128::from(self.window)) as u32;
        self.used = share.saturating_add(self.current);
        let admits = self.used < self.quota;
        if admits {
            self.current = self.current.saturating_add(cost);
            self.used = self.used.saturating_add(cost);
        }
        admits
    }

    fn remaining(&self) -> u32 {
        self.quota.saturating_sub(self.used)
    }

    fn wait(&self, at: i64) -> Option<i64> {
        Some(self.window - at.rem_euclid(self.window))
    }
}
