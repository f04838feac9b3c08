//! The quota invariant, independent of the reference model: counts the admitted units in every window.

use std::collections::HashMap;

use proptest::test_runner::TestCaseError;
use tower_sliding_window::{
    Algorithm, Decision, Policy,
    backend::{Check, Purpose},
};

use super::{
    invariants::require,
    model::{Name, name},
};

/// All charges to the sliding logs and sliding buckets of a history. The history has no records of another clock.
#[derive(Default)]
pub struct Ledger {
    entries: HashMap<Name, Vec<Entry>>,
}

struct Entry {
    /// The index of its reservation.
    reservation: Option<usize>,
    at: u64,
    units: u64,
    /// Whether the charge is an overage.
    overage: bool,
    quota: u32,
}

impl Ledger {
    /// Records an admitted check. At every admission the live units must be at most the current quota.
    pub fn charged(
        &mut self,
        now: u64,
        check: &Check,
        decision: &Decision,
        reservation: Option<usize>,
    ) -> Result<(), TestCaseError> {
        let overage = matches!(check.purpose(), Purpose::Overage | Purpose::Debit);
        // A shadow pair that denies is not charged.
        let charged = check.pairs().iter().zip(decision.statuses());
        let charged = charged.filter(|(pair, status)| pair.cost > 0 && status.retry_after().is_zero());
        for (pair, _) in charged {
            // The others may admit more in one window.
            let is_exact =
                matches!(pair.policy.algorithm(), Algorithm::SlidingLog | Algorithm::SlidingBuckets { .. });
            if !is_exact {
                continue;
            }
            let entries = self.entries.entry(name(&pair.key, &pair.policy)).or_default();
            // While the clock is behind the last charge, time does not advance.
            let at = entries.last().map_or(now, |last| now.max(last.at));
            let (units, quota) = (u64::from(pair.cost), pair.policy.quota().unwrap());
            entries.push(Entry { reservation, at, units, overage, quota });
            let window = pair.policy.window().unwrap().as_micros() as u64;
            let live: u64 =
                entries.iter().filter(|entry| at < entry.at + window).map(|entry| entry.units).sum();
            require(overage || live <= u64::from(quota), "an admission keeps the quota")?;
        }
        Ok(())
    }

    /// Records the settlement of a reservation.
    pub fn settled(&mut self, now: u64, check: &Check, reservation: usize, used: &[u32]) {
        for (pair, used) in check.pairs().iter().zip(used).filter(|(pair, used)| **used < pair.cost) {
            let Some(entries) = self.entries.get_mut(&name(&pair.key, &pair.policy)) else { continue };
            let now = entries.last().map_or(now, |last| now.max(last.at));
            let mut entries = entries.iter_mut();
            let entry = entries.find(|entry| entry.reservation == Some(reservation));
            if let Some(entry) = entry.filter(|entry| now < leaves_at(entry, &pair.policy)) {
                entry.units = u64::from(*used);
            }
        }
    }

    /// Removes the charges of these pairs.
    pub fn reset(&mut self, check: &Check, constant: bool) -> Result<(), TestCaseError> {
        for pair in check.pairs() {
            let name = name(&pair.key, &pair.policy);
            if let Some(entries) = self.entries.remove(&name)
                && constant
            {
                no_window_holds_too_many(&name, &entries)?;
            }
        }
        Ok(())
    }

    /// Checks all windows at the end of a history with constant quotas.
    pub fn close(&self) -> Result<(), TestCaseError> {
        self.entries.iter().try_for_each(|(name, entries)| no_window_holds_too_many(name, entries))
    }
}

/// Requires that no half-open interval of one window contains more than the quota. The amounts are those after settlement,
/// without overage.
fn no_window_holds_too_many((_, _, window, _): &Name, entries: &[Entry]) -> Result<(), TestCaseError> {
    let window = window.as_micros() as u64;
    for (count, newest) in entries.iter().enumerate() {
        let within = entries[..=count].iter().filter(|entry| newest.at < entry.at + window);
        let units: u64 = within.filter(|entry| !entry.overage).map(|entry| entry.units).sum();
        require(units <= u64::from(newest.quota), "a window keeps the quota")?;
    }
    Ok(())
}

/// Returns the instant at which a charge leaves the window. Before it, a refund may reduce the charge.
fn leaves_at(entry: &Entry, policy: &Policy) -> u64 {
    let window = policy.window().unwrap().as_micros() as u64;
    match policy.algorithm() {
        Algorithm::SlidingBuckets { precision } => {
            let precision = precision.as_micros() as u64;
            (entry.at / precision + 1) * precision + window
        }
        _ => entry.at + window,
    }
}
