//! The project's rules for its dependencies and its files.
//!
//! Everything here works offline: dependencies are read from `cargo metadata` and `cargo tree`,
//! files from `git ls-files`. `deny.toml` is the only list of allowed licences; cargo-deny reads it
//! too.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod lock;
mod release;
mod words;
mod workflows;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const LARGEST_FILE: u64 = 512 * 1024;
/// Lock files grow with the number of dependencies.
const MAY_BE_LARGE: [&str; 2] = ["Cargo.lock", "go.sum"];

// ---- dependencies ------------------------------------------------------------------------

#[test]
fn every_licence_is_allowed() {
    let allowed = strings(&deny()["licenses"]["allow"]);
    let faults: Vec<String> = list(&metadata()["packages"])
        .filter_map(|package| {
            let id = format!("{}@{}", text(&package["name"]), text(&package["version"]));
            match package["license"].as_str() {
                Some(licence) if licence_is_allowed(licence, &allowed) => None,
                Some(licence) => Some(format!("{id}: {licence} is not allowed by deny.toml")),
                None => Some(format!("{id}: names no licence")),
            }
        })
        .collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn every_version_is_there_once_or_for_a_reason() {
    let deny = deny();
    let skips: BTreeMap<String, &str> = list_toml(&deny["bans"]["skip"])
        .map(|skip| {
            let reason = skip.get("reason").and_then(toml::Value::as_str).unwrap_or_default();
            (skip["crate"].as_str().unwrap().to_owned(), reason)
        })
        .collect();
    for (skip, reason) in &skips {
        assert!(!reason.is_empty(), "deny.toml: the skip of {skip} has no reason");
    }
    let operator = duplicates(&normal_dependencies(&["--package", env!("CARGO_PKG_NAME")]));
    for (name, versions) in &operator {
        let without_skip: Vec<&String> = versions
            .iter()
            .filter(|version| !skips.contains_key(&format!("{name}@{version}")))
            .collect();
        assert!(
            without_skip.len() <= 1,
            "{name} is there as {versions:?}: see `cargo tree -d`, or add a skip to deny.toml"
        );
    }
    let all = duplicates(&normal_dependencies(&["--workspace"]));
    for skip in skips.keys() {
        let (name, version) = skip.split_once('@').unwrap();
        assert!(
            all.get(name).is_some_and(|versions| versions.contains(version)),
            "deny.toml: the skip of {skip} is no longer needed"
        );
    }
}

#[test]
fn every_source_is_the_registry_or_this_repository() {
    let mut registries = BTreeSet::new();
    for package in list(&metadata()["packages"]) {
        let name = text(&package["name"]);
        match package["source"].as_str() {
            Some(source) if source.starts_with("registry+") => {
                registries.insert(source.to_owned());
            }
            Some(source) => panic!("{name} comes from {source}"),
            None => {
                let manifest = Path::new(text(&package["manifest_path"]));
                assert!(manifest.starts_with(root()), "{name} comes from {}", manifest.display());
            }
        }
    }
    assert_eq!(registries.len(), 1, "{registries:?}");
}

#[test]
fn the_toolchain_is_the_promised_one() {
    let pin: toml::Table = toml::from_str(&read("rust-toolchain.toml")).unwrap();
    let cargo: toml::Table = toml::from_str(&read("Cargo.toml")).unwrap();
    let pin = pin["toolchain"]["channel"].as_str().unwrap();
    let promised = cargo["workspace"]["package"]["rust-version"].as_str().unwrap();
    assert!(
        pin == promised || pin.starts_with(&format!("{promised}.")),
        "rust-toolchain.toml pins {pin}, Cargo.toml promises {promised}"
    );
}

/// Names and versions of all packages that some workspace members are linked with. Unlike `cargo
/// metadata`, `cargo tree` omits packages that no feature enables.
fn normal_dependencies(members: &[&str]) -> BTreeSet<(String, String)> {
    let args = ["tree", "--locked", "--offline", "--edges", "normal", "--prefix", "none"];
    run(cargo().args(args).args(["--format", "{p}"]).args(members))
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let version = |word: &str| word.strip_prefix('v').map(str::to_owned);
            Some((words.next()?.to_owned(), words.next().and_then(version)?))
        })
        .collect()
}

fn duplicates(packages: &BTreeSet<(String, String)>) -> BTreeMap<String, BTreeSet<String>> {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, version) in packages {
        versions.entry(name.clone()).or_default().insert(version.clone());
    }
    versions.retain(|_, versions| versions.len() > 1);
    versions
}

/// Whether an SPDX expression leaves a choice with allowed licences only. An exception (`WITH`)
/// only grants more, so it does not matter; `/` is an old form of OR.
fn licence_is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    let verdict = any_of(&mut words, allowed);
    verdict && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any_of(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut verdict = all_of(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        verdict |= all_of(words, allowed);
    }
    verdict
}

fn all_of(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut verdict = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        verdict &= one(words, allowed);
    }
    verdict
}

fn one(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    match words.next() {
        Some("(") => {
            let verdict = any_of(words, allowed);
            words.next() == Some(")") && verdict
        }
        Some(licence) => {
            if words.next_if_eq(&"WITH").is_some() {
                words.next();
            }
            allowed.contains(licence)
        }
        None => false,
    }
}

#[test]
fn licence_expressions_are_understood() {
    let allowed = BTreeSet::from(["MIT".to_owned(), "Apache-2.0".to_owned()]);
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0-only", false),
        ("GPL-3.0-only OR MIT", true),
        ("GPL-3.0-only AND MIT", false),
        ("GPL-3.0-only/MIT", true),
        ("GPL-3.0-only AND (MIT OR Apache-2.0)", false),
        ("MIT AND (GPL-3.0-only OR Apache-2.0)", true),
        ("GPL-3.0-only OR MIT AND Apache-2.0", true),
        ("Apache-2.0 WITH LLVM-exception OR GPL-3.0-only", true),
        ("MIT AND", false),
        ("MIT nonsense", false),
        ("", false),
    ] {
        assert_eq!(licence_is_allowed(expression, &allowed), expected, "{expression}");
    }
}

// ---- files -------------------------------------------------------------------------------

#[test]
fn the_repository_holds_sources_only() {
    for file in files() {
        let path = root().join(&file);
        // The index has the file, the working copy has not: it is being removed.
        let Ok(content) = fs::read(&path) else { continue };
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(!content.contains(&0), "{file} is binary");
        assert!(
            u64::try_from(content.len()).unwrap() <= LARGEST_FILE || MAY_BE_LARGE.contains(&name),
            "{file} is larger than {LARGEST_FILE} bytes"
        );
    }
}

// ---- reading -----------------------------------------------------------------------------

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// Text of all files of a folder, whose path ends with a slash.
pub(crate) fn read_folder(folder: &str) -> String {
    files().iter().filter(|file| file.starts_with(folder)).map(|file| read(file)).collect()
}

/// Whether the file's name ends with a dot and this extension.
pub(crate) fn has_extension(file: &str, extension: &str) -> bool {
    Path::new(file).extension().is_some_and(|found| found == extension)
}

/// Every file that git knows or would add, from the repository's root.
pub(crate) fn files() -> Vec<String> {
    let args = ["ls-files", "--cached", "--others", "--exclude-standard"];
    run(Command::new("git").args(args)).lines().map(str::to_owned).collect()
}

/// Targets of the Makefile.
pub(crate) fn make_targets() -> BTreeSet<String> {
    read("Makefile")
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.trim().to_owned())
        .collect()
}

fn metadata() -> Value {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let args = ["metadata", "--locked", "--offline", "--format-version", "1"];
    let text = run(cargo().args(args).args(["--filter-platform", &platform]));
    serde_json::from_str(&text).unwrap()
}

/// The cargo that runs this test, else the one on PATH.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

pub(crate) fn run(command: &mut Command) -> String {
    let output =
        command.current_dir(root()).output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn deny() -> toml::Table {
    toml::from_str(&read("deny.toml")).unwrap()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().unwrap().iter()
}

fn list_toml(value: &toml::Value) -> impl Iterator<Item = &toml::Value> {
    value.as_array().unwrap().iter()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn strings(value: &toml::Value) -> BTreeSet<String> {
    list_toml(value).map(|item| item.as_str().unwrap().to_owned()).collect()
}
