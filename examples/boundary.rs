//! What happens at the boundary of a window, for each algorithm?
//!
//! In memory, the example moves a manual clock. On Redis, it waits for the next edge by the clock of Redis, for at most
//! twelve seconds.
//!
//! ```text
//! cargo run --example boundary
//! REDIS_URL=redis://127.0.0.1:6379/ cargo run --example boundary
//! ```
//!
//! Expected output:
//!
//! ```text
//! 50 units in 10 s, in memory, on a manual clock. A burst of 50 requests just before the edge of a
//! calendar window, and another one just after it.
//!
//!                   -0.7 s                      edge   +0.3 s  before  after  most in 10 s
//! sliding log       ....######..................|.xxxxxxx....      50      0            50
//! sliding buckets   ....######..................|.xxxxxxx....      50      0            50
//! sliding counter   ....######..................|.xxxxxxx....      50      0            50
//! fixed window      ....######..................|.#######....      50     50           100
//!
//!   # admitted   x denied   + both
//!
//! The fixed window has admitted 100 requests within 0.78 s. Its quota is 50 in 10 s.
//! ```
//!
//! Type next:
//!
//! ```text
//! cargo run --example playground    # the same in a browser, with your own requests
//! ```

#[path = "common/exit.rs"]
mod exit;
#[path = "common/redis.rs"]
mod redis;

use std::{
    error::Error,
    io::Write,
    process::ExitCode,
    time::{Duration, Instant, SystemTime},
};

use exit::exit;
use redis::redis;
use tokio::time::sleep;
use tower_sliding_window::{
    Algorithm, Limiter, MemoryBackend, PartitionKey, Policy, RedisBackend, backend::Backend,
    testing::ManualClock,
};

const QUOTA: u32 = 50;
const WINDOW: Duration = Duration::from_secs(10);

/// The start of each burst, in microseconds from the edge.
///
/// The sliding counter lets the last window expire evenly. The second burst ends before the counter would admit a request.
const BURSTS: [i64; 2] = [-600_000, 30_000];
/// The interval between two requests of a burst, in microseconds.
const INTERVAL: i64 = 3_000;

/// The range of the timeline, in microseconds from the edge.
const SHOWN: std::ops::Range<i64> = -700_000..300_000;
/// The time that a character of the timeline covers, in microseconds.
const CHARACTER: i64 = 25_000;

/// A limiter of one algorithm, and its decisions.
struct Lane {
    name: &'static str,
    limiter: Limiter,
    /// The time of each request in microseconds from the edge, and whether the limiter admitted it.
    decisions: Vec<(i64, bool)>,
}

/// The clock of the backend.
enum Clock {
    Moved(ManualClock),
    /// The clock of Redis, which the example read at a local instant.
    Real {
        micros: u64,
        read: Instant,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    exit(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    match redis().await? {
        Some(backend) => on_redis(backend).await,
        None => in_memory().await,
    }
}

async fn in_memory() -> Result<(), Box<dyn Error>> {
    let clock = ManualClock::new();
    let lanes = lanes(&MemoryBackend::new().with_clock(&clock), "boundary")?;
    show(Clock::Moved(clock), lanes, "in memory, on a manual clock").await
}

async fn on_redis(backend: RedisBackend) -> Result<(), Box<dyn Error>> {
    // A new namespace allows an immediate second run.
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let namespace = format!("boundary-{}-{}", since_epoch.as_micros(), std::process::id());
    let lanes = lanes(&backend, &namespace)?;
    // A check with a cost of 0 returns the time of Redis.
    let before = Instant::now();
    let micros = lanes[0].limiter.check((user(), 0)).await?.at_micros();
    let clock = Clock::Real { micros, read: before + before.elapsed() / 2 };
    show(clock, lanes, "on Redis, by its own clock").await
}

fn lanes(backend: &(impl Backend + Clone), namespace: &str) -> Result<Vec<Lane>, Box<dyn Error>> {
    let algorithms = [
        ("sliding log", Algorithm::SlidingLog),
        ("sliding buckets", Algorithm::SlidingBuckets { precision: Duration::from_secs(1) }),
        ("sliding counter", Algorithm::SlidingCounter),
        ("fixed window", Algorithm::FixedWindow),
    ];
    let lane = |(name, algorithm)| {
        let limiter = Limiter::builder(backend.clone())
            .policy(Policy::new(name, QUOTA, WINDOW)?.with_algorithm(algorithm)?)
            .namespace(namespace)
            .deadline(Duration::from_secs(1))
            .build()?;
        Ok(Lane { name, limiter, decisions: Vec::new() })
    };
    algorithms.into_iter().map(lane).collect()
}

fn user() -> PartitionKey {
    PartitionKey::new("user", "alice")
}

async fn show(clock: Clock, mut lanes: Vec<Lane>, place: &str) -> Result<(), Box<dyn Error>> {
    let edge = clock.next_edge();
    print_text(&format!(
        "{QUOTA} units in {} s, {place}. A burst of {QUOTA} requests just before the edge of a\n\
         calendar window, and another one just after it.\n",
        WINDOW.as_secs()
    ));
    if let Clock::Real { .. } = clock {
        let wait = Duration::from_micros(edge - clock.now_micros());
        print_text(&format!("The edge is in {:.1} s.\n", wait.as_secs_f64()));
    }
    for begin in BURSTS {
        for request in 0..i64::from(QUOTA) {
            clock.reach(edge.saturating_add_signed(begin + request * INTERVAL)).await;
            for lane in &mut lanes {
                let decision = lane.limiter.check(user()).await?;
                let at = decision.at_micros().cast_signed() - edge.cast_signed();
                lane.decisions.push((at, decision.is_admitted()));
            }
        }
    }
    // On a slow machine, a burst can miss the edge. The result would then be invalid.
    let hit = |lane: &Lane| {
        let (before, after) = lane.decisions.split_at(QUOTA as usize);
        before.iter().all(|(at, _)| (SHOWN.start..0).contains(at))
            && after.iter().all(|(at, _)| (0..SHOWN.end).contains(at))
    };
    if !lanes.iter().all(hit) {
        return Err("the machine was too slow to hit the edge of the window; please try again".into());
    }
    print_text(&table(&lanes));
    Ok(())
}

fn table(lanes: &[Lane]) -> String {
    let characters = |range: std::ops::Range<i64>| ((range.end - range.start) / CHARACTER) as usize;
    let (before, after) = (characters(SHOWN.start..0), characters(0..SHOWN.end));
    let mut text = format!(
        "{:18}{:<before$}edge{:>after$}  before  after  most in {} s\n",
        "",
        format!("{:.1} s", SHOWN.start as f64 / 1e6),
        format!("+{:.1} s", SHOWN.end as f64 / 1e6),
        WINDOW.as_secs(),
        after = after - 3,
    );
    for lane in lanes {
        let (first, second) = (lane.admitted(i64::MIN..0), lane.admitted(0..i64::MAX));
        text += &format!(
            "{:18}{}|{}  {first:>6}  {second:>5}  {:>12}\n",
            lane.name,
            lane.line(SHOWN.start..0),
            lane.line(0..SHOWN.end),
            lane.most_in_a_window()
        );
    }
    text += "\n  # admitted   x denied   + both\n";
    for lane in lanes.iter().filter(|lane| lane.most_in_a_window() > QUOTA as usize) {
        let admitted = || lane.decisions.iter().filter(|(_, admitted)| *admitted).map(|(at, _)| *at);
        let (first, last) = (admitted().min().unwrap_or_default(), admitted().max().unwrap_or_default());
        text += &format!(
            "\nThe {} has admitted {} requests within {:.2} s. Its quota is {QUOTA} in {} s.\n",
            lane.name,
            admitted().count(),
            (last - first) as f64 / 1e6,
            WINDOW.as_secs()
        );
    }
    text
}

impl Lane {
    fn admitted(&self, range: std::ops::Range<i64>) -> usize {
        self.decisions.iter().filter(|(at, admitted)| *admitted && range.contains(at)).count()
    }

    /// Returns the largest number of admitted requests in any interval as long as the window.
    fn most_in_a_window(&self) -> usize {
        let window = WINDOW.as_micros() as i64;
        self.decisions.iter().map(|(at, _)| self.admitted(*at..at + window)).max().unwrap_or_default()
    }

    fn line(&self, range: std::ops::Range<i64>) -> String {
        let character = |begin: i64| {
            let within = begin..begin + CHARACTER;
            let decided: Vec<bool> = self
                .decisions
                .iter()
                .filter(|(at, _)| within.contains(at))
                .map(|(_, admitted)| *admitted)
                .collect();
            match (decided.contains(&true), decided.contains(&false)) {
                (true, true) => '+',
                (true, false) => '#',
                (false, true) => 'x',
                (false, false) => '.',
            }
        };
        range.step_by(CHARACTER as usize).map(character).collect()
    }
}

impl Clock {
    fn now_micros(&self) -> u64 {
        match self {
            Self::Moved(clock) => clock.now_micros(),
            Self::Real { micros, read } => micros + read.elapsed().as_micros() as u64,
        }
    }

    /// Returns the next edge of a calendar window that leaves time for a burst before it.
    fn next_edge(&self) -> u64 {
        let window = WINDOW.as_micros() as u64;
        (self.now_micros() + SHOWN.start.unsigned_abs()).div_ceil(window) * window
    }

    /// Waits until this time, or moves the clock to it.
    async fn reach(&self, micros: u64) {
        match self {
            Self::Moved(clock) => clock.set_micros(micros),
            Self::Real { .. } => {
                sleep(Duration::from_micros(micros.saturating_sub(self.now_micros()))).await;
            }
        }
    }
}

/// Prints a text. Ignores the error if standard output is closed.
fn print_text(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
