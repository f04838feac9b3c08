//! The lines of a file or of standard input, with a progress bar.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use crate::progress;

/// The length of the longest line that is read, in bytes.
const MAX_LINE: usize = 1 << 20;

/// The lines of a log, one after the other. The memory is that of one line.
pub(crate) struct Lines {
    reader: BufReader<Box<dyn Read>>,
    bar: progress::Bar,
    buffer: Vec<u8>,
    name: String,
    /// The number of the last line.
    number: u64,
}

/// A line, or why it cannot be read.
type Line<'a> = Result<&'a str, String>;

impl Lines {
    /// Opens a file. `-` is standard input.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let name = path.display().to_string();
        let (input, length): (Box<dyn Read>, _) = if path == Path::new("-") {
            (Box::new(io::stdin()), None)
        } else {
            let file = File::open(path).map_err(|error| format!("{name}: {error}"))?;
            let length =
                file.metadata().ok().filter(|metadata| metadata.is_file()).map(|metadata| metadata.len());
            (Box::new(file), length)
        };
        let bar = progress::Bar::bytes(length);
        let reader = BufReader::with_capacity(1 << 16, bar.watch(input));
        Ok(Self { reader, bar, buffer: Vec::new(), name, number: 0 })
    }

    /// Returns the next line that is not empty, and its number. Returns `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Line<'_>)>, String> {
        loop {
            self.buffer.clear();
            let mut limited = self.reader.by_ref().take(MAX_LINE as u64 + 1);
            let read = limited.read_until(b'\n', &mut self.buffer);
            if read.map_err(|error| format!("{}: {error}", self.name))? == 0 {
                self.bar.clear();
                return Ok(None);
            }
            self.number += 1;
            let is_complete = self.buffer.last() == Some(&b'\n');
            if self.buffer.len() > MAX_LINE && !is_complete {
                self.reader.skip_until(b'\n').map_err(|error| format!("{}: {error}", self.name))?;
                return Ok(Some((self.number, Err(format!("the line is longer than {MAX_LINE} bytes")))));
            }
            if !self.buffer.trim_ascii().is_empty() {
                break;
            }
        }
        let line =
            str::from_utf8(self.buffer.trim_ascii_end()).map_err(|_| "the line is not UTF-8".to_owned());
        Ok(Some((self.number, line)))
    }
}
