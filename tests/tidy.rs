//! The structure of the source: no file and no folder depends on one that depends on it.
//!
//! A file depends on another if its code names an item that is defined there. Re-exports are followed to the definition, and are no
//! dependencies themselves. Comments and unit tests do not count.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use syn::{spanned::Spanned, visit::Visit};

/// The largest number of files in a chain in which each file depends on the next one. The crate root has no code, and does not count.
const MAX_FLOORS: usize = 17;
/// The largest number of lines of code of a function, in Rust and in Lua.
const MAX_LINES: usize = 60;
const MAX_LINES_OF_LUA: usize = 90;

#[test]
fn source_files_have_no_cycles() {
    let graph = Graph::new(&source());
    assert!(graph.0.len() > 50, "the parser finds the dependencies: {}", graph.0.len());
    let cycles = graph.cycles();
    assert!(cycles.is_empty(), "cycles between files:\n\n{}", cycles.join("\n"));
}

/// In each folder, a subfolder counts as one file.
#[test]
fn folders_have_no_cycles() {
    let folders = Graph::new(&source()).folders();
    assert!(folders.len() > 5, "the parser finds the folders: {}", folders.len());
    let cycles: Vec<String> = folders.values().flat_map(Graph::cycles).collect();
    assert!(cycles.is_empty(), "cycles between folders:\n\n{}", cycles.join("\n"));
}

#[test]
fn source_has_few_floors() {
    let graph = Graph::new(&source());
    let floors = graph.floors();
    for floor in (1..=floors.values().copied().max().unwrap()).rev() {
        let files = floors.iter().filter(|(_, of_file)| **of_file == floor).map(|(file, _)| *file);
        println!("{floor:>2} {}", files.collect::<Vec<_>>().join(" "));
    }
    let chain = graph.chain();
    println!("{} floors: {}", chain.len(), chain.join(" -> "));
    assert!(
        (5..=MAX_FLOORS).contains(&chain.len()),
        "{} floors, at most {MAX_FLOORS}: {chain:?}",
        chain.len()
    );
}

/// Two modules of which a build compiles one, such as `tls` and `no_tls`, may have the same names.
#[test]
fn types_have_different_names() {
    let same = types(&source()).into_iter().filter(|(_, files)| files.len() > 1);
    let same: Vec<String> = same.map(|(name, files)| format!("{name}: {files:?}\n")).collect();
    assert!(same.is_empty(), "types with the same name:\n\n{}", same.concat());
}

#[test]
fn functions_are_short() {
    let (rust, lua) = (source(), files(&root("lua"), "lua"));
    let long = |function: &Function| function.lines > MAX_LINES;
    let mut long: Vec<Function> = rust_functions(&rust).into_iter().filter(long).collect();
    long.extend(lua_functions(&lua).into_iter().filter(|function| function.lines > MAX_LINES_OF_LUA));
    assert!(long.is_empty(), "long functions: {long:#?}");
}

#[test]
fn lines_of_code_are_printed() {
    let lines: usize = source().values().map(|text| code_lines(&without_test_modules(text)).count()).sum();
    println!("{lines} lines of code in src");
    assert!(lines > 10_000, "{lines}");
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
fn parser_finds_cycle_with_parent_module() {
    let cycles = cycles(&[
        ("lib.rs", "mod a;"),
        ("a/mod.rs", "mod x; mod y; pub use x::X; pub struct Parent(y::Y);"),
        ("a/x.rs", "use super::Parent; pub struct X;"),
        ("a/y.rs", "use super::X; pub struct Y;"),
    ]);
    assert_eq!(cycles.len(), 1, "{cycles:?}");
    for edge in ["a/mod.rs -> a/y.rs (Y)", "a/y.rs -> a/x.rs (X)", "a/x.rs -> a/mod.rs (Parent)"] {
        assert!(cycles[0].contains(edge), "{cycles:?}");
    }
}

#[test]
fn declarations_and_reexports_are_no_dependencies() {
    let sources = [
        ("lib.rs", "mod a; pub use crate::a::X;"),
        ("a/mod.rs", "mod x; pub(crate) use x::{x, X}; pub struct Parent;"),
        ("a/x.rs", "use super::Parent; pub fn x(p: Parent) { p.x() } pub struct X;"),
    ];
    assert_eq!(cycles(&sources), [""; 0]);
}

#[test]
fn parser_finds_cycle_between_folders() {
    let sources = [
        ("lib.rs", "mod a; mod b;"),
        ("a/mod.rs", "mod x; mod y; pub use y::Y;"),
        ("a/x.rs", "use crate::b::B; pub struct X;"),
        ("a/y.rs", "pub struct Y;"),
        ("b.rs", "use crate::a::Y; pub struct B;"),
    ];
    assert_eq!(cycles(&sources), [""; 0]);
    let folders = graph(&sources).folders();
    let cycles: Vec<String> = folders.values().flat_map(Graph::cycles).collect();
    assert_eq!(cycles, ["a -> b (a/x.rs -> b.rs: B)\nb -> a (b.rs -> a/y.rs: Y)\n"]);
}

#[test]
fn parser_finds_the_longest_chain() {
    let graph = graph(&[
        ("lib.rs", "mod a; mod b; mod c; mod d; mod e; mod f; mod g;"),
        ("a.rs", "use crate::{b::B, c::C, d::D};"),
        ("b.rs", "use crate::c::C; pub struct B;"),
        ("c.rs", "pub struct C;"),
        ("d.rs", "pub struct D;"),
        ("e.rs", "use crate::f::F; pub struct E;"),
        ("f.rs", "use crate::e::E; pub struct F;"),
        ("g.rs", "use crate::e::E;"),
    ]);
    let cycle = [("e.rs", 1), ("f.rs", 1), ("g.rs", 2)];
    let floors = [("a.rs", 3), ("b.rs", 2), ("c.rs", 1), ("d.rs", 1)].into_iter().chain(cycle).collect();
    assert_eq!(graph.floors(), floors);
    assert_eq!(graph.chain(), ["a.rs", "b.rs", "c.rs"]);
}

#[test]
fn parser_finds_types_with_same_name() {
    let found = types(&map(&[
        ("a.rs", "struct A; #[cfg(test)] mod tests { struct B; }"),
        ("b.rs", "mod inner { trait A {} } wrap! { pub struct B { a: u8 } }"),
        ("tls.rs", "fn f() { enum C {} }"),
        ("no_tls.rs", "type C = u8; impl D for C { type A = u8; }"),
    ]));
    let found: Vec<(&str, usize)> = found.iter().map(|(name, files)| (name.as_str(), files.len())).collect();
    assert_eq!(found, [("A", 2), ("B", 1), ("C", 1)]);
}

#[test]
fn parser_counts_lines_of_functions() {
    let rust = map(&[(
        "a.rs",
        "impl A {\n/// Doc\n#[must_use]\nfn a() {\n// comment\n\nb();\n}\n}\n#[cfg(test)]\nmod t { fn c() {} }\n\
         wrap! {\nfn d(\n) {}\n}",
    )]);
    let counted = |functions: Vec<Function>| {
        functions.into_iter().map(|function| (function.name, function.lines)).collect::<Vec<_>>()
    };
    assert_eq!(counted(rust_functions(&rust)), [("a.rs: a".to_owned(), 3), ("a.rs: d".to_owned(), 2)]);
    let lua = map(&[(
        "a.lua",
        "local function a(x)\n  -- comment\n  local function b()\n    return 1\n  end\n\n  return b\nend\nreturn a",
    )]);
    assert_eq!(counted(lua_functions(&lua)), [("a.lua: a".to_owned(), 6), ("a.lua: b".to_owned(), 3)]);
}

#[test]
fn unit_tests_are_no_lines_of_code() {
    let text = "//! Doc\nuse a;\n\n#[cfg(test)]\nmod tests {\n    fn f() {\n    }\n}\nfn g() {}\n";
    assert_eq!(code_lines(&without_test_modules(text)).collect::<Vec<_>>(), ["use a;", "fn g() {}"]);
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

fn map(sources: &[(&str, &str)]) -> BTreeMap<String, String> {
    sources.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect()
}

fn graph(sources: &[(&str, &str)]) -> Graph {
    Graph::new(&map(sources))
}

fn cycles(sources: &[(&str, &str)]) -> Vec<String> {
    graph(sources).cycles()
}

pub fn root(folder: &str) -> std::path::PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(folder)
}

/// Returns the text of every source file by its path below `src`.
pub fn source() -> BTreeMap<String, String> {
    files(&root("src"), "rs")
}

/// Returns the text of every file with this extension by its path below a folder.
fn files(top: &Path, extension: &str) -> BTreeMap<String, String> {
    let (mut files, mut folders) = (BTreeMap::new(), vec![top.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                let name = path.strip_prefix(top).unwrap().to_str().unwrap().replace('\\', "/");
                files.insert(name, fs::read_to_string(path).unwrap());
            }
        }
    }
    files
}

/// A module path, such as `["backend", "redis"]`. The crate root is empty.
pub type ModulePath = Vec<String>;

/// The dependencies between files, each with one of the items that cause it.
#[derive(Default)]
struct Graph(BTreeMap<(String, String), String>);

/// The modules of the crate, including inline ones.
#[derive(Default)]
pub struct Modules(BTreeMap<ModulePath, Module>);

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
        let modules = Modules::new(sources);
        let mut edges = BTreeMap::new();
        for (path, module) in &modules.0 {
            for named in &module.paths {
                let Some((owner, item)) = modules.definition(path, named, 0) else { continue };
                let (from, to) = (&module.file, &modules.0[&owner].file);
                if from != to {
                    edges.entry((from.clone(), to.clone())).or_insert(item);
                }
            }
        }
        Self(edges)
    }

    /// Returns the dependencies between the modules of each folder. A subfolder is one module, and `self` is the module above.
    fn folders(&self) -> BTreeMap<ModulePath, Self> {
        let mut folders: BTreeMap<ModulePath, Self> = BTreeMap::new();
        for ((from, to), item) in &self.0 {
            let (from_path, to_path) = (module_of(from), module_of(to));
            let depth = from_path.iter().zip(&to_path).take_while(|(from, to)| from == to).count();
            let name = |path: &ModulePath| path[..path.len().min(depth + 1)].join("/");
            let name =
                |path| if path == &from_path[..depth] { format!("{}/self", name(path)) } else { name(path) };
            let graph = folders.entry(from_path[..depth].to_vec()).or_default();
            let edge = (name(&from_path), name(&to_path));
            graph.0.entry(edge).or_insert_with(|| format!("{from} -> {to}: {item}"));
        }
        folders
    }

    /// Returns the floor of each file: one above the highest of those on which it depends. The files of a cycle have one floor.
    fn floors(&self) -> BTreeMap<&str, usize> {
        let dependencies = self.dependencies();
        let mut floors = BTreeMap::new();
        // A file has fewer dependencies than the files above it, or as many if it is in a cycle.
        let mut files: Vec<_> = dependencies.iter().collect();
        files.sort_by_key(|(file, below)| (below.len(), !below.contains(*file)));
        for (file, below) in files {
            let lower = below.iter().filter(|other| !dependencies[*other].contains(file));
            let floor = lower.map(|other| floors[other]).max().unwrap_or(0) + 1;
            floors.insert(*file, floor);
        }
        floors
    }

    /// Returns one of the longest chains of files, from the top.
    fn chain(&self) -> Vec<&str> {
        let (floors, dependencies) = (self.floors(), self.dependencies());
        let mut chain: Vec<&str> = Vec::new();
        for floor in (1..=floors.values().copied().max().unwrap_or_default()).rev() {
            let mut files = floors.iter().filter(|(_, of_file)| **of_file == floor).map(|(file, _)| *file);
            chain.extend(
                files.find(|file| chain.last().is_none_or(|above| dependencies[above].contains(file))),
            );
        }
        chain
    }

    /// Returns all files on which each file depends, directly or through others.
    fn dependencies(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut direct: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (from, to) in self.0.keys() {
            direct.entry(from).or_default().push(to);
            direct.entry(to).or_default();
        }
        let all = |file: &str| {
            let (mut found, mut queue) = (BTreeSet::new(), direct[file].clone());
            while let Some(file) = queue.pop() {
                if found.insert(file) {
                    queue.extend(&direct[file]);
                }
            }
            found
        };
        direct.keys().map(|file| (*file, all(file))).collect()
    }

    /// Returns a description of each group of files that depend on each other.
    fn cycles(&self) -> Vec<String> {
        let all = self.dependencies();
        let group =
            |file: &str| all[file].iter().copied().filter(|other| all[other].contains(file)).collect();
        let groups: BTreeSet<BTreeSet<&str>> =
            all.keys().map(|file| group(file)).filter(|group: &BTreeSet<&str>| !group.is_empty()).collect();
        let describe = |group: BTreeSet<&str>| {
            let is_inside =
                |edge: &(String, String)| group.contains(edge.0.as_str()) && group.contains(edge.1.as_str());
            let inside = self.0.iter().filter(|(edge, _)| is_inside(edge));
            inside.map(|((from, to), item)| format!("{from} -> {to} ({item})\n")).collect()
        };
        groups.into_iter().map(describe).collect()
    }
}

impl Modules {
    pub fn new(sources: &BTreeMap<String, String>) -> Self {
        let mut modules = Self::default();
        for (file, text) in sources {
            modules.read(file, &tokens(text));
        }
        modules
    }

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
                    // After `pub` or `pub(..)`.
                    let is_reexport = i > 0 && ["pub", ")"].contains(&token(i - 1));
                    i = module.read_use(tokens, i + 1, &[], is_reexport);
                    continue;
                }
                "mod" => {
                    if token(i + 2) == "{" {
                        scopes.push(Some(token(i + 1).to_owned()));
                    }
                    i += 2;
                }
                "{" => scopes.push(None),
                "}" => drop(scopes.pop().unwrap_or_else(|| panic!("{file}: too many braces are closed"))),
                // A name after a point is that of a field or a method.
                first if is_identifier(first) && (i == 0 || token(i - 1) != ".") => {
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
    pub fn definition(
        &self,
        module: &ModulePath,
        path: &[String],
        depth: usize,
    ) -> Option<(ModulePath, String)> {
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
    fn read_use(&mut self, tokens: &[String], mut i: usize, prefix: &[String], is_reexport: bool) -> usize {
        let mut path = prefix.to_vec();
        loop {
            match tokens[i].as_str() {
                "::" => {}
                "{" => {
                    while tokens[i] != "}" {
                        i = self.read_use(tokens, i + 1, &path, is_reexport);
                    }
                    return i + 1;
                }
                "as" => {
                    self.bind(&tokens[i + 1], path, is_reexport);
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
            self.bind(&name.unwrap_or_default(), path, is_reexport);
        }
        i
    }

    fn bind(&mut self, name: &str, mut path: Vec<String>, is_reexport: bool) {
        // `use a::{self}` binds `a`.
        path.pop_if(|last| last == "self");
        if !is_reexport {
            self.paths.insert(path.clone());
        }
        self.bindings.insert(name.to_owned(), path);
    }
}

/// Returns the module of a file. The modules `tls` and `metrics` have two files each, and a build compiles one of them.
pub fn module_of(file: &str) -> ModulePath {
    let file = file.replace("no_tls.rs", "tls.rs").replace("no_metrics.rs", "metrics.rs");
    let path = file.trim_end_matches(".rs").split('/').filter(|name| !["lib", "mod"].contains(name));
    path.map(str::to_owned).collect()
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

/// Returns the files that define a type of this name. Two files of one module count once.
fn types(sources: &BTreeMap<String, String>) -> BTreeMap<String, BTreeSet<ModulePath>> {
    let mut types: BTreeMap<String, BTreeSet<ModulePath>> = BTreeMap::new();
    for (file, text) in sources {
        let mut items = Items::new(file, text);
        items.visit_file(&syn::parse_file(text).unwrap());
        for name in items.types {
            types.entry(name).or_default().insert(module_of(file));
        }
    }
    types
}

#[derive(Debug)]
struct Function {
    name: String,
    lines: usize,
}

fn rust_functions(sources: &BTreeMap<String, String>) -> Vec<Function> {
    let functions = |(file, text): (&String, &String)| {
        let mut items = Items::new(file, text);
        items.visit_file(&syn::parse_file(text).unwrap());
        items.functions
    };
    sources.iter().flat_map(functions).collect()
}

/// A function ends with the next line that is `end` at its own indent.
fn lua_functions(sources: &BTreeMap<String, String>) -> Vec<Function> {
    let mut functions = Vec::new();
    for (file, text) in sources {
        let lines: Vec<&str> = text.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            let code = line.trim_start();
            let Some(rest) = code.strip_prefix("local ").unwrap_or(code).strip_prefix("function ") else {
                continue;
            };
            let end = format!("{}end", &line[..line.len() - code.len()]);
            let length =
                lines[i..].iter().position(|line| *line == end).unwrap_or_else(|| panic!("{file}: {line}"));
            let body = lines[i..=i + length].iter().map(|line| line.trim());
            let count = body.filter(|line| !line.is_empty() && !line.starts_with("--")).count();
            functions.push(Function {
                name: format!("{file}: {}", rest.split('(').next().unwrap()),
                lines: count,
            });
        }
    }
    functions
}

/// The types and functions of a file, also those in the parameters of macros, and without unit tests.
struct Items<'a> {
    file: &'a str,
    lines: Vec<&'a str>,
    types: BTreeSet<String>,
    functions: Vec<Function>,
}

impl<'a> Items<'a> {
    fn new(file: &'a str, text: &'a str) -> Self {
        Self { file, lines: text.lines().collect(), types: BTreeSet::new(), functions: Vec::new() }
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let (first, last) = (signature.span().start().line, block.span().end().line);
        let lines = self.lines[first - 1..last].join("\n");
        let name = format!("{}: {}", self.file, signature.ident);
        self.functions.push(Function { name, lines: code_lines(&lines).count() });
    }
}

impl Visit<'_> for Items<'_> {
    fn visit_item_mod(&mut self, item: &syn::ItemMod) {
        if !is_test(&item.attrs) {
            syn::visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &syn::ItemStruct) {
        self.types.insert(item.ident.to_string());
    }

    fn visit_item_enum(&mut self, item: &syn::ItemEnum) {
        self.types.insert(item.ident.to_string());
    }

    fn visit_item_type(&mut self, item: &syn::ItemType) {
        self.types.insert(item.ident.to_string());
    }

    fn visit_item_trait(&mut self, item: &syn::ItemTrait) {
        self.types.insert(item.ident.to_string());
        syn::visit::visit_item_trait(self, item);
    }

    fn visit_item_fn(&mut self, item: &syn::ItemFn) {
        self.function(&item.sig, &item.block);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
        syn::visit::visit_trait_item_fn(self, item);
    }

    fn visit_macro(&mut self, call: &syn::Macro) {
        // The parameters of most macros are no items.
        if let Ok(items) = call.parse_body::<syn::File>() {
            self.visit_file(&items);
        }
    }
}

pub fn is_test(attributes: &[syn::Attribute]) -> bool {
    let is_test = |list: &syn::MetaList| list.path.is_ident("cfg") && list.tokens.to_string() == "test";
    attributes.iter().any(|attribute| attribute.meta.require_list().is_ok_and(is_test))
}

/// Returns the lines that are neither empty nor comments.
fn code_lines(text: &str) -> impl Iterator<Item = &str> {
    let is_code = |line: &&str| !line.is_empty() && !line.starts_with("//") && !line.starts_with("#![doc");
    text.lines().map(str::trim).filter(is_code)
}

fn without_test_modules(text: &str) -> String {
    let file = syn::parse_file(text).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    for item in file.items.iter().rev() {
        if let syn::Item::Mod(module) = item
            && is_test(&module.attrs)
        {
            lines.drain(module.span().start().line - 1..module.span().end().line);
        }
    }
    lines.join("\n")
}
