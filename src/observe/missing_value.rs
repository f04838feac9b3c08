//! Handlers that need a value of the layer, which their request does not have.

use std::{error::Error, sync::LazyLock};

use super::{events, throttle::Throttle};

/// The warnings about one cause, at most one per minute.
pub(crate) struct MissingValue(LazyLock<Throttle>);

impl MissingValue {
    pub(crate) const fn new() -> Self {
        Self(LazyLock::new(Throttle::default))
    }

    /// Warns, at most once per minute, that a request is rejected because the handler needs the value.
    pub(crate) fn warn(&self, error: &dyn Error) {
        if let Some(unlogged) = self.0.pass() {
            events::missing_value(error, unlogged);
        }
    }
}
