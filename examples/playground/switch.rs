//! A backend that can be stopped: the memory or Redis, behind a switch.

use std::{
    future::pending,
    sync::{Arc, Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};
use tower_sliding_window::{
    Decision, MemoryBackend, RedisBackend,
    backend::{Backend, BackendError, Check, Reason},
};

/// The backend behind the switch.
#[derive(Clone)]
pub(crate) enum Store {
    Memory(MemoryBackend),
    Redis(RedisBackend),
}

/// What the backend does with a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// It decides.
    Running,
    /// It refuses the connection, as a stopped server does.
    Refusing,
    /// It never answers, as an unreachable server does.
    Hanging,
}

/// A backend with a switch. Clones share the switch.
#[derive(Clone)]
pub(crate) struct Switch {
    store: Store,
    mode: Arc<Mutex<Mode>>,
}

impl Switch {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, mode: Arc::new(Mutex::new(Mode::Running)) }
    }

    pub(crate) fn mode(&self) -> Mode {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_mode(&self, mode: Mode) {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
    }

    /// Returns the name of the store, for the page.
    pub(crate) fn name(&self) -> String {
        match &self.store {
            Store::Memory(_) => "memory".to_owned(),
            Store::Redis(backend) => backend.store().unwrap_or_else(|| "Redis".to_owned()),
        }
    }
}

/// Only [`Backend::check`] passes the switch. `check_now` keeps its default, so that the deadline and the circuit breaker also
/// protect the memory. `protect` keeps its default, so that the circuit breaker also counts the failures of the switch.
impl Backend for Switch {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        match self.mode() {
            Mode::Running => {}
            Mode::Refusing => return Err(BackendError::new(Reason::Connection)),
            Mode::Hanging => pending().await,
        }
        match &self.store {
            Store::Memory(backend) => backend.check(check).await,
            Store::Redis(backend) => backend.check(check).await,
        }
    }

    /// Checks hold units. Their releases do not pass the switch.
    fn holds_units(&self) -> bool {
        true
    }

    fn denials_hold(&self) -> bool {
        match &self.store {
            Store::Memory(backend) => backend.denials_hold(),
            Store::Redis(backend) => backend.denials_hold(),
        }
    }
}
