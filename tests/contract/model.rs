//! The reference model: a simple and slow implementation of every algorithm.

use std::{borrow::Cow, collections::HashMap, time::Duration};

use tower_sliding_window::{
    Algorithm, Decision, PartitionKey, Policy, Status, Wait,
    backend::{Check, Pair, Purpose},
};

use super::account::Account;

/// The reference model. It keeps every charge of every pair.
#[derive(Default)]
pub struct Model {
    accounts: HashMap<Name, Account>,
    /// The number of charges.
    charges: usize,
    /// The number of records that the model dropped because they are of another clock.
    pub foreign: usize,
}

/// The identity of a record. The quota is no part of it.
pub type Name = (PartitionKey, String, Duration, Algorithm);

/// Identifies a charge in the model: its number.
#[derive(Clone, Copy, Debug)]
pub struct Handle(usize);

pub fn name(key: &PartitionKey, policy: &Policy) -> Name {
    (key.clone(), policy.name().to_owned(), policy.window(), policy.algorithm())
}

impl Model {
    /// Decides a check at the instant `now`, in microseconds, and charges it if it is admitted. An admitted check returns one
    /// handle for each pair.
    pub fn check(&mut self, now: u64, check: &Check) -> (Decision, Vec<Handle>) {
        let decision = self.peek((now, check));
        let mut handles = Vec::new();
        if decision.is_admitted() && check.purpose() != Purpose::Peek {
            for (pair, status) in check.pairs().iter().zip(decision.statuses()) {
                self.charges += 1;
                let id = self.charges;
                let new = || Account::new(&pair.policy);
                let account = self.accounts.entry(name(&pair.key, &pair.policy)).or_insert_with(new);
                // A shadow pair that denies is not charged.
                if pair.cost > 0 && status.retry_after().is_zero() {
                    self.foreign += usize::from(account.is_foreign(now));
                    account.charge(now, id, pair.cost);
                }
                handles.push(Handle(id));
            }
        }
        (decision, handles)
    }

    /// Returns the decision that `check` would return.
    pub fn peek(&self, now: u64, check: &Check) -> Decision {
        let overage = check.purpose() == Purpose::Overage;
        let admits = |pair: &Pair| overage || self.account(pair).admits(now, pair.cost, pair.policy.quota());
        let admitted = check.pairs().iter().all(|pair| pair.is_shadow || admits(pair));
        let status = |pair| self.status(now, pair, admitted && admits(pair), overage);
        Decision::new(now, check.pairs().iter().map(status).collect::<Vec<_>>())
    }

    fn status(&self, now: u64, pair: &Pair, charged: bool, overage: bool) -> Status {
        let mut account = self.account(pair);
        let (cost, quota) = (pair.cost, pair.policy.quota());
        let retry_after = if overage || account.admits(now, cost, quota) {
            Wait::ZERO
        } else if cost > quota {
            Wait::Never
        } else {
            Wait::For(account.first(now, |at| account.admits(at, cost, quota)))
        };
        if charged && cost > 0 {
            account.to_mut().charge(now, 0, cost);
        }
        let all = u64::from(quota) * account.parts();
        let remaining_at = |at| (all.saturating_sub(account.used(at)) / account.parts()) as u32;
        let remaining = remaining_at(now);
        let (next_after, reset_after) = match account.used(now) {
            0 => (pair.policy.window(), Duration::ZERO),
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
            Some(account) => Cow::Borrowed(account),
            None => Cow::Owned(Account::new(&pair.policy)),
        }
    }
}
