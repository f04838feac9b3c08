//! Tables of text.

use std::time::Duration;

use tower_sliding_window::{PartitionKey, Wait};

use crate::log::shortened;

/// Returns the rows with columns of equal width. The first column and those in `left` are aligned to the left.
pub(crate) fn table<const N: usize>(rows: &[[String; N]], left: &[usize]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let space = if column == 0 { "" } else { "  " };
            line += &match column == 0 || left.contains(&column) {
                true => format!("{space}{cell:<width$}"),
                false => format!("{space}{cell:>width$}"),
            };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Returns a wait, rounded up to milliseconds below two minutes, and else to seconds.
pub(crate) fn wait(wait: Wait) -> String {
    match wait {
        Wait::For(Duration::ZERO) => "-".to_owned(),
        Wait::For(wait) if wait < Duration::from_secs(120) => {
            format!("{:.3} s", wait.as_micros().div_ceil(1_000) as f64 / 1e3)
        }
        Wait::For(wait) => {
            let seconds = wait.as_micros().div_ceil(1_000_000);
            format!("{}:{:02}:{:02} h", seconds / 3_600, seconds / 60 % 60, seconds % 60)
        }
        _ => "never".to_owned(),
    }
}

/// Returns a window in its largest unit.
pub(crate) fn window(window: Duration) -> String {
    let units =
        [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"), (1_000, "ms")];
    let micros = window.as_micros();
    let unit = units.into_iter().find(|(unit, _)| micros.is_multiple_of(*unit));
    let (unit, name) = unit.unwrap_or((1, "us"));
    format!("{} {name}", micros / unit)
}

/// Returns a share in percent.
pub(crate) fn percent(part: u64, of: u64) -> String {
    format!("{:.2} %", part as f64 * 100.0 / of.max(1) as f64)
}

/// Returns the beginning of a key. A control character is escaped, because a client chooses its key.
pub(crate) fn key(key: &PartitionKey) -> String {
    let parts = key.parts().map(|(_, value)| String::from_utf8_lossy(value).escape_debug().to_string());
    shortened(&parts.collect::<Vec<_>>().join(" ")).into_owned()
}

/// Returns a number and a word in the singular or the plural.
pub(crate) fn count(number: u64, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}
