//! The progress bar on standard error, if that is a terminal.

use std::io::Read;

use indicatif::{ProgressBar, ProgressStyle};

pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// Creates the bar of an input of this many bytes, if they are known.
    pub(crate) fn bytes(length: Option<u64>) -> Self {
        let (bar, style) = match length {
            Some(length) => (
                ProgressBar::new(length),
                "{wide_bar} {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left",
            ),
            None => (ProgressBar::new_spinner(), "{spinner} {bytes}, {binary_bytes_per_sec}"),
        };
        Self(
            bar.with_style(
                ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()),
            ),
        )
    }

    /// Creates the bar of replays, of which there will be at most this many.
    pub(crate) fn replays(most: u64) -> Self {
        let style = ProgressStyle::with_template("{wide_bar} replay {pos} of at most {len}: {msg}");
        Self(ProgressBar::new(most).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
    }

    /// Moves the bar with what is read.
    pub(crate) fn watch(&self, input: impl Read + 'static) -> Box<dyn Read> {
        Box::new(self.0.wrap_read(input))
    }

    /// Shows the next replay.
    pub(crate) fn next(&self, message: String) {
        self.0.set_message(message);
        self.0.inc(1);
    }

    pub(crate) fn clear(&self) {
        self.0.finish_and_clear();
    }
}
