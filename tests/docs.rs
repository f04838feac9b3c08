//! The documentation: each page is linked from the front, each link to a heading resolves, and each example states how to use it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::tidy::sources;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const GUIDE: &str = "https://docs.rs/tower-sliding-window/latest/tower_sliding_window/guide/";

fn read(path: impl AsRef<Path>) -> String {
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
    for (file, text) in sources(&Path::new(ROOT).join("src")) {
        check(&file, links(&text, "(guide::").chain(links(&text, "(crate::guide::")).collect());
    }
    for (name, text) in &pages {
        check(name, links(text, "(crate::guide::").collect());
        let own: Vec<String> = links(text, "](#").map(|anchor| format!("{name}#{anchor}")).collect();
        check(name, own.iter().map(String::as_str).collect());
    }
    assert!(checked > 100, "{checked} links");
}

#[test]
fn readme_links_existing_files() {
    let readme = read("README.md");
    let targets = links(&readme, "](").filter(|target| !target.starts_with(['#', 'h']));
    for target in targets {
        assert!(Path::new(ROOT).join(target).exists(), "{target}");
    }
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

/// The output that the example `boundary` promises. Its clock is manual, so each line is exact.
pub fn expected_output_of_boundary() -> String {
    block(&examples()["boundary"], "Expected output:").to_owned()
}
