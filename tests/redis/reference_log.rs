//! A reference model of a log: a plain list of its charges.

use std::time::Duration;

use tower_sliding_window::{
    Policy, RedisBackend, Wait,
    backend::{Backend, Purpose, Receipt, Refund},
    testing::ManualClock,
};

use super::{
    admin::Admin,
    layout::{GENERATION, Log, write_log},
    rig::{check, peek},
};

/// The only log of a server, and its charges that have not expired.
pub struct ReferenceLog<'a> {
    backend: &'a RedisBackend,
    clock: &'a ManualClock,
    policies: [Policy; 1],
    generation: u64,
    /// Instants and units, oldest first. A charge with 0 units was refunded.
    pub charges: Vec<(u64, u64)>,
}

impl<'a> ReferenceLog<'a> {
    pub fn of(backend: &'a RedisBackend, clock: &'a ManualClock, policy: Policy) -> Self {
        Self { backend, clock, policies: [policy], generation: 0, charges: Vec::new() }
    }

    /// Writes a log of these charges, after this many units that have expired. Moves the clock to the last charge.
    pub async fn write(&mut self, admin: &mut Admin, before: u64, charges: Vec<(u64, u64)>) {
        (self.generation, self.charges) = (GENERATION, charges);
        let last = self.charges[self.charges.len() - 1].0;
        self.clock.set_micros(last);
        // A charge creates the key, and so gives its name.
        admin.query::<()>(&["FLUSHALL"]);
        let _ = self.backend.check(&check(&self.policies, 1, Purpose::Charge)).await.unwrap();
        let key = admin.only_key();
        write_log(
            &mut admin.0,
            &key,
            &Log { generation: self.generation, last, before, precision: 0, records: &self.charges },
        );
    }

    pub async fn charge(&mut self, units: u32) {
        self.expire();
        let begins = self.used() == 0;
        let purpose = if begins { Purpose::Reserve } else { Purpose::Charge };
        let decision = self.backend.check(&check(&self.policies, units, purpose)).await.unwrap();
        assert!(decision.is_admitted(), "the charge fits");
        if begins {
            (self.generation, self.charges) = (decision.receipts()[0].generation, Vec::new());
        }
        self.charges.push((self.clock.now_micros(), u64::from(units)));
    }

    /// Refunds this many units of one charge, as the client that reserved them would.
    pub async fn refund(&mut self, index: usize, units: u64) {
        let at = self.charges[index].0;
        // The ordinal counts the earlier charges of the same instant.
        let ordinal = self.charges[..index].iter().rev().take_while(|charge| charge.0 == at).count() as u32;
        let receipt = Receipt::new(self.generation, at, ordinal);
        let refund = Refund::new(&check(&self.policies, units as u32, Purpose::Reserve), &[receipt], &[0]);
        self.backend.refund(&refund.unwrap()).await.unwrap();
        self.charges[index].1 -= units;
    }

    /// Compares the model with the server: the remaining quota, and this many of the waits.
    pub async fn assert_matches_server(&mut self, what: &str, waits: u64) {
        self.expire();
        let (now, used) = (self.clock.now_micros(), self.used());
        let (quota, window) =
            (u64::from(self.policies[0].quota().unwrap()), self.policies[0].window().unwrap());
        let decision = peek(self.backend, &self.policies, 0).await;
        let status = &decision.statuses()[0];
        assert_eq!(u64::from(status.remaining()), quota - used, "{what}");
        let expires_after = |at: u64| Duration::from_micros(at) + window - Duration::from_micros(now);
        let mut holders = self.charges.iter().filter(|(_, units)| *units > 0).map(|(at, _)| *at);
        let (next, reset) = match (holders.next(), holders.next_back()) {
            (None, _) => (window, Duration::ZERO),
            (Some(only), None) => (expires_after(only), expires_after(only)),
            (Some(oldest), Some(newest)) => (expires_after(oldest), expires_after(newest)),
        };
        assert_eq!((status.next_after(), status.reset_after()), (next, reset), "{what}");

        for wait in 0..waits.min(used) {
            // From one missing unit to all used units.
            let missing = 1 + (used - 1) * wait / (waits - 1);
            let mut expired = 0;
            let last = self.charges.iter().find(|(_, units)| {
                expired += units;
                expired >= missing
            });
            let decision = peek(self.backend, &self.policies, (quota - used + missing) as u32).await;
            let wait = Wait::For(expires_after(last.unwrap().0));
            assert_eq!(decision.retry_after(), wait, "{what}: {missing} of {used} units must expire");
        }
    }

    fn used(&self) -> u64 {
        self.charges.iter().map(|(_, units)| units).sum()
    }

    /// Removes the charges that have left the window.
    pub fn expire(&mut self) {
        let (now, window) = (self.clock.now_micros(), self.policies[0].window().unwrap().as_micros() as u64);
        self.charges.retain(|(at, _)| *at + window > now);
    }
}
