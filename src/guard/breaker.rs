//! The circuit breaker: after failures, checks fail at once instead of waiting for the store.

use std::{ops::RangeInclusive, time::Duration};

use tokio::time::Instant;

use crate::{
    error::{BackendError, ConfigError, Reason},
    lock::Lock,
    observe::server_breaker::{BreakerState, ServerBreaker},
    single_flight::{Attempt, SingleFlight},
};

/// The settings of the circuit breaker.
///
/// The breaker opens after a number of failures in a row. While it is open, the store is not asked, and the
/// [`OutageRule`](crate::OutageRule) applies within microseconds. The error has the reason of the failure that has opened the
/// breaker. After `open_for`, the breaker is half-open: one check at a time asks the store, as a probe. If the store answers the
/// probe, the breaker closes. If the probe fails, the breaker opens for another `open_for`. If the client of the probe
/// disconnects, the next check is the probe.
///
/// A store that accepts no writes, is out of memory or lacks a permission may still deny. After such a failure, only a probe that
/// is admitted closes the breaker. If the store denies the probe, the client gets the denial, and the next check is the probe.
///
/// `open_for` does not grow: four probes per second are no burden for a store, and a longer pause would prolong the outage.
///
/// # Failures
///
/// Every error is a failure, except errors of [one check](crate::backend::Reason::is_of_one_check) and
/// [overload](crate::backend::Reason::Overloaded). A dropped check is not a failure. But if all checks of a merged call are dropped,
/// `RedisBackend` waits for its reply until their deadline. A row of failures opens the breaker only if the
/// store has answered no check for the length of one deadline. Backends that answer at once, resets and settlements do not use the
/// breaker.
///
/// # Events
///
/// With the feature `tracing`, one event states that the breaker has opened, with the server and the reason, and one that it has
/// closed. A failed probe causes no event, unless the opening has none yet, because it came after too many others in a minute. If a
/// server leaves a cluster while its breaker is open, the second event states this. See the [guide](crate::guide::outages#events).
///
/// # One breaker per server
///
/// `RedisBackend` has a breaker for each of its servers: a failed node of a cluster does not stop the checks of the others. The
/// limiters that share a backend also share its breakers. The strictest settings of all of them apply: the smallest number of
/// failures, the longest `open_for`, and the shortest deadline. Any other backend has one breaker per limiter, which its clones
/// share, unless the backend [protects](crate::backend::Backend::protect) its servers itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Breaker {
    /// The number of failures in a row that open the breaker: 1 to 1,000,000.
    pub failures: u32,
    /// The time that the breaker stays open before a probe: 1 ms to 1 h.
    pub open_for: Duration,
}

const FAILURES: RangeInclusive<u32> = 1..=1_000_000;
const OPEN_FOR: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60 * 60);

impl Default for Breaker {
    /// Returns 5 failures and 250 ms. The limiter detects the recovery of the store within about a third of a second. While the
    /// store hangs, at most four checks per second wait for the deadline, and all others do not wait.
    fn default() -> Self {
        Self { failures: 5, open_for: Duration::from_millis(250) }
    }
}

impl Breaker {
    /// Creates the settings of a breaker that opens after this number of failures in a row, 1 to 1,000,000, and stays open before a
    /// probe for this time, 1 ms to 1 h. A limiter checks them when it is built.
    pub const fn new(failures: u32, open_for: Duration) -> Self {
        Self { failures, open_for }
    }

    pub(crate) fn validate(self) -> Result<(), ConfigError> {
        let Self { failures, open_for } = self;
        let text = format!("1 to {}; `.breaker(None)` disables the breaker", FAILURES.end());
        ConfigError::check_range("circuit breaker: failures", failures, FAILURES, text)?;
        ConfigError::check_range("circuit breaker: open_for", open_for, OPEN_FOR, "1 ms to 1 h")
    }
}

/// A circuit breaker. Its settings belong to the guard, because several limiters may share the server that it protects.
#[derive(Default)]
pub(super) struct Circuit(Lock<CircuitState>);

#[derive(Default)]
struct CircuitState {
    /// The first failure since the last answer that is worth an event, and the last error, until an event reports them.
    unreported: Option<(Instant, BackendError)>,
    /// The number of state changes. The outcome of a check that began before the last change is ignored.
    epoch: u64,
    /// The number of failures since the last answer.
    failures: u32,
    answered: Option<Instant>,
    /// The last reply that came too late, among many others.
    heard: Option<Instant>,
    /// Since when this process is busy and reads no reply, and when it was last seen to be busy.
    busy: Option<(Instant, Instant)>,
    /// The last failure since the last answer.
    failed: Option<Instant>,
    open: Option<Open>,
    /// Whether the server has left the topology. Its last checks change nothing.
    is_retired: bool,
}

struct Open {
    /// The instant of the first opening since the last answer.
    since: Instant,
    until: Instant,
    /// A probe that is older than the deadline belongs to a runtime that does not run: the next check replaces it.
    probes: SingleFlight<()>,
    /// The failure that has opened the breaker, or the failure of the probe.
    error: BackendError,
}

/// The permission to ask the store once.
pub(super) struct CircuitTicket {
    epoch: u64,
    /// The probe, if the breaker is half-open. Dropping it lets the next check be the probe.
    pub(super) probe: Option<Attempt<()>>,
}

/// What an answer shows of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerAnswer {
    /// The store works: it has written, or a look-up that needs no writes has succeeded.
    Works,
    /// The store reads: a denial, a cost of 0, a peek, an error of one check, or a redirect. A store that accepts no writes also
    /// answers these.
    Reads,
}

impl ServerAnswer {
    /// Returns what an answer shows, by whether the store has written.
    pub(crate) fn from_write(has_written: bool) -> Self {
        if has_written { Self::Works } else { Self::Reads }
    }
}

/// What the outcome of a check has changed, for the operator.
pub(super) enum BreakerChange {
    /// The breaker has opened, after this failure.
    Opened(BackendError),
    /// A probe has failed, and the breaker has been open for this time.
    StillOpen(BackendError, Duration),
    /// The breaker has closed, after it was open for this time.
    Closed(Duration),
    /// A check has failed, and the breaker has not opened.
    Failed(BackendError),
}

/// A server whose breaker is half-open counts as available this long after the last failure.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// How long a process may be so busy that it reads no reply. After this time, the server is silent.
const MAX_BUSY: Duration = Duration::from_secs(1);

/// If failures last longer than this and do not open the breaker, they are reported on their own.
const UNREPORTED: Duration = Duration::from_secs(1);

impl Circuit {
    /// Returns the permission to ask the store, or the error while the breaker is open.
    pub(super) fn enter(&self) -> Result<CircuitTicket, BackendError> {
        let state = self.0.lock();
        let probe = |open: &Open| {
            let probe = (Instant::now() >= open.until).then(|| open.probes.start()).flatten();
            probe.ok_or_else(|| open.error.clone().not_sent("circuit breaker is open"))
        };
        let probe = state.open.as_ref().map(probe).transpose()?;
        Ok(CircuitTicket { epoch: state.epoch, probe })
    }

    /// Returns the state of the breaker of this server, now.
    pub(super) fn breaker(&self, server: &str) -> ServerBreaker {
        let now = Instant::now();
        let state = self.0.lock();
        let (state, is_available) = match &state.open {
            None => (BreakerState::Closed, true),
            Some(open) if now < open.until => (BreakerState::Open, false),
            // Without checks there is no probe, and a service that gets no requests would never be ready again.
            Some(_) => {
                (BreakerState::HalfOpen, state.failed.is_none_or(|failed| now - failed >= RETRY_AFTER))
            }
        };
        ServerBreaker { is_available, ..ServerBreaker::new(server, state) }
    }

    /// Records the outcome of a check: the answer of the store, or a failure. A check without an outcome drops its ticket. The settings
    /// have the deadline of a check: if the server has answered no check for so long, failures open the breaker. Returns what the
    /// operator must know.
    pub(super) fn leave(
        &self,
        ticket: CircuitTicket,
        outcome: Result<ServerAnswer, &BackendError>,
        settings: impl FnOnce() -> (Option<Breaker>, Duration),
    ) -> Option<BreakerChange> {
        self.change(|state| match outcome {
            _ if ticket.epoch != state.epoch || state.is_retired => None,
            // If the breaker was open, this was a probe. Its answer counts even if it has been replaced.
            Ok(answer) => state.answered(answer),
            // Another check has replaced this probe.
            Err(_) if ticket.probe.as_ref().is_some_and(|probe| !probe.is_current()) => None,
            Err(error) => {
                state.failed = Some(Instant::now());
                let (breaker, deadline) = settings();
                match breaker {
                    Some(breaker) => state.failed(error, breaker, deadline),
                    None => Some(BreakerChange::Failed(error.clone())),
                }
            }
        })
    }

    /// Changes the state. The errors that it has had are dropped when the lock is free, because their drop may run code of the user.
    fn change<T>(&self, change: impl FnOnce(&mut CircuitState) -> T) -> T {
        let mut state = self.0.lock();
        let errors = (state.open.as_ref().map(|open| open.error.clone()), state.unreported.clone());
        let changed = change(&mut state);
        drop(state);
        drop(errors);
        changed
    }

    /// Returns whether the breaker is open or half-open, now.
    pub(super) fn is_open(&self) -> bool {
        self.0.lock().open.is_some()
    }

    /// Returns whether the server has answered no check for this time.
    pub(super) fn is_silent(&self, time: Duration) -> bool {
        self.0.lock().is_silent(time)
    }

    /// Returns whether the server has answered no check for one deadline, and a check has failed a moment ago.
    pub(super) fn is_failing(&self, deadline: Duration) -> bool {
        let state = self.0.lock();
        state.is_silent(deadline) && state.failed.is_some_and(|failed| failed.elapsed() < 2 * deadline)
    }

    /// Records a reply that came too late, among many others.
    #[cfg(feature = "redis")]
    pub(super) fn hear(&self) {
        let (mut state, now) = (self.0.lock(), Instant::now());
        state.heard = Some(now);
        state.read_reply(now);
    }

    /// Records that this process is too busy to read replies at once.
    pub(super) fn busy(&self, deadline: Duration) {
        let (mut state, now) = (self.0.lock(), Instant::now());
        let since = state.busy_since(deadline).unwrap_or(now);
        state.busy = Some((since, now));
    }

    /// Returns whether this process was too busy to read replies at once within the last two deadlines. If it has read none for
    /// [`MAX_BUSY`], this is no reason any longer.
    pub(super) fn was_busy(&self, deadline: Duration) -> bool {
        self.0.lock().busy_since(deadline).is_some_and(|since| since.elapsed() < MAX_BUSY)
    }

    /// Closes the breaker, if it is open: the store has answered outside a check.
    #[cfg(feature = "redis")]
    pub(super) fn close(&self) -> Option<BreakerChange> {
        self.change(|state| if state.open.is_none() { None } else { state.answered(ServerAnswer::Works) })
    }

    /// Closes the breaker for ever, because its server has left the topology. Returns how long it was open, if it was.
    #[cfg(feature = "redis")]
    pub(super) fn retire(&self) -> Option<Duration> {
        let open = {
            let mut state = self.0.lock();
            state.is_retired = true;
            state.open.take()
        };
        open.map(|open| open.since.elapsed())
    }
}

impl CircuitState {
    fn busy_since(&self, deadline: Duration) -> Option<Instant> {
        self.busy.filter(|(_, last)| last.elapsed() < 2 * deadline).map(|(since, _)| since)
    }

    fn read_reply(&mut self, now: Instant) {
        self.busy = self.busy.map(|(_, last)| (now, last));
    }

    fn is_silent(&self, time: Duration) -> bool {
        self.answered.max(self.heard).is_none_or(|heard| heard.elapsed() >= time)
    }

    /// Learns of an answer.
    fn answered(&mut self, answer: ServerAnswer) -> Option<BreakerChange> {
        // A store that accepts no writes still denies. The breaker stays half-open, so the next check is the probe.
        let is_of_writes = |open: &Open| {
            matches!(open.error.reason(), Reason::ReadOnly | Reason::OutOfMemory | Reason::NoPermission)
        };
        if answer == ServerAnswer::Reads && self.open.as_ref().is_some_and(is_of_writes) {
            return None;
        }
        let now = Instant::now();
        self.failures = 0;
        self.answered = Some(now);
        self.read_reply(now);
        self.failed = None;
        // If the breaker was open, this was the probe.
        if let Some(Open { since, .. }) = self.open.take() {
            self.epoch += 1;
            return Some(BreakerChange::Closed(now - since));
        }
        // An answer has ended the row of failures before it has opened the breaker.
        let reported = if answer == ServerAnswer::Works { self.unreported.take() } else { None };
        reported.map(|(_, error)| BreakerChange::Failed(error))
    }

    /// Learns of a failure.
    fn failed(
        &mut self,
        error: &BackendError,
        breaker: Breaker,
        deadline: Duration,
    ) -> Option<BreakerChange> {
        let now = Instant::now();
        // A failed probe keeps the breaker open.
        self.failures = self.failures.saturating_add(1);
        if self.failures >= breaker.failures && self.is_silent(deadline) {
            self.epoch += 1;
            self.unreported = None;
            let (until, probes) = (now + breaker.open_for, SingleFlight::new(deadline));
            let since = self.open.as_ref().map(|open| open.since);
            self.open = Some(Open { since: since.unwrap_or(now), until, probes, error: error.clone() });
            return Some(match since {
                None => BreakerChange::Opened(error.clone()),
                Some(since) => BreakerChange::StillOpen(error.clone(), now - since),
            });
        }
        // Other failures pass without an event unless they open the breaker: a single lost connection needs no operator.
        // These may last while the store goes on denying, so that the breaker never opens.
        if matches!(
            error.reason(),
            Reason::NoPermission | Reason::OutOfMemory | Reason::ReadOnly | Reason::Other
        ) {
            let (began, last) = self.unreported.get_or_insert_with(|| (now, error.clone()));
            last.clone_from(error);
            if now - *began >= UNREPORTED {
                return self.unreported.take().map(|(_, error)| BreakerChange::Failed(error));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fmt,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use tokio::time::advance;

    use super::*;

    const DEADLINE: Duration = Duration::from_millis(100);

    fn fail(circuit: &Circuit, breaker: Breaker) {
        let error = BackendError::new(Reason::Timeout);
        let ticket = circuit.enter().expect("the breaker permits the check");
        circuit.leave(ticket, Err(&error), || (Some(breaker), DEADLINE));
    }

    /// An error that reads the state of the breaker when it is dropped.
    struct ReadingError(Arc<Circuit>, Arc<AtomicUsize>);

    impl fmt::Debug for ReadingError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("ReadingError")
        }
    }

    impl fmt::Display for ReadingError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an error of the user")
        }
    }

    impl std::error::Error for ReadingError {}

    impl Drop for ReadingError {
        fn drop(&mut self) {
            assert!(self.0.0.try_lock().is_some());
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn error_that_reads_the_breaker_may_be_dropped() {
        let breaker = Breaker { failures: 2, open_for: Duration::from_millis(250) };
        let (circuit, dropped) = (Arc::new(Circuit::default()), Arc::new(AtomicUsize::new(0)));
        let settings = || (Some(breaker), DEADLINE);
        let fail = || {
            let source = ReadingError(circuit.clone(), dropped.clone());
            let error = BackendError::with_source(Reason::Other, source);
            let change = circuit.leave(circuit.enter().unwrap(), Err(&error), settings);
            drop((error, change));
            dropped.load(Ordering::SeqCst)
        };
        assert_eq!([fail(), fail()], [0, 1], "the breaker opens");
        advance(breaker.open_for).await;
        assert_eq!(fail(), 2, "the probe fails");
        advance(breaker.open_for).await;
        circuit.leave(circuit.enter().unwrap(), Ok(ServerAnswer::Works), settings);
        assert_eq!(dropped.load(Ordering::SeqCst), 3);
        advance(DEADLINE).await;
        assert_eq!(fail(), 3);
        circuit.leave(circuit.enter().unwrap(), Ok(ServerAnswer::Reads), settings);
        assert_eq!(fail(), 4, "the last error is kept");
        #[cfg(feature = "redis")]
        {
            advance(DEADLINE).await;
            assert_eq!(fail(), 5);
            circuit.retire();
            assert_eq!(dropped.load(Ordering::SeqCst), 6);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn half_open_server_is_available_after_five_seconds() {
        let breaker = Breaker { failures: 2, open_for: Duration::from_millis(250) };
        let (circuit, last) = (Circuit::default(), RETRY_AFTER - breaker.open_for);
        let state = || {
            let breaker = circuit.breaker("test");
            (breaker.state, breaker.is_available)
        };
        fail(&circuit, breaker);
        assert_eq!(state(), (BreakerState::Closed, true), "one failure does not open the breaker");
        fail(&circuit, breaker);
        for _ in 0..3 {
            assert_eq!(state(), (BreakerState::Open, false), "after a failure");
            advance(breaker.open_for).await;
            assert_eq!(state(), (BreakerState::HalfOpen, false), "a probe may fail again");
            fail(&circuit, breaker);
        }
        advance(breaker.open_for + last - Duration::from_millis(1)).await;
        assert_eq!(state(), (BreakerState::HalfOpen, false), "before 5 s without a failure");
        advance(Duration::from_millis(1)).await;
        assert_eq!(state(), (BreakerState::HalfOpen, true), "after 5 s without a failure");
        let ticket = circuit.enter().expect("the breaker permits a probe");
        circuit.leave(ticket, Ok(ServerAnswer::Works), || (Some(breaker), DEADLINE));
        assert_eq!(state(), (BreakerState::Closed, true), "after an answer");
    }
}
