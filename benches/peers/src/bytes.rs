//! The memory that a key takes: in the process, and in Redis.

use std::error::Error;

use crate::{
    child::Child,
    comparison::{Entry, Figure},
    count,
    drive::{InFlight, Load},
    limit::Limit,
    limiters::Bare,
    report::Report,
    runtime,
    server::Server,
    server_figures::{flush, info, info_text},
    services::visit,
    subject::Subject,
    table::{Rounds, markdown, policies, whole},
};

const HEADING: [&str; 3] = ["subject", "1 policy", "3 policies"];

/// Counts the limiters in memory.
pub fn in_memory(report: &mut Report) -> Result<(), Box<dyn Error>> {
    report.subsection(
        "Bytes of a key in memory",
        "One admitted request for each of 100,000 keys, with a quota that returns after an hour. All bytes that the limiter has requested \
         from the allocator and holds at the end, less those with one key: keys, records, and the tables with the room that they have for \
         growth. The allocator's own headers and rounding come on top.",
    );
    let child = |name: String, policies| {
        let limit = Limit::denying(policies);
        let load = Load { limit, requests: 1, made: 1, clients: 1, keys: 1, warm_up: 0 };
        Child { name, url: String::new(), load }
    };
    let held =
        |subject: Subject| count::bytes([1, 3].map(|policies| child(format!("{subject:?}"), policies)));
    let mut rows = table(&Subject::IN_MEMORY, "memory", report, held)?;
    let bytes = count::bytes(Bare::ALL.map(|bare| child(format!("{bare:?}"), 1)))?;
    let bare: Vec<_> = Bare::ALL.into_iter().zip(bytes).collect();
    rows.extend(bare.iter().map(|(bare, bytes)| vec![bare.name().to_owned(), whole(*bytes), String::new()]));
    let entries: Vec<_> = bare.iter().map(|(bare, bytes)| bare.entry(Rounds::exact(*bytes))).collect();
    compare(report, "limiter without a layer", &entries);
    report.text(&markdown(&HEADING, &rows));
    Ok(())
}

/// Counts the bytes of Redis, and those of Valkey, which stores a key, its name and a short value in one allocation.
pub fn on_servers(redis: &Server, valkey: &Server, report: &mut Report) -> Result<(), Box<dyn Error>> {
    report.subsection(
        "Bytes of a key in Redis and Valkey",
        &format!(
            "One admitted request for each of 10,000 keys, with a quota that returns after an hour: the growth of `used_memory`. With three \
             policies, each subject stores three keys. Valkey {} stores the value of a short string beside its key.",
            info_text(valkey, "valkey_version")?
        ),
    );
    let subjects: Vec<_> =
        Subject::ON_REDIS.into_iter().filter(|subject| !subject.is_without_deny_cache()).collect();
    for (name, server) in [("Redis", redis), ("Valkey", valkey)] {
        let measure = |subject: Subject| Ok([grown(server, subject, 1)?, grown(server, subject, 3)?]);
        let rows = table(&subjects, name, report, measure)?;
        report.text(&markdown(&[name, HEADING[1], HEADING[2]], &rows));
    }
    Ok(())
}

pub fn grown(server: &Server, subject: Subject, policies: usize) -> Result<f64, Box<dyn Error>> {
    let (clients, requests) = (50, 200);
    let keys = clients * requests;
    let limit = Limit::denying(policies);
    let load = Load { limit, requests, made: requests, clients, keys, warm_up: 0 };
    flush(server)?;
    let runtime = runtime(1)?;
    let phases = runtime.block_on(visit(subject, limit, &server.url(), InFlight(load)))?;
    runtime.block_on(phases.warm_up);
    let before = info(server, "used_memory")?;
    runtime.block_on(phases.measured);
    Ok((info(server, "used_memory")? - before) / keys as f64)
}

/// Measures each subject with one and three policies, and compares them.
fn table(
    subjects: &[Subject],
    part: &str,
    report: &mut Report,
    measure: impl Fn(Subject) -> Result<[f64; 2], Box<dyn Error>>,
) -> Result<Vec<Vec<String>>, Box<dyn Error>> {
    let (mut rows, mut one, mut three) = (Vec::new(), Vec::new(), Vec::new());
    for &subject in subjects {
        let bytes = measure(subject)?;
        rows.push([subject.name().to_owned()].into_iter().chain(bytes.map(whole)).collect());
        one.push(subject.entry(Rounds::exact(bytes[0])));
        three.push(subject.entry(Rounds::exact(bytes[1])));
    }
    compare(report, &format!("{part}, {}", policies(1)), &one);
    compare(report, &format!("{part}, {}", policies(3)), &three);
    Ok(rows)
}

fn compare(report: &mut Report, cell: &str, entries: &[Entry]) {
    report.compare(Figure::Bytes, cell, entries);
    report.compare_types(Figure::Bytes, cell, entries);
}
