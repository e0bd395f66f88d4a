//! Rules of `src/domain`: the subjects at its top, and the crates that it is built with.

use std::collections::BTreeSet;

use super::rust_source::sources;
use crate::hygiene::{cargo, read, run};

/// Folder of the decisions.
const DECISIONS: &str = "src/domain";
/// Most Rust files and folders with Rust files at its top, `lib.rs` among them. The crate's
/// manifest and its lints (`Cargo.toml`, `clippy.toml`) do not count.
const MOST_SUBJECTS: usize = 17;
/// Crates that connect, wait or encrypt connections. The decisions and their unit tests are built
/// without them.
const IO_CRATES: [&str; 8] =
    ["kube-client", "kube-runtime", "tokio", "hyper", "tower", "rustls", "axum", "rtnetlink"];

#[test]
fn decisions_are_found_by_their_subject() {
    let sources = sources(DECISIONS);
    let paths = sources.iter().filter_map(|(path, _)| path.strip_prefix("src/domain/"));
    let entries: BTreeSet<&str> = paths.filter_map(|path| path.split('/').next()).collect();
    let faults = subject_faults(&entries, &read("DESIGN.md"));
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn decisions_are_built_without_a_client_and_a_runtime() {
    let faults = dependency_faults("domain");
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

// ---- rules -------------------------------------------------------------------------------

/// The table of subjects in DESIGN.md has a row for each entry, and none for an entry that is gone.
fn subject_faults(entries: &BTreeSet<&str>, design: &str) -> Vec<String> {
    let after = design.split("Within `src/domain`").nth(1).unwrap_or_default();
    let table = after.split("\n## ").next().unwrap_or_default();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let firsts = rows.filter_map(|row| row.split('|').nth(1));
    let named: BTreeSet<&str> =
        firsts.flat_map(|first| first.split('`').skip(1).step_by(2)).collect();
    let subjects: BTreeSet<&str> =
        entries.iter().copied().filter(|entry| *entry != "lib.rs").collect();
    let mut faults = Vec::new();
    if entries.len() > MOST_SUBJECTS {
        faults.push(format!("{DECISIONS}: {} entries, more than {MOST_SUBJECTS}", entries.len()));
    }
    for entry in subjects.difference(&named) {
        faults.push(format!("DESIGN.md: no row for {DECISIONS}/{entry}"));
    }
    for row in named.difference(&subjects) {
        faults.push(format!("DESIGN.md: a row for {DECISIONS}/{row}, which is not there"));
    }
    faults
}

/// Crates of `IO_CRATES` that `package` or its unit tests are linked with. Features count as they
/// are when the package is built alone.
fn dependency_faults(package: &str) -> Vec<String> {
    let args = ["tree", "--locked", "--offline", "-e", "normal,dev", "--prefix", "none"];
    let tree = run(cargo().args(args).args(["-p", package]));
    let crates: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(crates.contains(package), "no tree of {package}: {tree}");
    IO_CRATES
        .into_iter()
        .filter(|name| crates.contains(name))
        .map(|name| format!("{package} is linked with {name}: decisions do no I/O"))
        .collect()
}

// ---- the rules can fail ------------------------------------------------------------------

#[test]
fn clients_and_runtimes_are_found() {
    assert_eq!(dependency_faults("harvester-guest-operator").len(), IO_CRATES.len());
}

#[test]
fn subjects_that_are_many_or_unnamed_are_found() {
    let design = "Within `src/domain`:\n| `pools`, `dhcp` | `who` |\n## Proof\n| `proof` |";
    let faults =
        |entries: &[&'static str]| subject_faults(&entries.iter().copied().collect(), design).len();
    assert_eq!(faults(&["pools", "dhcp", "lib.rs"]), 0);
    assert_eq!(faults(&["pools", "lib.rs"]), 1);
    assert_eq!(faults(&["pools", "dhcp", "who"]), 1);
    let many: BTreeSet<&str> = "abcdefghijklmnopqr".split("").collect();
    assert!(many.len() > MOST_SUBJECTS);
    assert!(subject_faults(&many, design).iter().any(|fault| fault.contains("more than")));
}
