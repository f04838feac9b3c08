//! The licences of the dependencies.

use std::process::Command;

use serde_json::Value;

/// Returns whether one of the alternatives of every part of an SPDX expression is accepted. The expressions of the dependencies are
/// conjunctions of alternatives; older ones separate alternatives by a slash.
fn is_accepted(expression: &str, accepted: &[String]) -> bool {
    let expression = expression.replace('/', " OR ");
    let is_accepted =
        |name: &str| accepted.iter().any(|accepted| accepted == name.trim_matches([' ', '(', ')']));
    expression.split(" AND ").all(|part| part.split(" OR ").any(is_accepted))
}

#[test]
fn every_dependency_has_an_accepted_licence() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let file: toml::Table = std::fs::read_to_string(format!("{root}/deny.toml")).unwrap().parse().unwrap();
    let accepted: Vec<String> = file["licenses"]["allow"].clone().try_into().unwrap();
    let exceptions = file["licenses"]["exceptions"].as_array().unwrap();
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--all-features", "--locked"])
        .current_dir(root)
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100, "{}", packages.len());
    // Packages without a source are those of this workspace.
    for package in packages.iter().filter(|package| !package["source"].is_null()) {
        let expression = package["license"].as_str().unwrap_or_default();
        let exceptions =
            exceptions.iter().filter(|exception| exception["crate"].as_str() == package["name"].as_str());
        let more =
            exceptions.flat_map(|exception| exception["allow"].clone().try_into::<Vec<String>>().unwrap());
        let accepted: Vec<String> = accepted.iter().cloned().chain(more).collect();
        assert!(is_accepted(expression, &accepted), "{}: licence {expression:?}", package["name"]);
    }
}

#[test]
fn licence_expression_needs_every_part() {
    let accepted = ["MIT", "ISC"].map(str::to_owned);
    for expression in
        ["MIT", "ISC AND MIT", "GPL-3.0 OR MIT", "Apache-2.0/MIT", "(MIT OR Apache-2.0) AND ISC"]
    {
        assert!(is_accepted(expression, &accepted), "{expression}");
    }
    for expression in ["", "GPL-3.0", "GPL-3.0 AND MIT", "MIT-0", "(MIT OR ISC) AND Unicode-3.0"] {
        assert!(!is_accepted(expression, &accepted), "{expression}");
    }
}
