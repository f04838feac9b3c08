//! The layers on Redis: decisions per second, latency, and what they cost the server.

use std::{error::Error, time::Duration};

use crate::{
    Context,
    chart::{Bar, Chart},
    comparison::Figure,
    drive::{InFlight, Load},
    limit::{Limit, Verdict},
    report::Report,
    runtime,
    server::Server,
    server_figures::{Start, flush},
    services::visit,
    subject::Subject,
    table::{Rounds, keys, markdown, number, policies, threads, whole},
};

/// The conditions of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    policies: usize,
    threads: usize,
    in_flight: usize,
    keys: usize,
}

/// The cell of the charts, in which the types of limits are shown side by side.
const MAIN: Cell = Cell { policies: 1, threads: 2, in_flight: 64, keys: 10_000 };

/// What one subject has taken in the rounds of a cell.
#[derive(Clone, Debug, Default)]
struct Figures {
    /// Decisions per second.
    rate: Rounds,
    /// Microseconds.
    p50: Rounds,
    p99: Rounds,
    p999: Rounds,
    /// Microseconds of CPU time, and commands, for each decision.
    server: Rounds,
    commands: Rounds,
}

type Measured = (Subject, Verdict, Figures);

/// Measures the layers on Redis.
pub fn measure(context: &Context, report: &mut Report) -> Result<(), Box<dyn Error>> {
    report.section(
        "Layers on Redis",
        "Decisions per second; microseconds of latency; microseconds of CPU time of the server, and commands that the client sends, for \
         each decision. All figures are those of the measured requests only. These are 20,000 requests, with one in flight 2,000; with three policies half as many.\n\n\
         Before the measured denials, each key has been denied once. A denial that the deny cache answers sends no command. The first \
         denial of a key always asks Redis: its cost is that of the row without the deny cache.",
    );
    let mut tables = Vec::new();
    let mut charts = Vec::new();
    for (policies, in_flight) in [(1, &[1, 16, 64, 256, 1_024][..]), (3, &[1, 64, 256])] {
        for threads in [1, 2] {
            let mut rows = Vec::new();
            for &in_flight in in_flight {
                for keys in [1, 10_000] {
                    let cell = Cell { policies, threads, in_flight, keys };
                    let measured = rounds(&context.server, context.rounds, cell)?;
                    rows.extend(
                        measured
                            .iter()
                            .map(|(subject, verdict, figures)| row(cell, *subject, *verdict, figures)),
                    );
                    for verdict in Verdict::BOTH {
                        let of_verdict = measured.iter().filter(|(_, measured, _)| *measured == verdict);
                        let all: Vec<_> =
                            of_verdict.map(|(subject, _, figures)| (*subject, figures)).collect();
                        compare(cell, verdict, &all, report);
                        if cell == MAIN {
                            charts.push(chart(verdict, &all));
                        }
                    }
                }
            }
            tables.push((cell_heading(policies, threads), rows));
        }
    }
    charts.into_iter().for_each(|chart| report.chart(chart));
    let heading = [
        "in flight",
        "keys",
        "verdict",
        "subject",
        "decisions/s",
        "p50; p99; p99.9",
        "server us",
        "commands",
    ];
    for (title, rows) in tables {
        report.text(&format!("\n### {title}\n\n{}", markdown(&heading, &rows)));
    }
    Ok(())
}

fn cell_heading(number_of_policies: usize, number_of_threads: usize) -> String {
    format!("{}, {} of the client", policies(number_of_policies), threads(number_of_threads))
}

/// Measures every subject once in each round, the reference first.
fn rounds(server: &Server, rounds: usize, cell: Cell) -> Result<Vec<Measured>, Box<dyn Error>> {
    let mut measured = vec![(Subject::Script, Verdict::Admitted, Figures::default())];
    for verdict in Verdict::BOTH {
        // An admission does not depend on the deny cache.
        let is_measured = |subject: &Subject| verdict == Verdict::Denied || !subject.is_without_deny_cache();
        let subjects = Subject::ON_REDIS.into_iter().filter(is_measured);
        measured.extend(subjects.map(|subject| (subject, verdict, Figures::default())));
    }
    for _ in 0..rounds {
        for (subject, verdict, figures) in &mut measured {
            round(server, cell, *subject, *verdict, figures)?;
        }
    }
    Ok(measured)
}

fn round(
    server: &Server,
    cell: Cell,
    subject: Subject,
    verdict: Verdict,
    figures: &mut Figures,
) -> Result<(), Box<dyn Error>> {
    flush(server)?;
    let denies = verdict == Verdict::Denied;
    let all_requests = if cell.in_flight == 1 { 2_000 } else { 20_000 };
    // Layers that are nested three times are slow.
    let requests = if cell.policies == 1 { all_requests } else { all_requests / 2 } / cell.in_flight;
    let load = Load {
        limit: Limit { policies: cell.policies, denies },
        requests,
        made: requests,
        clients: cell.in_flight,
        keys: cell.keys,
        // An admission, and the first denial.
        warm_up: if denies { 2 } else { 0 },
    };
    let runtime = runtime(cell.threads)?;
    let phases = runtime.block_on(visit(subject, load.limit, &server.url(), InFlight(load)))?;
    runtime.block_on(phases.warm_up);
    let start = Start::now(server)?;
    let flight = runtime.block_on(phases.measured);
    let (cpu_seconds, commands) = start.elapsed(server)?;
    let total = flight.latencies.len() as f64;
    let at = |share: f64| {
        let index = ((total * share) as usize).min(flight.latencies.len() - 1);
        flight.latencies[index].as_nanos() as f64 / 1_000.0
    };
    figures.rate.0.push(total / flight.took.max(Duration::from_nanos(1)).as_secs_f64());
    figures.p50.0.push(at(0.5));
    figures.p99.0.push(at(0.99));
    figures.p999.0.push(at(0.999));
    figures.server.0.push(cpu_seconds * 1e6 / total);
    figures.commands.0.push(commands / total);
    Ok(())
}

fn row(cell: Cell, subject: Subject, verdict: Verdict, figures: &Figures) -> Vec<String> {
    let [p50, p999] = [&figures.p50, &figures.p999].map(|latency| number(latency.median()));
    vec![
        whole(cell.in_flight as f64),
        whole(cell.keys as f64),
        if subject == Subject::Script { String::new() } else { verdict.name().to_owned() },
        subject.name().to_owned(),
        figures.rate.with_spread(),
        format!("{p50}; {}; {p999}", figures.p99.with_spread()),
        figures.server.with_spread(),
        number(figures.commands.median()),
    ]
}

fn compare(cell: Cell, verdict: Verdict, all: &[(Subject, &Figures)], report: &mut Report) {
    let name = format!(
        "Redis, {}, {}, {}, {} in flight, {}",
        verdict.name(),
        policies(cell.policies),
        keys(cell.keys),
        whole(cell.in_flight as f64),
        threads(cell.threads)
    );
    let mut add = |figure, rounds: fn(&Figures) -> Rounds| {
        let entries: Vec<_> = all.iter().map(|(subject, figures)| subject.entry(rounds(figures))).collect();
        report.compare(figure, &name, &entries);
        if cell == MAIN && matches!(figure, Figure::Time | Figure::ServerTime) {
            report.compare_types(figure, &name, &entries);
        }
    };
    add(Figure::Time, |figures| figures.rate.map(|rate| 1e9 / rate));
    add(Figure::P99, |figures| figures.p99.clone());
    add(Figure::ServerTime, |figures| figures.server.clone());
    add(Figure::Commands, |figures| Rounds::exact(figures.commands.median()));
}

fn chart(verdict: Verdict, all: &[(Subject, &Figures)]) -> Chart {
    let bars = all.iter().map(|(subject, figures)| Bar {
        name: subject.name(),
        value: figures.rate.median(),
        is_ours: subject.is_ours(),
    });
    let bars: Vec<_> = bars.collect();
    let name = verdict.name();
    let title = format!("Redis, {name}, 64 in flight, 10,000 keys: decisions per second");
    Chart::new(&format!("redis-{name}.svg"), &title, &bars)
}
