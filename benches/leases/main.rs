//! Measures leased units against the same checks without leases: one hot key that several processes share.
//!
//! ```text
//! cargo bench --bench leases
//! cargo bench --bench leases -- regions
//! ```
//!
//! The benchmark starts its own Redis server and its own processes, and takes about five minutes. All processes are on one machine, so
//! they read the clock of the server. With `regions`, it measures only three processes that are far from Redis, in four minutes.
#![allow(missing_docs, unreachable_pub, dead_code, clippy::unwrap_used, clippy::expect_used)]

#[path = "../../tests/support/delay.rs"]
mod delay;
mod grants;
mod process;
#[path = "../../tests/support/server.rs"]
mod server;

use std::time::Duration;

use delay::DelayProxy;
use grants::Grants;
use process::{Load, Run};
use server::{Engine, Server};

const SECOND: Duration = Duration::from_secs(1);
/// How long a closed loop asks.
const CLOSED: Duration = Duration::from_secs(5);
const ROUNDS: usize = 3;
/// How long an open loop asks.
const OPEN: Duration = Duration::from_secs(60);
const QUOTA: u32 = 500;
const PRECISION: Duration = Duration::from_millis(10);
/// At half load, a process then sees 6 requests in a bucket.
const LONG_PRECISION: Duration = Duration::from_millis(100);
/// The number of processes that share the quota.
const PROCESSES: u64 = 4;

fn main() {
    if process::is_child() {
        return process::child();
    }
    let server = Server::start(Engine::Redis);
    if std::env::args().any(|argument| argument == "regions") {
        return regions(&server);
    }
    throughput(&server);
    shared_quota(&server);
}

/// Prints admissions per second and the time of the server for one hot key whose quota is not reached.
fn throughput(server: &Server) {
    let load = Load {
        processes: 2,
        in_flight: 64,
        per_second: 0,
        quota: 10_000_000,
        window: SECOND,
        precision: PRECISION,
        duration: CLOSED,
        up_to: 0,
        is_ahead: false,
    };
    let mut ratios: Vec<[f64; 2]> = Vec::new();
    println!("one hot key, two processes, 64 in flight each");
    println!(
        "{:>12} {:>16} {:>22} {:>16}",
        "", "admitted per s", "server us per admitted", "granted locally"
    );
    for _ in 0..ROUNDS {
        let [plain, leased] = [0, 10_000].map(|up_to| {
            let run = Run::start(server, &server.url(), &Load { up_to, ..load.clone() });
            let name = if up_to == 0 { "not leased" } else { "leased" };
            let rate = run.admitted as f64 / CLOSED.as_secs_f64();
            let micros = run.server_micros / run.admitted as f64;
            println!("{name:>12} {rate:>16.0} {micros:>22.4} {:>15.1}%", run.local_percent());
            [rate, micros]
        });
        ratios.push([leased[0] / plain[0], leased[1] / plain[1]]);
    }
    let median = |i: usize| {
        let mut all: Vec<f64> = ratios.iter().map(|ratio| ratio[i]).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    println!("admitted per second, leased against not: {:.1} x (must 10 x, aim 50 x)", median(0));
    println!("server us per admission: {:.4} x (must 0.1 x, aim 0.02 x)\n", median(1));
}

/// Prints admissions and violations of a quota that four processes share.
fn shared_quota(server: &Server) {
    let load = Load {
        processes: PROCESSES,
        in_flight: 0,
        per_second: 1_000,
        quota: QUOTA,
        window: SECOND,
        precision: PRECISION,
        duration: OPEN,
        up_to: 0,
        is_ahead: false,
    };
    println!(
        "{PROCESSES} processes, quota {QUOTA} per s, precision 10 ms unless stated, {} s",
        OPEN.as_secs()
    );
    println!(
        "{:>26} {:>10} {:>24} {:>16} {:>10} {:>10} {:>10} {:>10}",
        "", "admitted", "most in a window (bound)", "granted locally", "leased", "returned", "lost", "calls"
    );
    let run = |name: &str, up_to: u32, per_second: u64, precision: Duration| {
        let load = Load { up_to, per_second, precision, ..load.clone() };
        let run = Run::start(server, &server.url(), &load);
        let most = Grants::new(&run.grants).most_in_window(SECOND);
        println!(
            "{name:>26} {:>10} {:>17} ({:>4}) {:>15.1}% {:>10} {:>10} {:>10} {:>10}",
            run.admitted,
            most.estimated,
            most.certain,
            run.local_percent(),
            run.leased,
            run.returned,
            run.lost,
            run.calls
        );
        (run.admitted as f64, most.certain, run.local_percent(), run.calls as f64 / run.admitted as f64)
    };
    let (plain, ..) = run("1,000 per s, not leased", 0, 1_000, PRECISION);
    let (leased, most, ..) = run("1,000 per s, leased", 50, 1_000, PRECISION);
    let half = [("250 per s, leased", PRECISION), ("250 per s, leased, 100 ms", LONG_PRECISION)]
        .map(|(name, precision)| (precision, run(name, 50, 250, precision)));
    let most_of_all = half.iter().map(|(_, (_, most, ..))| *most).fold(most, usize::max);
    let over = most_of_all.saturating_sub(QUOTA as usize);
    println!("over the quota in any window: {over} (must 0)");
    println!("admitted against not leased: {:.3} x (must 0.97 x, aim 0.99 x)", leased / plain);
    for (precision, (.., local, calls)) in half {
        // A lease ends with its bucket, and comes with the reply to a check. So the first request in a bucket needs a call, whatever the
        // size of a lease. The requests in a bucket are Poisson distributed.
        let in_bucket = 250.0 / PROCESSES as f64 * precision.as_secs_f64();
        let bound = 100.0 * (1.0 - (1.0 - (-in_bucket).exp()) / in_bucket);
        println!(
            "granted locally at half load, precision {} ms: {local:.1} % of at most {bound:.1} % (must 70 %, aim 90 %); \
             {calls:.2} calls per admission",
            precision.as_millis()
        );
    }
}

/// Prints the checks that wait for no round trip, if three processes are 80 ms away from one Redis.
fn regions(server: &Server) {
    const QUOTA: u32 = 1_200;
    const DELAY: Duration = Duration::from_millis(80);
    const FAR: Duration = Duration::from_secs(40);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let proxy = runtime.block_on(DelayProxy::before(server, DELAY));
    let load = Load {
        processes: 3,
        in_flight: 0,
        per_second: 0,
        quota: QUOTA,
        window: 10 * SECOND,
        precision: SECOND,
        duration: FAR,
        up_to: 100,
        is_ahead: false,
    };
    println!("3 processes, {DELAY:?} away, quota {QUOTA} per 10 s, precision 1 s, {} s", FAR.as_secs());
    println!(
        "{:>14} {:>14} {:>16} {:>16} {:>18} {:>26}",
        "demand / quota",
        "leases",
        "below 1 ms",
        "granted locally",
        "calls / admission",
        "over the quota in a window"
    );
    for (demand, per_second) in [("1/4", 30), ("1/2", 60)] {
        for (leases, up_to, is_ahead) in
            [("none", 0, false), ("when needed", 100, false), ("ahead", 100, true)]
        {
            let load = Load { per_second, up_to, is_ahead, ..load.clone() };
            let run = Run::start(server, &proxy.url(), &load);
            let most = Grants::new(&run.grants).most_in_window(load.window);
            println!(
                "{demand:>14} {leases:>14} {:>14.1} % {:>14.1} % {:>18.2} {:>26}",
                run.fast_percent(),
                run.local_percent(),
                run.calls as f64 / run.admitted as f64,
                most.certain.saturating_sub(QUOTA as usize)
            );
        }
    }
}
