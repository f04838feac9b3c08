//! Copies the source of the crate and plants bugs in the copy. Each bug is a replacement of a text that occurs once, and is off
//! until a test switches it on. If the source changes, the build states which bug must be planted anew.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

#[path = "bugs.rs"]
mod bugs;

use bugs::{BUGS, Bug, LEASE_BUGS, MERGING_BUGS, SHARE_BUGS, TOKEN_BUGS};

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../..");
    let copy = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    for name in ["src", "lua", "README.md"] {
        println!("cargo::rerun-if-changed={}", root.join(name).display());
        copy_all(&root.join(name), &copy.join(name));
    }
    println!("cargo::rerun-if-changed=bugs.rs");
    println!("cargo::rerun-if-changed=build.rs");
    let bugs = [BUGS, MERGING_BUGS, LEASE_BUGS, SHARE_BUGS, TOKEN_BUGS];
    for Bug { name, changes, .. } in bugs.into_iter().flatten() {
        for (file, text, bug) in *changes {
            let path = copy.join("src").join(file);
            let source = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {file}: {error}"));
            let many = source.matches(text).count();
            assert!(
                many == 1,
                "{name}: this text occurs {many} times in {file}, and must occur once:\n{text}"
            );
            let condition = format!("crate::planted::has({name:?})");
            write(&path, &source.replacen(text, &bug.replace("PLANTED", &condition), 1));
        }
    }
    // An included file has no documentation and no attributes of its own.
    let root = copy.join("src/lib.rs");
    let source = fs::read_to_string(&root).expect("the copy of src/lib.rs");
    let kept = source.lines().filter(|line| !line.starts_with("//!") && !line.starts_with("#!["));
    write(&root, &kept.collect::<Vec<_>>().join("\n"));
}

fn copy_all(from: &Path, to: &Path) {
    if !from.is_dir() {
        let bytes = fs::read(from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        fs::write(to, bytes).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
        return;
    }
    // A file that no longer exists must not stay in the copy.
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
    for entry in fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
        let entry = entry.unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        copy_all(&entry.path(), &to.join(entry.file_name()));
    }
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
