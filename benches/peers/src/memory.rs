//! The layers in memory: the time of a request.

use std::error::Error;

use crate::{
    Context,
    chart::{Bar, Chart},
    comparison::Figure,
    drive::{Load, Threads},
    limit::{Limit, Verdict},
    report::Report,
    runtime,
    services::visit,
    subject::Subject,
    table::{Rounds, keys, markdown, number, policies, threads, whole},
};

const REQUESTS: usize = 50_000;

/// The conditions of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    policies: usize,
    keys: usize,
    threads: usize,
}

/// The cell of the charts, in which the types of limits are shown side by side.
const MAIN: Cell = Cell { policies: 1, keys: 10_000, threads: 1 };

/// What the rounds of a cell have taken, in nanoseconds.
#[derive(Default)]
struct Times {
    inner: Rounds,
    /// For each verdict, for each subject.
    limited: [[Rounds; Subject::IN_MEMORY.len()]; 2],
}

impl Times {
    fn measure(cell: Cell, rounds: usize) -> Result<Self, Box<dyn Error>> {
        let runtime = runtime(1)?;
        let time = |subject: Subject, verdict: Verdict| {
            let denies = verdict == Verdict::Denied;
            let load = Load {
                limit: Limit { policies: cell.policies, denies },
                requests: REQUESTS,
                made: REQUESTS,
                clients: cell.threads,
                keys: cell.keys,
                warm_up: usize::from(denies),
            };
            let took = runtime.block_on(visit(subject, load.limit, "", Threads(load)))?;
            Ok::<f64, Box<dyn Error>>(took.as_nanos() as f64)
        };
        let mut times = Self::default();
        for _ in 0..rounds {
            times.inner.0.push(time(Subject::Inner, Verdict::Admitted)?);
            for (i, subject) in Subject::IN_MEMORY.into_iter().enumerate() {
                for verdict in Verdict::BOTH {
                    times.limited[verdict as usize][i].0.push(time(subject, verdict)?);
                }
            }
        }
        Ok(times)
    }

    /// Returns the time over the inner service, round by round.
    fn over_inner(&self, verdict: Verdict, subject: usize) -> Rounds {
        let whole = &self.limited[verdict as usize][subject].0;
        Rounds(whole.iter().zip(&self.inner.0).map(|(whole, inner)| whole - inner).collect())
    }
}

/// Measures the layers in memory.
pub fn measure(context: &Context, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let (mut rows, mut charts) = (Vec::new(), Vec::new());
    for policies in [1, 3] {
        for keys in [1, 10_000, 100_000] {
            for threads in [1, 2] {
                let cell = Cell { policies, keys, threads };
                let times = Times::measure(cell, context.rounds)?;
                for verdict in Verdict::BOTH {
                    rows.push(row(cell, verdict, &times));
                    compare(cell, verdict, &times, report);
                    if cell == MAIN {
                        charts.push(chart(verdict, &times));
                    }
                }
            }
        }
    }
    report.section(
        "Layers in memory",
        &format!(
            "Nanoseconds of a request over the inner service, of those of the whole request. Each thread sends {} requests, the second \
             thread with other keys first, and makes each request just before it sends it, as a server does; the time of the inner service \
             contains this too. The keys are new: with 100,000 keys, each admitted request is the first one of its key. For a \
             denial, all keys have used up their quotas before. Their waits are equal, so this crate copies most of its responses.\n\n\
             A denied request does not call the inner service, but it is read and dropped like any other. To compare a denial with an \
             admission, compare the whole requests.",
            whole(REQUESTS as f64)
        ),
    );
    charts.into_iter().for_each(|chart| report.chart(chart));
    let mut heading = vec!["policies", "keys", "threads", "verdict", Subject::Inner.name()];
    heading.extend(Subject::IN_MEMORY.map(Subject::name));
    report.text(&markdown(&heading, &rows));
    Ok(())
}

fn row(cell: Cell, verdict: Verdict, times: &Times) -> Vec<String> {
    let Cell { policies, keys, threads } = cell;
    let mut row: Vec<String> = [policies, keys, threads].map(|number| whole(number as f64)).into();
    row.extend([verdict.name().to_owned(), number(times.inner.median())]);
    row.extend(times.limited[verdict as usize].iter().enumerate().map(|(subject, whole)| {
        format!("{} of {}", times.over_inner(verdict, subject).with_spread(), number(whole.median()))
    }));
    row
}

fn compare(cell: Cell, verdict: Verdict, times: &Times, report: &mut Report) {
    let name = format!(
        "memory, {}, {}, {}, {}",
        verdict.name(),
        policies(cell.policies),
        keys(cell.keys),
        threads(cell.threads)
    );
    let all = Subject::IN_MEMORY.into_iter().enumerate();
    let entries: Vec<_> = all.map(|(i, subject)| subject.entry(times.over_inner(verdict, i))).collect();
    report.compare(Figure::Time, &name, &entries);
    if cell == MAIN {
        report.compare_types(Figure::Time, &name, &entries);
    }
}

fn chart(verdict: Verdict, times: &Times) -> Chart {
    let bars = Subject::IN_MEMORY.into_iter().enumerate().map(|(i, subject)| Bar {
        name: subject.name(),
        value: times.over_inner(verdict, i).median(),
        is_ours: subject.is_ours(),
    });
    let bars: Vec<_> = bars.collect();
    let name = verdict.name();
    let title = format!("In memory, {name}, 10,000 keys: nanoseconds over the inner service");
    Chart::new(&format!("memory-{name}.svg"), &title, &bars)
}
