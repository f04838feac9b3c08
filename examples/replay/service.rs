//! The limiter of a service, on the clock of the log.

use tower_sliding_window::{
    ConfigError, Decision, Limiter, MemoryBackend, Policy,
    backend::{BackendError, Reason, WhenFull},
    testing::ManualClock,
};

use crate::requests::{Names, What};

pub(crate) struct Service {
    limiter: Limiter,
    clock: ManualClock,
}

impl Service {
    /// Creates a limiter that has counted nothing.
    pub(crate) fn new(policies: impl IntoIterator<Item = Policy>) -> Result<Self, ConfigError> {
        let clock = ManualClock::new();
        // No key is ever evicted.
        let backend = MemoryBackend::with_max_keys(u32::MAX as usize)?.when_full(WhenFull::Reject);
        let limiter = Limiter::builder(backend.with_clock(&clock));
        let limiter = policies.into_iter().fold(limiter, |limiter, policy| limiter.policy(policy)).build()?;
        Ok(Self { limiter, clock })
    }

    pub(crate) fn policies(&self) -> &[Policy] {
        self.limiter.policies()
    }

    /// Decides a request, as the service would have done at this instant.
    pub(crate) fn decide(&self, at_micros: u64, what: What, names: &Names) -> Result<Decision, BackendError> {
        self.clock.set_micros(at_micros);
        let decision = self.limiter.check((names.key(what).clone(), names.costs(what).clone()));
        match decision.now() {
            Ok(decision) => decision,
            // A memory always answers at once.
            Err(_) => Err(BackendError::new(Reason::Other)),
        }
    }
}

/// Returns a policy with another quota, which is enforced.
pub(crate) fn with_quota(policy: &Policy, quota: u32) -> Result<Policy, ConfigError> {
    let window = policy.window().unwrap_or_default();
    Policy::new(policy.name(), quota, window)?.with_algorithm(policy.algorithm())
}
