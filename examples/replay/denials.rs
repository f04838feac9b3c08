//! The list of denials: one line of JSON for each.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use serde::Serialize;
use tower_sliding_window::{Decision, PartitionKey};

use crate::{log, requests::Request};

pub(crate) struct Denials {
    path: PathBuf,
    writer: BufWriter<Box<dyn Write>>,
}

/// A line of the list.
#[derive(Serialize)]
struct Denial<'a> {
    /// The line of the log.
    line: u64,
    time: String,
    key: BTreeMap<&'a str, String>,
    /// The units of each policy.
    cost: BTreeMap<&'a str, u32>,
    /// The policies that deny.
    policies: Vec<&'a str>,
    /// The time until the request would have been admitted, or null if never.
    wait_micros: Option<u128>,
}

impl Denials {
    /// Creates a file. `-` is standard output.
    pub(crate) fn create(path: &Path) -> Result<Self, String> {
        let writer: Box<dyn Write> = if path == Path::new("-") {
            Box::new(io::stdout())
        } else {
            Box::new(File::create(path).map_err(|error| format!("{}: {error}", path.display()))?)
        };
        Ok(Self { path: path.to_owned(), writer: BufWriter::new(writer) })
    }

    pub(crate) fn write(
        &mut self,
        request: Request,
        key: &PartitionKey,
        decision: &Decision,
    ) -> Result<(), String> {
        let parts = key.parts().map(|(field, value)| (field, String::from_utf8_lossy(value).into_owned()));
        let denial = Denial {
            line: request.line,
            time: log::time_text(request.at_micros),
            key: parts.collect(),
            cost: decision.statuses().iter().map(|status| (status.policy().name(), status.cost())).collect(),
            policies: decision.violated().map(|policy| policy.name()).collect(),
            wait_micros: decision.retry_after().duration().map(|wait| wait.as_micros()),
        };
        let written = serde_json::to_writer(&mut self.writer, &denial).map_err(io::Error::from);
        let written = written.and_then(|()| self.writer.write_all(b"\n"));
        written.map_err(|error| format!("{}: {error}", self.path.display()))
    }

    pub(crate) fn finish(mut self) -> Result<(), String> {
        self.writer.flush().map_err(|error| format!("{}: {error}", self.path.display()))
    }
}
