//! Units in flight that this process holds in Redis: acquired by checks, and released, renewed and restored by one thread.

use std::{
    iter,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{
    keys::{KeyNames, Keys},
    script::acquisition::Acquisition,
};
use crate::{
    backend::{BackendError, Reason},
    check::{Check, Pair, Purpose},
    decision::Decision,
    guard::until,
    hold::Hold,
    random::random,
};

mod pairs;
#[cfg(test)]
mod simulation;
mod thread;

pub(super) use pairs::HoldCall;
use thread::HolderState;
pub(super) use thread::{HeldLists, SendCall};

/// How long after its deadline a check usually cannot run any longer. The number of one that runs even later is released by the next
/// renewal, or ends with the entry.
const LATENESS: Duration = Duration::from_millis(50);

/// How long a drain waits at once.
const DRAIN_STEP: Duration = Duration::from_millis(10);

/// The holder of a backend: its identity in Redis, and its units. The thread ends after this is dropped, when all units are released.
pub(super) struct Holder(Arc<HolderState>);

/// The numbers of a check, and after its admission its units. Dropping this releases them: those of a check without a reply after its
/// deadline.
pub(super) struct HeldNumbers {
    state: Arc<HolderState>,
    /// Of each pair that is held: its index in the check, its keys, and the index of its number.
    numbers: SmallVec<[(usize, Arc<Keys>, u32); 1]>,
    sent: Instant,
    /// `None` if the check has a reply.
    deadline: Option<Instant>,
}

impl Holder {
    pub(super) fn random() -> Self {
        Self(Arc::new(HolderState { id: random(), ..HolderState::default() }))
    }

    /// Draws the numbers of a check. Returns `None` if it acquires no units.
    pub(super) fn acquire(
        &self,
        check: &Check,
        names: &KeyNames,
        slot: impl Fn(u16) -> u16,
        sender: impl FnOnce() -> SendCall,
    ) -> Result<Option<(Acquisition, HeldNumbers)>, BackendError> {
        let is_held = |(_, pair): &(usize, &Pair)| {
            pair.policy.properties().is_held && pair.borrowed().is_chargeable(check.purpose())
        };
        let mut held = check.pairs().iter().enumerate().filter(is_held).peekable();
        if check.purpose() == Purpose::Peek || held.peek().is_none() {
            return Ok(None);
        }
        self.0.start(sender).map_err(|error| BackendError::with_source(Reason::Other, error))?;
        let state = self.0.clone();
        let deadline = check.deadline().unwrap_or_else(|| Instant::now() + Duration::from_secs(60));
        let mut acquisition = Acquisition { holder: state.id, ..Acquisition::default() };
        let mut numbers =
            HeldNumbers { state, numbers: SmallVec::new(), sent: Instant::now(), deadline: Some(deadline) };
        for (i, pair) in held {
            let of_pair = iter::once((&pair.key, &pair.policy));
            let keys = Arc::new(names.keys(check.namespace(), of_pair, Some(acquisition.holder)));
            let slot = slot(keys.slot());
            let (drawn, is_due_earlier) = {
                let mut pairs = self.0.pairs.lock();
                let drawn = pairs.draw(&keys, slot, check.scope(), pair);
                (drawn, pairs.may_be_shortened(&keys))
            };
            if is_due_earlier {
                self.0.changed.notify_one();
            }
            let drawn = match drawn {
                Ok(drawn) => drawn,
                Err(error) => return numbers.complete(check, Err(error)).map(|_| None),
            };
            acquisition.numbers[i] = drawn;
            numbers.numbers.push((i, keys, drawn.0.index));
        }
        Ok(Some((acquisition, numbers)))
    }

    /// Returns the number of units that the store did not hold, although their requests ran.
    pub(super) fn interrupted(&self) -> u64 {
        self.0.interrupted.load(Ordering::Relaxed)
    }

    /// Waits until no release is sent any longer, at most for the longest time in which one is.
    pub(super) async fn drain(&self) {
        let Some(end) = self.0.pairs.lock().last_release_ends() else { return };
        loop {
            let mut completed = pin!(self.0.completed.notified());
            // From here on, no notification is missed.
            completed.as_mut().enable();
            if Instant::now() >= end || self.0.pairs.lock().last_release_ends().is_none() {
                return;
            }
            // In steps, because the thread does not run by the paused clock of a test. Outside tokio, only a notification ends the wait.
            until(end.min(Instant::now() + DRAIN_STEP), completed).await;
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::SeqCst);
        self.0.changed.notify_one();
    }
}

impl HeldNumbers {
    /// Returns the outcome of the check, with the units that it holds. If it is not known whether the check has run, its numbers are
    /// released.
    pub(super) fn complete(
        mut self,
        check: &Check,
        outcome: Result<Decision, BackendError>,
    ) -> Result<Decision, BackendError> {
        let has_not_run = |error: &BackendError| {
            let reason = error.reason();
            !error.was_asked() || reason == Reason::DeadlineExceeded || reason.is_of_one_check()
        };
        let decision = match &outcome {
            Ok(decision) => Some(decision),
            Err(error) if has_not_run(error) => None,
            Err(_) => return outcome,
        };
        let Self { state, numbers, sent, deadline } = &mut self;
        *deadline = None;
        let mut pairs = state.pairs.lock();
        numbers.retain(|(i, keys, index)| {
            let held = decision.and_then(|decision| decision.held_pairs(check).find(|(held, ..)| held == i));
            pairs.change(keys, |pair| match held {
                Some((_, of_check, units)) => {
                    let hold_time = Duration::from_micros(of_check.policy.window_micros());
                    pair.confirm(*index, units, *sent, hold_time);
                }
                None => pair.make_free(*index),
            });
            held.is_some()
        });
        drop(pairs);
        if numbers.is_empty() {
            return outcome;
        }
        state.changed.notify_one();
        outcome.map(|decision| decision.with_hold(Hold::from_units(move || self.was_interrupted())))
    }

    fn was_interrupted(&self) -> bool {
        let pairs = self.state.pairs.lock();
        self.numbers.iter().any(|(_, keys, index)| pairs.was_interrupted(keys, *index))
    }
}

impl Drop for HeldNumbers {
    fn drop(&mut self) {
        if self.numbers.is_empty() {
            return;
        }
        let now = Instant::now();
        let from = self.deadline.map_or(now, |deadline| deadline.max(now) + LATENESS);
        let mut pairs = self.state.pairs.lock();
        for (_, keys, index) in &self.numbers {
            pairs.change(keys, |pair| pair.release(*index, from));
        }
        drop(pairs);
        self.state.changed.notify_one();
    }
}
