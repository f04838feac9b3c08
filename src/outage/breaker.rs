//! The circuit breaker: a store that has failed is left alone for a while, so that nobody waits for it in vain.

use std::{
    ops::RangeInclusive,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{backend::BackendError, error::ConfigError};

/// When a store that fails is left alone, and for how long.
///
/// The breaker opens after so many failures in a row. While it is open the store is not asked, and what the
/// [`OutageRule`](crate::OutageRule) says happens within microseconds, with the reason of the failure that has opened it. When
/// `open_for` has passed, one check probes the store, and only one at a time. If it is answered, the breaker closes; if it
/// fails, the breaker stays open for another `open_for`; and if its client goes away, the next check probes.
///
/// There is no growing pause: four checks in a second are no burden for a store, and a longer pause would only mean a longer
/// outage.
///
/// # What a failure is
///
/// Every error but those of [one check](crate::backend::Reason::is_of_one_check), in which the store has answered for all others. What
/// was refused without asking is none, and neither is a check that was dropped. A row of failures opens the breaker only if
/// nothing was answered for as long as the deadline, either: otherwise one node of a cluster that is down would soon, by
/// chance, be a row of failures among the answers of the others, and would shut them all off.
///
/// Clones of a limiter share one breaker. What a backend answers at once, as the memory does, passes it by, and so do resets
/// and settlements, for which nobody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// How many failures in a row open it: 1 to 1,000,000.
    pub failures: u32,
    /// How long it stays open before the store is probed: 1 ms to 1 h.
    pub open_for: Duration,
}

const FAILURES: RangeInclusive<u32> = 1..=1_000_000;
const OPEN_FOR: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60 * 60);

impl Default for Breaker {
    /// Five failures open it for 250 ms: a handful is no accident, and healing is noticed within a third of a second. Of those
    /// who ask a store that hangs, three or four a second wait in vain, and all others do not.
    fn default() -> Self {
        Self { failures: 5, open_for: Duration::from_millis(250) }
    }
}

pub(crate) fn check_breaker(breaker: Breaker) -> Result<(), ConfigError> {
    let Breaker { failures, open_for } = breaker;
    if !FAILURES.contains(&failures) {
        return Err(ConfigError::BreakerFailures { given: failures, max: *FAILURES.end() });
    }
    if !OPEN_FOR.contains(&open_for) {
        return Err(ConfigError::BreakerOpenFor { open_for });
    }
    Ok(())
}

/// A breaker at work.
pub(super) struct Circuit {
    settings: Breaker,
    /// For how long nothing must have been answered before it opens.
    silence: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How often it has opened and closed. What was asked before the last time says nothing about the time since.
    turn: u64,
    /// How many failures there were since the last answer.
    row: u32,
    answered: Option<Instant>,
    open: Option<Open>,
}

struct Open {
    until: Instant,
    is_probing: bool,
    /// The failure that has opened it, or the probe's.
    error: BackendError,
}

/// Leave to ask the store once.
#[derive(Clone, Copy)]
pub(super) struct Ticket {
    turn: u64,
}

/// What came of asking.
pub(super) enum Told<'a> {
    Answered,
    Failed(&'a BackendError),
    /// The check was dropped.
    Nothing,
}

impl Circuit {
    pub(super) fn new(settings: Breaker, silence: Duration) -> Self {
        Self { settings, silence, state: Mutex::default() }
    }

    /// Leave to ask, or why nobody should.
    pub(super) fn enter(&self) -> Result<Ticket, BackendError> {
        let mut state = self.state();
        let ticket = Ticket { turn: state.turn };
        match &mut state.open {
            None => Ok(ticket),
            Some(open) if open.is_probing || Instant::now() < open.until => Err(open.error.clone().unasked()),
            Some(open) => {
                open.is_probing = true;
                Ok(ticket)
            }
        }
    }

    pub(super) fn leave(&self, ticket: Ticket, told: Told<'_>) {
        let mut state = self.state();
        if ticket.turn != state.turn {
            return;
        }
        match told {
            Told::Answered => {
                // It was open: then this was the probe.
                if state.open.take().is_some() {
                    state.turn += 1;
                }
                state.row = 0;
                state.answered = Some(Instant::now());
            }
            Told::Failed(error) => {
                let now = Instant::now();
                // The row of an open breaker is long enough, and a probe that fails makes it longer.
                state.row = state.row.saturating_add(1);
                let is_silent = state.answered.is_none_or(|answered| now - answered >= self.silence);
                if state.row >= self.settings.failures && is_silent {
                    state.turn += 1;
                    let until = now + self.settings.open_for;
                    state.open = Some(Open { until, is_probing: false, error: error.clone() });
                }
            }
            Told::Nothing => {
                if let Some(open) = &mut state.open {
                    open.is_probing = false;
                }
            }
        }
    }

    // Nothing that holds the lock can panic half-way, or wait.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
