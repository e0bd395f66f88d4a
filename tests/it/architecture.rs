//! The rules that keep the rooms of `src/` apart, read off the sources themselves.
//!
//! The reader below knows comments, literals, `use` trees and paths, and no more of Rust than
//! that. Every check is a function from a file to its faults, so that the last test can show
//! that each of them fails where it should.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const LONGEST_FILE: usize = 450;

/// Crates that a decision may use.
const DOMAIN_CRATES: [&str; 13] = [
    "std",
    "core",
    "k8s_openapi",
    "serde",
    "serde_json",
    "serde_saphyr",
    "sha2",
    "ipnet",
    "chrono",
    "thiserror",
    "base64",
    "x509_parser",
    "zeroize",
];
/// Rooms that a decision may look into.
const DOMAIN_ROOMS: [&str; 2] = ["api", "domain"];
/// Paths below those crates that lead to a clock, to the system or to the network.
const DOMAIN_FORBIDDEN: [&str; 15] = [
    "std::fs",
    "std::env",
    "std::process",
    "std::thread",
    "std::io",
    "std::sync",
    "std::os",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::net::TcpStream",
    "std::net::TcpListener",
    "std::net::UdpSocket",
    "std::net::ToSocketAddrs",
    "chrono::Utc",
    "chrono::Local",
];
/// Text that must not occur in a decision, whatever it was imported as.
const DOMAIN_WORDS: [&str; 9] = [
    "async",
    ".await",
    "Instant::now",
    "SystemTime::now",
    "Utc::now",
    "Local::now",
    "Timestamp::now",
    "rand",
    "RandomState",
];
/// Rooms that may name the way to the API server.
const CLIENT_ROOMS: [&str; 3] = ["src/k8s/", "src/controllers/", "src/cli/"];
/// What every call that writes takes. Controllers read only.
const WRITE_WORDS: [&str; 6] =
    ["PostParams", "PatchParams", "DeleteParams", "Patch", "EvictParams", "SubjectAccessReview"];
/// Who answers the API server. It takes connections and makes none.
const LISTENER: &str = "src/http/listener";
/// What it needs for that, and what would be too much of it.
const LISTENER_WORDS: [&str; 2] = ["TcpStream", "hyper"];
const CONNECTING: [&str; 4] =
    ["TcpStream::connect", "hyper::client", "net::TcpStream as", "hyper as"];
/// Who speaks before there is an address, and with the kernel about interfaces.
const PRIVILEGED: &str = "src/agent/";
/// What it takes for that.
const PRIVILEGED_WORDS: [&str; 6] =
    ["socket2", "rtnetlink", "nix", "UnixDatagram", "CapabilityFlags", "membarrier"];
/// Who connects to the server that a spec names.
const CALLER: &str = "src/rancher/wire.rs";
/// What connects.
const SOCKET_WORDS: [&str; 5] = ["TcpSocket", "TcpStream", "UdpSocket", "TlsConnector", "hyper"];

#[test]
fn decisions_use_nothing_but_their_arguments() {
    assert_none(&sources("src/domain"), domain_faults);
}

#[test]
fn only_three_rooms_know_the_api_server_and_only_one_writes() {
    assert_none(&sources("src"), client_faults);
}

#[test]
fn only_two_rooms_open_sockets() {
    assert_none(&sources("src"), socket_faults);
}

#[test]
fn only_the_agent_has_privileges() {
    assert_none(&sources("src"), privilege_faults);
}

#[test]
fn types_do_not_decide() {
    assert_none(&sources("src/api"), api_faults);
}

#[test]
fn every_file_says_what_it_owns_and_is_short() {
    assert_none(&sources("src"), shape_faults);
}

// ---- rules -------------------------------------------------------------------------------

fn domain_faults(path: &str, source: &str) -> Vec<String> {
    let in_tests = path.ends_with("/tests.rs");
    let code = if in_tests { blank_literals(source) } else { code(source) };
    let mut faults = Vec::new();
    for word in DOMAIN_WORDS {
        if has_word(&code, word) {
            faults.push(format!("{path}: `{word}` in a decision: make it an argument"));
        }
    }
    if in_tests {
        return faults;
    }
    let imports = imports(&code);
    let modules = module_names(&code);
    let mut paths: BTreeSet<Vec<String>> =
        imports.iter().map(|import| import.path.clone()).collect();
    let known: BTreeSet<&str> = imports
        .iter()
        .map(|import| import.name.as_str())
        .chain(modules.iter().map(String::as_str))
        .collect();
    paths.extend(
        inline_paths(&code)
            .into_iter()
            .filter(|path| !known.contains(path[0].as_str()) && !is_primitive(&path[0])),
    );
    for used in paths {
        if modules.contains(&used[0]) {
            continue;
        }
        let full = resolve(path, &used);
        let text = full.join("::");
        let allowed = if full[0] == "crate" {
            full.get(1).is_some_and(|room| DOMAIN_ROOMS.contains(&room.as_str()))
        } else {
            DOMAIN_CRATES.contains(&full[0].as_str())
        };
        // Text that is kept once and named twice; no lock, no cell.
        let forbidden = text != "std::sync::Arc"
            && DOMAIN_FORBIDDEN
                .iter()
                .any(|forbidden| text == *forbidden || text.starts_with(&format!("{forbidden}::")));
        if !allowed || forbidden {
            faults.push(format!("{path}: `{text}` does not belong in a decision"));
        }
    }
    faults
}

fn client_faults(path: &str, source: &str) -> Vec<String> {
    let code = code(source);
    let mut faults = Vec::new();
    if !CLIENT_ROOMS.iter().any(|room| path.starts_with(room)) {
        let named = imports(&code)
            .into_iter()
            .map(|import| import.path)
            .chain(inline_paths(&code))
            .filter(|path| path[0] == "kube")
            .find(|path| path.iter().any(|part| part == "Api" || part == "Client" || part == "*"));
        if let Some(named) = named {
            faults.push(format!(
                "{path}: `{}`: only {} talk to the API server",
                named.join("::"),
                CLIENT_ROOMS.join(", ")
            ));
        }
    }
    if !path.starts_with("src/k8s/") {
        for word in WRITE_WORDS.into_iter().filter(|word| has_word(&code, word)) {
            faults.push(format!("{path}: `{word}`: writes go through src/k8s"));
        }
    }
    faults
}

/// The client of the API server is kube's. Whatever else connects goes to an address that a guest
/// chose, or to a Rancher, and there is one room for each.
fn socket_faults(path: &str, source: &str) -> Vec<String> {
    if path == "src/prober.rs" || path.starts_with("src/prober/") || path == CALLER {
        return Vec::new();
    }
    let code = code(source);
    let may = |word: &str| path.starts_with(LISTENER) && LISTENER_WORDS.contains(&word);
    let connects = CONNECTING.into_iter().filter(|_| path.starts_with(LISTENER));
    SOCKET_WORDS
        .into_iter()
        .filter(|word| !may(word))
        .chain(connects)
        .filter(|word| has_word(&code, word))
        .map(|word| format!("{path}: `{word}`: only src/prober and {CALLER} connect"))
        .collect()
}

fn privilege_faults(path: &str, source: &str) -> Vec<String> {
    if path.starts_with(PRIVILEGED) {
        return Vec::new();
    }
    let code = code(source);
    PRIVILEGED_WORDS
        .into_iter()
        .filter(|word| has_word(&code, word))
        .map(|word| format!("{path}: `{word}`: only {PRIVILEGED} has privileges"))
        .collect()
}

fn api_faults(path: &str, source: &str) -> Vec<String> {
    if path == "src/api/crds.rs" {
        return Vec::new();
    }
    let code = code(source);
    words(&code)
        .windows(2)
        .filter(|pair| pair[0] == "fn")
        .map(|pair| pair[1])
        .filter(|name| {
            // What serde calls for a missing field has no arguments and is named in a string.
            let default = code.contains(&format!("fn {name}()"))
                && source.contains(&format!("default = \"{name}\""));
            !default
        })
        .map(|name| format!("{path}: `fn {name}`: types only; decisions are made in src/domain"))
        .collect()
}

fn shape_faults(path: &str, source: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if !source.trim().is_empty() && !source.starts_with("//!") {
        faults.push(format!("{path}: does not open with `//!`: say what the file owns"));
    }
    let lines = source.lines().count();
    if lines > LONGEST_FILE {
        faults.push(format!("{path}: {lines} lines, more than {LONGEST_FILE}: split it"));
    }
    faults
}

// ---- reading -----------------------------------------------------------------------------

fn assert_none(files: &[(String, String)], check: fn(&str, &str) -> Vec<String>) {
    assert!(!files.is_empty(), "no sources found");
    let faults: Vec<String> = files.iter().flat_map(|(path, source)| check(path, source)).collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// Every Rust file below a folder, as path from the repository's root, and text.
fn sources(folder: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(root.join(&path)).unwrap();
                found.push((path.to_str().unwrap().to_owned(), text));
            }
        }
    }
    found.sort();
    found
}

/// The source without comments, without the content of literals, and without tests.
fn code(source: &str) -> String {
    without_tests(&blank_literals(source))
}

/// Puts blanks for comments and for the content of string and character literals.
fn blank_literals(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let end = match (chars[at], chars.get(at + 1)) {
            ('/', Some('/')) => find(&chars, at, |rest| rest[0] == '\n'),
            ('/', Some('*')) => block_comment_end(&chars, at),
            ('"', _) => string_end(&chars, at + 1),
            ('r', Some('"' | '#')) if !ends_with_name(&out) => raw_string_end(&chars, at),
            ('\'', _) => char_end(&chars, at),
            _ => at,
        };
        if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            out.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    out
}

fn find(chars: &[char], from: usize, found: impl Fn(&[char]) -> bool) -> usize {
    (from..chars.len()).find(|at| found(&chars[*at..])).unwrap_or(chars.len())
}

fn block_comment_end(chars: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at < chars.len() {
        if chars[at..].starts_with(&['/', '*']) {
            depth += 1;
            at += 2;
        } else if chars[at..].starts_with(&['*', '/']) {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    at
}

fn string_end(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// The end of `r"…"` or `r#"…"#`; the start if it is a raw name such as `r#type`.
fn raw_string_end(chars: &[char], start: usize) -> usize {
    let hashes = chars[start + 1..].iter().take_while(|c| **c == '#').count();
    if chars.get(start + 1 + hashes) != Some(&'"') {
        return start;
    }
    let close: Vec<char> = std::iter::once('"').chain(vec!['#'; hashes]).collect();
    let content = start + hashes + 2;
    (find(chars, content, |rest| rest.starts_with(&close)) + close.len()).min(chars.len())
}

/// The end of a character literal; the start if it is a lifetime.
fn char_end(chars: &[char], start: usize) -> usize {
    match (chars.get(start + 1), chars.get(start + 2)) {
        (Some('\\'), _) => (find(chars, start + 3, |rest| rest[0] == '\'') + 1).min(chars.len()),
        (Some(_), Some('\'')) => start + 3,
        _ => start,
    }
}

fn ends_with_name(text: &str) -> bool {
    text.chars().next_back().is_some_and(is_name_char)
}

fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Takes out every item marked `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut rest = code;
    let mut out = String::with_capacity(code.len());
    while let Some(at) = rest.find(MARK) {
        out.push_str(&rest[..at]);
        rest = &rest[at + MARK.len()..];
        let mut depth = 0;
        let end = rest.char_indices().find_map(|(at, c)| match c {
            '{' => {
                depth += 1;
                None
            }
            '}' => {
                depth -= 1;
                (depth == 0).then_some(at + 1)
            }
            ';' if depth == 0 => Some(at + 1),
            _ => None,
        });
        rest = &rest[end.unwrap_or(rest.len())..];
    }
    out.push_str(rest);
    out
}

fn words(code: &str) -> Vec<&str> {
    code.split(|c| !is_name_char(c)).filter(|word| !word.is_empty()).collect()
}

/// Whether the text occurs, not as a part of a longer name.
fn has_word(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        let starts = !word.starts_with(is_name_char) || !ends_with_name(&code[..at]);
        starts && !code[at + word.len()..].starts_with(is_name_char)
    })
}

struct Import {
    /// The whole path, `super` and `self` not yet resolved.
    path: Vec<String>,
    /// What it is called here.
    name: String,
}

/// Every leaf of every `use` tree.
fn imports(code: &str) -> Vec<Import> {
    let mut found = Vec::new();
    for (start, end) in use_items(code) {
        leaves(&[], code[start + 4..end].trim(), &mut found);
    }
    found
}

/// Where each `use …` begins, and where its semicolon is.
fn use_items(code: &str) -> Vec<(usize, usize)> {
    code.match_indices("use ")
        .map(|(start, _)| start)
        .filter(|start| !ends_with_name(&code[..*start]))
        .map(|start| (start, code[start..].find(';').map_or(code.len(), |length| start + length)))
        .collect()
}

fn leaves(prefix: &[String], tree: &str, found: &mut Vec<Import>) {
    if let Some((head, group)) = tree.split_once('{') {
        let prefix: Vec<String> = prefix.iter().cloned().chain(parts(head)).collect();
        let group = group.trim_end().strip_suffix('}').unwrap_or(group);
        let mut depth = 0;
        let branches = group.split(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            c == ',' && depth == 0
        });
        for branch in branches.map(str::trim).filter(|branch| !branch.is_empty()) {
            leaves(&prefix, branch, found);
        }
        return;
    }
    let (text, alias) = match tree.split_once(" as ") {
        Some((text, alias)) => (text, Some(alias.trim().to_owned())),
        None => (tree, None),
    };
    let mut path: Vec<String> = prefix.iter().cloned().chain(parts(text)).collect();
    // `a::{self}` is `a`.
    if path.len() > 1 && path.last().is_some_and(|part| part == "self") {
        path.pop();
    }
    if let Some(last) = path.last().cloned() {
        found.push(Import { name: alias.unwrap_or(last), path });
    }
}

fn parts(path: &str) -> Vec<String> {
    path.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Paths such as `std::mem::take` outside of `use`, if they begin like a crate or a module.
fn inline_paths(code: &str) -> Vec<Vec<String>> {
    let path_char = |c: char| is_name_char(c) || c == ':';
    let mut rest = code.to_owned();
    for (start, end) in use_items(code).into_iter().rev() {
        rest.replace_range(start..end, "");
    }
    rest.split(|c| !path_char(c))
        .map(|text| text.trim_matches(':'))
        .filter(|text| text.contains("::") && text.starts_with(|c: char| c.is_lowercase()))
        .map(parts)
        .filter(|path| path[0] != "self")
        .collect()
}

fn module_names(code: &str) -> BTreeSet<String> {
    words(code).windows(2).filter(|pair| pair[0] == "mod").map(|pair| pair[1].to_owned()).collect()
}

fn is_primitive(name: &str) -> bool {
    ["bool", "char", "f32", "f64", "str"].contains(&name)
        || name.strip_prefix(['i', 'u']).is_some_and(|bits| {
            bits == "size" || !bits.is_empty() && bits.chars().all(|c| c.is_ascii_digit())
        })
}

/// The path with `super` and `self` replaced by what they stand for in that file.
fn resolve(file: &str, path: &[String]) -> Vec<String> {
    let mut module: Vec<String> = std::iter::once("crate".to_owned())
        .chain(
            file.trim_start_matches("src/").trim_end_matches(".rs").split('/').map(str::to_owned),
        )
        .filter(|part| part != "mod" && part != "lib")
        .collect();
    match path[0].as_str() {
        "self" | "super" => {}
        _ => return path.to_vec(),
    }
    for part in path {
        match part.as_str() {
            "self" => {}
            "super" => {
                module.pop();
            }
            _ => module.push(part.clone()),
        }
    }
    if module.is_empty() { vec!["crate".to_owned()] } else { module }
}

// ---- the rules can fail ------------------------------------------------------------------

#[test]
fn bad_decisions_are_found() {
    let faults = |body: &str| domain_faults("src/domain/book/merge.rs", body);
    for bad in [
        "use kube::Api;",
        "use std::{collections::BTreeMap, fs::{self, File}};",
        "use crate::{api, k8s::call};",
        "use super::super::super::metrics::Metrics;",
        "use {tokio::sync::mpsc};",
        "fn f() { tokio::spawn(x); }",
        "fn f() { crate::k8s::call(); }",
        "use std::time as t; fn f() { t::Instant::now(); }",
        "use std::time::SystemTime;",
        "async fn f() {}",
        "fn f() { g().await; }",
        "fn f(now: i64) -> i64 { now + rand::random::<i64>() }",
        "fn f() { jiff::Timestamp::now(); }",
        "fn f() -> &'static str { \"\\\"\" } use axum::Router;",
        "fn f() { let c = '\"'; } use axum::Router; // \"",
    ] {
        assert!(!faults(bad).is_empty(), "not found: {bad}");
    }
    for good in [
        "//! use kube::Api; async\nuse std::collections::{BTreeMap, btree_map::Entry};",
        "use super::{Book, Pool}; use super::super::ledger::{self, Ledger}; fn f() { ledger::g(); }",
        "mod merge; pub use merge::World; fn f() { merge::g(); u32::from(1_u8); str::len(s); }",
        "fn f() -> &'static str { \"async tokio::spawn .await\" }",
        "fn f() { let operand = std::mem::take(x); crate::api::READY; }",
        "#[cfg(test)]\nmod tests { use proptest::prelude::*; }\nuse chrono::DateTime;",
        "fn f<'a>(x: &'a str) -> char { r#\"use kube::Api; \"#; '\\'' }",
    ] {
        assert_eq!(faults(good), Vec::<String>::new(), "{good}");
    }
    assert!(!domain_faults("src/domain/book/tests.rs", "fn f() { Instant::now(); }").is_empty());
    assert!(domain_faults("src/domain/book/tests.rs", "use proptest::prelude::*;").is_empty());
}

#[test]
fn bad_uses_of_the_client_are_found() {
    for (path, bad) in [
        ("src/http/probes.rs", "use kube::{Api, ResourceExt};"),
        ("src/domain/plan.rs", "fn f(c: kube::Client) {}"),
        ("src/metrics.rs", "use kube::*;"),
        ("src/controllers/mod.rs", "use kube::api::{Patch, PatchParams};"),
        ("src/cli/mod.rs", "fn f() { api.create(&kube::api::PostParams::default(), x); }"),
    ] {
        assert!(!client_faults(path, bad).is_empty(), "not found: {path}: {bad}");
    }
    for (path, good) in [
        ("src/http/probes.rs", "use kube::ResourceExt; // not kube::Api"),
        ("src/controllers/mod.rs", "use kube::{Api, Client};"),
        ("src/k8s/write.rs", "use kube::api::{Patch, PatchParams};"),
    ] {
        assert_eq!(client_faults(path, good), Vec::<String>::new());
    }
}

#[test]
fn sockets_elsewhere_are_found() {
    for bad in
        ["use tokio::net::TcpStream;", "fn f() { hyper::client::conn::http1::handshake(x); }"]
    {
        assert!(!socket_faults("src/controllers/load_balancer/act.rs", bad).is_empty(), "{bad}");
        assert!(socket_faults("src/prober/ask.rs", bad).is_empty());
        assert!(socket_faults(CALLER, bad).is_empty());
        assert!(!socket_faults("src/rancher/tokens.rs", bad).is_empty(), "{bad}");
    }
    assert!(socket_faults("src/http/probes.rs", "use tokio::net::TcpListener;").is_empty());
    for good in ["use tokio::net::{TcpListener, TcpStream};", "use hyper::server::conn::http1;"] {
        assert_eq!(socket_faults(LISTENER, good), Vec::<String>::new(), "{good}");
        let elsewhere = socket_faults("src/http/webhook.rs", good);
        assert!(!elsewhere.is_empty(), "{good}");
    }
    for bad in [
        "fn f() { TcpStream::connect(x); }",
        "use hyper::client::conn::http1;",
        "use tokio::net::TcpStream as Other;",
        "use tokio::net::UdpSocket;",
        "use tokio_rustls::TlsConnector;",
    ] {
        assert!(!socket_faults(LISTENER, bad).is_empty(), "{bad}");
    }
}

#[test]
fn privileges_elsewhere_are_found() {
    for bad in ["use socket2::Socket;", "rtnetlink::new_connection()", "nix::ifaddrs::getifaddrs()"]
    {
        assert!(!privilege_faults("src/k8s/client.rs", bad).is_empty(), "{bad}");
        assert!(privilege_faults("src/agent/wire.rs", bad).is_empty(), "{bad}");
    }
}

#[test]
fn types_that_decide_and_bad_shapes_are_found() {
    let faults = |text: &str| api_faults("src/api/ip_pool.rs", text);
    assert!(!faults("impl X { fn is_full(&self) -> bool { true } }").is_empty());
    assert!(!faults("fn tcp() -> String { x }").is_empty());
    assert!(!faults("#[serde(default = \"tcp\")] struct X; fn tcp(x: X) {}").is_empty());
    assert!(faults("#[serde(default = \"tcp\")] struct X; fn tcp() -> String { x }").is_empty());
    assert!(faults("/// A fn of its own.\nstruct X;").is_empty());

    assert!(!shape_faults("src/x.rs", "use a;\n").is_empty());
    assert!(
        !shape_faults("src/x.rs", &format!("//! X.\n{}", "\n".repeat(LONGEST_FILE))).is_empty()
    );
    assert!(shape_faults("src/x.rs", "//! X.\n").is_empty());
}
