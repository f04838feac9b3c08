//! The token bucket against another formulation: the generic cell rate algorithm (GCRA) of ITU-T I.371, in exact fractions.

use std::{env, time::Duration};

use tokio::runtime::Runtime;
use tower_sliding_window::{
    MemoryBackend, PartitionKey, Policy, RedisBackend, Wait,
    backend::{Backend, Check, Pair, Purpose, Receipt, Refund},
    policy::Rate,
    testing::ManualClock,
};

use crate::support::server::{Engine, Server};

/// A bucket, by the instant at which it is full again. Instants are multiples of the `units`-th part of a microsecond.
struct Gcra {
    capacity: u64,
    units: u64,
    period: u64,
    full_at: u128,
}

/// The first instant of each bucket.
const START: u64 = 1_900_000_000_000_000;

/// A random number generator: SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }
}

impl Gcra {
    fn at(&self, now: u64) -> u128 {
        u128::from(now) * u128::from(self.units)
    }

    /// Returns how long these units take to return.
    fn time_of(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.period)
    }

    /// Returns the time from `now` until this instant, in microseconds.
    fn wait(&self, now: u64, until: u128) -> Duration {
        Duration::from_micros(until.saturating_sub(self.at(now)).div_ceil(u128::from(self.units)) as u64)
    }

    /// Returns the largest usage after an overage: twice the capacity, or the largest number of parts that are counted.
    fn largest_usage(&self) -> u128 {
        let counted = u128::from(gcd(self.units, self.period)) * ((1 << 53) - (1 << 32));
        counted.min(2 * self.time_of(self.capacity))
    }

    /// Returns when the bucket would be full after a charge now.
    fn after(&self, now: u64, cost: u64) -> u128 {
        self.full_at.max(self.at(now)) + self.time_of(cost)
    }

    /// Returns the wait of a cost: zero if it fits.
    fn retry_after(&self, now: u64, cost: u64) -> Wait {
        match cost {
            0 => return Wait::ZERO,
            _ if cost > self.capacity => return Wait::Never,
            _ => {}
        }
        Wait::For(self.wait(now, self.after(now, cost).saturating_sub(self.time_of(self.capacity))))
    }

    /// Returns what remains, the time until one more unit, and the time until the bucket is full.
    fn level(&self, now: u64) -> (u32, Duration, Duration) {
        let missing = self.full_at.saturating_sub(self.at(now));
        if missing == 0 {
            return (self.capacity as u32, Duration::ZERO, Duration::ZERO);
        }
        let remaining =
            (self.time_of(self.capacity).saturating_sub(missing) / u128::from(self.period)) as u64;
        let next = self.full_at - self.time_of(self.capacity - remaining - 1);
        (remaining as u32, self.wait(now, next), self.wait(now, self.full_at))
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns random fields of a bucket.
fn bucket(random: &mut Random) -> (Gcra, Policy) {
    loop {
        let capacity = [1, 2, 10, 97, 100_000, 4_000_000_000][random.below(6) as usize];
        let most = [1, 10, 1_000, 4_000_000_000][random.below(4) as usize];
        let units = 1 + random.below(most);
        let longest = [10, 1_000, 1_000_000, 86_400_000_000][random.below(4) as usize];
        let period = 1 + random.below(longest);
        let rate = Rate::new(units as u32, Duration::from_micros(period));
        // Some are not possible.
        if let Ok(policy) = Policy::token_bucket("bucket", capacity as u32, rate) {
            return (Gcra { capacity, units, period, full_at: 0 }, policy);
        }
    }
}

/// Runs random steps with one bucket after another, each on a clock that begins at the same instant.
async fn compare<B: Backend>(backend: &B, clock: &ManualClock, steps: u64, seed: u64) {
    let mut random = Random(seed);
    let (mut step, mut key) = (0, 0_u64);
    while step < steps {
        key += 1;
        clock.set_micros(START);
        let partition = PartitionKey::new("gcra", (seed + key).to_string());
        let (mut gcra, policy) = bucket(&mut random);
        let refilled = gcra.time_of(gcra.capacity) / u128::from(gcra.units) + 2;
        let mut open: Vec<(Check, Receipt, u64)> = Vec::new();
        for _ in 0..200 {
            step += 1;
            let longest = (refilled / [1, 4, u128::from(gcra.capacity)][random.below(3) as usize]).max(1);
            let passed = if random.below(4) == 0 { 0 } else { random.below(longest as u64 + 1) };
            let now = clock.now_micros() + passed;
            clock.set_micros(now);
            if random.below(6) == 0 && !open.is_empty() {
                let (check, receipt, cost) = open.swap_remove(random.below(open.len() as u64) as usize);
                let used = random.below(cost + 1);
                if let Some(refund) = Refund::new(&check, &[receipt], &[used as u32]) {
                    backend.refund(&refund).await.unwrap();
                }
                let refunded = gcra.full_at.saturating_sub(gcra.time_of(cost - used));
                gcra.full_at = refunded;
                if refunded <= gcra.at(now) {
                    open.clear();
                }
                continue;
            }
            let cost = match random.below(4) {
                0 => 1,
                1 => random.below(gcra.capacity + 2),
                2 => random.below(gcra.capacity.min(5) + 1),
                _ => gcra.capacity,
            };
            let purpose = [Purpose::Charge, Purpose::Reserve, Purpose::Peek, Purpose::Overage]
                [random.below(16).min(3) as usize];
            let purpose =
                if purpose == Purpose::Overage && random.below(3) > 0 { Purpose::Charge } else { purpose };
            let pair = Pair::new(partition.clone(), policy.clone(), cost as u32);
            let check = Check::new([pair]).unwrap().with_purpose(purpose);
            let wait = if purpose == Purpose::Overage { Wait::ZERO } else { gcra.retry_after(now, cost) };
            let decision = backend.check(&check).await.unwrap();

            let before = gcra.full_at;
            if wait == Wait::ZERO && cost > 0 {
                if before <= gcra.at(now) {
                    open.clear();
                }
                let most = gcra.at(now) + gcra.largest_usage();
                let after = gcra.after(now, cost);
                let admits = after <= gcra.at(now) + gcra.time_of(gcra.capacity);
                gcra.full_at = if admits { after } else { after.min(most).max(before) };
            }
            let status = &decision.statuses()[0];
            let actual = (status.remaining(), status.next_after(), status.reset_after());
            assert_eq!(
                (status.retry_after(), actual),
                (wait, gcra.level(now)),
                "step {step} of seed {seed}: {check:?}"
            );
            if purpose == Purpose::Peek {
                gcra.full_at = before;
            }
            if purpose == Purpose::Reserve && decision.is_admitted() && cost > 0 {
                open.push((check, decision.receipts()[0], cost));
            }
        }
    }
}

/// `TOKEN_STEPS` sets another number of steps.
fn steps(usual: u64) -> u64 {
    env::var("TOKEN_STEPS").map_or(usual, |steps| steps.parse().unwrap())
}

#[test]
fn memory_token_bucket_equals_gcra() {
    let clock = ManualClock::new();
    let backend = MemoryBackend::new().with_clock(&clock);
    Runtime::new().unwrap().block_on(compare(&backend, &clock, steps(200_000), 1));
}

#[test]
fn redis_token_bucket_equals_gcra() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let clock = ManualClock::new();
        Runtime::new().unwrap().block_on(async {
            let backend = RedisBackend::connect(&server.url()).await.unwrap().with_clock(&clock);
            compare(&backend, &clock, steps(4_000), 2).await;
        });
    }
}

/// The guarantee: any interval of the length `d` admits at most the capacity and the units that return in `d`.
#[test]
fn no_interval_admits_more_than_capacity_and_rate() {
    let mut random = Random(3);
    let clock = ManualClock::new();
    let backend = MemoryBackend::new().with_clock(&clock);
    let runtime = Runtime::new().unwrap();
    for round in 0..200_u64 {
        clock.set_micros(START);
        let (gcra, policy) = bucket(&mut random);
        let key = PartitionKey::new("guarantee", round.to_string());
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        let refilled = (gcra.time_of(gcra.capacity) / u128::from(gcra.units) + 2) as u64;
        for _ in 0..100 {
            clock.set_micros(clock.now_micros() + random.below(refilled / 10 + 2));
            let cost = 1 + random.below(gcra.capacity);
            let check = Check::new([Pair::new(key.clone(), policy.clone(), cost as u32)]).unwrap();
            if runtime.block_on(backend.check(&check)).unwrap().is_admitted() {
                admitted.push((clock.now_micros(), cost));
            }
        }
        for from in 0..admitted.len() {
            let mut units = 0;
            for (at, cost) in &admitted[from..] {
                units += cost;
                let returned = gcra.at(at - admitted[from].0);
                assert!(
                    gcra.time_of(units) <= gcra.time_of(gcra.capacity) + returned,
                    "{policy:?}: {units} units from {} to {at}",
                    admitted[from].0
                );
            }
        }
    }
}
