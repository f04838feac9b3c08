//! Measures this crate beside the limiters that people use today, interleaved in one process.
//!
//! ```text
//! cd benches/peers && cargo run --release --ignore-rust-version
//! ```
//!
//! It needs `redis-server`, `valkey-server` and valgrind (`tests/run` gets the servers), starts its own servers, and writes
//! `benches/RESULTS.md` and the charts beside it. `-- quick` measures one round and prints the tables only; `-- quick redis costs` does so
//! for the parts that are named, of `memory`, `alone`, `redis`, `costs`, `bytes` and `tokens`. One of the other crates states a newer Rust
//! than it needs, hence the option.

use std::{env, error::Error, fs, path::Path, process::Command};

use tokio::runtime::{Builder, Runtime};

mod alone;
mod bytes;
mod chart;
mod child;
mod comparison;
mod costs;
mod count;
mod drive;
mod keys;
mod limit;
mod limiters;
mod memory;
mod on_redis;
mod report;
#[path = "../../../tests/support/server.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod server;
mod server_figures;
mod services;
mod subject;
mod table;
mod token_bucket;
mod unlike;

use child::Child;
use limit::Limit;
use report::Report;
use server::{Engine, Server};

/// What every part needs.
pub struct Context {
    server: Server,
    /// Only its bytes are measured.
    valkey: Server,
    rounds: usize,
}

type Part = fn(&Context, &mut Report) -> Result<(), Box<dyn Error>>;

const PARTS: [(&str, Part); 6] = [
    ("memory", memory::measure),
    ("alone", alone::measure),
    ("redis", on_redis::measure),
    ("costs", |context, report| {
        report.section(
            "Work of the process",
            "Counted by valgrind: these figures do not depend on the load of the machine.",
        );
        costs::in_memory(report)?;
        costs::on_redis(&context.server, report)
    }),
    ("bytes", |context, report| {
        report.section("Memory", "What a key takes that has sent one request.");
        bytes::in_memory(report)?;
        bytes::on_servers(&context.server, &context.valkey, report)
    }),
    ("tokens", token_bucket::measure),
];

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    match &args[..] {
        [command, rest @ ..] if command == Child::COMMAND => return Child::parse(rest)?.run(),
        _ => {}
    }
    let is_named = |name: &str| args.iter().any(|arg| arg == name);
    let is_quick = is_named("quick");
    let is_complete = !is_quick || !PARTS.iter().any(|(name, _)| is_named(name));
    let rounds = if is_quick { 1 } else { 5 };
    let server = Server::with_options(Engine::Redis, &["--io-threads", "1"]);
    let context = Context { server, valkey: Server::start(Engine::Valkey), rounds };
    let introduction = introduction(rounds)?;
    println!("{introduction}");
    let mut report = Report::default();
    for (name, part) in PARTS {
        if is_complete || is_named(name) {
            part(&context, &mut report)?;
        }
    }
    report.print_losses();
    if !is_quick {
        report.write(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")), &introduction)?;
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
        let output = Command::new(program).arg("--version").output()?;
        Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
    };
    Ok(format!(
        "Written by `cargo run --release --ignore-rust-version` in `benches/peers`: all subjects interleaved in one process, median of \
         {rounds} rounds with the smallest and the largest one in parentheses. Instructions, allocations and bytes do not depend on the \
         load of the machine; times do.\n\n\
         Machine: {cores} cores, {model}; {}; {}; {}. Client and server share the cores.\n\n\
         tower-sliding-window is shown with a sliding log, its default, and with a token bucket, which counts like a GCRA. {} Every \
         layer writes the header fields of its crate to every response. Those with one policy for each \
         layer are nested three times for three policies. The outermost of them denies, so a denial costs them one policy. This crate \
         checks all three.\n",
        version("rustc")?,
        version("redis-server")?,
        version("valgrind")?,
        Limit::TEXT,
    ))
}

/// Builds a runtime as `#[tokio::main]` does, or for one thread as its flavor `current_thread` does.
fn runtime(threads: usize) -> Result<Runtime, Box<dyn Error>> {
    let mut builder = if threads == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    Ok(builder.worker_threads(threads).enable_all().build()?)
}
