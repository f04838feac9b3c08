//! The structure of the source: no file depends on a file that depends on it.
//!
//! A file depends on another if it names an item that is defined there; re-exports are followed to the definition. A dependency
//! between a `mod.rs` and the files below it does not count. Comments and unit tests do not count.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

#[test]
fn source_files_have_no_cycles() {
    let graph = Graph::new(&sources(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../src"))));
    assert!(graph.0.len() > 50, "the parser finds the dependencies: {}", graph.0.len());
    let cycles = graph.cycles();
    assert!(cycles.is_empty(), "cycles between files:\n\n{}", cycles.join("\n"));
}

/// The crate root exports only the names that most users write. All other names are in modules.
#[test]
fn crate_root_exports_few_names() {
    let root = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../src/lib.rs")).unwrap();
    let exports = root.split("pub use crate::").skip(1).map(|rest| rest.split(';').next().unwrap());
    // The modules `redis` and `testing` are inline. Their exports are not exports of the root.
    let exports = exports.filter(|paths| !paths.starts_with("backend::"));
    let words =
        exports.flat_map(|paths| paths.split([',', '{', '}', '\n', ' '])).filter(|word| !word.is_empty());
    let names: Vec<&str> = words.filter(|word| !word.ends_with("::")).collect();
    assert!((25..=35).contains(&names.len()), "{}: {names:?}", names.len());
}

#[test]
fn parser_finds_cycle_through_reexport() {
    let cycles = cycles(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::{self, Bee as Insect}; pub struct A;"),
        ("b/mod.rs", "mod bee; pub use bee::Bee;"),
        ("b/bee.rs", "pub struct Bee(super::super::a::A);"),
    ]);
    assert_eq!(cycles.len(), 1, "{cycles:?}");
    for edge in ["a.rs -> b/bee.rs (Bee)", "b/bee.rs -> a.rs (A)"] {
        assert!(cycles[0].contains(edge), "{cycles:?}");
    }
}

#[test]
fn parser_finds_path_through_imported_module() {
    let cycles = cycles(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b; fn a() { b::b() }"),
        ("b.rs", "pub fn b() { let _ = '\"'; crate::a::a() }"),
    ]);
    assert_eq!(cycles.len(), 1, "{cycles:?}");
}

#[test]
fn parent_module_and_children_form_no_cycle() {
    let sources = [
        ("lib.rs", "mod a; pub struct Root;"),
        ("a/mod.rs", "mod x; mod y; pub struct Parent(x::X); use y::Y;"),
        ("a/x.rs", "use super::{Parent, Y}; use crate::Root; pub struct X;"),
        ("a/y.rs", "use super::Parent; pub struct Y;"),
    ];
    assert_eq!(cycles(&sources), [""; 0]);
}

#[test]
fn parser_ignores_comments_strings_and_unit_tests() {
    let sources = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        (
            "b.rs",
            "/// [`A`](crate::a::A) \n pub struct B; /* crate::a::A */ const S: &str = \"crate::a::A\"; \
             const R: &str = r#\"crate::a::A\"#; #[cfg(test)] mod tests { use crate::a::A; fn f() { {} } }",
        ),
    ];
    assert_eq!(cycles(&sources), [""; 0]);
}

fn cycles(sources: &[(&str, &str)]) -> Vec<String> {
    let sources = sources.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect();
    Graph::new(&sources).cycles()
}

/// Returns the text of every source file by its path below `src`.
pub fn sources(src: &Path) -> BTreeMap<String, String> {
    let (mut sources, mut folders) = (BTreeMap::new(), vec![src.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(src).unwrap().to_str().unwrap().replace('\\', "/");
                sources.insert(name, fs::read_to_string(path).unwrap());
            }
        }
    }
    sources
}

/// A module path, such as `["backend", "redis"]`. The crate root is empty.
type ModulePath = Vec<String>;

/// The dependencies between files, each with one of the items that cause it.
struct Graph(BTreeMap<(String, String), String>);

/// The modules of the crate, including inline ones.
#[derive(Default)]
struct Modules(BTreeMap<ModulePath, Module>);

#[derive(Default)]
struct Module {
    file: String,
    /// The names that `use` declarations bind, with their paths.
    bindings: BTreeMap<String, Vec<String>>,
    /// All paths, in `use` declarations and elsewhere.
    paths: BTreeSet<Vec<String>>,
}

impl Graph {
    fn new(sources: &BTreeMap<String, String>) -> Self {
        let mut modules = Modules::default();
        for (file, text) in sources {
            modules.read(file, &tokens(text));
        }
        let mut edges = BTreeMap::new();
        for (path, module) in &modules.0 {
            for named in &module.paths {
                let Some((owner, item)) = modules.definition(path, named, 0) else { continue };
                let (from, to) = (&module.file, &modules.0[&owner].file);
                if from != to && !is_parent(from, to) && !is_parent(to, from) {
                    edges.entry((from.clone(), to.clone())).or_insert(item);
                }
            }
        }
        Self(edges)
    }

    /// Returns a description of each group of files that depend on each other.
    fn cycles(&self) -> Vec<String> {
        let edges = || self.0.keys().map(|(from, to)| (from.as_str(), to.as_str()));
        let dependencies = |file: &str| {
            let (mut found, mut queue) = (BTreeSet::new(), vec![file.to_owned()]);
            while let Some(file) = queue.pop() {
                let next = edges().filter(|(from, _)| *from == file).map(|(_, to)| to);
                queue.extend(next.filter(|to| found.insert(*to)).map(str::to_owned));
            }
            found
        };
        let files: BTreeSet<&str> = edges().map(|(from, _)| from).collect();
        let all: BTreeMap<_, _> = files.into_iter().map(|file| (file, dependencies(file))).collect();
        let depends = |file: &str, other: &str| all.get(file).is_some_and(|files| files.contains(other));
        let group = |file: &str| all[file].iter().copied().filter(|other| depends(other, file)).collect();
        let in_cycle = all.keys().copied().filter(|file| depends(file, file));
        let groups: BTreeSet<BTreeSet<&str>> = in_cycle.map(group).collect();
        let describe = |group: BTreeSet<&str>| {
            let inside = self
                .0
                .iter()
                .filter(|((from, to), _)| group.contains(from.as_str()) && group.contains(to.as_str()));
            inside.map(|((from, to), item)| format!("{from} -> {to} ({item})\n")).collect()
        };
        groups.into_iter().map(describe).collect()
    }
}

impl Modules {
    /// Reads the modules, `use` declarations and paths of a file.
    fn read(&mut self, file: &str, tokens: &[String]) {
        let token = |i: usize| tokens.get(i).map_or("", String::as_str);
        // One entry for each open brace. The entry of an inline module has the name of the module.
        let mut scopes: Vec<Option<String>> = Vec::new();
        let mut i = 0;
        loop {
            let path = [module_of(file), scopes.iter().flatten().cloned().collect()].concat();
            let module = self.0.entry(path).or_default();
            module.file = file.to_owned();
            match token(i) {
                "" => break,
                "use" if token(i + 1) != "<" => {
                    i = module.read_use(tokens, i + 1, &[]);
                    continue;
                }
                "mod" if token(i + 2) == "{" => {
                    scopes.push(Some(token(i + 1).to_owned()));
                    i += 2;
                }
                "{" => scopes.push(None),
                "}" => drop(scopes.pop().unwrap_or_else(|| panic!("{file}: too many braces are closed"))),
                first if is_identifier(first) => {
                    let mut named = vec![first.to_owned()];
                    while token(i + 1) == "::" && is_identifier(token(i + 2)) {
                        named.push(token(i + 2).to_owned());
                        i += 2;
                    }
                    module.paths.insert(named);
                }
                _ => {}
            }
            i += 1;
        }
        assert!(scopes.is_empty(), "{file}: a brace is not closed");
    }

    /// Returns the module that defines the item of a path, and the name of the item. Returns None for a module and for an item of
    /// another crate.
    fn definition(&self, module: &ModulePath, path: &[String], depth: usize) -> Option<(ModulePath, String)> {
        let mut at = module.clone();
        let mut rest = path;
        let is_known =
            |name: &str| self.child(module, name).is_some() || self.binding(module, name).is_some();
        match path.first()?.as_str() {
            "crate" => (at, rest) = (ModulePath::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {}
            first if is_known(first) => {}
            _ => return None,
        }
        while let Some((name, after)) = rest.split_first() {
            if name == "super" {
                at.pop()?;
            } else {
                // A module and an item may have the same name, but only a module continues a path.
                match (self.child(&at, name), self.binding(&at, name)) {
                    (Some(child), _) if !after.is_empty() => at = child,
                    // The limit ends the search for a name that is bound to itself.
                    (_, Some(_)) if depth > 8 => return None,
                    (_, Some(target)) => {
                        return self.definition(&at, &[target, after].concat(), depth + 1);
                    }
                    (Some(_), None) => return None,
                    (None, None) => return Some((at, name.clone())),
                }
            }
            rest = after;
        }
        None
    }

    fn child(&self, module: &ModulePath, name: &str) -> Option<ModulePath> {
        let child = [module.as_slice(), &[name.to_owned()]].concat();
        self.0.contains_key(&child).then_some(child)
    }

    fn binding(&self, module: &ModulePath, name: &str) -> Option<&[String]> {
        self.0.get(module)?.bindings.get(name).map(Vec::as_slice)
    }
}

impl Module {
    /// Reads a tree of a `use` declaration from token `i` on, and returns the index of the token after it.
    fn read_use(&mut self, tokens: &[String], mut i: usize, prefix: &[String]) -> usize {
        let mut path = prefix.to_vec();
        loop {
            match tokens[i].as_str() {
                "::" => {}
                "{" => {
                    while tokens[i] != "}" {
                        i = self.read_use(tokens, i + 1, &path);
                    }
                    return i + 1;
                }
                "as" => {
                    self.bind(&tokens[i + 1], path);
                    return i + 2;
                }
                "*" => panic!("a glob import hides what a file depends on: {}::*", path.join("::")),
                name if is_identifier(name) => path.push(name.to_owned()),
                _ => break,
            }
            i += 1;
        }
        if path.len() > prefix.len() {
            let name = path.iter().rfind(|name| *name != "self").cloned();
            self.bind(&name.unwrap_or_default(), path);
        }
        i
    }

    fn bind(&mut self, name: &str, mut path: Vec<String>) {
        // `use a::{self}` binds `a`.
        path.pop_if(|last| last == "self");
        self.paths.insert(path.clone());
        self.bindings.insert(name.to_owned(), path);
    }
}

/// Returns the module of a file. The modules `tls` and `metrics` have two files each, and a build compiles one of them.
fn module_of(file: &str) -> ModulePath {
    let file = file.replace("no_tls.rs", "tls.rs").replace("no_metrics.rs", "metrics.rs");
    let path = file.trim_end_matches(".rs").split('/').filter(|name| !["lib", "mod"].contains(name));
    path.map(str::to_owned).collect()
}

/// Returns whether a file is a `mod.rs` above another, or the crate root.
fn is_parent(file: &str, other: &str) -> bool {
    file == "lib.rs" || file.strip_suffix("mod.rs").is_some_and(|folder| other.starts_with(folder))
}

fn is_identifier(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Splits Rust source into identifiers, `::` and single characters, without comments, literals and unit tests.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = literal(rest) {
            length
        } else if first.is_alphanumeric() || first == '_' {
            let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            tokens.push(rest[..length].to_owned());
            length
        } else {
            let length = if rest.starts_with("::") { 2 } else { first.len_utf8() };
            if !first.is_whitespace() {
                tokens.push(rest[..length].to_owned());
            }
            length
        };
        rest = &rest[length..];
    }
    without_unit_tests(tokens)
}

/// Returns the length of a string, character or lifetime at the beginning of a text.
fn literal(text: &str) -> Option<usize> {
    let unprefixed = text.strip_prefix('b').unwrap_or(text);
    let prefix = text.len() - unprefixed.len();
    if let Some(raw) = unprefixed.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let start = prefix + 1 + hashes + 1;
            return Some(start + text[start..].find(&end).expect("a raw string ends") + end.len());
        }
    }
    let quote = unprefixed.chars().next().filter(|c| ['"', '\''].contains(c))?;
    let mut characters = unprefixed.char_indices().skip(1);
    if quote == '\'' && !unprefixed.starts_with("'\\") {
        // A lifetime has no closing quote after its first character.
        let (_, (end, closing)) = (characters.next()?, characters.next()?);
        return Some(prefix + if closing == '\'' { end + 1 } else { 1 });
    }
    while let Some((i, character)) = characters.next() {
        match character {
            '\\' => drop(characters.next()),
            _ if character == quote => return Some(prefix + i + 1),
            _ => {}
        }
    }
    panic!("a literal does not end: {text}")
}

fn without_unit_tests(tokens: Vec<String>) -> Vec<String> {
    const ATTRIBUTE: [&str; 8] = ["#", "[", "cfg", "(", "test", ")", "]", "mod"];
    let mut kept = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        if !tokens[i..].iter().map(String::as_str).take(ATTRIBUTE.len()).eq(ATTRIBUTE) {
            kept.push(tokens[i].clone());
            i += 1;
            continue;
        }
        // The module ends with the brace that closes its first one.
        let mut open = 0;
        loop {
            match tokens[i].as_str() {
                "{" => open += 1,
                "}" => open -= 1,
                _ => {}
            }
            i += 1;
            if open == 0 && tokens[i - 1] == "}" {
                break;
            }
        }
    }
    kept
}
