//! A driver for a stable toolchain: it mutates the corpus. The seed and the number of an input determine the input.

use std::{
    fs, io,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use fastrand::Rng;

use crate::{Target, target};

const USAGE: &str = "\
usage: fuzz [option ..] [target ..] [file ..]
  --inputs <number>  inputs in all, divided among the targets (1000000)
  --seed <number>    the seed; together with its number, it determines an input (the time)
  --from <number>    the number of the first input of each target (0)
A file is run once, by every named target.";

/// The longest input that a mutation makes, in bytes.
const MAX_LENGTH: usize = 4_096;

/// The inputs of a corpus, each with its file.
pub type Corpus = Vec<(PathBuf, Vec<u8>)>;

/// An input that makes a target panic.
#[derive(Debug)]
pub struct Failure {
    /// The number of the input.
    pub number: u64,
    /// The input.
    pub input: Vec<u8>,
}

struct Options {
    inputs: u64,
    seed: u64,
    from: u64,
    targets: Vec<Target>,
    files: Vec<PathBuf>,
}

/// Runs the targets that the command line names, or these ones.
pub fn main(names: &[&str]) -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1), names) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match options.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>, names: &[&str]) -> Result<Self, String> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut options =
            Self { inputs: 1_000_000, seed: time.as_secs(), from: 0, targets: Vec::new(), files: Vec::new() };
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let mut number = || {
                let value = arguments.next().unwrap_or_default();
                value.parse().map_err(|_| format!("{argument} {value:?}: it must be a number"))
            };
            match &*argument {
                "--inputs" => options.inputs = number()?,
                "--seed" => options.seed = number()?,
                "--from" => options.from = number()?,
                name => match target(name) {
                    Some(target) => options.targets.push(target),
                    None if Path::new(name).is_file() => options.files.push(name.into()),
                    None => return Err(format!("unknown target or file {name:?}")),
                },
            }
        }
        if options.targets.is_empty() {
            options.targets = names.iter().filter_map(|name| target(name)).collect();
        }
        Ok(options)
    }

    fn run(&self) -> Result<(), String> {
        if !self.files.is_empty() {
            return self.run_files();
        }
        let shares: u64 = self.targets.iter().map(|target| target.share).sum();
        let mut all = 0;
        println!("seed {}", self.seed);
        for target in &self.targets {
            let corpus = corpus(target.name).map_err(|error| format!("corpus of {target:?}: {error}"))?;
            corpus.iter().for_each(|(_, input)| (target.run)(input));
            let share = (self.inputs * target.share).div_ceil(shares);
            all += share;
            let start = Instant::now();
            if let Err(failure) = run(target, &corpus, self.seed, self.from..self.from + share) {
                return Err(self.report(target, &failure));
            }
            let took = start.elapsed().max(Duration::from_millis(1));
            let rate = share as f64 / took.as_secs_f64();
            println!("{target:?}: {share} inputs in {:.0} s, {rate:.0} per second", took.as_secs_f64());
        }
        println!("{all} inputs in all, no panic");
        Ok(())
    }

    fn run_files(&self) -> Result<(), String> {
        for file in &self.files {
            let input = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
            for target in &self.targets {
                println!("{target:?}: {}", file.display());
                (target.run)(&input);
            }
        }
        Ok(())
    }

    /// Writes the input to a file, and returns the commands that run it again.
    fn report(&self, target: &Target, Failure { number, input }: &Failure) -> String {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts").join(target.name);
        let file = folder.join(format!("{}-{number}", self.seed));
        let written = fs::create_dir_all(&folder).and_then(|()| fs::write(&file, input));
        let file = match written {
            Ok(()) => file.display().to_string(),
            Err(error) => format!("<{}: {error}>", file.display()),
        };
        let seed = self.seed;
        format!(
            "{target:?}: panic at input {number} of seed {seed}: \"{}\"\n\
             run it again: fuzz {target:?} {file}\n\
             or: fuzz {target:?} --seed {seed} --from {number} --inputs 1",
            input.escape_ascii()
        )
    }
}

/// Returns the corpus of a target, in the order of the names of its files.
///
/// # Errors
///
/// Returns the error of the file system.
pub fn corpus(name: &str) -> io::Result<Corpus> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
    files.sort_unstable();
    files.into_iter().map(|file| fs::read(&file).map(|input| (file, input))).collect()
}

/// Runs a target on the inputs with these numbers.
///
/// # Errors
///
/// Returns the first input that makes the target panic.
pub fn run(target: &Target, corpus: &Corpus, seed: u64, numbers: Range<u64>) -> Result<(), Failure> {
    for number in numbers {
        let input = input(target, corpus, seed, number);
        if catch_unwind(AssertUnwindSafe(|| (target.run)(&input))).is_err() {
            return Err(Failure { number, input });
        }
    }
    Ok(())
}

/// Returns the input with this number.
fn input(target: &Target, corpus: &Corpus, seed: u64, number: u64) -> Vec<u8> {
    let mut rng = Rng::with_seed(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut input = match rng.choice(corpus) {
        Some((_, input)) if rng.u8(..) >= 32 => input.clone(),
        _ => bytes(&mut rng, 128),
    };
    for _ in 0..1 << rng.u32(0..5) {
        mutate(&mut input, target.dictionary, corpus, &mut rng);
        if rng.u8(..) < 64 {
            break;
        }
    }
    input.truncate(MAX_LENGTH);
    input
}

/// Changes an input once.
fn mutate(input: &mut Vec<u8>, dictionary: &[&[u8]], corpus: &Corpus, rng: &mut Rng) {
    let at = rng.usize(..=input.len());
    let end = (at + 1 + rng.usize(0..16)).min(input.len());
    match rng.u8(0..9) {
        0 => change(input, at, |byte| byte ^ 1 << rng.u8(0..8)),
        1 => change(input, at, |_| rng.u8(..)),
        2 => change(input, at, |_| rng.choice([0, 1, 0x7f, 0x80, 0xff, b'0', b'9', b' ']).unwrap_or(0)),
        3 => drop(input.drain(at..end)),
        4 => drop(input.splice(at..at, bytes(rng, 8))),
        5 => {
            let copy = input[at..end].to_vec();
            let to = rng.usize(..=input.len());
            input.splice(to..to, copy);
        }
        6 => {
            let token = rng.choice(dictionary).copied().unwrap_or(b"\n");
            let to = if rng.bool() { at } else { (at + token.len()).min(input.len()) };
            input.splice(at..to, token.iter().copied());
        }
        7 => {
            // The end of another input.
            if let Some((_, other)) = rng.choice(corpus) {
                input.truncate(at);
                input.extend_from_slice(&other[rng.usize(..=other.len())..]);
            }
        }
        _ => {
            let number = rng.choice([0, 1, 255, 256, u64::from(u32::MAX), 1 << 32, 1 << 63, u64::MAX]);
            let bytes = number.unwrap_or(0).to_le_bytes();
            let length = rng.usize(1..=8).min(input.len() - at);
            input[at..at + length].copy_from_slice(&bytes[..length]);
        }
    }
}

fn change(input: &mut [u8], at: usize, to: impl FnOnce(u8) -> u8) {
    if let Some(byte) = input.get_mut(at) {
        *byte = to(*byte);
    }
}

fn bytes(rng: &mut Rng, max: usize) -> Vec<u8> {
    (0..rng.usize(..=max)).map(|_| rng.u8(..)).collect()
}
