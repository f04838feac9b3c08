//! The example `replay`: its decisions against a plain model, its formats, and its errors.

mod equality;
mod errors;
mod formats;
mod logs;
mod model;

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;

use super::process::program;
use crate::docs::expected_output;

/// The output of a run.
struct Replayed {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn replay(arguments: &[&str], input: Option<&Path>) -> Replayed {
    let mut command = Command::new(program("replay"));
    command.args(arguments);
    if let Some(input) = input {
        command.stdin(File::open(input).unwrap());
    }
    let Output { status, stdout, stderr } = command.output().unwrap();
    let [stdout, stderr] = [stdout, stderr].map(|output| String::from_utf8(output).unwrap());
    Replayed { code: status.code(), stdout, stderr }
}

/// Files for a run.
struct Files(TempDir);

impl Files {
    fn new(plan: &str, log: impl AsRef<[u8]>) -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("policies.toml"), plan).unwrap();
        fs::write(folder.path().join("access.log"), log).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Replays the log with these options.
    fn replay(&self, options: &[&str]) -> Replayed {
        let files = [self.path("policies.toml"), self.path("access.log")];
        let arguments: Vec<&str> = options.iter().copied().chain(files.iter().map(String::as_str)).collect();
        replay(&arguments, None)
    }

    /// Replays the log, which must succeed, and returns the summary.
    fn summary(&self, options: &[&str]) -> String {
        let Replayed { code, stdout, stderr } = self.replay(options);
        assert_eq!((code, &*stderr), (Some(0), ""), "{stdout}");
        stdout
    }

    /// Returns the error, which must be one line.
    fn error(&self, options: &[&str]) -> String {
        let Replayed { code, stdout, stderr } = self.replay(options);
        assert_eq!((code, &*stdout, stderr.matches('\n').count()), (Some(2), "", 1), "{stderr}");
        let folder = format!("{}/", self.0.path().display());
        stderr.trim_end().strip_prefix("error: ").unwrap().replace(&folder, "")
    }
}

fn of_example(file: &str) -> String {
    format!("{}/../examples/replay/{file}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn example_prints_expected_output() {
    let files = [of_example("policies.toml"), of_example("access.log")];
    let replayed = replay(&[&*files[0], &*files[1], "--smallest-quota", "1%"], None);
    assert_eq!((replayed.code, &*replayed.stderr), (Some(0), ""));
    assert_eq!(replayed.stdout.trim_end(), expected_output("replay"));
}

#[test]
fn standard_input_and_output_have_same_result() {
    let files = [of_example("policies.toml"), of_example("access.log")];
    let from_file = replay(&[&files[0], &files[1]], None);
    let from_input = replay(&[&files[0], "-"], Some(Path::new(&files[1])));
    assert_eq!(from_file.stdout, from_input.stdout);
    let folder = TempDir::new().unwrap();
    let list = folder.path().join("denials.jsonl");
    let to_file = replay(&[&files[0], &files[1], "--denials", list.to_str().unwrap()], None);
    let to_output = replay(&[&files[0], &files[1], "--denials", "-"], None);
    assert_eq!((&to_file.stdout, &to_output.stderr), (&from_file.stdout, &from_file.stdout));
    let list = fs::read_to_string(list).unwrap();
    assert_eq!(to_output.stdout, list);
    assert_eq!(list.lines().count(), 8);
}
