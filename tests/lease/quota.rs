//! The quota, with several processes on one store: random loads, latencies, clock rates, crashes, resets and settlements.

use std::{cell::RefCell, rc::Rc, time::Duration};

use tokio::{
    task::{LocalSet, spawn_local},
    time::{Instant, sleep, timeout},
};
use tower_sliding_window::{Limiter, policy::Lease};

use super::store::{Fault, Store};
use super::{MILLISECOND, alice, buckets, builder};

const PROCESSES: u64 = 4;

/// A small random generator (SplitMix64).
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from `low` to `high`.
    fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
}

/// The admissions of all processes: the instant on the store's clock, and the units as finally settled.
type Grants = Rc<RefCell<Vec<(u64, u32)>>>;

#[derive(Clone, Copy)]
struct Settings {
    quota: u32,
    window: Duration,
    precision: Duration,
    up_to: u32,
    faults: bool,
}

impl Settings {
    /// Returns the mean time between the requests of a process, by phases that repeat: a burst, which makes the next lease large; few
    /// requests, so that units are left at the end of a bucket; more than the quota, so that a unit that returns is used at once; and
    /// silence, so that nothing is used.
    fn gap(&self, now: Duration) -> Duration {
        let (window, precision) = (self.window, self.precision);
        let flood = window / self.quota;
        let phases = [
            (precision * 5 / 4, flood),
            (window * 2 / 3, precision / 4),
            (window, flood),
            (window + 2 * precision, window / 2),
        ];
        let round: Duration = phases.iter().map(|(length, _)| *length).sum();
        let mut left = Duration::from_micros((now.as_micros() % round.as_micros()) as u64);
        for (length, gap) in phases {
            if left < length {
                return gap;
            }
            left -= length;
        }
        flood
    }
}

/// Returns the largest number of units in a half-open window.
fn most(grants: &Grants, window: Duration) -> u32 {
    let mut grants = grants.borrow().clone();
    grants.sort_unstable();
    let window = window.as_micros() as u64;
    let (mut most, mut units, mut first) = (0, 0, 0);
    for (at, cost) in &grants {
        units += cost;
        while grants[first].0 + window <= *at {
            units -= grants[first].1;
            first += 1;
        }
        most = most.max(units);
    }
    most
}

/// Runs several processes. Returns their admissions, and how many of them were leased.
async fn run(seed: u64, settings: Settings) -> (Grants, usize) {
    let mut random = Random(seed);
    let latency = [(); 2].map(|()| Duration::from_micros(random.within(0, 3_000)));
    let store = Store::new().with_latency(latency[0], latency[1]);
    let store = store.with_drift(random.within(0, 1_000) as i64 - 500);
    let (grants, leased) = (Grants::default(), Rc::new(RefCell::new(0)));
    let local = LocalSet::new();
    for process in 0..PROCESSES {
        let mut random = Random(seed << 8 ^ process);
        let (store, grants, leased) = (store.clone(), grants.clone(), leased.clone());
        local.spawn_local(async move {
            let new = || {
                let Settings { quota, window, precision, up_to, .. } = settings;
                let policy = buckets(quota, window, precision).leased(Lease::up_to(up_to)).unwrap();
                builder(&store, policy).deadline(100 * MILLISECOND).breaker(None).build().unwrap()
            };
            let (start, mut limiter) = (Instant::now(), new());
            while start.elapsed() < 12 * settings.window {
                let gap = settings.gap(start.elapsed()).as_micros() as u64;
                sleep(Duration::from_micros(random.within(0, 2 * gap))).await;
                if settings.faults && random.one_in(100) {
                    // The process crashes, with what it holds, and starts again.
                    limiter = new();
                }
                if settings.faults && random.one_in(50) {
                    store.fail([[Fault::LostReply, Fault::Refused][random.within(0, 1) as usize]]);
                }
                let request = ask(
                    store.clone(),
                    limiter.clone(),
                    random.clone(),
                    settings,
                    grants.clone(),
                    leased.clone(),
                );
                random.next();
                spawn_local(request);
            }
        });
    }
    local.await;
    let leased = *leased.borrow();
    (grants, leased)
}

/// A request: a check, a reservation that is settled later, or a check that its caller drops.
async fn ask(
    store: Store,
    limiter: Limiter,
    mut random: Random,
    settings: Settings,
    grants: Grants,
    leased: Rc<RefCell<usize>>,
) {
    let cost = random.within(1, 3) as u32;
    let patience = Duration::from_micros(if settings.faults { random.within(1, 40_000) } else { 1_000_000 });
    let record = |decision: &tower_sliding_window::Decision, units: u32| {
        // A leased decision is made now, and that of the store at its instant.
        let at = if decision.is_leased() { store.now_micros() } else { decision.at_micros() };
        *leased.borrow_mut() += usize::from(decision.is_leased());
        grants.borrow_mut().push((at, units));
    };
    if random.one_in(4) {
        let used = random.within(0, u64::from(cost)) as u32;
        if let Ok(Ok(reservation)) = timeout(patience, limiter.reserve(alice(), cost)).await {
            record(reservation.decision().unwrap(), used);
            sleep(Duration::from_micros(random.within(0, 50_000))).await;
            reservation.settle(used).await;
        }
    } else if let Ok(Ok(decision)) = timeout(patience, limiter.check(alice(), cost)).await
        && decision.is_admitted()
    {
        record(&decision, cost);
    }
}

fn settings(random: &mut Random, faults: bool) -> Settings {
    let precision = Duration::from_micros(random.within(20_000, 150_000));
    Settings {
        quota: random.within(5, 400) as u32,
        window: precision * random.within(2, 8) as u32 + Duration::from_micros(random.within(0, 10_000)),
        precision,
        up_to: random.within(1, 60) as u32,
        faults,
    }
}

async fn check_quota(seeds: std::ops::Range<u64>, faults: bool) {
    let mut all_leased = 0;
    for seed in seeds {
        let settings = settings(&mut Random(seed), faults);
        let (grants, leased) = run(seed, settings).await;
        all_leased += leased;
        let most = most(&grants, settings.window);
        assert!(most <= settings.quota, "seed {seed}: {most} units of {} in a window", settings.quota);
    }
    assert!(all_leased > 1_000, "{all_leased} checks were leased");
}

#[tokio::test(start_paused = true)]
async fn processes_never_exceed_quota() {
    check_quota(0..40, false).await;
}

#[tokio::test(start_paused = true)]
async fn processes_with_faults_never_exceed_quota() {
    check_quota(140..180, true).await;
}
