//! The types of policies: the tests and the file format know each of them.

use syn::{Attribute, Field, Fields, Item, ItemEnum, Type};

use crate::docs::read;

/// The lists that must have each type, and the types that each may leave out.
///
/// A gate counts no units, and a policy in flight is no charge: `contract/gate.rs` and `contract/in_flight.rs` have models of their own.
/// Calendar periods have edges of their own, and a file need not name the default.
const LISTS: [(&str, &[&str]); 8] = [
    ("fuzz/src/policy_files.rs", &[]),
    ("tests/contract/edges/mod.rs", &["Gate", "InFlight", "CalendarPeriod"]),
    ("tests/contract/history.rs", &["Gate", "InFlight"]),
    ("tests/contract/model/mod.rs", &["Gate", "InFlight"]),
    ("tests/limiter/policy_files.rs", &["SlidingLog"]),
    ("tests/redis/rig.rs", &["Gate", "InFlight"]),
    ("tests/redis/write_order.rs", &["Gate", "InFlight"]),
    ("tests/support/key_name.rs", &["Gate", "InFlight"]),
];

/// Returns the declaration of the types.
fn algorithm() -> ItemEnum {
    let file = syn::parse_file(&read("src/policy/types.rs")).unwrap();
    let found = file.items.into_iter().find_map(|item| match item {
        Item::Enum(item) if item.ident == "Algorithm" => Some(item),
        _ => None,
    });
    found.expect("src/policy/types.rs declares `Algorithm`")
}

/// Returns `token_bucket` for `TokenBucket`.
fn function_of(variant: &str) -> String {
    let mut name = String::new();
    for letter in variant.chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(letter.to_lowercase());
    }
    name
}

/// Returns whether a text contains a word, and not only as a part of another one.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        !before.ends_with(is_part) && (word.ends_with('(') || !after.starts_with(is_part))
    })
}

#[test]
fn lists_of_tests_have_every_type() {
    let variants: Vec<String> =
        algorithm().variants.iter().map(|variant| variant.ident.to_string()).collect();
    assert!(variants.len() >= 8, "the parser finds the types: {variants:?}");
    for (file, without) in LISTS {
        let text = read(file);
        for variant in variants.iter().filter(|variant| !without.contains(&variant.as_str())) {
            let function = function_of(variant);
            let forms = [
                format!("Algorithm::{variant}"),
                format!("{function}("),
                format!("algorithm = \"{}\"", function.replace('_', "-")),
            ];
            assert!(
                forms.iter().any(|form| has_word(&text, form)),
                "{file}: one of {forms:?} must occur, unless `LISTS` leaves the type out"
            );
        }
    }
}

/// Returns whether `serde` reads and writes a field by functions of its own.
fn has_text_form(field: &Field) -> bool {
    let is_form = |attribute: &Attribute| {
        let list = attribute.meta.require_list().map(|list| list.tokens.to_string()).unwrap_or_default();
        let text = list.replace([' ', '\n'], "");
        let has = |name: &str| ['(', ','].iter().any(|before| text.contains(&format!("{before}{name}=")));
        has("with") || (has("serialize_with") && has("deserialize_with"))
    };
    field.attrs.iter().any(is_form)
}

/// Without it, a file would state a duration as `{"secs": 1, "nanos": 0}`.
#[test]
fn durations_of_types_have_text_form() {
    let mut durations = 0;
    for variant in algorithm().variants {
        let Fields::Named(fields) = variant.fields else { continue };
        for field in fields.named {
            let Type::Path(path) = &field.ty else { continue };
            if path.path.segments.last().is_some_and(|last| last.ident == "Duration") {
                let (variant, name) = (&variant.ident, field.ident.as_ref().unwrap());
                assert!(
                    has_text_form(&field),
                    "{variant}::{name}: `serde(with = ..)` must state its text form"
                );
                durations += 1;
            }
        }
    }
    assert!(durations >= 3, "the parser finds the durations: {durations}");
}
