//! Words of the repository: openings of doc comments, words that no text uses, and descriptions of
//! CRD fields.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use super::{files, has_extension, root};

/// Pronouns, relatives, conjunctions and prepositions that no doc comment opens with. "Whether" is
/// no part of them: it is the API convention's opening for a truth value.
const OPENINGS: &str = "what who whose whom whoever whatever which whichever where wherever when \
    whenever why how it its this that these those they their he she we you there here such so then \
    as if for to of by from in on at with without within after before until till since while \
    during through between under like than and or but because though although otherwise also";
/// Pairs of words that no doc comment opens with.
const OPENING_PAIRS: [[&str; 2]; 5] =
    [["one", "who"], ["one", "that"], ["one", "which"], ["all", "that"], ["all", "who"]];
/// Words for a subject that has no name.
const NAMELESS: [&str; 5] = ["nobody", "somebody", "anybody", "whoever", "told"];
/// File that names these words.
const THIS: &str = "tests/it/hygiene/words.rs";
/// Least length of a description, in words: it names the field's noun and says something about it.
const LEAST_WORDS: usize = 4;
/// Beginning of the description that `derive(CustomResource)` writes for a kind without one.
const GENERATED: &str = "Auto-generated";
/// Words that begin the definition of a type or a trait.
const DEFINITIONS: [&str; 4] = ["struct ", "enum ", "type ", "trait "];

#[test]
fn every_doc_comment_opens_with_a_noun_or_a_verb() {
    let (mut faults, mut count) = (Vec::new(), 0);
    let is_code = |file: &str| file.starts_with("src/") || file.starts_with("tests/");
    for (file, text) in texts(|file| is_code(file) && has_extension(file, "rs")) {
        for (line, text) in openings(&text) {
            count += 1;
            if let Some(word) = wrong_opening(&text) {
                faults.push(format!("{file}:{line} opens with {word:?}: {text}"));
            }
        }
    }
    assert!(count > 1000, "{count} doc comments found");
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn every_subject_has_a_name() {
    let mut faults = Vec::new();
    for (file, text) in texts(|file| file != THIS && !has_extension(file, "lock")) {
        for (number, line) in text.lines().enumerate() {
            if let Some(word) = nameless(line) {
                faults.push(format!("{file}:{}: {word}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn every_field_of_a_crd_is_described() {
    let mut faults = Vec::new();
    for (file, text) in texts(|file| file.starts_with("crds/")) {
        let crd: Value = serde_saphyr::from_str(&text).unwrap();
        let count = terse(&crd, &file, &mut faults);
        assert!(count > 10, "{file}: {count} descriptions");
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// A name that stands for one thing is found by one search. The old version of LoadBalancer has the
/// names of the present one.
#[test]
fn every_type_has_a_name_of_its_own() {
    let is_code = |file: &str| {
        let is_test = file.split(['/', '.']).any(|part| part == "tests");
        file.starts_with("src/") && has_extension(file, "rs") && !is_test
    };
    let mut defined: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (file, text) in texts(|file| is_code(file) && file != "src/api/v1alpha1.rs") {
        for name in text.lines().filter_map(type_name) {
            defined.entry(name.to_owned()).or_default().push(file.clone());
        }
    }
    assert!(defined.len() > 500, "{} types found", defined.len());
    defined.retain(|_, files| files.len() > 1);
    assert!(defined.is_empty(), "names of two types each: {defined:#?}");
}

/// Chosen files and their texts. A file that is being removed has none.
fn texts(is_chosen: impl Fn(&str) -> bool) -> impl Iterator<Item = (String, String)> {
    let chosen = files().into_iter().filter(move |file| is_chosen(file));
    chosen.filter_map(|file| Some((file.clone(), fs::read_to_string(root().join(&file)).ok()?)))
}

/// First line of each doc comment of a source, with its line number.
fn openings(source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (number, line) in source.lines().enumerate() {
        let line = line.trim_start();
        let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let text = text.filter(|text| !text.starts_with('/'));
        if let (Some(text), false) = (text, inside) {
            found.push((number + 1, text.trim().to_owned()));
        }
        inside = text.is_some();
    }
    found
}

/// Forbidden word that a doc comment opens with. A name in backquotes is a noun.
fn wrong_opening(text: &str) -> Option<String> {
    let part_of_word = |c: char| c.is_alphanumeric() || "'-`".contains(c);
    let mut words = text.split(|c| !part_of_word(c)).filter(|word| !word.is_empty());
    let first = words.next()?.to_lowercase();
    let second = words.next().unwrap_or_default().to_lowercase();
    let is_pair = OPENING_PAIRS.contains(&[first.as_str(), second.as_str()]);
    (is_pair || OPENINGS.split_whitespace().any(|opening| opening == first)).then_some(first)
}

/// Word of a line, or part of an identifier in it, that has no name for its subject.
fn nameless(line: &str) -> Option<&'static str> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for c in line.chars() {
        let begins = c.is_uppercase() && before.is_lowercase();
        if begins || !c.is_alphabetic() {
            words.push(String::new());
        }
        if let (true, Some(word)) = (c.is_alphabetic(), words.last_mut()) {
            word.extend(c.to_lowercase());
        }
        before = c;
    }
    NAMELESS.into_iter().find(|word| words.iter().any(|found| found == word))
}

/// Name of the struct, enum, alias or trait that a line outside of functions and inner modules
/// defines.
fn type_name(line: &str) -> Option<&str> {
    let line = match line.strip_prefix("pub") {
        Some(rest) => rest.split_once(' ')?.1,
        None => line,
    };
    let name = DEFINITIONS.into_iter().find_map(|definition| line.strip_prefix(definition))?;
    name.split(|c: char| !c.is_alphanumeric()).next()
}

/// Notes the fields of a schema that have no description, and the descriptions that are too short
/// or generated. Returns the number of descriptions.
fn terse(schema: &Value, path: &str, faults: &mut Vec<String>) -> usize {
    let mut count = 0;
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        if !field["description"].is_string() {
            faults.push(format!("{path}.properties.{name} has no description"));
        }
    }
    if let Some(text) = schema["description"].as_str() {
        count += 1;
        if text.split_whitespace().count() < LEAST_WORDS {
            faults.push(format!("{path}: {text:?} has fewer than {LEAST_WORDS} words"));
        }
        if text.contains(GENERATED) {
            faults.push(format!("{path}: {text:?} is generated: write `doc` of `kube`"));
        }
    }
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                count += terse(value, &format!("{path}.{name}"), faults);
            }
        }
        Value::Array(items) => {
            for (n, value) in items.iter().enumerate() {
                count += terse(value, &format!("{path}[{n}]"), faults);
            }
        }
        _ => {}
    }
    count
}

#[test]
fn wrong_openings_are_found() {
    for text in [
        "What a shell is given.",
        "How long it stays open.",
        "It, until dropped.",
        "(This) operator.",
        "\"Those\" that wait.",
        "Where it ends.",
        "For K3s: the Secret.",
        "With all rights it passes.",
        "One that waits.",
        "All that is stored.",
        "Why a call failed.",
    ] {
        assert!(wrong_opening(text).is_some(), "{text}");
    }
    for text in [
        "Lease duration for leader election.",
        "Whether the pool is full.",
        "Returns the next step.",
        "One patch brings it to the finding.",
        "All pools, by name.",
        "In-memory ledger.",
        "`for` of a loop.",
        "Item of a list.",
        "",
    ] {
        assert_eq!(wrong_opening(text), None, "{text}");
    }
    let source = "//! A\n//! What\n\n/// B\n///\n/// Why\nfn b() {}\n    /// How\n    x: u8,\n// It\n//// It\n";
    let texts = openings(source).into_iter().map(|(line, text)| format!("{line} {text}"));
    assert_eq!(texts.collect::<Vec<_>>(), ["1 A", "4 B", "8 How"]);
}

#[test]
fn nameless_subjects_are_found() {
    for line in [
        "// Nobody waits.",
        "fn it_is_told_once() {}",
        "reason: NobodyRenews",
        "let told = 1;",
        "somebody's",
        "Whoever leads.",
        "const MOST_TOLD: u8 = 1;",
    ] {
        assert!(nameless(line).is_some(), "{line}");
    }
    for line in ["a threshold", "the body of a request", "every body", "fn no_body() {}", "tolde"] {
        assert_eq!(nameless(line), None, "{line}");
    }
}

#[test]
fn terse_descriptions_are_found() {
    let schema = serde_json::json!({
        "description": "A pool of addresses.",
        "properties": {"whose": {"description": "Whose."}, "description": {"type": "string"}},
        "versions": [{"description": "Name of the ServiceAccount."}, {"description": "Its name."},
            {"description": "Auto-generated derived type for X via `CustomResource`"}],
    });
    let mut faults = Vec::new();
    assert_eq!(terse(&schema, "crd", &mut faults), 5);
    let expected = [
        "crd.properties.description has no description",
        "crd.properties.whose: \"Whose.\" has",
        "crd.versions[1]: \"Its name.\" has",
        "crd.versions[2]: \"Auto-generated derived type for X via `CustomResource`\" is generated",
    ];
    assert_eq!(faults.len(), expected.len(), "{faults:?}");
    for (fault, expected) in faults.iter().zip(expected) {
        assert!(fault.starts_with(expected), "{fault}");
    }
}

#[test]
fn names_of_types_are_found() {
    for (line, name) in [
        ("struct Slot {", Some("Slot")),
        ("pub enum Kind<'a> {", Some("Kind")),
        ("pub(super) struct Key(u8);", Some("Key")),
        ("type Answer = Result<u8, Fault>;", Some("Answer")),
        ("pub type Labels<'a> = &'a [u8];", Some("Labels")),
        ("pub(crate) trait Named: Clone {", Some("Named")),
        ("    struct Inner;", None),
        ("    type Item = u8;", None),
        ("pub fn structs() {", None),
        ("// struct Text", None),
    ] {
        assert_eq!(type_name(line), name, "{line}");
    }
}
