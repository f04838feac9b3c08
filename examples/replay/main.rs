//! Whom would a limit have denied yesterday? Replays an access log against policies
//!
//! The example decides each line of the log with the limiter of the crate, on a clock that has the time of the line. A denied request
//! charges nothing, as in a service. Logs have the common or the combined format, or lines of JSON.
//!
//! ```text
//! cargo run --example replay -- examples/replay/policies.toml examples/replay/access.log --smallest-quota 1%
//! zcat access.log.*.gz | cargo run --release --example replay -- policies.toml -
//! ```
//!
//! Expected output:
//!
//! ```text
//! 166 requests by 5 keys of address, 2026-03-02T09:00:00Z to 2026-03-02T09:09:45Z
//! 1 line skipped
//!   line 41: request "\u{16}\u{3}\u{1}": it must be a method, a path and a protocol
//!
//! policy     limit         denied   share  keys  longest wait
//! burst      20 in 10 s         2  1.20 %     1       6.000 s
//! sustained  100 in 5 min       6  3.61 %     1      81.000 s
//! together                      8  4.82 %     2      81.000 s
//!
//! denied most   denied  of                 first                  last  longest wait  policies
//! 198.51.100.4       6  26  2026-03-02T09:07:40Z  2026-03-02T09:08:37Z      81.000 s  sustained
//! 203.0.113.7        2  45  2026-03-02T09:03:04Z  2026-03-02T09:03:04Z       6.000 s  burst
//!
//! highest use of a key, if no request was denied
//! burst       22  of 20 in 10 s    203.0.113.7
//!             10                   198.51.100.4
//!              5                   192.0.2.10
//!              1                   198.51.100.23
//! sustained  130  of 100 in 5 min  198.51.100.4
//!             90                   198.51.100.23
//!             45                   203.0.113.7
//!             40                   192.0.2.10
//!
//! smallest quota of each policy alone that denies at most 1 % (1 of 166 requests)
//! burst      21 in 10 s    denies 1  0.60 %
//! sustained  125 in 5 min  denies 1  0.60 %
//! together, these quotas deny 2 requests (1.20 %)
//! ```
//!
//! Type next:
//!
//! ```text
//! cargo run --example replay -- examples/replay/policies.toml examples/replay/access.log --denials -
//! cargo run --example replay -- --help
//! ```

mod arguments;
mod costs;
mod demand;
mod denials;
mod log;
mod order;
mod plan;
mod progress;
mod quota;
mod replay;
mod report;
mod requests;
mod service;
mod share;
mod table;
mod tally;

use std::{
    env,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use arguments::Arguments;
use denials::Denials;
use log::Lines;
use plan::Plan;
use replay::Replay;

fn main() -> ExitCode {
    match arguments::read(env::args_os().skip(1)).and_then(|arguments| arguments.map(run).transpose()) {
        Ok(summary) => {
            // Ignores the error if the output is closed.
            let _ = match summary {
                Some(Summary { text, is_second: true }) => write!(io::stderr(), "{text}"),
                Some(Summary { text, is_second: false }) => write!(io::stdout(), "{text}"),
                None => write!(io::stdout(), "{}", arguments::USAGE),
            };
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

struct Summary {
    text: String,
    /// Whether standard output has the list of denials.
    is_second: bool,
}

fn run(arguments: Arguments) -> Result<Summary, String> {
    let Arguments { policies, log, smallest_quota, denials, reorder, top } = arguments;
    let plan = Plan::read(&policies)?;
    let is_second = denials.as_deref() == Some(Path::new("-"));
    let lines = Lines::open(&log)?;
    let denials = denials.map(|path| Denials::create(&path)).transpose()?;
    let invalid = |error: tower_sliding_window::ConfigError| format!("{}: {error}", policies.display());
    let mut replay = Replay::new(&plan, reorder, denials, smallest_quota.is_some()).map_err(invalid)?;
    replay.run(lines)?;
    let requests = replay.tally.requests;
    if requests == 0 {
        let first = replay.skipped.first.iter().chain(&replay.without_key.first).next();
        let reason = first.map_or(String::new(), |(line, reason)| format!("; line {line}: {reason}"));
        return Err(format!("{}: no request to replay{reason}", log.display()));
    }
    let mut text = report::report(&replay, &plan, top);
    if let Some(share) = smallest_quota {
        let allowed = share.of(replay.kept.len());
        let found = quota::search(&replay.kept, &replay.names, &plan.policies, &replay.demand, allowed);
        text += &report::quotas(&found.map_err(invalid)?, &plan, share, requests);
    }
    Ok(Summary { text, is_second })
}
