//! What the compiler says about typical mistakes.
//!
//! Each file in `mistakes` contains one mistake. A comment `//~ text` marks its line: the first error must be there, and its
//! message must contain the text. Each further comment `//~ note: text` names a text in the notes, helps or labels of this
//! error.
//!
//! The directory `mistakes/unexplained` contains the mistakes whose first error is at another line or does not say what is
//! wrong. An attribute in the crate cannot change these errors, so their comments state what rustc reports today. The texts of
//! rustc itself are those of Rust 1.95.

use std::{collections::BTreeMap, env, error::Error, fmt::Write as _, fs, path::Path, process::Command};

use serde_json::Value;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The least number of mistakes that are named at their line.
const LEAST_NAMED: usize = 87;

/// One mistake, and what the compiler must say about it.
struct Case {
    source: String,
    line: u64,
    message: String,
    notes: Vec<String>,
}

#[test]
fn compiler_names_typical_mistakes() -> Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("mistakes");
    let named = read(&directory)?;
    let unexplained = read(&directory.join("unexplained"))?;
    let errors = first_errors(named.values().chain(unexplained.values()))?;

    let mut failures = String::new();
    for (name, case) in named.iter().chain(&unexplained) {
        let error = errors.get(name);
        if let Err(expected) = error.ok_or_else(|| "an error".to_owned()).and_then(|error| case.verify(error))
        {
            let rendered = error.and_then(|error| error["rendered"].as_str()).unwrap_or("no error");
            writeln!(failures, "== {name}: expected {expected}, but the compiler reports:\n{rendered}")?;
        }
    }
    println!("{} of {} mistakes are named at their line", named.len(), named.len() + unexplained.len());
    assert!(failures.is_empty(), "\n{failures}");
    assert!(named.len() >= LEAST_NAMED, "{} mistakes are named, but {LEAST_NAMED} were", named.len());
    Ok(())
}

/// Reads the mistakes in a directory.
fn read(directory: &Path) -> Result<BTreeMap<String, Case>> {
    let mut cases = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let case = Case::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            cases.insert(name, case);
        }
    }
    Ok(cases)
}

impl Case {
    fn read(path: &Path) -> Result<Self> {
        let (mut mark, mut notes) = (None, Vec::new());
        for (line, text) in (1..).zip(fs::read_to_string(path)?.lines()) {
            match text.split_once("//~ ") {
                Some((_, comment)) if comment.starts_with("note: ") => notes.push(comment[6..].to_owned()),
                Some((_, comment)) if mark.is_none() => mark = Some((line, comment.to_owned())),
                Some(_) => return Err("two lines are marked".into()),
                None => {}
            }
        }
        let (line, message) = mark.ok_or("no line is marked")?;
        Ok(Self { source: path.to_str().ok_or("the path is not UTF-8")?.to_owned(), line, message, notes })
    }

    /// Compares the first error with the comments. Returns what it lacks.
    fn verify(&self, error: &Value) -> std::result::Result<(), String> {
        let spans = || error["spans"].as_array().into_iter().flatten();
        let line = spans().find(|span| span["is_primary"] == true).map(|span| &span["line_start"]);
        if line.is_none_or(|line| *line != self.line) {
            return Err(format!("an error in line {}", self.line));
        }
        if !error["message"].as_str().is_some_and(|message| message.contains(&self.message)) {
            return Err(format!("the message {:?}", self.message));
        }
        let labels = spans().map(|span| &span["label"]);
        let children = error["children"].as_array().into_iter().flatten().map(|child| &child["message"]);
        let texts: Vec<&str> = labels.chain(children).filter_map(Value::as_str).collect();
        match self.notes.iter().find(|note| !texts.iter().any(|text| text.contains(*note))) {
            Some(note) => Err(format!("the note {note:?}")),
            None => Ok(()),
        }
    }
}

/// Compiles the mistakes, and returns the first error of each by its name.
///
/// The project remains in the target directory, so its dependencies are compiled once.
fn first_errors<'a>(cases: impl Iterator<Item = &'a Case>) -> Result<BTreeMap<String, Value>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let project = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mistakes");
    let mut manifest = format!(
        r#"
            package = {{ name = "mistakes", edition = "2024" }}
            workspace = {{}}

            [dependencies]
            axum = {{ version = "0.8", default-features = false, features = ["http1", "tokio"] }}
            http = "1"
            tokio = {{ version = "1", features = ["net"] }}
            tower = {{ version = "0.5", features = ["make", "util"] }}
            tower-sliding-window = {{ path = {root:?}, default-features = false, features = ["axum", "redis"] }}
        "#
    );
    for Case { source, .. } in cases {
        let name = Path::new(source).file_stem().unwrap_or_default();
        writeln!(manifest, "[[bin]]\nname = {name:?}\npath = {source:?}")?;
    }
    fs::create_dir_all(&project)?;
    fs::write(project.join("Cargo.toml"), manifest)?;
    // With these versions, cargo needs no network.
    fs::copy(root.join("Cargo.lock"), project.join("Cargo.lock"))?;

    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["check", "--offline", "--bins", "--keep-going", "--message-format=json"])
        .current_dir(&project)
        .env("CARGO_TARGET_DIR", project.join("target"))
        .env_remove("RUSTFLAGS")
        .output()?;
    let mut errors = BTreeMap::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let Value::Object(mut event) = serde_json::from_str(line)? else { continue };
        let Some(error) = event.remove("message") else { continue };
        // The summary at the end of a compilation has no place.
        if error["level"] == "error" && error["spans"].as_array().is_some_and(|spans| !spans.is_empty()) {
            let name = event["target"]["name"].as_str().ok_or("a compiler message without a target")?;
            errors.entry(name.to_owned()).or_insert(error);
        }
    }
    if errors.is_empty() {
        return Err(format!("cargo reports:\n{}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(errors)
}
