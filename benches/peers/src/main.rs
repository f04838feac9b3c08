//! Measures this crate beside the limiters that people use today, interleaved in one process.
//!
//! ```text
//! cd benches/peers && cargo run --release --ignore-rust-version
//! ```
//!
//! It needs `redis-server` and valgrind (`tests/run` gets the first), starts its own server, and writes `benches/RESULTS.md` and the
//! charts beside it. `-- quick` measures one round and prints the tables only; `-- quick redis` does so for the parts that are named, of
//! `memory`, `alone` and `redis`. One of the other crates states a newer Rust than it needs, hence the option.

use std::{collections::BTreeMap, env, error::Error, fs, path::Path, time::Duration};

use tokio::runtime::{Builder, Runtime};

mod count;
mod drive;
mod limiters;
#[path = "../../../tests/support/server.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod server;
mod subject;
mod table;

use drive::{Allocations, InFlight, Load, Sequential};
use limiters::Bare;
use server::{Engine, Server};
use subject::{Limit, Subject, visit};
use table::{Comparison, Rounds, bars, markdown, number};

const IN_FLIGHT: [usize; 5] = [1, 16, 64, 256, 1_024];

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    match &args[..] {
        [kind, name, rest @ ..] if kind == "count" => return counted(name, rest),
        _ => {}
    }
    let is_quick = args.iter().any(|arg| arg == "quick");
    let rounds = if is_quick { 1 } else { 5 };
    let server = Server::with_options(Engine::Redis, &["--io-threads", "1"]);
    let mut report = format!("# Results\n\n{}\n", introduction(rounds)?);
    println!("{report}");
    let mut output = Output::default();
    let parts: [(&str, Part); 3] = [("memory", memory), ("alone", limiters_alone), ("redis", redis)];
    let is_named = |name: &str| args.iter().any(|arg| arg == name);
    let is_complete = !is_quick || !parts.iter().any(|(name, _)| is_named(name));
    for (name, part) in parts {
        if is_complete || is_named(name) {
            let printed = output.tables.len();
            part(&server, rounds, &mut output)?;
            println!("{}", &output.tables[printed..]);
        }
    }
    let losses = format!("## Where this crate loses\n\n{}", output.comparison.losses());
    println!("{losses}");
    report = format!("{report}\n{losses}{}", output.tables);
    if !is_quick {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        fs::create_dir_all(folder.join("charts"))?;
        for (name, svg) in output.charts {
            fs::write(folder.join("charts").join(name), svg)?;
        }
        fs::write(folder.join("RESULTS.md"), report)?;
    }
    Ok(())
}

fn introduction(rounds: usize) -> Result<String, Box<dyn Error>> {
    let cpus = fs::read_to_string("/proc/cpuinfo")?;
    let model =
        cpus.lines().find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim()));
    let model = model.unwrap_or("unknown");
    let cores = cpus.lines().filter(|line| line.starts_with("processor")).count();
    let version = |program: &str| -> Result<String, Box<dyn Error>> {
        let output = std::process::Command::new(program).arg("--version").output()?;
        Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
    };
    Ok(format!(
        "Written by `cargo run --release --ignore-rust-version` in `benches/peers`: all subjects interleaved in one process, median of \
         {rounds} rounds with the smallest and the largest one in parentheses. Instructions and allocations do not depend on the load \
         of the machine; times do.\n\n\
         Machine: {cores} cores, {model}; {}; {}. Client and server share the cores.\n\n\
         tower-sliding-window and the GCRA crates do not count the same way: a GCRA stores one instant for each key, a sliding log one \
         record for each request. Every layer writes the header fields of its crate to every response. Those with one policy for each \
         layer are nested three times for three policies. The outermost of them denies, so a denial costs them one policy. This crate \
         checks all three.\n",
        version("rustc")?,
        version("redis-server")?,
    ))
}

/// What the parts have measured.
#[derive(Default)]
struct Output {
    tables: String,
    /// Each with the name of its file.
    charts: Vec<(&'static str, String)>,
    comparison: Comparison,
}

/// Returns the Markdown of two charts.
fn pictures(files: [&str; 2]) -> String {
    files.map(|file| format!("![{}](charts/{file})\n", file.trim_end_matches(".svg"))).concat() + "\n"
}

/// Measures a part of the subjects.
type Part = fn(&Server, usize, &mut Output) -> Result<(), Box<dyn Error>>;

fn runtime(workers: usize) -> Result<Runtime, Box<dyn Error>> {
    let mut builder = if workers == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    Ok(builder.worker_threads(workers).enable_all().build()?)
}

/// The entry of a child process, which runs under callgrind.
fn counted(name: &str, rest: &[String]) -> Result<(), Box<dyn Error>> {
    if let (Some(bare), [requests]) = (Bare::parse(name), rest) {
        bare.run(requests.parse()?, 1)?;
        return Ok(());
    }
    let subject = Subject::parse(name).ok_or_else(|| format!("unknown subject {name}"))?;
    let [policies, denies, clients, url, requests] = rest else { return Err("five arguments".into()) };
    let (denies, clients): (bool, usize) = (denies.parse()?, clients.parse()?);
    let limit = Limit { policies: policies.parse()?, denies };
    let load = Load { requests: requests.parse()?, clients, keys: 1, is_used_up: denies };
    runtime(1)?.block_on(async {
        if url.is_empty() {
            visit(subject, limit, url, Sequential(load)).await?;
        } else {
            visit(subject, limit, url, InFlight(load)).await?.await;
        }
        Ok(())
    })
}

fn instructions(subject: Subject, limit: Limit, clients: usize, url: &str) -> Result<i64, Box<dyn Error>> {
    let args = ["count", &format!("{subject:?}"), &limit.policies.to_string(), &limit.denies.to_string()];
    let args: Vec<String> =
        args.into_iter().map(str::to_owned).chain([clients.to_string(), url.to_owned()]).collect();
    // The clock of governor measures itself at the start, which takes a varying number of instructions.
    let (few, many) = if clients == 1 { (20_000, 120_000) } else { (50, 150) };
    let counted = count::instructions(&args, few, many)?;
    Ok(counted / clients as i64)
}

/// The layers in memory.
fn memory(_: &Server, rounds: usize, output: &mut Output) -> Result<(), Box<dyn Error>> {
    let Output { tables: report, charts, comparison } = output;
    let runtime = runtime(1)?;
    let cells: Vec<(usize, usize, Limit)> = {
        let limit = |policies, denies| Limit { policies, denies };
        let mut cells = Vec::new();
        for denies in [false, true] {
            for keys in [1, 10_000, 100_000] {
                cells.extend([1, 2].map(|threads| (keys, threads, limit(1, denies))));
            }
            cells.push((10_000, 1, limit(3, denies)));
        }
        cells
    };
    let mut rows = Vec::new();
    for (keys, threads, limit) in cells {
        let load = Load { requests: 100_000, clients: threads, keys, is_used_up: limit.denies };
        let mut times: BTreeMap<usize, Rounds> = BTreeMap::new();
        for _ in 0..rounds {
            for (i, subject) in Subject::IN_MEMORY.into_iter().enumerate() {
                let load = Load { is_used_up: load.is_used_up && subject != Subject::Inner, ..load };
                let took = runtime.block_on(visit(subject, limit, "", Sequential(load)))?;
                times.entry(i).or_default().0.push(took.as_nanos() as f64);
            }
        }
        let inner = times[&0].clone();
        let over =
            |i: usize| Rounds(times[&i].0.iter().zip(&inner.0).map(|(time, inner)| time - inner).collect());
        let verdict = if limit.denies { "denied" } else { "admitted" };
        let cell = format!(
            "memory, {verdict}, {} keys, {threads} threads, {} policies",
            number_of(keys),
            limit.policies
        );
        let others = (2..Subject::IN_MEMORY.len()).map(|i| (Subject::IN_MEMORY[i].name(), over(i).median()));
        comparison.add(cell + ": time", over(1).median(), others);
        let mut row =
            vec![verdict.to_owned(), number_of(keys), threads.to_string(), limit.policies.to_string()];
        row.extend((1..Subject::IN_MEMORY.len()).map(|i| over(i).with_spread()));
        if (keys, threads, limit.policies) == (10_000, 1, 1) {
            let values: Vec<_> = (1..Subject::IN_MEMORY.len())
                .map(|i| (Subject::IN_MEMORY[i].name().to_owned(), over(i).median()))
                .collect();
            let (file, title) = match limit.denies {
                false => ("memory-admitted.svg", "In memory, admitted, 10,000 keys: over the inner service"),
                true => ("memory-denied.svg", "In memory, denied, 10,000 keys: over the inner service"),
            };
            charts.push((file, bars(title, "ns", &values)));
            rows.push(row);
            continue;
        }
        rows.push(row);
    }
    let mut heading = vec!["verdict", "keys", "threads", "policies"];
    heading.extend(Subject::IN_MEMORY.iter().skip(1).map(|subject| subject.name()));
    *report += "\n## Layers in memory\n\nNanoseconds of a request over the inner service. A thread sends 100,000 requests. With as \
                many keys and one thread, each admitted request is the first one of its key.\n\n";
    *report += &pictures(["memory-admitted.svg", "memory-denied.svg"]);
    *report += &markdown(&heading, &rows);
    *report += "\nInstructions and allocations of a request over the inner service, one key.\n\n";
    let mut rows = Vec::new();
    for limit in
        [(1, false), (1, true), (3, false), (3, true)].map(|(policies, denies)| Limit { policies, denies })
    {
        let verdict = if limit.denies { "denied" } else { "admitted" };
        let allocations = |subject: Subject| -> Result<f64, Box<dyn Error>> {
            let is_used_up = limit.denies && subject != Subject::Inner;
            let load = Load { requests: 1_000, clients: 1, keys: 1, is_used_up };
            runtime.block_on(visit(subject, limit, "", Allocations(load)))
        };
        let inner = (
            instructions(Subject::Inner, Limit { denies: false, ..limit }, 1, "")?,
            allocations(Subject::Inner)?,
        );
        let mut row = vec![verdict.to_owned(), limit.policies.to_string()];
        let mut all = Vec::new();
        for subject in Subject::IN_MEMORY.into_iter().skip(1) {
            let counted = (instructions(subject, limit, 1, "")? - inner.0) as f64;
            row.push(format!("{}; {:.1}", number(counted), allocations(subject)? - inner.1));
            all.push((subject.name(), counted));
        }
        rows.push(row);
        let cell = format!("memory, {verdict}, {} policies: instructions", limit.policies);
        comparison.add(cell, all[0].1, all.into_iter().skip(1));
    }
    let mut heading = vec!["verdict", "policies"];
    heading.extend(Subject::IN_MEMORY.iter().skip(1).map(|subject| subject.name()));
    *report += &markdown(&heading, &rows);
    Ok(())
}

/// The limiters without a layer.
fn limiters_alone(_: &Server, rounds: usize, output: &mut Output) -> Result<(), Box<dyn Error>> {
    let Output { tables: report, comparison, .. } = output;
    let mut rows = Vec::new();
    for keys in [1, 10_000, 100_000] {
        let mut rates: Vec<Rounds> = vec![Rounds::default(); Bare::ALL.len()];
        for _ in 0..rounds {
            for (rates, bare) in rates.iter_mut().zip(Bare::ALL) {
                rates.0.push(1e9 / bare.run(300_000, keys)?.as_nanos().max(1) as f64);
            }
        }
        let [ours, governor] = [&rates[0], &rates[1]].map(|rates| 1.0 / rates.median());
        comparison.add(
            format!("limiter without a layer, {} keys: time", number_of(keys)),
            ours,
            [(Bare::Governor.name(), governor)],
        );
        let mut row = vec![number_of(keys)];
        row.extend(rates.iter().map(Rounds::with_spread));
        rows.push(row);
    }
    let mut row = vec!["instructions, 1 key".to_owned()];
    for bare in Bare::ALL {
        let args = ["count".to_owned(), format!("{bare:?}")];
        row.push(number(count::instructions(&args, 100_000, 600_000)? as f64));
    }
    rows.push(row);
    let heading: Vec<&str> = ["keys"].into_iter().chain(Bare::ALL.map(Bare::name)).collect();
    *report += "\n## Limiters without a layer\n\nAdmitted decisions per second in memory, one thread, keys that are already made. \
                With 100,000 keys, a third of the decisions are the first ones of their key.\n\n";
    *report += &markdown(&heading, &rows);
    Ok(())
}

/// What one subject has taken in the rounds of one cell.
#[derive(Clone, Default)]
struct Cell {
    rate: Rounds,
    p50: Rounds,
    p99: Rounds,
    p999: Rounds,
    server_micros: Rounds,
    commands: Rounds,
}

fn redis(server: &Server, rounds: usize, output: &mut Output) -> Result<(), Box<dyn Error>> {
    let Output { tables: report, charts, comparison } = output;
    *report += "\n## Layers on Redis\n\nDecisions per second; microseconds of latency; microseconds of CPU time of the server and commands for each \
                decision. A denial that the deny cache answers sends no command. It cannot answer the first denial of a key: \
                with 10,000 keys, these are half of the denials, and all of them with one in flight. The time of the server is the mean of \
                these decisions and of those that have used up the quotas before.\n\n";
    *report += &pictures(["redis-admitted.svg", "redis-denied.svg"]);
    for workers in [1, 2] {
        for (policies, denies) in [(1, false), (1, true), (3, false)] {
            let limit = Limit { policies, denies };
            let runtime_name = if workers == 1 { "one client thread" } else { "two client threads" };
            let verdict = if denies { "denied" } else { "admitted" };
            *report += &format!(
                "\n### {verdict}, {policies} {}, {runtime_name}\n\n",
                if policies == 1 { "policy" } else { "policies" }
            );
            let mut rows = Vec::new();
            let in_flight: &[usize] = if policies == 1 { &IN_FLIGHT } else { &[64] };
            for &clients in in_flight {
                for keys in [1, 10_000] {
                    let mut cells = vec![Cell::default(); Subject::ON_REDIS.len()];
                    for _ in 0..rounds {
                        for (cell, subject) in cells.iter_mut().zip(Subject::ON_REDIS) {
                            round(server, workers, subject, limit, clients, keys, cell)?;
                        }
                    }
                    let time = |subject: Subject| {
                        let index = Subject::ON_REDIS.into_iter().position(|other| other == subject);
                        1.0 / index.map_or(f64::NAN, |index| cells[index].rate.median())
                    };
                    let others = [Subject::TowerRateLimitRedis, Subject::TowerRateLimiterRedis];
                    comparison.add(
                        format!(
                            "Redis, {verdict}, {} keys, {clients} in flight, {workers} threads, {policies} policies: time",
                            number_of(keys)
                        ),
                        time(Subject::Redis),
                        others.map(|subject| (subject.name(), time(subject))),
                    );
                    for (cell, subject) in cells.iter().zip(Subject::ON_REDIS) {
                        rows.push(vec![
                            clients.to_string(),
                            number_of(keys),
                            subject.name().to_owned(),
                            cell.rate.with_spread(),
                            [&cell.p50, &cell.p99, &cell.p999]
                                .map(|latency| number(latency.median()))
                                .join("; "),
                            number(cell.server_micros.median()),
                            number(cell.commands.median()),
                        ]);
                    }
                    if (workers, policies, clients, keys) == (2, 1, 64, 10_000) {
                        let values: Vec<_> = cells
                            .iter()
                            .zip(Subject::ON_REDIS)
                            .map(|(cell, subject)| (subject.name().to_owned(), cell.rate.median()))
                            .collect();
                        let file = if denies { "redis-denied.svg" } else { "redis-admitted.svg" };
                        charts.push((
                            file,
                            bars(
                                &format!("Redis, {verdict}, 64 in flight, 10,000 keys"),
                                "decisions/s",
                                &values,
                            ),
                        ));
                    }
                }
            }
            let heading =
                ["in flight", "keys", "subject", "decisions/s", "p50; p99; p99.9", "server us", "commands"];
            *report += &markdown(&heading, &rows);
        }
    }
    *report += "\n### Instructions of a request in the client, 64 in flight, one key, one thread\n\n";
    let mut rows = Vec::new();
    for (policies, denies) in [(1, false), (1, true), (3, false)] {
        let limit = Limit { policies, denies };
        let verdict = if denies { "denied" } else { "admitted" };
        let (mut ours, mut others) = (f64::NAN, Vec::new());
        for subject in Subject::ON_REDIS {
            if subject == Subject::Script && (denies || policies > 1) {
                continue;
            }
            flush(server)?;
            let counted = instructions(subject, limit, 64, &server.url())?;
            match subject {
                Subject::Redis => ours = counted as f64,
                Subject::TowerRateLimitRedis | Subject::TowerRateLimiterRedis => {
                    others.push((subject.name(), counted as f64));
                }
                _ => {}
            }
            rows.push(vec![
                verdict.to_owned(),
                policies.to_string(),
                subject.name().to_owned(),
                number(counted as f64),
            ]);
        }
        comparison.add(format!("Redis, {verdict}, {policies} policies: instructions"), ours, others);
    }
    *report += &markdown(&["verdict", "policies", "subject", "instructions"], &rows);
    *report += "\n### Bytes of Redis for each key\n\nOne admitted request for each of 10,000 keys, with a quota that returns after an hour.\n\n";
    let (mut rows, mut all) = (Vec::new(), Vec::new());
    for subject in Subject::ON_REDIS.into_iter().skip(1) {
        flush(server)?;
        let before = info(server, "used_memory")?;
        let load = Load { requests: 10_000, clients: 1, keys: 10_000, is_used_up: false };
        // With the other quota, the keys of some crates expire within a millisecond.
        let limit = Limit { policies: 1, denies: true };
        runtime(1)?.block_on(async {
            Ok::<_, Box<dyn Error>>(visit(subject, limit, &server.url(), InFlight(load)).await?.await)
        })?;
        let bytes = (info(server, "used_memory")? - before) / 10_000.0;
        rows.push(vec![subject.name().to_owned(), number(bytes)]);
        all.push((subject, bytes));
    }
    let others =
        all.iter().filter(|(subject, _)| !subject.is_ours()).map(|(subject, bytes)| (subject.name(), *bytes));
    comparison.add("bytes of Redis for each key", all[0].1, others);
    *report += &markdown(&["subject", "bytes"], &rows);
    Ok(())
}

fn round(
    server: &Server,
    workers: usize,
    subject: Subject,
    limit: Limit,
    clients: usize,
    keys: usize,
    cell: &mut Cell,
) -> Result<(), Box<dyn Error>> {
    flush(server)?;
    let requests = if clients == 1 { 2_000 } else { 20_000 / clients };
    let is_used_up = limit.denies && subject != Subject::Script;
    let load = Load { requests, clients, keys, is_used_up };
    let mut connection = server.connection();
    redis::cmd("CONFIG").arg("RESETSTAT").query::<()>(&mut connection)?;
    let cpu = |name: &str| info(server, name);
    let before = cpu("used_cpu_user")? + cpu("used_cpu_sys")?;
    let flight = runtime(workers)?.block_on(async {
        Ok::<_, Box<dyn Error>>(visit(subject, limit, &server.url(), InFlight(load)).await?.await)
    })?;
    let after = cpu("used_cpu_user")? + cpu("used_cpu_sys")?;
    let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut connection)?;
    let calls: f64 = stats
        .lines()
        .filter(|line| line.starts_with("cmdstat_eval"))
        .filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<f64>().ok())
        .sum();
    let (total, warm) = ((clients * requests) as f64, (if is_used_up { keys } else { 1 }) as f64);
    let at = |share: f64| {
        let index = ((flight.latencies.len() as f64 * share) as usize).min(flight.latencies.len() - 1);
        flight.latencies[index].as_nanos() as f64 / 1_000.0
    };
    cell.rate.0.push(total / flight.took.max(Duration::from_nanos(1)).as_secs_f64());
    cell.p50.0.push(at(0.5));
    cell.p99.0.push(at(0.99));
    cell.p999.0.push(at(0.999));
    cell.server_micros.0.push((after - before) * 1e6 / (total + warm));
    cell.commands.0.push((calls - warm).max(0.0) / total);
    Ok(())
}

fn flush(server: &Server) -> Result<(), Box<dyn Error>> {
    Ok(redis::cmd("FLUSHALL").query(&mut server.connection())?)
}

/// Returns a number from the server's INFO.
fn info(server: &Server, name: &str) -> Result<f64, Box<dyn Error>> {
    let text: String = redis::cmd("INFO").query(&mut server.connection())?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line.ok_or_else(|| format!("INFO has no {name}"))?.trim().parse()?)
}

fn number_of(keys: usize) -> String {
    number(keys as f64).trim_end_matches(".00").to_owned()
}
