//! How do eight jobs share the daily quota of an API, so that it rejects none of their requests?
//!
//! The API grants 10,000 units a day, has a clock of its own, and its day begins at midnight in Los Angeles. A search costs 100 units, and
//! a read 1. Eight jobs in eight regions want 25,280 units on this day, and all of them start at the full hour. A bug spends 4,000 of them
//! in ten minutes. The example simulates the day with four ways to limit the jobs, and again with a stranger who uses 30 % of the account.
//!
//! Each way uses the limiter of the crate, on a clock that the simulation moves. The eight processes have one limiter each, and share one
//! memory, which is a model of Redis. What the jobs want is in `demand.rs`, what the API does in `api.rs`, and the policies in `client.rs`.
//!
//! ```text
//! cargo run --example day
//! cargo run --example day -- 7    # another seed: another clock of the API, other instants
//! ```
//!
//! Expected output:
//!
//! ```text
//! The API grants 10000 units a day. Eight jobs want 25280. Its clock is 0.2 s behind theirs.
//!
//! no stranger           gone at  served    share  searches  reads lost  rejected  of a process
//! fixed day in UTC        03:40   10000  100.0 %        72        1480        73            10
//! sliding day             never    8480   84.8 %        32           0         0             0
//! day of the API          23:29   10000  100.0 %        56           0        65             9
//! the same, learning      never    9949   99.4 %        54           0         0             0
//!
//! a stranger uses 30 %  gone at  served    share  searches  reads lost  rejected  of a process
//! fixed day in UTC        03:40    7210  100.0 %        60        1480       209            29
//! sliding day             23:09    7050  100.0 %        32           0       105            14
//! day of the API          18:12    7690  100.0 %        55           0       699            88
//! the same, learning      23:00    7130  100.0 %        42         120         0             0
//!
//! gone at: when the first read finds no unit, in the zone of the API. share: of the units that the stranger leaves.
//! reads lost: of 2,880, those that the limiter has denied. rejected: by the API, with 429; at most so many of a process.
//! ```
//!
//! Type next:
//!
//! ```text
//! cargo run --example day -- chart src/guide/pictures    # draws the picture of the guide
//! ```

mod api;
mod chart;
mod client;
mod demand;
#[path = "../common/frame.rs"]
mod frame;
mod random;
mod report;
mod simulation;
mod time;

use std::{env, error::Error, ffi::OsString, io::Write, path::Path, process::ExitCode};

use client::Plan;
use simulation::{Outcome, World};

const SEED: u64 = 1;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    match run(&arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

async fn run(arguments: &[OsString]) -> Result<(), Box<dyn Error>> {
    let seed = |text: &OsString| text.to_str().and_then(|text| text.parse().ok());
    match arguments {
        [] => print(SEED).await,
        [given] if seed(given).is_some() => print(seed(given).unwrap_or(SEED)).await,
        [command, folder] if command == "chart" => {
            Ok(frame::write(Path::new(folder), "day", chart::draw(&days(SEED).await?))?)
        }
        _ => Err("usage: day [<seed> | chart <folder>]".into()),
    }
}

async fn print(seed: u64) -> Result<(), Box<dyn Error>> {
    let days = days(seed).await?;
    print_text(&report::heading(&days[0].0));
    for (world, outcomes) in &days {
        print_text(&report::table(world, outcomes));
    }
    print_text(report::LEGEND);
    Ok(())
}

/// Simulates the day without and with a stranger.
async fn days(seed: u64) -> Result<Vec<(World, Vec<Outcome>)>, Box<dyn Error>> {
    let mut days = Vec::new();
    for has_stranger in [false, true] {
        let (world, mut outcomes) = (World::new(seed, has_stranger), Vec::new());
        for plan in Plan::ALL {
            outcomes.push(world.run(plan).await?);
        }
        days.push((world, outcomes));
    }
    Ok(days)
}

/// Prints a text. Ignores the error if standard output is closed.
fn print_text(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
