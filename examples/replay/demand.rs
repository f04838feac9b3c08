//! The highest use of each key, if no request was denied.

use tower_sliding_window::{ConfigError, Policy};

use crate::{
    requests::{Names, Request},
    service::{Service, with_quota},
};

/// A second limiter, whose policies admit everything.
pub(crate) struct Demand {
    service: Service,
    policies: usize,
    /// The highest use of a key and a policy, at `key * policies + policy`.
    highest: Vec<u32>,
    /// The requests that each policy could not count, because its sliding log was full.
    pub(crate) uncounted: Vec<u64>,
}

impl Demand {
    pub(crate) fn new(policies: &[Policy]) -> Result<Self, ConfigError> {
        // A policy in shadow mode that cannot count a request does not prevent that the others count it.
        let endless = |policy| with_quota(policy, u32::MAX).map(Policy::shadow);
        let service = Service::new(policies.iter().map(endless).collect::<Result<Vec<_>, _>>()?)?;
        let policies = policies.len();
        Ok(Self { service, policies, highest: Vec::new(), uncounted: vec![0; policies] })
    }

    pub(crate) fn add(&mut self, request: Request, names: &Names) {
        let start = request.what.key as usize * self.policies;
        if start >= self.highest.len() {
            self.highest.resize(start + self.policies, 0);
        }
        let decision = self.service.decide(request.at_micros, request.what, names);
        let statuses = decision.as_ref().map_or(&[][..], |decision| decision.statuses());
        let mut statuses = statuses.iter().peekable();
        for (index, policy) in self.service.policies().iter().enumerate() {
            // The statuses are in the order of the policies. One may be missing.
            match statuses.next_if(|status| status.policy().name() == policy.name()) {
                Some(status) if status.retry_after().is_zero() => {
                    let highest = &mut self.highest[start + index];
                    *highest = (*highest).max(u32::MAX - status.remaining());
                }
                _ => self.uncounted[index] += 1,
            }
        }
    }

    /// Returns the highest use of a policy by each key, at the index of the key.
    pub(crate) fn of_policy(&self, policy: usize) -> impl Iterator<Item = u32> {
        self.highest.iter().skip(policy).step_by(self.policies).copied()
    }

    /// Returns the highest use of a policy by any key.
    pub(crate) fn highest(&self, policy: usize) -> u32 {
        self.of_policy(policy).max().unwrap_or_default()
    }
}
