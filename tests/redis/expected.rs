//! What is expected of a log, from all its charges in a plain list.

use std::time::Duration;

use tower_sliding_window::{
    Policy, RedisBackend, Wait,
    backend::{Backend, Purpose, Receipt, Refund},
    testing::ManualClock,
};

use super::{
    layout::{Log, write_log},
    look::Look,
    rig::{check, peek},
};

/// The only log of a server, and all its charges that count.
pub struct Expected<'a> {
    backend: &'a RedisBackend,
    clock: &'a ManualClock,
    policies: [Policy; 1],
    born: u64,
    /// Instants and units, oldest first. Those without units are charges that were given back.
    pub charges: Vec<(u64, u64)>,
}

impl<'a> Expected<'a> {
    pub fn of(backend: &'a RedisBackend, clock: &'a ManualClock, policy: Policy) -> Self {
        Self { backend, clock, policies: [policy], born: 0, charges: Vec::new() }
    }

    /// Writes a log of these charges, after so many units that have left. The clock moves to the last of them.
    pub async fn write(&mut self, look: &mut Look, before: u64, charges: Vec<(u64, u64)>) {
        (self.born, self.charges) = (charges[0].0, charges);
        let last = self.charges[self.charges.len() - 1].0;
        self.clock.set_micros(last);
        // Its key is that of any charge.
        look.ask::<()>(&["FLUSHALL"]);
        self.backend.check(&check(&self.policies, 1, Purpose::Charge)).await.unwrap();
        let key = look.only_key();
        write_log(&mut look.0, &key, &Log { born: self.born, last, before, records: &self.charges });
    }

    pub async fn charge(&mut self, units: u32) {
        let decision = self.backend.check(&check(&self.policies, units, Purpose::Charge)).await.unwrap();
        assert!(decision.is_admitted());
        let now = self.clock.now_micros();
        self.leave();
        if self.used() == 0 {
            (self.born, self.charges) = (now, Vec::new());
        }
        self.charges.push((now, u64::from(units)));
    }

    /// Gives so many units of one charge back, as whoever has reserved them would.
    pub async fn refund(&mut self, index: usize, units: u64) {
        let at = self.charges[index].0;
        // Those of one instant that are before it.
        let ordinal = self.charges[..index].iter().rev().take_while(|charge| charge.0 == at).count() as u32;
        let receipt = Receipt { generation: self.born, at_micros: at, ordinal };
        let refund = Refund::of(&check(&self.policies, units as u32, Purpose::Reserve), &[receipt], &[0]);
        self.backend.refund(&refund.unwrap()).await.unwrap();
        self.charges[index].1 -= units;
    }

    /// Compares what is left, and so many of the waits, with what the server tells.
    pub async fn assert_told(&mut self, what: &str, waits: u64) {
        self.leave();
        let (now, used) = (self.clock.now_micros(), self.used());
        let (quota, window) = (u64::from(self.policies[0].quota()), self.policies[0].window());
        let told = peek(self.backend, &self.policies, 0).await;
        let status = &told.statuses()[0];
        assert_eq!(u64::from(status.remaining()), quota - used, "{what}");
        let leaves = |at: u64| Duration::from_micros(at) + window - Duration::from_micros(now);
        let mut holders = self.charges.iter().filter(|(_, units)| *units > 0).map(|(at, _)| *at);
        let (next, reset) = match (holders.next(), holders.next_back()) {
            (None, _) => (window, Duration::ZERO),
            (Some(only), None) => (leaves(only), leaves(only)),
            (Some(oldest), Some(newest)) => (leaves(oldest), leaves(newest)),
        };
        assert_eq!((status.next_after(), status.reset_after()), (next, reset), "{what}");

        for wait in 0..waits.min(used) {
            // From one unit too many to all of them.
            let wanting = 1 + (used - 1) * wait / (waits - 1);
            let mut gone = 0;
            let last = self.charges.iter().find(|(_, units)| {
                gone += units;
                gone >= wanting
            });
            let told = peek(self.backend, &self.policies, (quota - used + wanting) as u32).await;
            let wait = Wait::For(leaves(last.unwrap().0));
            assert_eq!(told.retry_after(), wait, "{what}: {wanting} of {used} units must leave");
        }
    }

    fn used(&self) -> u64 {
        self.charges.iter().map(|(_, units)| units).sum()
    }

    fn leave(&mut self) {
        let (now, window) = (self.clock.now_micros(), self.policies[0].window().as_micros() as u64);
        self.charges.retain(|(at, _)| *at + window > now);
    }
}
