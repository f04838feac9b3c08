//! The cached denials of one pair: which costs it denies, and until when.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    check::Pair,
    decision::{Status, Wait},
};

/// The largest number of costs per pair, each with a wait of its own.
const MAX_KNOWN: usize = 4;

/// A denial of one pair by the store.
///
/// More units than `room` are used. Therefore it denies every cost that leaves no more room than that, for any quota.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// The quota less the denied cost. Below zero if no wait helps.
    room: i64,
    /// The send time of the check. The store has decided later, so the denial holds at least for its wait from here.
    sent: Instant,
    at_micros: u64,
    /// The units that were used, at least.
    used: u32,
    wait: Wait,
    next: Duration,
    reset: Duration,
}

/// The denials of one pair. An entry is replaced as a whole and never changed.
pub(super) struct Entry {
    known: Box<[Known]>,
    /// Whether a check is refreshing the entry.
    is_refreshing: AtomicBool,
}

/// The result of a search in an entry.
pub(super) struct Found {
    pub(super) known: Known,
    /// Whether one check should ask the store: the denial is old, or it is that of another cost.
    pub(super) needs_refresh: bool,
}

/// The permission to refresh these entries. Meanwhile, other checks are answered from them.
pub(super) struct Refresh(Vec<Arc<Entry>>);

/// Returns the quota of a pair less its cost.
pub(super) fn room(pair: &Pair) -> i64 {
    i64::from(pair.policy.quota()) - i64::from(pair.cost)
}

impl Known {
    pub(super) fn new(pair: &Pair, status: &Status, sent: Instant, at_micros: u64) -> Self {
        Self {
            room: room(pair),
            sent,
            at_micros,
            used: pair.policy.quota().saturating_sub(status.remaining()),
            wait: status.retry_after(),
            next: status.next_after(),
            reset: status.reset_after(),
        }
    }

    pub(super) fn at_micros(&self) -> u64 {
        self.at_micros
    }

    /// Returns the instant at which the denial expires.
    pub(super) fn until(&self, max_age: Duration) -> Instant {
        self.sent
            + match self.wait {
                Wait::For(wait) => wait.min(max_age),
                Wait::Never => max_age,
            }
    }

    fn holds(&self, now: Instant, max_age: Duration) -> bool {
        now < self.until(max_age)
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.sent)
    }

    /// Returns the status of a pair that this denies.
    pub(super) fn status(&self, pair: &Pair, now: Instant) -> Status {
        let age = self.age(now);
        let left = |wait: Duration| wait.saturating_sub(age);
        let quota = pair.policy.quota();
        let retry = match self.wait {
            _ if pair.cost > quota => Wait::Never,
            // This is not zero, because the denial holds.
            Wait::For(wait) => Wait::For(left(wait)),
            Wait::Never => Wait::Never,
        };
        let wait = match retry {
            Wait::For(wait) => wait,
            Wait::Never => left(self.reset),
        };
        // If units have left meanwhile, the next instant is unknown. The cost of this check is free after its wait.
        let next = [left(self.next), wait, pair.policy.window()].into_iter().find(|wait| !wait.is_zero());
        let remaining = quota.saturating_sub(self.used);
        Status::new(pair, remaining, retry, next.unwrap_or_default(), left(self.reset).max(wait))
    }
}

impl Entry {
    /// Returns the entry with a further denial, or `None` if the entry has a newer denial of the same cost.
    pub(super) fn with(old: Option<&Self>, new: Known, max_age: Duration) -> Option<Self> {
        let now = Instant::now();
        let old = old.map_or(&[][..], |entry| &entry.known);
        if old.iter().any(|known| known.room == new.room && known.sent > new.sent) {
            return None;
        }
        let others = old.iter().filter(|known| known.room != new.room && known.holds(now, max_age));
        let mut known: Vec<Known> = others.copied().collect();
        if known.len() == MAX_KNOWN
            && let Some((oldest, _)) = known.iter().enumerate().min_by_key(|(_, known)| known.sent)
        {
            known.swap_remove(oldest);
        }
        known.push(new);
        Some(Self { known: known.into(), is_refreshing: AtomicBool::new(false) })
    }

    /// Finds a denial of a pair that leaves this room: that of its own cost, or else of the largest smaller cost, whose wait is
    /// the longest lower bound.
    pub(super) fn find(&self, room: i64, now: Instant, max_age: Duration) -> Option<Found> {
        let holding = || self.known.iter().filter(|known| known.holds(now, max_age));
        let known = *holding().filter(|known| known.room >= room).min_by_key(|known| known.room)?;
        let is_old = known.age(now) >= max_age - max_age / 8;
        // A denial without a wait needs no refresh.
        let is_of_another = known.room != room && room >= 0 && holding().count() < MAX_KNOWN;
        Some(Found { known, needs_refresh: is_old || is_of_another })
    }
}

impl Refresh {
    /// Takes the permission, unless another check is refreshing one of the entries.
    pub(super) fn of(entries: Vec<Arc<Entry>>) -> Option<Self> {
        let mut refresh = Self(Vec::with_capacity(entries.len()));
        for entry in entries {
            if entry.is_refreshing.swap(true, Ordering::AcqRel) {
                return None;
            }
            refresh.0.push(entry);
        }
        Some(refresh)
    }
}

impl Drop for Refresh {
    fn drop(&mut self) {
        for entry in &self.0 {
            entry.is_refreshing.store(false, Ordering::Release);
        }
    }
}
