//! The cached denials of one pair: which costs it denies, and until when.
//!
//! Usage only falls as time passes, and a charge only delays its fall, so the wait of a cost is also a lower bound for every
//! larger cost. Between two costs that are admitted at the same instant, every cost is admitted at that instant.
//!
//! # When a denial of one cost confirms the waits of the others
//!
//! Let `F` be the future usage, if there are no other charges. In the log and the buckets, a new charge leaves the window no earlier
//! than any older charge. In the fixed window, all charges leave at once. So if refunds and charges change `F` to `G`, and
//! `G >= F` at one instant, then `G >= F` at every later instant: the refunded units would have left before the new ones leave.
//! Every wait of `F` is then still a lower bound. So a later denial confirms the waits if the usage that it reports is at least an
//! upper bound of `F` at its instant. Such upper bounds are the usage as of the last denial, if it was below the quota and
//! therefore known, and what a cost leaves free whose wait has passed.
//!
//! If the usage is not below the quota, its excess is not known. It exceeds the quota only after an overage or under a smaller
//! quota. Then the denial confirms the waits too, but only until units next leave the window: before that, all costs are denied. And
//! it confirms them for eight maximum ages at most, and each cost is asked for again in turn. If units were returned meanwhile, the
//! upper bounds above do not apply to these waits, so no later denial proves them.
//! The sliding counter falls all the time and its usage is rounded, and instants of several clocks cannot be compared: in these
//! cases nothing is confirmed, and each wait is valid for one maximum age.

use std::{sync::Arc, time::Duration};

use super::{CacheMicros, revalidation::RevalidationLimiter};
use crate::{
    check::Pair,
    decision::{Standing, Status, Wait, WaitMicros},
    policy::Expiry,
};

/// The largest number of costs per pair, each with a wait of its own.
const MAX_KNOWN: usize = 32;
/// The largest age, in maximum ages, of a wait that was confirmed while the usage was not below the quota.
const MAX_UNPROVEN_AGES: u64 = 8;
/// An age that no denial reaches, as a maximum age.
pub(super) const ANY_AGE: u64 = 1 << 60;

/// A denial of one pair by the store.
pub(super) struct Denial {
    /// The quota less the denied cost. `None` if the cost is above the quota, or if its wait is not known.
    room: Option<u32>,
    wait: u64,
    expiry: Expiry,
    window: u64,
    pub(super) usage: Usage,
}

/// The usage of one pair as of a denial.
#[derive(Clone, Copy)]
pub(super) struct Usage {
    /// The send time of the check. The store has decided later, so the denial holds at least for its wait from here.
    pub(super) sent: CacheMicros,
    /// The store's clock.
    pub(super) at: u64,
    next: u64,
    reset: u64,
    /// The units that are used, at least.
    used: u32,
    /// Whether no more than these are used.
    is_exact: bool,
    /// Whether `at` may be the clock of another server.
    is_divided: bool,
}

/// The denials of one pair. An entry is replaced as a whole and never changed. A wait that has reached the maximum age is kept until it
/// has passed, and denies only if the store makes no decision.
#[derive(Clone)]
pub(super) struct CachedPair {
    /// The usage as of the newest denial.
    pub(super) newest: Usage,
    known: Box<[Known]>,
    is_invalidated: bool,
    pub(super) revalidation: Arc<RevalidationLimiter>,
}

/// The wait of one cost.
///
/// More units than `room` are used. Therefore every cost that leaves no more room than that is denied, for any quota.
#[derive(Clone, Copy)]
struct Known {
    room: u32,
    /// Whether this is the wait of the cost itself, and not only a lower bound.
    is_exact: bool,
    /// Whether no more than `room` is used after the wait, as of the newest denial: a charge meanwhile would have delayed the
    /// instant at which nothing is used.
    bounds_usage: bool,
    /// Whether this was a lower bound as of the newest denial, so that the next one may confirm it.
    is_current: bool,
    /// Whether every denial that confirmed it proved that no units were returned.
    is_proven: bool,
    /// When the wait ends at the earliest.
    until: CacheMicros,
    /// When the wait ends, on the store's clock.
    ends_at: u64,
    /// The send time of the check that asked for this cost, and of the last one that confirmed its wait.
    asked: CacheMicros,
    confirmed: CacheMicros,
}

/// The result of a search in an entry.
#[derive(Clone, Copy)]
pub(super) struct Found {
    /// What is left of the wait, in microseconds. `None` if no wait helps.
    wait: Option<u64>,
    used: u32,
    /// Whether the wait of this cost is known. Otherwise it is a lower bound.
    pub(super) is_exact: bool,
    /// Whether one check should ask the store, because the denial soon reaches its maximum age.
    pub(super) is_old: bool,
}

/// What a newer denial says about the waits that are known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Evidence {
    /// They are lower bounds still.
    Confirmed,
    /// Nothing contradicts them. All costs are denied until units next leave the window.
    Plausible,
    /// They are valid until their maximum age.
    Unknown,
    /// Units were returned, keys were lost, or the clock was stepped.
    Contradicted,
}

/// Returns the quota of a pair less its cost. `None` if the cost is above the quota.
pub(super) fn room(pair: &Pair) -> Option<u32> {
    pair.policy.quota_units().checked_sub(pair.cost)
}

impl Denial {
    pub(super) fn new(pair: &Pair, status: &Status, sent: CacheMicros, at: u64, is_divided: bool) -> Self {
        Self {
            // A wait that is not known is not repeated.
            room: room(pair).filter(|_| status.retry_after() != Wait::Unknown),
            wait: match status.retry_after() {
                Wait::For(wait) => capped(wait),
                Wait::Unknown | Wait::Never => 0,
            },
            expiry: pair.policy.properties().expiry,
            window: pair.policy.window_micros(),
            usage: Usage {
                sent,
                at,
                next: capped(status.next_after()),
                reset: capped(status.reset_after()),
                used: pair.policy.quota_units().saturating_sub(status.remaining()),
                is_exact: status.remaining() > 0,
                is_divided,
            },
        }
    }

    /// Returns whether a later charge would delay the instant at which nothing is used.
    fn charges_delay_reset(&self) -> bool {
        match self.expiry {
            Expiry::InOrder => true,
            // Unless the newest bucket has ended, the charge belongs to it.
            Expiry::ByBucket => self.usage.reset <= self.window,
            Expiry::Gradual => false,
        }
    }

    /// Returns the waits that this denial states: that of its cost, and that of the quota as a cost. If another denial is newer, they are
    /// lower bounds, and no later denial confirms them.
    fn known(&self, is_newest: bool) -> impl Iterator<Item = Known> + use<> {
        let Usage { sent, at, reset, .. } = self.usage;
        let known = |room, wait| Known {
            room,
            is_exact: is_newest,
            bounds_usage: is_newest && self.charges_delay_reset(),
            is_current: is_newest,
            is_proven: true,
            until: sent + wait,
            ends_at: at.saturating_add(wait),
            asked: sent,
            confirmed: sent,
        };
        let own = self.room.map(|room| known(room, self.wait));
        let quota = self.room.filter(|room| *room > 0).map(|_| known(0, reset));
        [own, quota].into_iter().flatten()
    }
}

impl Usage {
    /// Returns when nothing is used, on the store's clock.
    fn resets_at(&self) -> u64 {
        self.at.saturating_add(self.reset)
    }
}

impl CachedPair {
    /// Returns the bytes of the known waits.
    pub(super) fn known_bytes(&self) -> usize {
        size_of_val(&*self.known)
    }

    /// Returns the entry with a further denial, or `None` if the entry has a newer denial of the same cost.
    pub(super) fn with(old: Option<&Self>, new: Denial, now: CacheMicros, max_age: u64) -> Option<Self> {
        let revalidation =
            old.map_or_else(|| RevalidationLimiter::new(new.usage.sent), |old| old.revalidation.clone());
        let Some(old) = old.filter(|old| !old.is_invalidated) else {
            let known = new.known(true).collect();
            return Some(Self { newest: new.usage, known, is_invalidated: false, revalidation });
        };
        let is_late = old.newest.sent > new.usage.sent;
        let mut known = if is_late {
            if old.known.iter().any(|known| Some(known.room) == new.room && known.asked > new.usage.sent) {
                return None;
            }
            old.known.to_vec()
        } else {
            old.known_after(&new, now, max_age)
        };
        known.retain(|known| known.holds(now, ANY_AGE));
        for old in known.iter_mut().filter(|known| !known.holds(now, max_age)) {
            *old = old.unconfirmable();
        }
        for new in new.known(!is_late) {
            let same = known.iter_mut().find(|known| known.room == new.room);
            match same {
                Some(same) if same.asked > new.asked => {}
                Some(same) => *same = new,
                None => {
                    // That of the smallest cost denies all others, so a client cannot remove it by denials of other costs.
                    let largest = known.iter().map(|known| known.room).max();
                    let others = known.iter().enumerate().filter(|(_, known)| Some(known.room) != largest);
                    if known.len() == MAX_KNOWN
                        && let Some((oldest, _)) = others.min_by_key(|(_, known)| known.asked)
                    {
                        known.swap_remove(oldest);
                    }
                    known.push(new);
                }
            }
        }
        let newest = if is_late { old.newest } else { new.usage };
        Some(Self { newest, known: known.into(), is_invalidated: false, revalidation })
    }

    /// Returns the entry after a charge, if this changes it: the waits are lower bounds now.
    pub(super) fn charged(&self) -> Option<Self> {
        if !self.known.iter().any(|known| known.is_exact) {
            return None;
        }
        let known = self.known.iter().map(|known| Known { is_exact: false, ..*known }).collect();
        Some(self.with_waits(known, false))
    }

    /// Returns the entry without its denials. It still shows when the pair was last denied.
    pub(super) fn invalidated(&self) -> Self {
        self.with_waits([].into(), true)
    }

    /// Returns the entry with denials that hold only if the store makes no decision.
    pub(super) fn expired(&self) -> Self {
        let known = self.known.iter().map(|known| Known { confirmed: 0, ..known.unconfirmable() }).collect();
        self.with_waits(known, self.is_invalidated)
    }

    fn with_waits(&self, known: Box<[Known]>, is_invalidated: bool) -> Self {
        Self { newest: self.newest, known, is_invalidated, revalidation: self.revalidation.clone() }
    }

    /// Returns the known waits after a newer denial.
    fn known_after(&self, new: &Denial, now: CacheMicros, max_age: u64) -> Vec<Known> {
        let verdict = self.evidence(new, now);
        let new = &new.usage;
        if verdict == Evidence::Contradicted {
            return Vec::new();
        }
        let is_charged = if self.newest.is_divided || new.is_divided {
            new.used > self.newest.used
        } else {
            new.resets_at() != self.newest.resets_at()
                || self.usage_bound(new.at).is_some_and(|bound| new.used > bound)
        };
        // All costs are asked for in turn, four per maximum age.
        let round = refresh_age(max_age) * self.known.len().max(4) as u64 / 4;
        let known = self.known.iter().map(|known| {
            let mut known = *known;
            known.is_exact &= !is_charged;
            known.bounds_usage &= !is_charged;
            let age = new.sent.saturating_sub(known.asked);
            known.is_current &= match verdict {
                Evidence::Confirmed => known.is_proven,
                Evidence::Plausible => age < MAX_UNPROVEN_AGES * max_age,
                Evidence::Unknown | Evidence::Contradicted => false,
            };
            if known.is_current {
                known.is_exact &= verdict == Evidence::Confirmed || age < round;
                // If the store's clock was stepped forward, the wait ends earlier.
                known.until = known.until.min(new.sent + known.ends_at.saturating_sub(new.at));
                known.is_proven = verdict == Evidence::Confirmed;
                let proven = if known.is_proven { max_age } else { max_age.min(new.next) };
                known.confirmed = known.confirmed.max((new.sent + proven).saturating_sub(max_age));
            }
            known
        });
        known.collect()
    }

    fn evidence(&self, new: &Denial, now: CacheMicros) -> Evidence {
        let Denial { room, wait, expiry, usage: new, .. } = new;
        let old = &self.newest;
        let valid = || self.known.iter().filter(|known| known.holds(now, ANY_AGE));
        // Fewer units are used than these waits require.
        if new.is_exact && valid().any(|known| known.room >= new.used) {
            return Evidence::Contradicted;
        }
        if old.is_divided || new.is_divided {
            return Evidence::Unknown;
        }
        let ends_earlier = |room: u32| {
            let ends_at = new.at.saturating_add(*wait);
            valid().any(|known| known.room >= room && known.ends_at > ends_at)
        };
        let resets_earlier = new.resets_at() < old.resets_at() && old.resets_at() > new.at;
        let falls_earlier = || {
            let is_early = new.at < old.at.saturating_add(old.next);
            is_early && old.is_exact && new.is_exact && new.used < old.used
        };
        if new.at < old.at || resets_earlier || falls_earlier() || room.is_some_and(ends_earlier) {
            return Evidence::Contradicted;
        }
        if *expiry == Expiry::Gradual {
            return Evidence::Unknown;
        }
        match self.usage_bound(new.at) {
            Some(bound) if new.used >= bound => Evidence::Confirmed,
            None if !old.is_exact && !new.is_exact && new.used >= old.used => Evidence::Plausible,
            _ => Evidence::Unknown,
        }
    }

    /// Returns an upper bound of the usage at an instant of the store's clock, if nothing was charged since the newest denial.
    fn usage_bound(&self, at: u64) -> Option<u32> {
        let passed = self.known.iter().filter(|known| known.bounds_usage && known.ends_at <= at);
        let passed = passed.map(|known| known.room);
        passed.chain(self.newest.is_exact.then_some(self.newest.used)).min()
    }

    /// Finds the denial of a pair that leaves this room: that of its own cost, or else the longest lower bound.
    pub(super) fn find(&self, room: Option<u32>, now: CacheMicros, max_age: u64) -> Option<Found> {
        if self.is_invalidated {
            return None;
        }
        let Some(room) = room else {
            let age = now.saturating_sub(self.newest.sent);
            let found = Found {
                wait: None,
                used: self.newest.used,
                is_exact: true,
                is_old: age >= refresh_age(max_age),
            };
            return (age < max_age).then_some(found);
        };
        let valid = || self.known.iter().filter(|known| known.holds(now, max_age));
        let no_larger = || valid().filter(|known| known.room >= room);
        let longest = no_larger().max_by_key(|known| (known.until, known.confirmed))?;
        let is_exact = no_larger().filter(|known| known.is_exact).any(|smaller| {
            let larger = || valid().filter(|known| known.is_exact && known.room <= room);
            smaller.room == room || larger().any(|larger| larger.ends_at == smaller.ends_at)
        });
        let confirmed = no_larger().map(|known| known.confirmed).max()?;
        Some(Found {
            wait: Some(longest.until - now),
            used: self.newest.used.max(longest.room + 1),
            is_exact,
            is_old: now.saturating_sub(confirmed) >= refresh_age(max_age),
        })
    }

    /// Returns the status of a pair with this denial.
    pub(super) fn status(&self, pair: &Pair, found: &Found, now: CacheMicros) -> Status {
        let age = now.saturating_sub(self.newest.sent);
        let reset = self.newest.reset.saturating_sub(age);
        let wait = found.wait.unwrap_or(reset);
        // If units have left meanwhile, the next instant is unknown. The cost of this check is free after its wait.
        let next = [self.newest.next.saturating_sub(age), wait, pair.policy.window_micros()];
        let standing = Standing {
            remaining: pair.policy.quota_units().saturating_sub(found.used),
            retry_after: found.wait.map_or(WaitMicros::NEVER, WaitMicros::new),
            next_after: next.into_iter().find(|wait| *wait > 0).unwrap_or_default(),
            reset_after: reset.max(wait),
        };
        Status::of_pair(pair.borrowed(), &standing)
    }

    /// Returns when all known waits have passed.
    pub(super) fn waits_end(&self) -> CacheMicros {
        self.known.iter().map(|known| known.until).max().unwrap_or_default()
    }
}

/// Returns a wait in microseconds, of at most some hundred years: a backend may return any wait.
fn capped(wait: Duration) -> u64 {
    wait.as_micros().min(1 << 52) as u64
}

/// Returns the age at which an entry is refreshed, in microseconds.
fn refresh_age(max_age: u64) -> u64 {
    max_age - max_age / 8
}

impl Known {
    /// Returns the wait as a lower bound that no later denial confirms.
    fn unconfirmable(self) -> Self {
        Self { is_exact: false, bounds_usage: false, is_current: false, ..self }
    }

    fn holds(&self, now: CacheMicros, max_age: u64) -> bool {
        now < self.until && now < self.confirmed + max_age
    }
}
