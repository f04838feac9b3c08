//! Assembles the scripts of a folder, as the crate's loader does (`src/backend/redis/script.rs`), with a clock that both reads the
//! server's time and takes the instant from the arguments.

use std::{collections::HashMap, fs, path::Path};

/// The line of every script after which `now` is known.
const READS_CLOCK: &str = "local now = time[1] * 1000000 + time[2]\n";
/// The rest of the script does not see the instant.
const TAKES_INSTANT: &str = "now = tonumber(ARGV[#ARGV])\nARGV[#ARGV] = nil\n";

/// The text of the check script in a folder such as `lua`.
pub fn check_script(folder: &Path) -> Result<String, String> {
    script(folder, &["clock.lua", "records.lua", "calendar.lua", "log.lua", "check.lua"])
}

pub fn merged_script(folder: &Path) -> Result<String, String> {
    script(folder, &["clock.lua", "records.lua", "calendar.lua", "log.lua", "merged.lua"])
}

pub fn refund_script(folder: &Path) -> Result<String, String> {
    script(folder, &["clock.lua", "records.lua", "refund.lua"])
}

pub fn reset_script(folder: &Path) -> Result<String, String> {
    script(folder, &["clock.lua", "reset.lua"])
}

fn script(folder: &Path, files: &[&str]) -> Result<String, String> {
    let read = |file: &str| {
        let path = folder.join(file);
        fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    let mut source = String::new();
    for file in files {
        source.push_str(&read(file)?);
    }
    Ok(expand(&source, &read("names.lua")?))
}

/// Returns the same script with the instant as its last argument. It reads the server's clock as before, so it costs as much, except
/// for two lines.
pub fn with_injected_clock(script: &str) -> Result<String, String> {
    if script.matches(READS_CLOCK).count() != 1 {
        return Err(format!("a script must contain this line once: {READS_CLOCK}"));
    }
    Ok(script.replace(READS_CLOCK, &format!("{READS_CLOCK}{TAKES_INSTANT}")))
}

/// Replaces each name by its expansion.
fn expand(source: &str, names: &str) -> String {
    let names: HashMap<&str, &str> = names
        .lines()
        .filter(|line| !line.starts_with("--"))
        .filter_map(|line| line.split_once(" = "))
        .collect();
    let ends_word = |character: char| !(character.is_ascii_alphanumeric() || character == '_');
    let mut text = String::new();
    for piece in source.split_inclusive(ends_word) {
        let word = piece.trim_end_matches(ends_word);
        text.push_str(names.get(word).unwrap_or(&word));
        text.push_str(&piece[word.len()..]);
    }
    text
}
