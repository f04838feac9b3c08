//! The metrics without the feature `metrics`: each function does nothing.

use tokio::time::Instant;

use super::{Counted, RequestOutcome};
use crate::{
    check::Pair,
    decision::{Decision, Status},
    error::Reason,
    policy::Policy,
};

pub(super) struct LimiterMetrics;

impl LimiterMetrics {
    pub(super) fn new(_: &[Policy]) -> Self {
        Self
    }

    pub(super) fn decision(&self, _: &Decision, _: impl Fn(&Status) -> bool) {}

    pub(super) fn unavailable(&self, _: &[Pair], _: Reason) {}

    pub(super) fn delayed(&self, _: &Decision) {}

    pub(super) fn wait_too_long(&self, _: &[Pair]) {}

    pub(super) fn denied_key(&self, _: &str) {}

    pub(super) fn answered(&self, _: Instant) {}

    pub(super) fn responded<'a>(&self, _: RequestOutcome, _: impl FnOnce() -> Option<&'a str>) {}

    pub(super) fn count(&self, _: Counted, _: u64) {}
}

pub(crate) struct WaitMetrics;

impl WaitMetrics {
    pub(super) fn begin() -> Self {
        Self
    }

    pub(crate) fn end(self, _: bool) {}
}

pub(super) struct BreakerMetrics;

impl BreakerMetrics {
    pub(super) fn new(_: &str) -> Self {
        Self
    }

    #[cfg(feature = "redis")]
    pub(super) fn register(&self) {}

    pub(super) fn failed(&self) {}

    pub(super) fn sync(&self, _: impl Fn() -> bool) {}
}

#[cfg(feature = "redis")]
pub(super) fn rollback_lost() {}

#[cfg(feature = "redis")]
pub(super) fn check_unanswered() {}

#[cfg(feature = "redis")]
pub(super) fn units_interrupted(_: u64) {}

pub(crate) fn evicted(_: u64) {}
