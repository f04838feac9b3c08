//! The documentation: each page is linked from the front, each link to a heading resolves, and each example states how to use it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::tidy::{root, source};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const GUIDE: &str = "https://docs.rs/tower-sliding-window/latest/tower_sliding_window/guide/";

/// Returns the text of a file by its path from the folder of the crate.
pub fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(ROOT).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the text of each guide page by its name.
fn pages() -> BTreeMap<String, String> {
    let files = fs::read_dir(Path::new(ROOT).join("src/guide")).unwrap().map(|entry| entry.unwrap().path());
    let pages = files.filter(|file| file.extension().is_some_and(|extension| extension == "md"));
    pages.map(|file| (file.file_stem().unwrap().to_str().unwrap().to_owned(), read(&file))).collect()
}

/// Returns the anchors of the headings of a text in Markdown, as rustdoc makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    // Every second part is a block of code.
    let prose = text.split("```").step_by(2).flat_map(str::lines);
    let headings = prose.filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let anchor = |heading: &str| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

/// Returns what follows each occurrence of a prefix, up to the end of the link.
fn links<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(prefix).skip(1).map(|rest| rest.split([')', ']', '`', ' ', '\n']).next().unwrap_or_default())
}

/// Returns the name of each example and the comment at its beginning.
fn examples() -> BTreeMap<String, String> {
    let entries = fs::read_dir(Path::new(ROOT).join("examples")).unwrap().map(|entry| entry.unwrap().path());
    let main = |path: PathBuf| if path.is_dir() { path.join("main.rs") } else { path };
    let mut examples = BTreeMap::new();
    for file in entries {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let source = main(file);
        if source.extension().is_some_and(|extension| extension == "rs") && source.exists() {
            let text = read(&source);
            let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
            let heading: Vec<&str> = lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
            examples.insert(name, heading.join("\n"));
        }
    }
    examples
}

/// Returns the block of code that follows this line.
fn block<'a>(heading: &'a str, line: &str) -> &'a str {
    let after = heading.split_once(&format!("{line}\n\n```text\n")).map(|(_, after)| after);
    after.and_then(|after| after.split_once("\n```")).map_or("", |(block, _)| block)
}

#[test]
fn front_pages_link_every_guide_page() {
    let (front, index) = (read("src/lib.rs"), read("src/guide/mod.rs"));
    for page in pages().keys() {
        assert!(front.contains(&format!("[`guide::{page}`]")), "src/lib.rs: no link to {page}");
        assert!(index.contains(&format!("[`{page}`]")), "src/guide/mod.rs: no link to {page}");
    }
}

#[test]
fn links_to_guide_resolve_to_headings() {
    let pages = pages();
    let anchors: BTreeMap<&str, _> =
        pages.iter().map(|(name, text)| (name.as_str(), anchors(text))).collect();
    let resolves = |link: &str| {
        let (page, anchor) = link.split_once('#').unwrap_or((link, ""));
        let page = page.trim_end_matches('/');
        page.is_empty() || anchors.get(page).is_some_and(|known| anchor.is_empty() || known.contains(anchor))
    };
    let mut checked = 0;
    let mut check = |file: &str, links: Vec<&str>| {
        for link in links {
            assert!(resolves(link), "{file}: {link} is no heading of the guide");
            checked += 1;
        }
    };
    let readme = read("README.md");
    check("README.md", links(&readme, GUIDE).collect());
    for (file, text) in source() {
        check(&file, links(&text, "(guide::").chain(links(&text, "(crate::guide::")).collect());
    }
    for (name, text) in &pages {
        check(name, links(text, "(crate::guide::").collect());
        let own: Vec<String> = links(text, "](#").map(|anchor| format!("{name}#{anchor}")).collect();
        check(name, own.iter().map(String::as_str).collect());
    }
    assert!(checked > 100, "{checked} links");
}

/// Rustdoc checks the item of a link, and not the heading after it.
#[test]
fn links_to_items_resolve_to_headings() {
    let sources = source();
    let comments = sources.values().flat_map(|text| text.lines()).map(str::trim_start);
    let headings = comments.filter_map(|line| line.strip_prefix("/// # "));
    let known = anchors(&headings.map(|heading| format!("# {heading}\n")).collect::<String>());
    let mut checked = 0;
    for (file, text) in sources.iter().chain(&pages()) {
        let targets =
            links(text, "](").filter(|target| !target.contains("guide::") && !target.starts_with("http"));
        for (item, anchor) in targets.filter_map(|target| target.split_once('#')) {
            if item.starts_with(char::is_alphabetic) {
                assert!(known.contains(anchor), "{file}: {item} has no heading {anchor}");
                checked += 1;
            }
        }
    }
    assert!(checked > 10, "{checked} links");
}

/// The texts in Markdown that are not pages of the guide.
const TEXTS: [&str; 10] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benches/CAPACITY.md",
    "examples/playground/README.md",
    "fuzz/README.md",
    "lua/README.md",
    "tests/README.md",
];

#[test]
fn texts_link_existing_files() {
    let mut checked = 0;
    for name in TEXTS {
        let text = read(name);
        for target in
            links(&text, "](").filter(|target| !target.starts_with('#') && !target.starts_with("http"))
        {
            assert!(Path::new(ROOT).join(name).with_file_name(target).exists(), "{name}: {target}");
            checked += 1;
        }
    }
    assert!(checked > 10, "{checked} links");
}

/// The map must show every file, and no other.
#[test]
fn architecture_names_every_file() {
    let (text, source) = (read("ARCHITECTURE.md"), source());
    let (_, table) = text.split_once("## Every file of `src`").unwrap();
    for file in source.keys() {
        let count = table.matches(&format!("`{file}`")).count();
        assert_eq!(count, 1, "ARCHITECTURE.md: the table must name {file} once");
    }
    // Above the table, a name may be short.
    let is_of = |file: &String, name: &str| format!("/{file}").contains(&format!("/{name}"));
    let exists = |name: &str| source.keys().any(|file| is_of(file, name)) || root(name).exists();
    // Every second part is in backticks.
    let names = text.split('`').skip(1).step_by(2);
    for name in names.filter(|name| name.ends_with(".rs") || name.ends_with('/')) {
        assert!(exists(name), "ARCHITECTURE.md: no file {name}");
    }
    let lines = text.lines().count();
    assert!(lines <= 200, "ARCHITECTURE.md: {lines} lines");
}

#[test]
fn table_of_scripts_names_every_file() {
    let text = read("lua/README.md");
    let table: String = text.lines().filter(|line| line.starts_with("| `")).collect();
    for file in fs::read_dir(Path::new(ROOT).join("lua")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(
            !name.ends_with(".lua") || table.contains(&format!("`{name}`")),
            "lua/README.md: no table names {name}"
        );
    }
}

#[test]
fn commands_name_existing_targets() {
    let folders = [
        "benches/request",
        "fuzz",
        "tests",
        "tests/dashboards",
        "tests/front",
        "tests/planted",
        "tests/playground",
    ];
    let manifests = folders.map(|folder| read(format!("{folder}/Cargo.toml"))).concat();
    let is_package = |name: &str| manifests.contains(&format!("name = \"{name}\"\n"));
    let examples = examples();
    let mut checked = 0;
    let mut check = |file: &str, text: &str| {
        for line in text.lines().filter(|line| line.contains("cargo ")) {
            let words = line.split_whitespace().map(|word| word.trim_matches(['`', '.', ',', ':', ';', ')']));
            let words: Vec<&str> = words.collect();
            for (i, option) in words.iter().enumerate() {
                let Some(name) = words.get(i + 1).filter(|name| !name.is_empty() && **name != "|") else {
                    continue;
                };
                let main = format!("benches/{name}/main.rs");
                let is_known = match *option {
                    "--example" => examples.contains_key(*name),
                    "--bench" => {
                        // The part of a benchmark.
                        let part = words[i + 2..].strip_prefix(&["--"]).and_then(|rest| rest.first());
                        Path::new(ROOT).join(&main).exists()
                            && part.is_none_or(|part| read(&main).contains(&format!("\"{part}\"")))
                    }
                    "-p" => is_package(name),
                    _ => continue,
                };
                assert!(is_known, "{file}: {line}");
                checked += 1;
            }
        }
    };
    for name in TEXTS {
        check(name, &read(name));
    }
    for (name, text) in pages() {
        check(&name, &text);
    }
    for (name, text) in &examples {
        check(name, text);
    }
    assert!(checked > 50, "{checked} commands");
}

#[test]
fn guide_lists_every_event() {
    let source = read("src/observe/events.rs");
    let page = read("src/guide/outages.md");
    // Without the targets of the links.
    let mut section = String::new();
    for part in page.split_once("# Events").unwrap().1.split("](") {
        section += part.split_once(')').filter(|_| !section.is_empty()).map_or(part, |(_, rest)| rest);
    }
    let section = section.replace('[', "");
    // The message is the only string of an event. It begins with its subject.
    let messages = source.split("event!(").skip(1).map(|event| event.split('"').nth(1).unwrap());
    let subjects = messages.map(|message| message.split([':', ',', ';']).next().unwrap());
    let subjects: Vec<&str> = subjects.filter(|subject| !subject.starts_with('{')).collect();
    assert!(subjects.len() > 15, "{subjects:?}");
    for subject in subjects {
        assert!(
            section.contains(&format!("\n| {subject}")) || section.contains(&format!(", {subject} |")),
            "{subject}"
        );
    }
}

#[test]
fn package_contains_texts_for_users() {
    let listed = Command::new(env!("CARGO"))
        .args(["package", "--list", "--allow-dirty", "--offline"])
        .current_dir(ROOT)
        .output()
        .unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let listed = String::from_utf8(listed.stdout).unwrap();
    let files: BTreeSet<&str> = listed.lines().collect();
    for text in [
        "README.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "lua/README.md",
        "dashboards/grafana.json",
        "dashboards/rules.yml",
    ] {
        assert!(files.contains(text), "{text} is not a part of the package: {files:?}");
    }
}

/// GitHub and crates.io show the lines that rustdoc hides.
#[test]
fn readme_hides_no_line_of_code() {
    let readme = read("README.md");
    let blocks = readme.split("```rust").skip(1).map(|rest| rest.split("```").next().unwrap());
    let hidden: Vec<&str> = blocks.flat_map(str::lines).filter(|line| line.starts_with("# ")).collect();
    assert_eq!(hidden, [""; 0]);
}

#[test]
fn examples_state_question_command_output_and_next() {
    let (readme, examples) = (read("README.md"), examples());
    assert!(examples.len() >= 10, "{:?}", examples.keys());
    for (name, heading) in &examples {
        let question = heading.lines().next().unwrap();
        assert!(question.contains('?'), "{name}: {question}");
        assert!(readme.contains(&format!("| {question} | `{name}` |")), "README.md: no row for {name}");
        assert!(heading.contains(&format!("cargo run --example {name}")), "{name}: no command");
        for line in ["Expected output:", "Type next:"] {
            assert!(!block(heading, line).is_empty(), "{name}: {line}");
        }
    }
}

/// Returns the output that an example promises.
pub fn expected_output(name: &str) -> String {
    block(&examples()[name], "Expected output:").to_owned()
}
