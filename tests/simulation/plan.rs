//! What happens in a run: all of it follows from the seed.

use std::{ops::Range, time::Duration};

use tower_sliding_window::{Algorithm, OutageRule, PartitionKey, Policy, outage::Share};

use super::chance::Chance;

/// What a limiter promises by default.
pub const DEADLINE: Duration = Duration::from_millis(100);

pub const SERVER: &str = "redis";

/// What is limited. Its usage is that of all clients together.
pub const SHARED: &str = "shared";

/// What every check is known by: its cost is the number of the check, and its quota is never used up.
pub const NUMBER: &str = "number";

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub clients: usize,
    pub tenants: u64,
    pub policy: Policy,
    pub rule: OutageRule,
    /// The mean time between two checks of a client.
    pub pause: Duration,
    /// How much faster than time the server's clock is, in millionths. What the crate allows for is 100.
    pub drift: i64,
    /// How many segments of a stream are under way at most.
    pub capacity: usize,
    pub steps: Vec<(Duration, Step)>,
    /// From then on nothing breaks.
    pub repaired: Duration,
    /// When everybody stops asking.
    pub last: Duration,
}

const SECOND: Duration = Duration::from_secs(1);
const REPAIRED: Duration = SECOND.saturating_mul(6);

/// What happens to the link of a client, or to the server.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// What is sent is lost, either way.
    Cut(usize),
    /// What the client sends is lost.
    CutFrom(usize),
    /// What the server sends is lost.
    CutTo(usize),
    Mend(usize),
    /// What is sent waits.
    Hold(usize),
    /// What has waited arrives.
    Release(usize),
    Slow(usize, Duration),
    Quick(usize),
    /// The server ends, and its connections with it.
    Crash,
    /// The server ends without a word, and what was under way to it is lost.
    Vanish,
    Start {
        loses_data: bool,
    },
    /// The server does nothing for so long, and then all that it was asked meanwhile.
    Stop(Duration),
    /// The server's clock is set forward or back, in microseconds.
    Clock(i64),
}

impl Plan {
    pub fn of(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let clients = chance.between(2..4) as usize;
        let window = chance.millis(500..2_001);
        let quota = chance.between(20..200) as u32;
        let mut policy = Policy::new(SHARED, quota, window).unwrap();
        if chance.one_in(3) {
            policy = policy.with_algorithm(Algorithm::SlidingBuckets { precision: window / 8 }).unwrap();
        }
        let share = Share::among(clients as u32).unwrap();
        let rule = chance.one_of(&[
            OutageRule::FailClosed,
            OutageRule::FailOpen,
            OutageRule::LocalFallback(share),
            OutageRule::LocalFallback(share),
        ]);
        let mut steps = Vec::new();
        for client in 0..clients {
            of_link(&mut chance.fork(), client, &mut steps);
        }
        of_server(&mut chance.fork(), window, &mut steps);
        steps.sort_by_key(|(at, _)| *at);
        Self {
            seed,
            clients,
            tenants: chance.between(1..4),
            policy,
            rule,
            pause: chance.millis(10..40),
            drift: chance.between(0..181) as i64 - 90,
            capacity: chance.one_of(&[4_096, 4_096, 16]),
            steps,
            repaired: REPAIRED,
            last: REPAIRED + 4 * SECOND,
        }
    }

    pub fn tenant(number: u64) -> PartitionKey {
        PartitionKey::new("tenant", number.to_string())
    }

    pub fn client(number: usize) -> String {
        format!("client-{number}")
    }
}

/// Times from now on at which something begins and ends, one after the other.
fn spans(chance: &mut Chance, gap: Range<u64>, lengths: &[Range<u64>]) -> Vec<(Duration, Duration)> {
    let (mut spans, mut at) = (Vec::new(), Duration::ZERO);
    loop {
        let begin = at + chance.millis(gap.clone());
        let length = chance.one_of(lengths);
        let end = begin + chance.millis(length);
        if end >= REPAIRED {
            return spans;
        }
        spans.push((begin, end));
        at = end;
    }
}

fn of_link(chance: &mut Chance, client: usize, steps: &mut Vec<(Duration, Step)>) {
    for (begin, end) in spans(chance, 50..1_500, &[10..90, 90..300, 300..1_800]) {
        let latency = chance.millis(20..170);
        let (breaks, mends) = chance.one_of(&[
            (Step::Hold(client), Step::Release(client)),
            (Step::Hold(client), Step::Release(client)),
            (Step::Slow(client, latency), Step::Quick(client)),
            (Step::Cut(client), Step::Mend(client)),
            (Step::CutFrom(client), Step::Mend(client)),
            (Step::CutTo(client), Step::Mend(client)),
        ]);
        steps.extend([(begin, breaks), (end, mends)]);
    }
}

fn of_server(chance: &mut Chance, window: Duration, steps: &mut Vec<(Duration, Step)>) {
    // In half of the runs its clock can be relied on.
    let steps_clock = chance.one_in(2);
    for (begin, end) in spans(chance, 300..2_000, &[5..100, 100..700]) {
        match chance.between(0..4) {
            0 => {
                let loses_data = chance.one_in(2);
                let ends = chance.one_of(&[Step::Crash, Step::Vanish]);
                steps.extend([(begin, ends), (end, Step::Start { loses_data })]);
            }
            1 if steps_clock => {
                let window = window.as_micros() as u64;
                let by = chance.one_of(&[5_000, 50_000, 400_000, window, 2 * window]);
                let by = chance.between(1..by) as i64;
                steps.push((begin, Step::Clock(if chance.one_in(2) { by } else { -by })));
            }
            _ => steps.push((begin, Step::Stop(end - begin))),
        }
    }
}
