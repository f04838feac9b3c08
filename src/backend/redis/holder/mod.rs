//! Units in flight that this process holds in Redis: acquired by checks, and released, renewed and restored by one thread.

use std::{
    hash::{BuildHasher, RandomState},
    iter,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use super::{
    keys::KeyNames,
    script::acquisition::{Acquisition, HeldNumber},
};
use crate::{
    backend::{BackendError, Reason},
    check::{Check, MAX_PAIRS, Pair, Purpose},
    decision::Decision,
    hold::{Hold, ReleaseOnDrop},
    lock::Lock,
    observe::Throttle,
};

mod pairs;
#[cfg(test)]
mod simulation;
mod state;
mod thread;

pub(super) use pairs::HoldCall;
use pairs::PairId;
use state::HolderState;
pub(super) use thread::{HeldLists, SendCall};

/// How long after its deadline a check usually cannot run any longer. The number of one that runs even later is released by the next
/// renewal, or ends with the entry.
const LATENESS: Duration = Duration::from_millis(50);

/// The holder of a backend: its identity in Redis, and its units. The thread ends after this is dropped, when all units are released.
pub(super) struct Holder(Arc<HolderState>);

/// The numbers of a check that is in progress. If it is dropped without a reply, they are released after the deadline.
pub(super) struct Acquiring {
    state: Arc<HolderState>,
    pub(super) acquisition: Acquisition,
    numbers: SmallVec<[(usize, PairId, HeldNumber); 1]>,
    sent: Instant,
    deadline: Option<Instant>,
}

/// The units of an admitted check.
struct RedisUnits {
    state: Arc<HolderState>,
    numbers: SmallVec<[(PairId, u32); 1]>,
}

impl Holder {
    pub(super) fn random() -> Self {
        Self(Arc::new(HolderState {
            // Its keys come from the operating system.
            id: RandomState::new().hash_one(0),
            pairs: Lock::default(),
            changed: Notify::new(),
            completed: Notify::new(),
            is_closed: AtomicBool::new(false),
            has_thread: Lock::default(),
            interrupted: AtomicU64::new(0),
            events: Throttle::default(),
        }))
    }

    /// Draws the numbers of a check. Returns `None` if it acquires no units.
    pub(super) fn acquire(
        &self,
        check: &Check,
        names: &KeyNames,
        slot: impl Fn(u16) -> u16,
        sender: impl FnOnce() -> SendCall,
    ) -> Result<Option<Acquiring>, BackendError> {
        let is_held = |(_, pair): &(usize, &Pair)| {
            pair.policy.properties().is_held && pair.borrowed().is_chargeable(check.purpose())
        };
        if check.purpose() == Purpose::Peek || !check.pairs().iter().enumerate().any(|pair| is_held(&pair)) {
            return Ok(None);
        }
        self.start(sender)?;
        let state = &self.0;
        let mut acquiring = Acquiring {
            state: state.clone(),
            acquisition: Acquisition {
                holder: state.id,
                numbers: [HeldNumber::default(); MAX_PAIRS],
                alone: 0,
            },
            numbers: SmallVec::new(),
            // Nothing is sent yet. If a draw fails, dropping it forgets the others.
            sent: Instant::now(),
            deadline: None,
        };
        for (i, pair) in check.pairs().iter().enumerate().filter(is_held) {
            let of_pair = iter::once((&pair.key, &pair.policy));
            let keys = names.keys_with_numbers(check.namespace(), of_pair, state.id);
            let slot = slot(keys.slot());
            let (id, number, is_alone) = state.pairs.lock().draw(keys, slot, check.scope(), pair)?;
            acquiring.acquisition.numbers[i] = number;
            acquiring.acquisition.alone |= u8::from(is_alone) << i;
            acquiring.numbers.push((i, id, number));
        }
        acquiring.deadline =
            Some(check.deadline().unwrap_or_else(|| Instant::now() + Duration::from_secs(60)));
        Ok(Some(acquiring))
    }

    /// Returns the number of units that the store did not hold, although their requests ran.
    pub(super) fn interrupted(&self) -> u64 {
        self.0.interrupted.load(Ordering::Relaxed)
    }

    /// Waits until no release is sent any longer, at most for the longest time in which one is.
    pub(super) async fn drain(&self) {
        let Some(end) = self.0.pairs.lock().last_release_ends() else { return };
        while Instant::now() < end {
            let completed = self.0.completed.notified();
            if !self.0.pairs.lock().is_releasing() {
                return;
            }
            // A release that is given up ends no call.
            let _ = timeout(Duration::from_millis(100), completed).await;
        }
    }

    /// Starts the thread, unless it runs.
    fn start(&self, sender: impl FnOnce() -> SendCall) -> Result<(), BackendError> {
        let mut has_thread = self.0.has_thread.lock();
        if !*has_thread {
            thread::spawn(self.0.clone(), sender())
                .map_err(|error| BackendError::with_source(Reason::Other, error))?;
            *has_thread = true;
        }
        Ok(())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::SeqCst);
        self.0.changed.notify_one();
    }
}

impl Acquiring {
    /// Returns the outcome of the check, with the units that it holds. Numbers whose fate is unknown are released.
    pub(super) fn complete(
        mut self,
        check: &Check,
        outcome: Result<Decision, BackendError>,
    ) -> Result<Decision, BackendError> {
        let decision = match outcome {
            Ok(decision) => decision,
            Err(error) => {
                // It has not run.
                if !error.was_asked()
                    || matches!(
                        error.reason(),
                        Reason::DeadlineExceeded | Reason::Full | Reason::ForeignValue
                    )
                {
                    self.deadline = None;
                }
                return Err(error);
            }
        };
        let charged = decision.charged_check(check.clone());
        let mut units = SmallVec::new();
        let mut pairs = self.state.pairs.lock();
        for (i, id, number) in self.numbers.drain(..) {
            match decision.held_pairs(&charged).find(|(index, _)| *index == i) {
                Some((_, pair)) => {
                    pairs.confirm(id, number.index, pair.cost, self.sent);
                    units.push((id, number.index));
                }
                None => pairs.forget(id, number.index),
            }
        }
        drop(pairs);
        if units.is_empty() {
            return Ok(decision);
        }
        self.state.changed.notify_one();
        Ok(decision.with_hold(Hold::from_units(RedisUnits { state: self.state.clone(), numbers: units })))
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        if self.numbers.is_empty() {
            return;
        }
        let mut pairs = self.state.pairs.lock();
        for (_, id, number) in &self.numbers {
            match self.deadline {
                Some(deadline) => pairs.release(*id, number.index, deadline.max(Instant::now()) + LATENESS),
                None => pairs.forget(*id, number.index),
            }
        }
        drop(pairs);
        self.state.changed.notify_one();
    }
}

impl ReleaseOnDrop for RedisUnits {
    fn was_interrupted(&self) -> bool {
        let pairs = self.state.pairs.lock();
        self.numbers.iter().any(|(id, index)| pairs.was_interrupted(*id, *index))
    }
}

impl Drop for RedisUnits {
    fn drop(&mut self) {
        let (now, mut pairs) = (Instant::now(), self.state.pairs.lock());
        for (id, index) in &self.numbers {
            pairs.release(*id, *index, now);
        }
        drop(pairs);
        self.state.changed.notify_one();
    }
}
