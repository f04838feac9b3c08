//! The events of one server of a backend, or of a backend that is guarded as a whole.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use super::{events, metrics::BreakerMetrics, throttle::Throttle};
use crate::error::{BackendError, Reason};

/// The largest number of openings that are logged per minute, if a breaker opens and closes again and again.
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
    answers_late: Throttle,
    #[cfg(feature = "redis")]
    cluster_node: Throttle,
    metrics: BreakerMetrics,
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
            answers_late: Throttle::default(),
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

    /// Sets the metrics to the present state of the circuit breaker, which `is_open` reads. Call it after each change.
    pub(crate) fn sync_metrics(&self, is_open: impl Fn() -> bool) {
        self.metrics.sync(is_open);
    }

    /// Warns that the circuit breaker has opened, after this failure.
    pub(crate) fn breaker_opened(&self, error: &BackendError) {
        let pass = self.openings.pass();
        self.is_opening_logged.store(pass.is_some(), Ordering::Relaxed);
        if let Some(unlogged) = pass {
            events::breaker_opened(&self.server, error, unlogged);
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

    /// Warns, at most once per minute, that checks are not answered within their deadline although the server is not silent.
    pub(crate) fn answers_late(&self, problem: &str) {
        self.answers_late.log(|unlogged| events::answers_late(&self.server, problem, unlogged));
    }

    /// Warns, at most once per minute, that the server is a node of a cluster, and the backend is not one of a cluster.
    #[cfg(feature = "redis")]
    pub(crate) fn cluster_node(&self) {
        self.cluster_node.log(|unlogged| events::cluster_node(&self.server, unlogged));
    }
}
