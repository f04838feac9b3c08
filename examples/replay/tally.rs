//! What the replay counts, for each key and each policy.

use tower_sliding_window::{Decision, Policy, Wait};

use crate::requests::Request;

/// The counts of a replay. The memory for each key is 64 bytes, and 8 bytes for each policy.
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) denied: u64,
    /// Requests without a decision, because a sliding log was full.
    pub(crate) undecided: u64,
    pub(crate) first_micros: u64,
    pub(crate) last_micros: u64,
    pub(crate) policies: Vec<PolicyTally>,
    pub(crate) keys: Vec<KeyTally>,
}

#[derive(Clone)]
pub(crate) struct PolicyTally {
    /// The requests that this policy denied, or would have denied if it is in shadow mode.
    pub(crate) denied: u64,
    pub(crate) longest: Wait,
}

#[derive(Clone)]
pub(crate) struct KeyTally {
    pub(crate) requests: u64,
    pub(crate) denied: u64,
    pub(crate) first_micros: u64,
    pub(crate) last_micros: u64,
    pub(crate) longest: Wait,
    /// A bit for each policy that denied a request of the key.
    pub(crate) policies: u8,
}

impl Tally {
    pub(crate) fn new(policies: &[Policy]) -> Self {
        let none = PolicyTally { denied: 0, longest: Wait::ZERO };
        Self {
            requests: 0,
            denied: 0,
            undecided: 0,
            first_micros: u64::MAX,
            last_micros: 0,
            policies: vec![none; policies.len()],
            keys: Vec::new(),
        }
    }

    /// Returns the counts of a key after a further request.
    fn key(&mut self, request: Request) -> &mut KeyTally {
        self.requests += 1;
        self.first_micros = self.first_micros.min(request.at_micros);
        self.last_micros = self.last_micros.max(request.at_micros);
        let index = request.what.key as usize;
        if index >= self.keys.len() {
            let none = KeyTally {
                requests: 0,
                denied: 0,
                first_micros: 0,
                last_micros: 0,
                longest: Wait::ZERO,
                policies: 0,
            };
            self.keys.resize(index + 1, none);
        }
        let key = &mut self.keys[index];
        key.requests += 1;
        key
    }

    pub(crate) fn undecided(&mut self, request: Request) {
        self.key(request);
        self.undecided += 1;
    }

    pub(crate) fn add(&mut self, request: Request, decision: &Decision, policies: &[Policy]) {
        let key = self.key(request);
        if decision.is_admitted() {
            // Usually there are none.
            for status in decision.shadow_denied() {
                self.deny(policies, status.policy(), status.retry_after());
            }
            return;
        }
        let wait = decision.retry_after();
        if key.denied == 0 {
            key.first_micros = request.at_micros;
        }
        key.denied += 1;
        key.last_micros = request.at_micros;
        key.longest = key.longest.max(wait);
        for policy in decision.violated() {
            key.policies |= index(policies, policy).map_or(0, |index| 1 << index);
        }
        self.denied += 1;
        for status in decision.statuses().iter().filter(|status| !status.retry_after().is_zero()) {
            self.deny(policies, status.policy(), status.retry_after());
        }
    }

    fn deny(&mut self, policies: &[Policy], policy: &Policy, wait: Wait) {
        if let Some(index) = index(policies, policy) {
            let of_policy = &mut self.policies[index];
            of_policy.denied += 1;
            of_policy.longest = of_policy.longest.max(wait);
        }
    }
}

/// Returns the index of a policy. Names are different.
pub(crate) fn index(policies: &[Policy], policy: &Policy) -> Option<usize> {
    policies.iter().position(|other| other.name() == policy.name())
}
