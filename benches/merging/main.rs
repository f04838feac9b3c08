//! Measures what merged checks gain: checks per second, script calls and server time per check, and latency.
//!
//! ```text
//! cargo bench --bench merging
//! ```
//!
//! The benchmark starts its own Redis server and takes about two minutes. The modes take turns in each round, so that a busy
//! machine affects all of them. A ratio is the median of the ratios within a round. Processor times count only the time in which
//! the server or this process runs, so they are more reliable than the rates on a busy machine.
#![allow(missing_docs, unreachable_pub, dead_code, clippy::unwrap_used, clippy::expect_used)]

#[path = "../../tests/support/delay.rs"]
mod delay;
#[path = "../../tests/support/server.rs"]
mod server;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use delay::DelayProxy;
use server::{Engine, Server};
use tokio::{task::JoinSet, time::sleep};
use tower_sliding_window::{
    Limiter, PartitionKey, Policy, RedisBackend,
    redis::{Merging, RedisServers},
};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(700);
const MODES: [Merging; 3] = [Merging::Off, Merging::On, Merging::Adaptive];
const HOUR: Duration = Duration::from_secs(3600);
/// A quota that no measurement reaches.
const UNREACHED: u32 = 4_000_000_000;
const ONE_KEY: usize = 1;
const MANY_KEYS: usize = 10_000;

/// A closed loop of checks: each of the clients starts its next check when it has the reply.
#[derive(Clone, Copy)]
struct Scenario {
    keys: usize,
    in_flight: usize,
}

/// The figures of one round in one mode.
struct Figures {
    per_second: f64,
    /// Script calls per check.
    calls: f64,
    /// Microseconds per check of the server's processor time, and of this process.
    server_micros: f64,
    process_micros: f64,
    p50: Duration,
    p99: Duration,
}

/// The figures of the server and of this process so far.
#[derive(Clone, Copy)]
struct Totals {
    calls: f64,
    server_micros: f64,
    process_micros: f64,
}

impl Totals {
    fn read(server: &Server) -> Self {
        let info: String = redis::cmd("INFO").arg("everything").query(&mut server.connection()).unwrap();
        let fields = |prefix: &str| -> Vec<f64> {
            let lines = info.lines().filter_map(|line| line.strip_prefix(prefix)?.split_once([':', '=']));
            let numbers = lines.map(|(_, rest)| rest.trim_start_matches("calls=").split(',').next().unwrap());
            numbers.map(|number| number.trim().parse().unwrap()).collect()
        };
        let of_process = std::fs::read_to_string("/proc/self/stat").unwrap();
        let (_, fields_of_process) = of_process.rsplit_once(')').unwrap();
        let ticks = fields_of_process.split_whitespace().skip(11).take(2);
        let ticks: f64 = ticks.map(|ticks| ticks.parse::<f64>().unwrap()).sum();
        let server_seconds = [fields("used_cpu_user"), fields("used_cpu_sys")].map(|times| times[0]);
        Self {
            calls: fields("cmdstat_eval").iter().sum(),
            server_micros: server_seconds.iter().sum::<f64>() * 1e6,
            // A tick is a hundredth of a second.
            process_micros: ticks * 1e4,
        }
    }
}

async fn run(limiter: &Limiter, server: &Server, keys: &Arc<[PartitionKey]>, scenario: Scenario) -> Figures {
    let before = Totals::read(server);
    let stop = Arc::<AtomicBool>::default();
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for client in 0..scenario.in_flight {
        let (limiter, keys, stop) = (limiter.clone(), keys.clone(), stop.clone());
        clients.spawn(async move {
            let (mut times, mut next) = (Vec::new(), client * 7_919);
            while !stop.load(Ordering::Relaxed) {
                let key = keys[next % scenario.keys].clone();
                next += scenario.in_flight;
                let start = Instant::now();
                let _ = limiter.check(key).await.expect("a decision");
                times.push(start.elapsed());
            }
            times
        });
    }
    sleep(ROUND).await;
    stop.store(true, Ordering::Relaxed);
    let mut times: Vec<Duration> = clients.join_all().await.concat();
    let seconds = start.elapsed().as_secs_f64();
    times.sort_unstable();
    let after = Totals::read(server);
    let checks = times.len() as f64;
    Figures {
        per_second: checks / seconds,
        calls: (after.calls - before.calls) / checks,
        server_micros: (after.server_micros - before.server_micros) / checks,
        process_micros: (after.process_micros - before.process_micros) / checks,
        p50: times[times.len() / 2],
        p99: times[times.len() * 99 / 100],
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn limiter(url: &str, merging: Merging) -> Limiter {
    let backend = RedisBackend::builder(RedisServers::single(url)).merging(merging).lazy().unwrap();
    let policy = Policy::new("measured", UNREACHED, HOUR).unwrap();
    let policy = policy.with_algorithm(tower_sliding_window::Algorithm::SlidingBuckets {
        precision: Duration::from_secs(60),
    });
    let builder = Limiter::builder(backend).policy(policy.unwrap()).deadline(Duration::from_secs(10));
    builder.breaker(None).max_checks_in_flight(10_000).build().unwrap()
}

async fn measure(server: &Server, url: &str, keys: &Arc<[PartitionKey]>, scenario: Scenario) -> [f64; 2] {
    let limiters = MODES.map(|mode| limiter(url, mode));
    let mut rounds: Vec<Vec<Figures>> = Vec::new();
    for limiter in &limiters {
        let _ = limiter.check(keys[0].clone()).await.expect("a decision");
    }
    for _ in 0..ROUNDS {
        let mut round = Vec::new();
        for limiter in &limiters {
            round.push(run(limiter, server, keys, scenario).await);
        }
        rounds.push(round);
    }
    for (i, mode) in MODES.iter().enumerate() {
        let of = |figure: fn(&Figures) -> f64| median(rounds.iter().map(|round| figure(&round[i])).collect());
        let to_off = |figure: fn(&Figures) -> f64| {
            median(rounds.iter().map(|round| figure(&round[i]) / figure(&round[0])).collect())
        };
        println!(
            "| {} | {} | {mode:?} | {:.0} | {:.2} | {:.3} | {:.2} | {:.2} | {:.0} | {:.0} | {:.3} |",
            scenario.keys,
            scenario.in_flight,
            of(|figures| figures.per_second),
            to_off(|figures| figures.per_second),
            of(|figures| figures.calls),
            of(|figures| figures.server_micros),
            of(|figures| figures.process_micros),
            of(|figures| figures.p50.as_secs_f64() * 1e6),
            of(|figures| figures.p99.as_secs_f64() * 1e6),
            to_off(|figures| figures.p99.as_secs_f64()),
        );
    }
    let to_off = |figure: fn(&Figures) -> f64| {
        median(rounds.iter().map(|round| figure(&round[2]) / figure(&round[0])).collect())
    };
    [to_off(|figures| figures.per_second), to_off(|figures| figures.p99.as_secs_f64())]
}

#[tokio::main]
async fn main() {
    let server = Server::start(Engine::Redis);
    let keys: Arc<[PartitionKey]> =
        (0..MANY_KEYS).map(|i| PartitionKey::new("user", format!("user {i}"))).collect();
    println!(
        "| keys | in flight | mode | checks per second | to Off | calls per check | server us per check | process us per check | p50 us | p99 us | p99 to Off |"
    );
    println!("|{}", " --- |".repeat(11));
    let url = server.url();
    for in_flight in [1, 2, 4, 8, 16, 64] {
        measure(&server, &url, &keys, Scenario { keys: MANY_KEYS, in_flight }).await;
    }
    let [many, _] = measure(&server, &url, &keys, Scenario { keys: MANY_KEYS, in_flight: 256 }).await;
    let [one, _] = measure(&server, &url, &keys, Scenario { keys: ONE_KEY, in_flight: 256 }).await;
    println!("with 20 ms to the server:");
    let proxy = DelayProxy::before(&server, Duration::from_millis(20)).await;
    let [_, p99] = measure(&server, &proxy.url(), &keys, Scenario { keys: MANY_KEYS, in_flight: 64 }).await;
    println!("| merged against not (adaptive) | measured | must | aim |");
    println!("| --- | --- | --- | --- |");
    println!("| checks per second, 256 in flight, 10,000 keys | {many:.2} x | 1.3 x | 1.8 x |");
    println!("| checks per second, 256 in flight, one key | {one:.2} x | 3 x | 8 x |");
    println!("| p99, 64 in flight, 20 ms to the server | {p99:.3} x | 1.05 x | 1.0 x |");
}
