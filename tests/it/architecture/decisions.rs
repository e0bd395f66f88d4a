//! Rules of `src/domain`: the subjects at its top, the crates that it is built with, and the parts
//! of the standard library that it uses.

use std::collections::BTreeSet;

use super::assert_none;
use super::rust_source::{code, has_word, is_test_file, paths, sources, trees};
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
/// Parts of the standard library for I/O, for waiting and for what tasks share. `*` and `self`:
/// imports that give access to any part.
const IMPURE: [&str; 11] =
    ["*", "self", "env", "fs", "future", "io", "os", "process", "sync", "task", "thread"];
/// Parts of `std::sync` that share only what never changes.
const CONSTANT: [&str; 2] = ["sync::Arc", "sync::LazyLock"];
/// Words for the clock, the resolution of host names and asynchronous code, on whatever path. The
/// list has no function and no type that `src/domain/clippy.toml` forbids.
const IMPURE_WORDS: [&str; 9] = [
    "async",
    "await",
    "Instant",
    "SystemTime",
    ".elapsed",
    "Local::now",
    "Timestamp::now",
    "ToSocketAddrs",
    "to_socket_addrs",
];
/// Spellings of `std` that hide its parts from the check.
const HIDDEN: [&str; 2] = ["::std", "std as"];

#[test]
fn decisions_use_nothing_but_their_arguments() {
    assert_none(&sources(DECISIONS), purity_faults);
}

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

/// Uses of `IMPURE`, `IMPURE_WORDS` and `HIDDEN` outside of tests.
fn purity_faults(path: &str, source: &str) -> Vec<String> {
    if is_test_file(path) {
        return Vec::new();
    }
    let code = code(source);
    let is_below = |used: &str, part: &str| {
        used.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let is_impure = |used: &String| {
        let constant = CONSTANT.iter().any(|part| is_below(used, part));
        !constant && IMPURE.iter().any(|part| is_below(used, part))
    };
    let used = trees(&code, "std::").into_iter().flat_map(paths).filter(is_impure);
    let used = used.map(|used| format!("std::{used}"));
    let words = IMPURE_WORDS.into_iter().chain(HIDDEN).filter(|word| has_word(&code, word));
    used.chain(words.map(str::to_owned))
        .map(|name| format!("{path}: `{name}`: a decision uses nothing but its arguments"))
        .collect()
}

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
fn bad_decisions_are_found() {
    let faults = |body: &str| purity_faults("src/domain/pools/allocator/mod.rs", body);
    for bad in [
        "use std::{collections::BTreeMap, fs::{self, File}};",
        "use std::net::*; fn f() { x.to_socket_addrs() }",
        "use std::*;",
        "use std::os::unix::net::UnixStream;",
        "use std::sync::{Arc, Mutex};",
        "use std::sync::{self, Arc};",
        "use std::sync::atomic::AtomicU64;",
        "use std::time as t; fn f() { t::Instant::now(); }",
        "use std::time::{Duration, SystemTime};",
        "use std::fmt::{self, Write as _}; use ::std::fs;",
        "use std as s; fn f() { s::fs::read(x); }",
        "use std::{self as s, fmt}; fn f() { s::fs::read(x); }",
        "fn f() { std::env::var(x); }",
        "fn f() -> std::io::Result<()> { g() }",
        "fn f() { std::thread::sleep(x) }",
        "fn f() { std::process::exit(1) }",
        "fn f(x: &Clock) -> Duration { x.start.elapsed() }",
        "fn f() { k8s_openapi::jiff::Timestamp::now(); }",
        "async fn f() {}",
        "fn f() { g().await; }",
        "use std::net::ToSocketAddrs as _;",
        "#[cfg(test)]\nmod tests;\nuse std::fs;",
    ] {
        assert!(!faults(bad).is_empty(), "not found: {bad}");
    }
    for good in [
        "//! use std::fs; async\nuse std::collections::{BTreeMap, btree_map::Entry};",
        "use std::{fmt::{self, Write as _}, net::{IpAddr, Ipv4Addr}, sync::{Arc, LazyLock}};",
        "use std::sync::Arc; use std::time::Duration; fn f(now: Duration) -> Duration { now }",
        "fn f() -> &'static str { \"async std::fs::read .await\" }",
        "fn f(x: &mut Vec<u8>) -> std::fmt::Result { match std::mem::take(x) { _ => Ok(()) } }",
        "fn f(processes: u8, env: u8, io: u8) -> u8 { std::iter::once(env).sum() }",
        "#[cfg(test)]\nmod tests { use std::time::Instant; }\nuse std::ops::Range;",
    ] {
        assert_eq!(faults(good), Vec::<String>::new(), "{good}");
    }
    let test = "fn f() { std::fs::read(x); }";
    for path in ["src/domain/pools/tests.rs", "src/domain/pools/tests/model/mod.rs"] {
        assert_eq!(purity_faults(path, test), Vec::<String>::new(), "{path}");
    }
    assert!(!purity_faults("src/domain/tests_of_pools.rs", test).is_empty());
}

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
