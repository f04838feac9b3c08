//! The Lua source files, before the loader expands their names.

use std::{collections::HashMap, fs, path::Path};

use super::admin::Admin;
use crate::support::server::{Engine, Server};

/// The maximum number of parameters of a Lua function. A name from `names.lua` counts as one.
const MAX_PARAMETERS: usize = 6;

/// Returns the source of every file in `lua` by its name.
fn files() -> HashMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lua");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files: HashMap<_, _> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "lua"))
        .map(|path| {
            (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read_to_string(path).unwrap())
        })
        .collect();
    assert!(
        files.contains_key("names.lua") && files.contains_key("check.lua"),
        "the names and the check script are there"
    );
    files
}

/// Returns a source without its comments. No string of these files contains two hyphens.
fn code(source: &str) -> String {
    source.lines().map(|line| line.split("--").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Returns the parameters of each function in a source.
fn parameters(source: &str) -> Vec<Vec<String>> {
    let lists = code(source);
    // `function` may also be a part of a name.
    let definitions = lists.split("function").skip(1).filter(|rest| rest.starts_with([' ', '(']));
    let lists = definitions.map(|rest| {
        let (_, rest) = rest.split_once('(').unwrap();
        rest.split_once(')').unwrap().0
    });
    let names = |list: &str| list.split(',').map(|name| name.trim().to_owned()).collect();
    lists.map(names).collect()
}

/// Returns the names that `names.lua` defines.
fn names(files: &HashMap<String, String>) -> Vec<String> {
    let definitions = code(&files["names.lua"]);
    let names = definitions.lines().filter_map(|line| line.split_once(" = "));
    names.map(|(name, _)| name.to_owned()).collect()
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_')
        .any(|found| found == word)
}

#[test]
fn unexpanded_files_are_valid_lua() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        let mut load = |source: &str| {
            let wrapped = format!("local function file()\n{source}\nend\nreturn file");
            admin.try_query::<String>(&["SCRIPT", "LOAD", &wrapped])
        };
        load("return return").unwrap_err();
        for (name, source) in files() {
            load(&source).unwrap_or_else(|error| panic!("{engine:?}: {name}: {error}"));
        }
    }
}

#[test]
fn lua_functions_have_few_parameters() {
    let mut functions = 0;
    for (name, source) in files() {
        for parameters in parameters(&source) {
            functions += 1;
            assert!(parameters.len() <= MAX_PARAMETERS, "{name}: {parameters:?}");
        }
    }
    assert!(functions >= 8, "found {functions} functions");
}

#[test]
fn lua_files_begin_with_a_header() {
    for (name, source) in files() {
        let header: String = source.lines().take_while(|line| line.starts_with("--")).collect();
        let required: &[&str] =
            if name == "names.lua" { &["Units:"] } else { &["Purpose:", "KEYS", "ARGV", "Reply:", "Units:"] };
        for word in required {
            assert!(header.contains(word), "{name}: {word}");
        }
    }
}

#[test]
fn every_defined_name_is_used_outside_strings() {
    let files = files();
    let sources = files.iter().filter(|(name, _)| *name != "names.lua");
    let sources: String = sources.map(|(_, source)| code(source)).collect();
    // Every second part is a string.
    let (code, strings): (Vec<_>, Vec<_>) =
        sources.split('\'').enumerate().partition(|(part, _)| part % 2 == 0);
    for name in names(&files) {
        assert!(code.iter().any(|(_, part)| has_word(part, &name)), "{name} is not used");
        assert!(!strings.iter().any(|(_, part)| has_word(part, &name)), "{name} is part of a string");
    }
}
