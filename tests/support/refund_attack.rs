//! A client whose charges are refunded in the middle of a long log, beside another service on the same Redis.

use std::{
    fmt,
    time::{Duration, Instant},
};

use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use tower_sliding_window::{
    Limiter, LimiterBuilder, PartitionKey, Policy, RedisBackend,
    redis::{Merging, RedisServers},
    settle::Reservation,
};

/// The deadline of a check of the other service.
const DEADLINE: Duration = Duration::from_secs(1);
/// The pause between two checks of the other service.
const PAUSE: Duration = Duration::from_millis(2);
/// The charges that are in flight at the same time while the log grows.
const IN_FLIGHT: usize = 256;

/// What the other service has seen, from the first refund to the last.
pub struct Outcome {
    pub checks: usize,
    /// The checks without a decision.
    pub undecided: usize,
    /// The time of the slowest check.
    pub slowest: Duration,
    /// The time until all refunds were confirmed or lost.
    pub duration: Duration,
    /// The refunds that were lost.
    pub lost: u64,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { checks, undecided, slowest, duration, lost } = self;
        write!(
            f,
            "{undecided} of {checks} checks without a decision in {duration:.1?}, the slowest took {slowest:.0?}; "
        )?;
        write!(f, "{lost} refunds lost")
    }
}

/// Charges one key so many times, and refunds these charges of its middle at the same time.
pub async fn refund(url: &str, records: usize, refunds: usize) -> Outcome {
    // Merged checks would share records.
    let backend = RedisBackend::builder(RedisServers::single(url)).merging(Merging::Off).lazy().unwrap();
    let attacker =
        limiter(backend, Duration::from_secs(20)).max_checks_in_flight(4 * IN_FLIGHT).build().unwrap();
    let key = PartitionKey::new("user", "attacker");
    let before = (records - refunds) / 2;
    charge(&attacker, &key, before).await;
    let reservations = reserve(&attacker, &key, refunds).await;
    charge(&attacker, &key, records - refunds - before).await;

    let victim = limiter(RedisBackend::lazy(url).unwrap(), DEADLINE).build().unwrap();
    // The victim is connected, and Redis knows its script.
    let _ = victim.check(PartitionKey::new("user", "victim")).await.expect("a decision");
    let started = Instant::now();
    let refunded = tokio::spawn(async move {
        reservations.iter().for_each(|reservation| drop(reservation.settle(0)));
        attacker.drain().await;
        attacker.lost_settlements()
    });
    let mut checks = JoinSet::new();
    let mut clock = interval(PAUSE);
    clock.set_missed_tick_behavior(MissedTickBehavior::Skip);
    while !refunded.is_finished() {
        clock.tick().await;
        let victim = victim.clone();
        checks.spawn(async move {
            let started = Instant::now();
            let is_decided = victim.check(PartitionKey::new("user", "victim")).await.is_ok();
            (is_decided, started.elapsed())
        });
    }
    let duration = started.elapsed();
    let checks = checks.join_all().await;
    Outcome {
        checks: checks.len(),
        undecided: checks.iter().filter(|(is_decided, _)| !is_decided).count(),
        slowest: checks.iter().map(|(_, time)| *time).max().unwrap_or_default(),
        duration,
        lost: refunded.await.unwrap(),
    }
}

fn limiter(backend: RedisBackend, deadline: Duration) -> LimiterBuilder {
    let policy = Policy::new("log", u32::MAX, Duration::from_secs(3_600)).unwrap();
    Limiter::builder(backend).policy(policy).deadline(deadline).deny_cache(None)
}

async fn charge(limiter: &Limiter, key: &PartitionKey, charges: usize) {
    let tasks = (0..IN_FLIGHT).map(|task| {
        let (limiter, key, charges) = (limiter.clone(), key.clone(), (task..charges).step_by(IN_FLIGHT));
        async move {
            for _ in charges {
                assert!(limiter.check(key.clone()).await.expect("a decision").is_admitted());
            }
        }
    });
    JoinSet::from_iter(tasks).join_all().await;
}

async fn reserve(limiter: &Limiter, key: &PartitionKey, charges: usize) -> Vec<Reservation> {
    let mut reservations = Vec::with_capacity(charges);
    for _ in 0..charges {
        reservations.push(limiter.reserve(key.clone()).await.expect("a charge"));
    }
    reservations
}
