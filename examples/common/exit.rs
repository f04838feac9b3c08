//! The end of an example.

use std::{error::Error, process::ExitCode};

/// Prints an error, and returns the exit code: 0, or 2 after an error.
pub(crate) fn exit(ended: Result<(), Box<dyn Error>>) -> ExitCode {
    let Err(error) = ended else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    ExitCode::from(2)
}
