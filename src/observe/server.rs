//! The events of one server of a backend, or of a backend that is guarded as a whole.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use super::{events, metrics::BreakerMetrics, throttle::Throttle};
use crate::error::{BackendError, Reason};

/// The largest number of openings that are logged per minute, if a breaker opens and closes again and again. A further one is logged
/// when the minute has passed, if the breaker is still open.
const MAX_OPENINGS: u32 = 5;

/// The events of one server.
pub(crate) struct ServerEvents {
    /// The address without user and password, or the name of the store.
    server: Box<str>,
    openings: Throttle,
    /// Whether the last opening was logged. Only then, the closing is logged.
    is_opening_logged: AtomicBool,
    no_permission: Throttle,
    out_of_memory: Throttle,
    read_only: Throttle,
    other: Throttle,
    failed: Throttle,
    overloaded: Throttle,
    /// By the discriminant of the cause.
    answers_late: [Throttle; 3],
    #[cfg(feature = "redis")]
    cluster_node: Throttle,
    metrics: BreakerMetrics,
}

/// Why checks are not answered within their deadline although the server is not silent.
#[derive(Clone, Copy)]
pub(crate) enum LateCause {
    /// Many checks are in flight.
    Crowded,
    /// This process is busy.
    Busy,
    /// The server or the network is slow.
    Slow,
}

impl LateCause {
    fn text(self) -> &'static str {
        match self {
            Self::Crowded => "many checks are in flight, and they reach the server late",
            Self::Busy => "this process is busy, so it may not have read the replies",
            Self::Slow => "the server answers, but slowly, or the network is slow",
        }
    }
}

impl ServerEvents {
    pub(crate) fn new(server: impl Into<Box<str>>) -> Self {
        let server = server.into();
        Self {
            metrics: BreakerMetrics::new(&server),
            server,
            openings: Throttle::per_minute(MAX_OPENINGS),
            is_opening_logged: AtomicBool::new(false),
            no_permission: Throttle::default(),
            out_of_memory: Throttle::default(),
            read_only: Throttle::default(),
            other: Throttle::default(),
            failed: Throttle::default(),
            overloaded: Throttle::default(),
            answers_late: Default::default(),
            #[cfg(feature = "redis")]
            cluster_node: Throttle::default(),
        }
    }

    /// Returns the name of the server.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// Registers the metrics of a server, so that they exist before its first outage.
    #[cfg(feature = "redis")]
    pub(crate) fn register(&self) {
        self.metrics.register();
    }

    /// Counts a failure that the circuit breaker counts.
    pub(crate) fn count_failure(&self) {
        self.metrics.failed();
    }

    /// Sets the metrics to the present state of the circuit breaker, which `is_open` reads. Call it after each change.
    pub(crate) fn sync_metrics(&self, is_open: impl Fn() -> bool) {
        self.metrics.sync(is_open);
    }

    /// Warns that the circuit breaker has opened, after this failure.
    pub(crate) fn breaker_opened(&self, error: &BackendError) {
        let pass = self.openings.pass();
        self.is_opening_logged.store(pass.is_some(), Ordering::Relaxed);
        if let Some(unlogged) = pass {
            events::breaker_opened(&self.server, error, None, unlogged);
        }
    }

    /// Warns that the circuit breaker has been open for this time, after a failed probe, unless the opening was logged.
    pub(crate) fn breaker_still_open(&self, error: &BackendError, open_for: Duration) {
        if !self.is_opening_logged.load(Ordering::Relaxed)
            && let Some(unlogged) = self.openings.pass_again()
        {
            self.is_opening_logged.store(true, Ordering::Relaxed);
            events::breaker_opened(&self.server, error, Some(open_for), unlogged);
        }
    }

    /// Reports that the circuit breaker has closed, after it was open for this time.
    pub(crate) fn breaker_closed(&self, open_for: Duration) {
        if self.is_opening_logged.load(Ordering::Relaxed) {
            events::breaker_closed(&self.server, open_for);
        }
    }

    /// Reports that the server has left the topology after its circuit breaker was open for this time.
    #[cfg(feature = "redis")]
    pub(crate) fn server_left(&self, open_for: Duration) {
        if self.is_opening_logged.load(Ordering::Relaxed) {
            events::server_left(&self.server, open_for);
        }
    }

    /// Warns about a failure that has not opened the circuit breaker, at most once per minute and reason.
    pub(crate) fn failed(&self, error: &BackendError) {
        let throttle = match error.reason() {
            Reason::NoPermission => &self.no_permission,
            Reason::OutOfMemory => &self.out_of_memory,
            Reason::ReadOnly => &self.read_only,
            Reason::Other => &self.other,
            _ => &self.failed,
        };
        throttle.log(|unlogged| events::check_failed(&self.server, error, unlogged));
    }

    /// Warns, at most once per minute, that too many checks are in flight.
    pub(crate) fn overloaded(&self, max_checks_in_flight: usize) {
        self.overloaded.log(|unlogged| events::overloaded(&self.server, max_checks_in_flight, unlogged));
    }

    /// Warns, at most once per minute and cause, that checks are not answered within their deadline although the server is not silent.
    pub(crate) fn answers_late(&self, cause: LateCause) {
        if let Some(throttle) = self.answers_late.get(cause as usize) {
            throttle.log(|unlogged| events::answers_late(&self.server, cause.text(), unlogged));
        }
    }

    /// Warns, at most once per minute, that the server is a node of a cluster, and the backend is not one of a cluster.
    #[cfg(feature = "redis")]
    pub(crate) fn cluster_node(&self) {
        self.cluster_node.log(|unlogged| events::cluster_node(&self.server, unlogged));
    }
}
