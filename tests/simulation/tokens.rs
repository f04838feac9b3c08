//! A token bucket of the memory backend, with a clock that is set forward and back, and with two rates in turn.

use tower_sliding_window::{
    MemoryBackend, PartitionKey, Policy,
    backend::{Backend, Check, Pair},
    policy::Rate,
    testing::ManualClock,
};

use super::{
    random::Random,
    rules::{Rule, Violation},
};

/// A charge: the units, the time since the charge before, and the rate by which units have returned meanwhile.
struct Charge {
    units: u64,
    passed: u64,
    rate: usize,
}

/// The rates: the units and the period in microseconds. Their units have few parts, so that a rounding is visible.
const RATES: [[(u32, u64); 2]; 3] = [[(1, 2), (1, 3)], [(3, 7), (2, 5)], [(1, 1_000), (3, 1_000)]];
const CAPACITY: u32 = 8;

/// Runs random checks. Returns the violations of the guarantee: an interval admits at most the capacity, and the units that return in
/// it. Each charge uses the rate of its own policy from the charge before.
pub fn run(seed: u64) -> Vec<Violation> {
    let mut random = Random::new(seed);
    let rates = random.one_of(&RATES);
    let policies = rates.map(|(units, period)| {
        let rate = Rate::new(units, std::time::Duration::from_micros(period));
        Policy::token_bucket("tokens", CAPACITY, rate).unwrap()
    });
    let changes_rate = random.one_in(2);
    let clock = ManualClock::new();
    let mut now = 1_900_000_000_000_000_u64;
    // A key is idle by the rate of its last charge.
    let hour = std::time::Duration::from_secs(3_600);
    let backend = MemoryBackend::new().with_clock(&clock).keep_idle_for(hour);
    // The time in which a full capacity returns at each rate.
    let windows = rates.map(|(units, period)| (u64::from(CAPACITY) * period).div_ceil(u64::from(units)));
    let unit = (windows[0].min(windows[1]) / u64::from(CAPACITY)).max(1);
    let (mut histories, mut last) = (vec![Vec::new()], 0);
    for _ in 0..2_000 {
        now += random.between(0..4 * unit);
        // Time stands still while the clock is behind the last charge.
        if random.one_in(20) {
            let step = random.between(1..unit + 1);
            now = if random.one_in(2) { now + step } else { now - step };
        }
        clock.set_micros(now);
        let rate = if changes_rate { random.between(0..2) as usize } else { 0 };
        let cost = 1 + random.between(0..3) as u32;
        let pair = Pair::new(PartitionKey::new("tokens", ""), policies[rate].clone(), cost);
        let decision = backend.check_now(&Check::new([pair]).unwrap()).unwrap().unwrap();
        if !decision.is_admitted() {
            continue;
        }
        // If the clock is behind by more than this, the bucket counts as empty.
        if last > now + windows[rate] {
            histories.push(Vec::new());
            last = 0;
        }
        let at = now.max(last);
        let history = histories.last_mut().expect("at least one");
        history.push(Charge { units: u64::from(cost), passed: at - last, rate });
        last = at;
    }
    histories.iter().filter_map(|charges| excess(charges, rates)).map(violation).collect()
}

/// Returns what an interval has admitted too much.
fn excess(charges: &[Charge], rates: [(u32, u64); 2]) -> Option<String> {
    // A fraction of a unit that both rates return in whole numbers.
    let parts = rates.iter().map(|(_, period)| period).product::<u64>();
    (0..charges.len()).find_map(|from| {
        let (mut units, mut returned) = (0, 0);
        // A longer interval holds nothing else.
        charges[from..].iter().take(400).enumerate().find_map(|(index, charge)| {
            units += charge.units;
            if index > 0 {
                let (of_rate, period) = rates[charge.rate];
                returned += charge.passed * u64::from(of_rate) * (parts / period);
            }
            (units * parts > u64::from(CAPACITY) * parts + returned)
                .then(|| format!("{units} units in {} charges of {CAPACITY} at {rates:?}", index + 1))
        })
    })
}

fn violation(what: String) -> Violation {
    Violation { rule: Rule::QuotaHolds, what }
}
