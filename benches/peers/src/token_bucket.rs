//! The token bucket beside a GCRA of another crate, which counts the same way: bytes of a key, and time of the server.

use std::error::Error;

use crate::{
    Context,
    bytes::grown,
    comparison::{Entry, Figure, Role, ratio, ratio_text},
    drive::{InFlight, Load},
    limit::{Limit, LimitType, Verdict},
    report::Report,
    runtime,
    server::Server,
    server_figures::{flush, micros_of_script, reset_stats},
    services::visit,
    subject::Subject,
    table::{Rounds, keys, markdown, number, whole},
};

const SUBJECTS: [Subject; 2] = [Subject::RedisTokenBucketUnmerged, Subject::TowerRateLimitRedis];

/// Measures both subjects, each in turn in each round.
pub fn measure(context: &Context, report: &mut Report) -> Result<(), Box<dyn Error>> {
    report.section(
        "Token bucket and GCRA on Redis",
        "Both count the same way, with the same capacity and rate. Each check is a call of its own, and every denial asks Redis. The time \
         of a call is that of EVALSHA in INFO commandstats: 20,000 requests, 16 in flight. A round is the median of three runs.",
    );
    let mut rows = Vec::new();
    for verdict in Verdict::BOTH {
        for number_of_keys in [1, 10_000] {
            let mut times = SUBJECTS.map(|_| Rounds::default());
            for _ in 0..context.rounds {
                // A run is short, and another load of the machine lasts longer than one.
                let mut runs = SUBJECTS.map(|_| Rounds::default());
                for _ in 0..3 {
                    for (subject, runs) in SUBJECTS.into_iter().zip(&mut runs) {
                        runs.0.push(script_micros(&context.server, subject, verdict, number_of_keys)?);
                    }
                }
                times.iter_mut().zip(runs).for_each(|(times, runs)| times.0.push(runs.median()));
            }
            let [ours, theirs] = &times;
            let cell = format!("{}, {}", verdict.name(), keys(number_of_keys));
            rows.push(vec![
                format!("time of a call, us; {cell}"),
                ours.with_spread(),
                theirs.with_spread(),
                ratio_text(ratio(ours, theirs)),
            ]);
            // This is not the crate with its defaults, but the same work as that of the other.
            let ours = Entry { role: Role::Ours(LimitType::TokenBucket), ..SUBJECTS[0].entry(ours.clone()) };
            let cell = format!("Redis, token bucket not merged, {cell}");
            report.compare(Figure::CallTime, &cell, &[ours, SUBJECTS[1].entry(theirs.clone())]);
        }
    }
    let [ours, theirs] = [grown(&context.server, SUBJECTS[0], 1)?, grown(&context.server, SUBJECTS[1], 1)?];
    rows.push(vec![
        "bytes of a key".to_owned(),
        whole(ours),
        whole(theirs),
        format!("{} x", number(ours / theirs)),
    ]);
    let heading = ["figure", SUBJECTS[0].name(), SUBJECTS[1].name(), "ratio"];
    report.text(&markdown(&heading, &rows));
    Ok(())
}

/// Returns the time of a script call, in microseconds.
fn script_micros(
    server: &Server,
    subject: Subject,
    verdict: Verdict,
    keys: usize,
) -> Result<f64, Box<dyn Error>> {
    flush(server)?;
    let denies = verdict == Verdict::Denied;
    let (clients, requests) = (16, 20_000 / 16);
    let load = Load {
        limit: Limit { policies: 1, denies },
        requests,
        made: requests,
        clients,
        keys,
        // An admission, and the first denial.
        warm_up: if denies { 2 } else { 0 },
    };
    let runtime = runtime(1)?;
    let phases = runtime.block_on(visit(subject, load.limit, &server.url(), InFlight(load)))?;
    runtime.block_on(phases.warm_up);
    reset_stats(server)?;
    runtime.block_on(phases.measured);
    micros_of_script(server)
}
