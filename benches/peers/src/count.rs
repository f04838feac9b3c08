//! Instructions, allocations and bytes, counted by valgrind in child processes.
//!
//! Nothing in the program counts, so that counting costs the measured code nothing.

use std::{
    array, env,
    error::Error,
    process::{Command, Stdio},
};

use crate::child::Child;

/// The cost of one request, or of one decision without a layer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub instructions: f64,
    /// Calls of malloc, calloc, posix_memalign and realloc. A realloc counts as one, also where the block stays in its place.
    pub allocations: f64,
}

/// The section that callgrind counts. Its name is the pattern of `--toggle-collect`.
#[inline(never)]
pub fn counted<T>(section: impl FnOnce() -> T) -> T {
    section()
}

/// Counts the cost of a request: instructions in the counted section, and allocations as the difference of two runs that make the
/// same requests and send 40 % or all of them.
pub fn cost(child: &Child) -> Result<Cost, Box<dyn Error>> {
    let (few, many) = (child.load.requests * 2 / 5, child.load.requests);
    let sending = |requests| {
        let mut child = child.clone();
        child.load.requests = requests;
        child
    };
    let [callgrind, fewer, more] =
        run([(&CALLGRIND, child), (&DHAT, &sending(few)), (&DHAT, &sending(many))])?;
    let blocks = |summary: &Summary| summary.figure("Total:", " bytes in ");
    let clients = child.load.clients as f64;
    Ok(Cost {
        instructions: callgrind.figure("Collected", ":")? / (clients * many as f64),
        allocations: (blocks(&more)? - blocks(&fewer)?) / (clients * (many - few) as f64),
    })
}

/// Counts the bytes that each of these subjects has requested for each of 100,000 keys and holds at the end, after one request for
/// each.
pub fn bytes<const N: usize>(children: [Child; N]) -> Result<[f64; N], Box<dyn Error>> {
    const KEYS: usize = 100_000;
    let held = |keys: usize| {
        let loaded = children.each_ref().map(|child| {
            let mut child = child.clone();
            (child.load.keys, child.load.requests, child.load.made) = (keys, keys, keys);
            child
        });
        let summaries = run(loaded.each_ref().map(|child| (&DHAT[..], child)))?;
        let bytes: Result<Vec<_>, _> =
            summaries.iter().map(|summary| summary.figure("At t-end:", "")).collect();
        bytes
    };
    let (one, all) = (held(1)?, held(KEYS)?);
    Ok(array::from_fn(|child| (all[child] - one[child]) / (KEYS - 1) as f64))
}

const CALLGRIND: [&str; 3] =
    ["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*peers_bench*count*counted*"];
const DHAT: [&str; 4] =
    ["--tool=dhat", "--dhat-out-file=/dev/null", "--num-callers=1", "--read-inline-info=no"];

/// Runs child processes under valgrind, all at the same time, with these options. Returns when all have ended.
fn run<const N: usize>(children: [(&[&str], &Child); N]) -> Result<[Summary; N], Box<dyn Error>> {
    let program = env::current_exe()?;
    let started = children.map(|(options, child)| {
        Command::new("valgrind")
            .args(options)
            .arg(&program)
            .args(child.args())
            .env("RUST_BACKTRACE", "0")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
    });
    let ended: Vec<_> = started.into_iter().map(|process| process?.wait_with_output()).collect();
    let mut summaries = Vec::new();
    for output in ended {
        let needed = "install valgrind, for example with `apt-get install valgrind`";
        let output = output.map_err(|error| format!("valgrind: {error}; {needed}"))?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        summaries.push(Summary { is_complete: output.status.success(), text });
    }
    summaries.try_into().map_err(|_| "a child process is missing".into())
}

/// What valgrind prints.
struct Summary {
    is_complete: bool,
    text: String,
}

impl Summary {
    /// Returns the number after two texts in a line.
    fn figure(&self, first: &str, second: &str) -> Result<f64, Box<dyn Error>> {
        let rest = |line: &str| Some(line.split_once(first)?.1.split_once(second)?.1.trim().to_owned());
        let figure = self.text.lines().find_map(rest).filter(|_| self.is_complete);
        let figure = figure.ok_or_else(|| format!("valgrind has not counted {first}:\n{}", self.text))?;
        let digits = figure.split(' ').next().unwrap_or_default().replace(',', "");
        Ok(digits.parse()?)
    }
}
