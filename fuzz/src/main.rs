//! Runs all targets, or those that are named, without cargo-fuzz.

use std::process::ExitCode;

fn main() -> ExitCode {
    fuzz_targets::driver::main(&fuzz_targets::TARGETS.map(|target| target.name))
}
