//! Never too many, counted apart from the model: what is admitted, and how much of it there is in one window.

use std::collections::HashMap;

use proptest::test_runner::TestCaseError;
use tower_sliding_window::{
    Algorithm, Policy,
    backend::{Check, Purpose},
};

use super::{
    invariants::require,
    model::{Name, name},
};

/// Everything that was charged to the sliding logs and sliding buckets of a history without foreign records.
#[derive(Default)]
pub struct Ledger {
    entries: HashMap<Name, Vec<Entry>>,
}

struct Entry {
    /// Which reservation it is of.
    reservation: Option<usize>,
    at: u64,
    units: u64,
    /// Charged beyond what was asked for.
    overage: bool,
    quota: u32,
}

impl Ledger {
    /// A check was admitted, and charged. At every admission what counts is at most the quota in force.
    pub fn charged(
        &mut self,
        now: u64,
        check: &Check,
        reservation: Option<usize>,
    ) -> Result<(), TestCaseError> {
        let overage = check.purpose() == Purpose::Overage;
        for pair in check.pairs().iter().filter(|pair| pair.cost > 0) {
            let estimates =
                matches!(pair.policy.algorithm(), Algorithm::SlidingCounter | Algorithm::FixedWindow);
            if estimates {
                continue;
            }
            let entries = self.entries.entry(name(&pair.key, &pair.policy)).or_default();
            // While the clock is behind, time stands still.
            let at = entries.last().map_or(now, |last| now.max(last.at));
            let (units, quota) = (u64::from(pair.cost), pair.policy.quota());
            entries.push(Entry { reservation, at, units, overage, quota });
            let window = pair.policy.window().as_micros() as u64;
            let live: u64 =
                entries.iter().filter(|entry| at < entry.at + window).map(|entry| entry.units).sum();
            require(overage || live <= u64::from(quota), "never too many: at an admission")?;
        }
        Ok(())
    }

    /// A reservation was settled for so much of each pair.
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

    /// What was charged to these pairs is no more.
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

    /// At the end of a history of constant quotas.
    pub fn close(&self) -> Result<(), TestCaseError> {
        self.entries.iter().try_for_each(|(name, entries)| no_window_holds_too_many(name, entries))
    }
}

/// No half-open interval of a window's length holds more than the quota, with amounts as settled and overage left out.
fn no_window_holds_too_many((_, _, window, _): &Name, entries: &[Entry]) -> Result<(), TestCaseError> {
    let window = window.as_micros() as u64;
    for (count, newest) in entries.iter().enumerate() {
        let within = entries[..=count].iter().filter(|entry| newest.at < entry.at + window);
        let units: u64 = within.filter(|entry| !entry.overage).map(|entry| entry.units).sum();
        require(units <= u64::from(newest.quota), "never too many: in a window")?;
    }
    Ok(())
}

/// When a charge counts no more; until then it may get units back.
fn leaves_at(entry: &Entry, policy: &Policy) -> u64 {
    let window = policy.window().as_micros() as u64;
    match policy.algorithm() {
        Algorithm::SlidingBuckets { precision } => {
            let precision = precision.as_micros() as u64;
            (entry.at / precision + 1) * precision + window
        }
        _ => entry.at + window,
    }
}
