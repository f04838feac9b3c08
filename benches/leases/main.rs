//! Measures leased units against the same checks without leases: one hot key that several processes share.
//!
//! ```text
//! cargo bench --bench leases
//! ```
//!
//! The benchmark starts its own Redis server and its own processes, and takes about four minutes. All processes are on one machine, so
//! they read the clock of the server.
#![allow(missing_docs, unreachable_pub, dead_code, clippy::unwrap_used, clippy::expect_used)]

mod grants;
mod process;
#[path = "../../tests/support/server.rs"]
mod server;

use std::time::Duration;

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

fn main() {
    if process::is_child() {
        return process::child();
    }
    let server = Server::start(Engine::Redis);
    throughput(&server);
    shared_quota(&server);
}

/// Prints admissions per second and the time of the server for one hot key whose quota is not reached.
fn throughput(server: &Server) {
    let load =
        Load { processes: 2, in_flight: 64, per_second: 0, quota: 10_000_000, duration: CLOSED, up_to: 0 };
    let mut ratios: Vec<[f64; 2]> = Vec::new();
    println!("one hot key, two processes, 64 in flight each");
    println!(
        "{:>12} {:>16} {:>22} {:>16}",
        "", "admitted per s", "server us per admitted", "granted locally"
    );
    for _ in 0..ROUNDS {
        let [plain, leased] = [0, 10_000].map(|up_to| {
            let run = Run::start(server, &Load { up_to, ..load.clone() });
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
    let load = Load { processes: 4, in_flight: 0, per_second: 1_000, quota: QUOTA, duration: OPEN, up_to: 0 };
    println!("four processes, quota {QUOTA} per s, precision 10 ms, {} s", OPEN.as_secs());
    println!(
        "{:>24} {:>10} {:>24} {:>16} {:>10} {:>10} {:>10} {:>10}",
        "", "admitted", "most in a window (bound)", "granted locally", "leased", "returned", "lost", "calls"
    );
    let run = |name: &str, up_to: u32, per_second: u64| {
        let run = Run::start(server, &Load { up_to, per_second, ..load.clone() });
        let most = Grants::new(&run.grants).most_in_window(SECOND);
        println!(
            "{name:>24} {:>10} {:>17} ({:>4}) {:>15.1}% {:>10} {:>10} {:>10} {:>10}",
            run.admitted,
            most.estimated,
            most.certain,
            run.local_percent(),
            run.leased,
            run.returned,
            run.lost,
            run.calls
        );
        (run.admitted as f64, most.certain, run.local_percent())
    };
    let (plain, ..) = run("1,000 per s, not leased", 0, 1_000);
    let (leased, most, _) = run("1,000 per s, leased", 50, 1_000);
    let (.., most_at_half, local) = run("250 per s, leased", 50, 250);
    let over = most.max(most_at_half).saturating_sub(QUOTA as usize);
    println!("over the quota in any window: {over} (must 0)");
    println!("admitted against not leased: {:.3} x (must 0.97 x, aim 0.99 x)", leased / plain);
    println!("granted locally at half load: {local:.1} % (must 70 %, aim 90 %)");
}
