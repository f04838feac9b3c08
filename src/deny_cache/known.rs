//! What is known of one pair: which costs it denies, and until when.

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

/// How many costs of one pair are known at once, so that each can be told its own wait.
const MAX_KNOWN: usize = 4;

/// A denial of one pair that the store has told.
///
/// It says that more is used than `room`: so it denies every cost that leaves no more room than that, whatever the quota is by
/// now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// The quota less the cost that was denied; below zero where no wait helps.
    room: i64,
    /// When it was asked for. It was decided later, and so it is true for longer than what counts from here.
    sent: Instant,
    at_micros: u64,
    /// At least so much was used, as far as it was told.
    used: u32,
    wait: Wait,
    next: Duration,
    reset: Duration,
}

/// All that is known of one pair. It is replaced as a whole, and never changed.
pub(super) struct Entry {
    known: Box<[Known]>,
    /// Whether somebody asks, so that the others need not.
    asking: AtomicBool,
}

/// What a check of a pair finds.
pub(super) struct Found {
    pub(super) known: Known,
    /// Whether the store should be asked by one of those who find it: it is old, or it is the denial of another cost.
    pub(super) is_worth_asking: bool,
}

/// Leave to ask for these entries. The others are answered from them meanwhile.
pub(super) struct Claim(Vec<Arc<Entry>>);

/// What a pair leaves of its quota.
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

    /// When it ends to hold.
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

    /// The status of a pair that this denies.
    pub(super) fn status(&self, pair: &Pair, now: Instant) -> Status {
        let age = self.age(now);
        let left = |wait: Duration| wait.saturating_sub(age);
        let quota = pair.policy.quota();
        let retry = match self.wait {
            _ if pair.cost > quota => Wait::Never,
            // Not zero: it holds.
            Wait::For(wait) => Wait::For(left(wait)),
            Wait::Never => Wait::Never,
        };
        let wait = match retry {
            Wait::For(wait) => wait,
            Wait::Never => left(self.reset),
        };
        // Where something has left meanwhile, nobody knows when more will. What is asked for is free after its wait.
        let next = [left(self.next), wait, pair.policy.window()].into_iter().find(|wait| !wait.is_zero());
        let remaining = quota.saturating_sub(self.used);
        Status::new(pair, remaining, retry, next.unwrap_or_default(), left(self.reset).max(wait))
    }
}

impl Entry {
    /// What is known of a pair when this is known too. None if it was known before.
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
        Some(Self { known: known.into(), asking: AtomicBool::new(false) })
    }

    /// The denial of a pair that leaves so much room, if there is one that holds: that of its own cost, or else of the largest
    /// smaller one, whose wait is the longest that is known.
    pub(super) fn find(&self, room: i64, now: Instant, max_age: Duration) -> Option<Found> {
        let holding = || self.known.iter().filter(|known| known.holds(now, max_age));
        let known = *holding().filter(|known| known.room >= room).min_by_key(|known| known.room)?;
        let is_old = known.age(now) >= max_age - max_age / 8;
        // That no wait helps need not be asked for.
        let is_of_another = known.room != room && room >= 0 && holding().count() < MAX_KNOWN;
        Some(Found { known, is_worth_asking: is_old || is_of_another })
    }
}

impl Claim {
    /// None if somebody else asks for one of them.
    pub(super) fn of(entries: Vec<Arc<Entry>>) -> Option<Self> {
        let mut claim = Self(Vec::with_capacity(entries.len()));
        for entry in entries {
            if entry.asking.swap(true, Ordering::AcqRel) {
                return None;
            }
            claim.0.push(entry);
        }
        Some(claim)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        for entry in &self.0 {
            entry.asking.store(false, Ordering::Release);
        }
    }
}
