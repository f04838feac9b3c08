//! A worked example: a million keys and a thousand million decisions a day, run at one hundredth.

use std::{
    slice,
    time::{Duration, Instant},
};

use tokio::{task::JoinSet, time::sleep_until};
use tower_sliding_window::{Algorithm, redis::Merging};

use crate::{
    load::{self, HOUR},
    server::{Engine, Server},
};

const KEYS: u64 = 1_000_000 / 100;
const PER_SECOND: f64 = 1e9 / 86_400.0 / 100.0;
const MEASURED: Duration = Duration::from_secs(60);
/// Every key has made so many requests in the last hour: a thousand million a day, over a million keys, is 42 an hour.
const CHARGES: u64 = 42;

/// Prints the share of a core and the memory.
pub async fn print() {
    println!(
        "Example: a million keys, a thousand million decisions a day; two policies, 100 per minute and 1,000 per hour.\n\
         Run at one hundredth: {KEYS} keys with {CHARGES} charges each, {PER_SECOND:.0} checks per second for {} s\n",
        MEASURED.as_secs()
    );
    let server = Server::start(Engine::Redis);
    let memory = |server: &Server| -> f64 {
        let info: String = redis::cmd("INFO").arg("memory").query(&mut server.connection()).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
        line.trim().parse().unwrap()
    };
    let empty = memory(&server);
    let minute = Duration::from_secs(60);
    let policies = [
        load::policy("minute", 100, minute, Algorithm::SlidingLog),
        load::policy("hour", 1_000, HOUR, Algorithm::SlidingBuckets { precision: minute }),
    ];
    let limiter = load::limiter(&server, policies, Merging::Adaptive);
    let busy_server = load::run(&server, slice::from_ref(&limiter), KEYS, 1, KEYS * CHARGES, 64).await;
    let bytes = memory(&server) - empty;

    let before = processor_seconds(&server);
    let start = Instant::now();
    let mut checks = JoinSet::new();
    let mut times = Vec::new();
    let count = (PER_SECOND * MEASURED.as_secs_f64()) as u64;
    for i in 0..count {
        sleep_until((start + Duration::from_secs_f64(i as f64 / PER_SECOND)).into()).await;
        let limiter = limiter.clone();
        checks.spawn(async move {
            let start = Instant::now();
            let _ = limiter.check(load::key(i * 7_919 % KEYS)).await.expect("a decision");
            start.elapsed()
        });
        while let Some(time) = checks.try_join_next() {
            times.push(time.unwrap());
        }
    }
    times.extend(checks.join_all().await);
    times.sort_unstable();
    let busy = (processor_seconds(&server) - before) / start.elapsed().as_secs_f64();
    println!("| figure | at one hundredth | whole |");
    println!("| --- | --- | --- |");
    // An idle server wakes up for each check. A busy one reads many at once, so the whole rate costs less than a hundred times.
    let whole = PER_SECOND * 100.0 * busy_server.server_micros / 1e6;
    println!(
        "| share of one core | {:.2} % | {:.0} %, by the time of a busy server |",
        busy * 100.0,
        whole * 100.0
    );
    println!("| memory of Redis above an empty server | {:.1} MB | {:.2} GB |", bytes / 1e6, bytes / 1e7);
    println!(
        "| p50 and p99 of a check | {:.0} us, {:.0} us | |\n",
        times[times.len() / 2].as_secs_f64() * 1e6,
        times[times.len() * 99 / 100].as_secs_f64() * 1e6
    );
}

fn processor_seconds(server: &Server) -> f64 {
    let info: String = redis::cmd("INFO").arg("cpu").query(&mut server.connection()).unwrap();
    let seconds = |name: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse().unwrap()
    };
    seconds("used_cpu_user:") + seconds("used_cpu_sys:")
}
