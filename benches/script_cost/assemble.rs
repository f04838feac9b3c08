//! Assembles the scripts of a folder, as the crate's loader does (`src/backend/redis/script.rs`), with a clock that both reads the
//! server's time and takes the instant from the arguments.

use std::{collections::HashMap, fs, path::Path};

/// The line of every script after which `now` is known.
const READS_CLOCK: &str = "local now = time[1] * 1000000 + time[2]\n";
/// The rest of the script does not see the instant.
const TAKES_INSTANT: &str = "now = tonumber(ARGV[#ARGV])\nARGV[#ARGV] = nil\n";

/// The text of a script in a folder such as `lua`, by the name of its file.
pub fn script(folder: &Path, file: &str) -> Result<String, String> {
    Ok(expand(&with_included(folder, file)?, &read(folder, "names.lua")?))
}

fn read(folder: &Path, file: &str) -> Result<String, String> {
    let path = folder.join(file);
    fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// Returns the text of a file without its comments, and with the texts of the files that it includes.
fn with_included(folder: &Path, file: &str) -> Result<String, String> {
    let source = read(folder, file)?;
    let mut text = String::new();
    for mut line in source.lines().filter(|line| !line.trim_start().starts_with("--")) {
        while let Some((before, (included, after))) =
            line.split_once("INCLUDE '").and_then(|(before, rest)| Some((before, rest.split_once('\'')?)))
        {
            text.push_str(before);
            text.push_str(with_included(folder, included)?.trim());
            line = after;
        }
        text.push_str(line);
        text.push('\n');
    }
    Ok(text.trim().strip_prefix("return function").map(|rest| format!("function{rest}")).unwrap_or(text))
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
