//! The plan of a run: all its parameters and faults, derived from the seed.

use std::{ops::Range, time::Duration};

use tower_sliding_window::{Algorithm, OutageRule, PartitionKey, Policy, outage::Share, policy::Rate};

use super::random::Random;

/// The default deadline of a limiter.
pub const DEADLINE: Duration = Duration::from_millis(100);

pub const SERVER: &str = "redis";

/// The name of the limited policy. All clients share its usage.
pub const SHARED: &str = "shared";

/// The name of the policy that identifies a check. Its cost is the number of the check, and its quota is never reached.
pub const NUMBER: &str = "number";

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub clients: usize,
    pub tenants: u64,
    pub policy: Policy,
    pub rule: OutageRule,
    /// Whether clients merge their checks. Then their limiters have no shadow policy, and more of their callers start at once.
    pub merges: bool,
    /// The mean time between two checks of a client.
    pub pause: Duration,
    /// The drift of the server's clock, in millionths. The crate tolerates 100.
    pub drift: i64,
    /// The largest number of segments in flight of a stream.
    pub capacity: usize,
    pub steps: Vec<(Duration, Step)>,
    /// The end of all faults.
    pub repaired: Duration,
    /// The instant at which all clients stop.
    pub last: Duration,
}

const SECOND: Duration = Duration::from_secs(1);
const REPAIRED: Duration = SECOND.saturating_mul(6);

/// A fault of the connection of a client or of the server, or its end.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// The network drops all messages in both directions.
    Partition(usize),
    /// The network drops the messages of the client.
    PartitionFromClient(usize),
    /// The network drops the messages of the server.
    PartitionToClient(usize),
    /// The partition ends.
    Repair(usize),
    /// The network holds all messages.
    Hold(usize),
    /// The network delivers the held messages.
    Release(usize),
    Slow(usize, Duration),
    RestoreLatency(usize),
    /// The server crashes and closes its connections.
    Crash,
    /// The server crashes without closing its connections. Messages in flight to it are lost.
    CrashSilently,
    Restart {
        loses_data: bool,
    },
    /// The server executes no command for this time, and then all waiting commands.
    Pause(Duration),
    /// The server's clock is set forward or back, in microseconds.
    ShiftClock(i64),
}

impl Plan {
    pub fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let clients = random.between(2..4) as usize;
        let window = random.millis(500..2_001);
        let quota = random.between(20..200) as u32;
        let mut policy = Policy::new(SHARED, quota, window).unwrap();
        if random.one_in(3) {
            policy = policy.with_algorithm(Algorithm::SlidingBuckets { precision: window / 8 }).unwrap();
        }
        let share = Share::among(clients as u32).unwrap();
        let rule = random.one_of(&[
            OutageRule::FailClosed,
            OutageRule::FailOpen,
            OutageRule::LocalFallback(share),
            OutageRule::LocalFallback(share),
        ]);
        let mut steps = Vec::new();
        for client in 0..clients {
            of_link(&mut random.fork(), client, &mut steps);
        }
        of_server(&mut random.fork(), window, &mut steps);
        steps.sort_by_key(|(at, _)| *at);
        Self {
            seed,
            clients,
            tenants: random.between(1..4),
            policy,
            rule,
            merges: seed % 2 == 1,
            pause: random.millis(10..40),
            drift: random.between(0..181) as i64 - 90,
            capacity: random.one_of(&[4_096, 4_096, 16]),
            steps,
            repaired: REPAIRED,
            last: REPAIRED + 4 * SECOND,
        }
    }

    /// Returns the plan of this seed with a token bucket: a quarter of the quota as its capacity, at the rate of the quota.
    pub fn with_token_bucket(seed: u64) -> Self {
        let plan = Self::of(seed);
        let quota = plan.policy.quota().unwrap();
        let rate = Rate::new(quota, plan.policy.window().unwrap());
        Self { policy: Policy::token_bucket(SHARED, quota / 4, rate).unwrap(), ..plan }
    }

    /// Returns the rate of a token bucket.
    pub fn rate(&self) -> Option<Rate> {
        let Algorithm::TokenBucket { rate } = self.policy.algorithm() else { return None };
        Some(rate)
    }

    /// Returns the window, or the time in which the capacity of a token bucket returns, rounded up.
    pub fn window(&self) -> Duration {
        let of_rate = |rate: Rate| {
            let nanos = rate.period().as_nanos() as u64 * u64::from(self.policy.quota().unwrap());
            Duration::from_micros(nanos.div_ceil(1_000 * u64::from(rate.units())))
        };
        self.policy.window().unwrap_or_else(|| self.rate().map_or(Duration::ZERO, of_rate))
    }

    /// Returns the longest wait of a denial. An overage of a token bucket is at most its capacity.
    pub fn longest_wait(&self) -> Duration {
        if self.rate().is_some() { 2 * self.window() } else { self.window() }
    }

    pub fn tenant(number: u64) -> PartitionKey {
        PartitionKey::new("tenant", number.to_string())
    }

    pub fn client(number: usize) -> String {
        format!("client-{number}")
    }
}

/// Returns consecutive time spans before the end of all faults.
fn spans(random: &mut Random, gap: Range<u64>, lengths: &[Range<u64>]) -> Vec<(Duration, Duration)> {
    let (mut spans, mut at) = (Vec::new(), Duration::ZERO);
    loop {
        let begin = at + random.millis(gap.clone());
        let length = random.one_of(lengths);
        let end = begin + random.millis(length);
        if end >= REPAIRED {
            return spans;
        }
        spans.push((begin, end));
        at = end;
    }
}

fn of_link(random: &mut Random, client: usize, steps: &mut Vec<(Duration, Step)>) {
    for (begin, end) in spans(random, 50..1_500, &[10..90, 90..300, 300..1_800]) {
        let latency = random.millis(20..170);
        let (fault, repair) = random.one_of(&[
            (Step::Hold(client), Step::Release(client)),
            (Step::Hold(client), Step::Release(client)),
            (Step::Slow(client, latency), Step::RestoreLatency(client)),
            (Step::Partition(client), Step::Repair(client)),
            (Step::PartitionFromClient(client), Step::Repair(client)),
            (Step::PartitionToClient(client), Step::Repair(client)),
        ]);
        steps.extend([(begin, fault), (end, repair)]);
    }
}

fn of_server(random: &mut Random, window: Duration, steps: &mut Vec<(Duration, Step)>) {
    // In half of the runs the server's clock never jumps.
    let shifts_clock = random.one_in(2);
    for (begin, end) in spans(random, 300..2_000, &[5..100, 100..700]) {
        match random.between(0..4) {
            0 => {
                let loses_data = random.one_in(2);
                let crash = random.one_of(&[Step::Crash, Step::CrashSilently]);
                steps.extend([(begin, crash), (end, Step::Restart { loses_data })]);
            }
            1 if shifts_clock => {
                let window = window.as_micros() as u64;
                let by = random.one_of(&[5_000, 50_000, 400_000, window, 2 * window]);
                let by = random.between(1..by) as i64;
                steps.push((begin, Step::ShiftClock(if random.one_in(2) { by } else { -by })));
            }
            _ => steps.push((begin, Step::Pause(end - begin))),
        }
    }
}
