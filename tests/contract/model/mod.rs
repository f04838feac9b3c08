//! The reference model: a simple and slow implementation of every type of policy. A type is one file and one line of `counting`.

mod account;
pub mod calendar_period;
mod fixed_window;
mod sliding_buckets;
mod sliding_counter;
mod sliding_log;
mod token_bucket;

use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

use tower_sliding_window::{
    Algorithm, Decision, PartitionKey, Policy, Status, Wait,
    backend::{Check, Pair, Purpose},
    policy::{Anchor, Zone},
};

use self::{
    account::{Account, Counting},
    calendar_period::CalendarPeriod,
    fixed_window::FixedWindow,
    sliding_buckets::SlidingBuckets,
    sliding_counter::SlidingCounter,
    sliding_log::SlidingLog,
    token_bucket::TokenBucket,
};

/// The reference model. It keeps every charge of every pair.
#[derive(Default)]
pub struct Model {
    accounts: HashMap<Name, Account>,
    /// The number of charges.
    charges: usize,
    /// The number of records that the model dropped because they are of another clock.
    pub foreign: usize,
}

/// The identity of a record. Neither the quota nor a rate is a part of it: a token bucket has no algorithm here.
pub type Name = (PartitionKey, String, Duration, Option<Algorithm>);

/// Identifies a charge in the model: its number.
#[derive(Clone, Copy, Debug)]
pub struct Handle(usize);

/// Returns how the type of a policy counts charges.
fn counting(policy: &Policy) -> Arc<dyn Counting> {
    let window = policy.window().unwrap_or_default().as_micros() as u64;
    match policy.algorithm() {
        Algorithm::SlidingLog => Arc::new(SlidingLog { window }),
        Algorithm::SlidingBuckets { precision } => {
            Arc::new(SlidingBuckets { window, precision: precision.as_micros() as u64 })
        }
        Algorithm::SlidingCounter => Arc::new(SlidingCounter { window }),
        Algorithm::FixedWindow => Arc::new(FixedWindow { window }),
        Algorithm::TokenBucket { rate } => Arc::new(TokenBucket { capacity: policy.quota().unwrap(), rate }),
        Algorithm::CalendarPeriod { period, zone, anchor, .. } => {
            Arc::new(CalendarPeriod::new(period, zone, anchor))
        }
        other => panic!("{other:?} has no reference model"),
    }
}

fn account(policy: &Policy) -> Account {
    Account::new(counting(policy))
}

pub fn name(key: &PartitionKey, policy: &Policy) -> Name {
    let algorithm = match policy.algorithm() {
        // Neither zone nor anchor makes a difference.
        Algorithm::CalendarPeriod { period, .. } => {
            Some(calendar_period::algorithm(period, Zone::utc(), Anchor::default()))
        }
        algorithm => policy.window().map(|_| algorithm),
    };
    (key.clone(), policy.name().to_owned(), policy.window().unwrap_or_default(), algorithm)
}

impl Model {
    /// Decides a check at the instant `now`, in microseconds, and charges it if it is admitted. An admitted check returns one
    /// handle for each pair.
    pub fn check(&mut self, now: u64, check: &Check) -> (Decision, Vec<Handle>) {
        let taken = match check.purpose() {
            Purpose::TakeUpTo(wanted) => Some(self.take(now, check, wanted)),
            _ => None,
        };
        let check = taken.as_ref().unwrap_or(check);
        let decision = self.peek(now, check);
        let mut handles = Vec::new();
        if decision.is_admitted() && check.purpose() != Purpose::Peek {
            for (pair, status) in check.pairs().iter().zip(decision.statuses()) {
                self.charges += 1;
                let id = self.charges;
                let new = || account(&pair.policy);
                let account = self.accounts.entry(name(&pair.key, &pair.policy)).or_insert_with(new);
                account.counting = counting(&pair.policy);
                // A shadow pair that denies is not charged.
                if pair.cost > 0 && status.retry_after().is_zero() {
                    self.foreign += usize::from(account.is_foreign(now));
                    account.charge(now, id, pair.cost, check.purpose() == Purpose::LeaseAhead);
                }
                handles.push(Handle(id));
            }
        }
        (decision, handles)
    }

    /// Returns the check that takes the largest number of units that fit, and of one unit if none fits.
    fn take(&self, now: u64, check: &Check, wanted: u32) -> Check {
        let times = |units: u32| {
            let pairs = check.pairs().iter().cloned().map(|mut pair| {
                pair.cost = pair.cost.checked_mul(units)?;
                Some(pair)
            });
            Some(Check::new(pairs.collect::<Option<Vec<_>>>()?).unwrap().with_purpose(Purpose::Reserve))
        };
        let fits = |units: u32| times(units).is_some_and(|check| self.peek(now, &check).is_admitted());
        // More units never fit better.
        let (mut fitting, mut too_many) = (0, u64::from(wanted) + 1);
        while too_many - fitting > 1 {
            let middle = fitting + (too_many - fitting) / 2;
            if fits(middle as u32) { fitting = middle } else { too_many = middle }
        }
        times((fitting as u32).max(1).min(wanted)).unwrap()
    }

    /// Returns the decision that `check` would return.
    pub fn peek(&self, now: u64, check: &Check) -> Decision {
        let overage = matches!(check.purpose(), Purpose::Overage | Purpose::Debit);
        let admits =
            |pair: &Pair| overage || self.account(pair).admits(now, pair.cost, pair.policy.quota().unwrap());
        let admitted = check.pairs().iter().all(|pair| pair.is_shadow || admits(pair));
        let status = |pair| self.status(now, pair, admitted && admits(pair), check.purpose());
        Decision::new(now, check.pairs().iter().map(status).collect::<Vec<_>>())
    }

    fn status(&self, now: u64, pair: &Pair, charged: bool, purpose: Purpose) -> Status {
        let mut account = self.account(pair);
        let overage = matches!(purpose, Purpose::Overage | Purpose::Debit);
        let (cost, quota) = (pair.cost, pair.policy.quota().unwrap());
        let retry_after = if overage || account.admits(now, cost, quota) {
            Wait::ZERO
        } else if cost > quota {
            Wait::Never
        } else {
            Wait::For(account.first(now, |at| account.admits(at, cost, quota)))
        };
        if charged && cost > 0 {
            account.to_mut().charge(now, 0, cost, purpose == Purpose::LeaseAhead);
        }
        let all = u64::from(quota) * account.parts();
        let remaining_at = |at| (all.saturating_sub(account.used(at)) / account.parts()) as u32;
        let remaining = remaining_at(now);
        let (next_after, reset_after) = match account.used(now) {
            // A token bucket has no window.
            0 => {
                let next = account.next_of_unused(now).or(pair.policy.window());
                (next.unwrap_or_default(), Duration::ZERO)
            }
            _ => (
                account.first(now, |at| remaining_at(at) > remaining),
                account.first(now, |at| account.used(at) == 0),
            ),
        };
        Status::new(pair, remaining, retry_after, next_after, reset_after)
    }

    /// Refunds the unused units of each pair.
    pub fn settle(&mut self, now: u64, check: &Check, handles: &[Handle], used: &[u32]) {
        for ((pair, handle), used) in check.pairs().iter().zip(handles).zip(used) {
            if *used < pair.cost
                && let Some(account) = self.accounts.get_mut(&name(&pair.key, &pair.policy))
            {
                account.counting = counting(&pair.policy);
                account.settle(now, handle.0, *used);
            }
        }
    }

    pub fn reset(&mut self, check: &Check) {
        for pair in check.pairs() {
            self.accounts.remove(&name(&pair.key, &pair.policy));
        }
    }

    /// Returns whether a record of this check is of another clock.
    pub fn sees_foreign(&self, now: u64, check: &Check) -> bool {
        check.pairs().iter().any(|pair| self.account(pair).is_foreign(now))
    }

    fn account(&self, pair: &Pair) -> Cow<'_, Account> {
        match self.accounts.get(&name(&pair.key, &pair.policy)) {
            Some(account) if pair.policy.window().is_some() => Cow::Borrowed(account),
            Some(account) => {
                let mut account = account.clone();
                account.counting = counting(&pair.policy);
                Cow::Owned(account)
            }
            None => Cow::Owned(account(&pair.policy)),
        }
    }
}
