//! Assembles the scripts of a folder, as the crate's loader does (`src/backend/redis/script/loader.rs`), with a clock that both reads the
//! server's time and takes the instant from the arguments.

use std::{collections::HashMap, fs, path::Path};

/// The line of every script after which `now` is known.
const READS_CLOCK: &str = "local now = time[1] * 1000000 + time[2]\n";
/// The rest of the script does not see the instant.
const TAKES_INSTANT: &str = "now = tonumber(ARGV[#ARGV])\nARGV[#ARGV] = nil\n";

/// The types of policies in the order of the crate: the number, the file that decides and the file that refunds, and the number of windows
/// in which a charge counts.
const TYPES: [(u8, &str, &str, u8); 8] = [
    (0, "sliding_log.lua", "refund_log.lua", 1),
    (1, "sliding_buckets.lua", "refund_log.lua", 1),
    (2, "sliding_counter.lua", "refund_calendar.lua", 2),
    (3, "fixed_window.lua", "refund_calendar.lua", 1),
    (4, "token_bucket.lua", "refund_tokens.lua", 1),
    (5, "gate.lua", "refund_nothing.lua", 1),
    (7, "in_flight.lua", "refund_nothing.lua", 1),
    (6, "calendar_period.lua", "refund_period.lua", 1),
];

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
    let lines = source.lines().filter(|line| !line.trim_start().starts_with("--"));
    for line in lines.flat_map(|line| for_each_type(folder, line)) {
        let mut line = &line[..];
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

/// Returns a line once, or once for each type of the folder if it has the name of a type's field.
fn for_each_type(folder: &Path, line: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for (number, script, refund, windows) in
        TYPES.into_iter().filter(|(_, file, ..)| folder.join(file).exists())
    {
        let fields = [
            ("TYPE_NUMBER", number.to_string()),
            ("TYPE_FILE", script.to_owned()),
            ("REFUND_FILE", refund.to_owned()),
            ("REFUND_FUNCTION", refund.trim_end_matches(".lua").to_owned()),
            ("REFUND_WINDOWS", windows.to_string()),
        ];
        let line = fields.iter().fold(line.to_owned(), |line, (name, field)| line.replace(name, field));
        // Several types may refund by the same function.
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
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
