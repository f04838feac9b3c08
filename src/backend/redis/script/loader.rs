//! The loader: assembles the scripts of the files in `lua`. `lua/README.md` is the contract.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use redis::Cmd;

use super::Call;
use crate::policy::{REDIS_TYPES, RedisProperties};

/// The definitions of the names in the other files.
const NAMES: &str = include_str!("../../../../lua/names.lua");
/// The first part of each script, and what replaces it if the clock is injected.
const CLOCK: &str = "clock.lua";
#[cfg(any(test, feature = "test-util"))]
const CLOCK_INJECTED: &str = "clock_injected.lua";
/// Further definitions for an injected clock: a bound that short logs reach, too.
#[cfg(any(test, feature = "test-util"))]
const SMALL_BOUNDS: &str = "MAX_DROPPED_BLOCKS = (blocks < 2048 and 2 or 2048)";

/// The file of each script.
const SCRIPTS: [&str; 5] = ["check.lua", "merged.lua", "refund.lua", "reset.lua", "hold.lua"];

macro_rules! files {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../../../lua/", $name)))),*]
    };
}

/// The files of the scripts, beside those of each type of policy: their names and texts.
const FILES: &[(&str, &str)] = files![
    "charge_calendar.lua" "charge_log.lua" "check.lua" "clock.lua" "clock_injected.lua" "convert_parts.lua"
    "count_fitting.lua" "decide.lua" "decide_next.lua" "find_record.lua" "find_waits_log.lua"
    "hold.lua" "keep_newer.lua" "leave_at_most.lua" "limit_drops.lua" "log_from.lua" "merged.lua" "multiply.lua"
    "read_calendar.lua" "read_holders.lua" "read_log.lua"
    "refund.lua" "reply_log.lua" "reset.lua" "settle_token.lua" "skip_empty.lua" "types.lua" "write_holders.lua"
    "write_number.lua"
];

/// Returns all files: their names and texts.
fn files() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let of_types = REDIS_TYPES.iter().flat_map(|redis_type| [&redis_type.script, &redis_type.refund]);
    of_types.chain(FILES)
}

/// The scripts, with one clock.
pub(in crate::backend::redis) struct Scripts {
    /// Decides a check.
    pub(in crate::backend::redis) check: Script,
    /// Decides several checks.
    pub(in crate::backend::redis) merged: Script,
    /// Refunds units.
    pub(in crate::backend::redis) refund: Script,
    /// Deletes the keys of pairs.
    pub(in crate::backend::redis) reset: Script,
    /// Releases, restores and renews units in flight.
    pub(in crate::backend::redis) hold: Script,
}

impl Scripts {
    /// Returns the scripts with the server's clock. All backends share them.
    pub(in crate::backend::redis) fn shared() -> Arc<Self> {
        static SCRIPTS: LazyLock<Arc<Scripts>> = LazyLock::new(|| Arc::new(Scripts::with_clock(CLOCK, "")));
        SCRIPTS.clone()
    }

    /// Returns the same scripts with an injected clock: they take the instant from their arguments. They delete fewer blocks of a short log at once.
    #[cfg(any(test, feature = "test-util"))]
    pub(in crate::backend::redis) fn with_injected_clock() -> Arc<Self> {
        static SCRIPTS: LazyLock<Arc<Scripts>> =
            LazyLock::new(|| Arc::new(Scripts::with_clock(CLOCK_INJECTED, SMALL_BOUNDS)));
        SCRIPTS.clone()
    }

    fn with_clock(clock: &str, bounds: &str) -> Self {
        let mut names = definitions(NAMES);
        names.extend(definitions(bounds));
        let [check, merged, refund, reset, hold] =
            SCRIPTS.map(|file| Script::assemble(&with_included(file, clock), &names));
        Self { check, merged, refund, reset, hold }
    }
}

/// One script and its hash.
pub(in crate::backend::redis) struct Script {
    text: String,
    sha1: String,
}

impl Script {
    /// Expands the names in a source.
    fn assemble(source: &str, names: &HashMap<&str, &str>) -> Self {
        let text = expand(source, names);
        let sha1 = redis::Script::new(&text).get_hash().to_owned();
        Self { text, sha1 }
    }

    /// Returns the command that runs the script by its hash. The server must have loaded it.
    pub(in crate::backend::redis) fn by_hash(&self, call: &Call) -> Cmd {
        call.command("EVALSHA", &self.sha1)
    }

    /// Returns the command that runs the script by its text, and loads it.
    pub(in crate::backend::redis) fn by_text(&self, call: &Call) -> Cmd {
        call.command("EVAL", &self.text)
    }
}

/// Returns the text of a file without its comments, and with the texts of the files that it includes. A file that is one
/// function begins with `return`, which its text leaves out.
fn with_included(file: &str, clock: &str) -> String {
    let file = if file == CLOCK { clock } else { file };
    let source = files().find(|(name, _)| *name == file).map_or("", |(_, source)| source);
    let lines = source.lines().filter(|line| !line.trim_start().starts_with("--"));
    let mut text = String::new();
    for line in lines.flat_map(for_each_type) {
        let mut line = line.as_str();
        while let Some((before, included)) = line.split_once("INCLUDE '") {
            let (included, after) = included.split_once('\'').unwrap_or((included, ""));
            text.push_str(before);
            text.push_str(with_included(included, clock).trim());
            line = after;
        }
        text.push_str(line);
        text.push('\n');
    }
    text.trim().strip_prefix("return function").map(|rest| format!("function{rest}")).unwrap_or(text)
}

/// Returns a line once, or once for each type if it has the name of a type's field.
fn for_each_type(line: &str) -> Vec<String> {
    // Few lines have one, and a search for each name and type would be most of the time to start.
    if !["TYPE_", "REFUND_"].iter().any(|start| line.contains(start)) {
        return vec![line.to_owned()];
    }
    let mut lines = Vec::new();
    for RedisProperties { number, script: (script, _), refund: (refund, _), refund_windows, .. } in
        REDIS_TYPES
    {
        let fields = [
            ("TYPE_NUMBER", number.to_string()),
            ("TYPE_FILE", (*script).to_owned()),
            ("REFUND_FILE", (*refund).to_owned()),
            ("REFUND_FUNCTION", refund.trim_end_matches(".lua").to_owned()),
            ("REFUND_WINDOWS", refund_windows.to_string()),
        ];
        let line = fields.iter().fold(line.to_owned(), |line, (name, field)| line.replace(name, field));
        // Several types may refund by the same function.
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// Returns the expansion of each name. A definition is a line `NAME = expansion`.
fn definitions(file: &str) -> HashMap<&str, &str> {
    file.lines().filter(|line| !line.starts_with("--")).filter_map(|line| line.split_once(" = ")).collect()
}

/// Replaces each name in a source by its expansion. A name that is part of a longer word stays.
fn expand(source: &str, names: &HashMap<&str, &str>) -> String {
    let mut text = String::with_capacity(2 * source.len());
    // Each piece is a word, which may be empty, and the character after it.
    for piece in source.split_inclusive(ends_word) {
        let word = piece.trim_end_matches(ends_word);
        text.push_str(names.get(word).unwrap_or(&word));
        text.push_str(&piece[word.len()..]);
    }
    text
}

/// Returns whether a character is not part of a word of Lua.
fn ends_word(character: char) -> bool {
    !(character.is_ascii_alphanumeric() || character == '_')
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn expand_replaces_whole_words() {
        let names = definitions("-- A = comment\nPEEK = 'p'\nLOG = key, tail\n\nPAIR_SIZE = 20\n");
        assert_eq!(names.len(), 3);
        let cases = [
            ("", ""),
            ("PEEK", "'p'"),
            ("f(PEEK,LOG)", "f('p',key, tail)"),
            ("PEEKS = _PEEK .. PEEK_1", "PEEKS = _PEEK .. PEEK_1"),
            ("PAIR_SIZE * i - (PAIR_SIZE - 1)\n", "20 * i - (20 - 1)\n"),
            ("größer LOG", "größer key, tail"),
        ];
        for (source, expanded) in cases {
            assert_eq!(expand(source, &names), expanded);
        }
    }

    #[test]
    fn scripts_contain_no_unexpanded_name() {
        let all = [Scripts::shared(), Scripts::with_injected_clock()];
        let names: HashSet<&str> = definitions(NAMES).into_keys().collect();
        assert!(names.contains("CONTEXT"));
        for script in all.iter().flat_map(|scripts| {
            [&scripts.check, &scripts.merged, &scripts.refund, &scripts.reset, &scripts.hold]
        }) {
            let unexpanded =
                script.text.split(ends_word).find(|word| names.contains(word) || *word == "INCLUDE");
            assert_eq!(unexpanded, None);
        }
    }

    #[test]
    fn every_file_is_part_of_a_script() {
        let text: String = [CLOCK, CLOCK_INJECTED]
            .iter()
            .flat_map(|clock| SCRIPTS.map(|file| with_included(file, clock)))
            .collect();
        for (name, _) in files() {
            let included = with_included(name, CLOCK);
            assert!(!included.is_empty() && text.contains(included.trim()), "{name}");
            let files = included.split("INCLUDE").count();
            assert_eq!(files, 1, "{name} includes a file that is not in the list");
        }
    }
}
