//! The rules that separate the rooms of `src/`, checked on the tokens of the sources.
//!
//! `api` and `domain` are crates that depend on no other room, so the compiler refuses such a use.
//! For decisions, `src/domain/clippy.toml` names functions and types of the standard library and of
//! chrono that read a clock, wait, share, do I/O or are random. Clippy finds them under any name,
//! but only those in its list. So `decisions` refuses whole modules of the standard library, with
//! `async` and `await`, and crates that bring a client or a runtime. Every check is a function from
//! a text to its faults, so that the last tests of a file can show that each check can fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod decisions;
pub(crate) mod rust_source;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::hygiene::read;

use self::rust_source::{
    code, has_word, heads, is_name_char, is_test_file, modules, sources, trees,
};

const LONGEST_FILE: usize = 450;

/// Rooms of the operator, and the rooms that each may use, as in DESIGN.md.
const ROOMS: [(&str, &[&str]); 11] = [
    ("locks", &[]),
    ("metrics", &["locks"]),
    ("tls", &[]),
    ("turns", &["locks"]),
    ("k8s", &["locks", "metrics"]),
    ("prober", &["locks", "metrics", "tls"]),
    ("rancher", &["tls"]),
    ("http", &["k8s", "locks", "metrics", "turns"]),
    ("agent", &["http", "k8s", "metrics"]),
    ("controllers", &["k8s", "locks", "metrics", "prober", "rancher", "turns"]),
    ("cli", &["agent", "controllers", "http", "k8s", "metrics", "rancher"]),
];
/// Crates and files at the top of `src/` that have no row in `ROOMS`.
const NOT_ROOMS: [&str; 6] = ["api", "domain", "lib", "main", "bin", "build"];
/// Rooms that may name the client of the API server.
const CLIENT_ROOMS: [&str; 3] = ["src/k8s/", "src/controllers/", "src/cli/"];
/// Words of writing calls. Controllers read only.
const WRITE_WORDS: [&str; 6] =
    ["PostParams", "PatchParams", "DeleteParams", "Patch", "EvictParams", "SubjectAccessReview"];
/// Server for the API server. It accepts connections and opens none.
const LISTENER: &str = "src/http/listener";
/// Words that it may use, and connecting words that it may not.
const LISTENER_WORDS: [&str; 2] = ["TcpStream", "hyper"];
const CONNECTING: [&str; 4] =
    ["TcpStream::connect", "hyper::client", "net::TcpStream as", "hyper as"];
/// Room that sends frames without an address, and configures interfaces through the kernel.
const PRIVILEGED: &str = "src/agent/";
/// Words of privileged calls.
const PRIVILEGED_WORDS: [&str; 6] =
    ["socket2", "rtnetlink", "nix", "UnixDatagram", "CapabilityFlags", "membarrier"];
/// Code that connects to backends, and to the server that a spec names.
const CALLERS: [&str; 2] = ["src/prober/", "src/rancher/transport.rs"];
/// Words of connecting code.
const SOCKET_WORDS: [&str; 5] = ["TcpSocket", "TcpStream", "UdpSocket", "TlsConnector", "hyper"];

#[test]
fn rooms_use_only_what_the_design_says() {
    assert_none(&sources("src"), room_faults);
}

#[test]
fn the_design_has_the_same_table_of_rooms() {
    let faults = table_faults(&read("DESIGN.md"));
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
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

#[test]
fn public_items_are_used() {
    let faults = unused_items(&sources("src"));
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

// ---- rules -------------------------------------------------------------------------------

fn room_faults(path: &str, source: &str) -> Vec<String> {
    let modules = modules(path);
    let first = modules.first().copied().unwrap_or_default();
    let Some((room, may)) = ROOMS.iter().find(|(room, _)| *room == first) else {
        let is_unknown = !NOT_ROOMS.contains(&first);
        return is_unknown.then(|| format!("{path}: `{first}` is no room")).into_iter().collect();
    };
    let code = code(source);
    let up = "super::".repeat(modules.len());
    let used: BTreeSet<&str> = trees(&code, "crate::")
        .into_iter()
        .chain(trees(&code, &up))
        .flat_map(heads)
        .filter(|used| used != room && !may.contains(used))
        .collect();
    let is_room = |used: &&str| ROOMS.iter().any(|(room, _)| room == used);
    used.into_iter()
        .filter(is_room)
        .map(|used| format!("{path}: `crate::{used}`: {room} may use {}", may.join(", ")))
        .collect()
}

/// The table of rooms in DESIGN.md lets each room use the same rooms as `ROOMS` does.
fn table_faults(design: &str) -> Vec<String> {
    let after = design.split("| room | owns | may use |").nth(1).unwrap_or_default();
    let table = after.split("\n\n").next().unwrap_or_default();
    let mut named: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for row in table.lines() {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, paths, .., may, _] = cells[..] else { continue };
        let may = may.split(';').next().unwrap_or_default();
        for path in paths.split('`').skip(1).step_by(2) {
            let Some(room) = path.strip_prefix("src/") else { continue };
            let used = may.split(", ").filter(|used| !["", "no other"].contains(used));
            named.insert(room.trim_end_matches(".rs"), used.collect());
        }
    }
    named.retain(|room, _| !NOT_ROOMS.contains(room));
    let rooms: BTreeMap<&str, BTreeSet<&str>> =
        ROOMS.iter().map(|(room, may)| (*room, may.iter().copied().collect())).collect();
    let all: BTreeSet<&str> = named.keys().chain(rooms.keys()).copied().collect();
    all.into_iter()
        .filter(|room| named.get(room) != rooms.get(room))
        .map(|room| {
            let (design, checked) = (named.get(room), rooms.get(room));
            format!("DESIGN.md: {room} may use {design:?}, but ROOMS has {checked:?}")
        })
        .collect()
}

fn client_faults(path: &str, source: &str) -> Vec<String> {
    let code = code(source);
    let mut faults = Vec::new();
    if !CLIENT_ROOMS.iter().any(|room| path.starts_with(room)) {
        let is_client = |tree: &&str| {
            ["Api", "Client"].into_iter().any(|word| has_word(tree, word)) || tree.contains('*')
        };
        if let Some(named) = trees(&code, "kube::").into_iter().find(is_client) {
            faults.push(format!(
                "{path}: `kube::{named}`: only {} talk to the API server",
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

/// The client of the API server is kube's. Every other connection goes to an address chosen by a
/// guest, or to a Rancher, and there is one room for each.
fn socket_faults(path: &str, source: &str) -> Vec<String> {
    if CALLERS.iter().any(|caller| path.starts_with(caller)) {
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
        .map(|word| format!("{path}: `{word}`: only {} connect", CALLERS.join(" and ")))
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
    let words: Vec<&str> =
        code.split(|c| !is_name_char(c)).filter(|word| !word.is_empty()).collect();
    words
        .windows(2)
        .filter(|pair| pair[0] == "fn")
        .map(|pair| pair[1])
        .filter(|name| {
            // A function that serde calls for a missing field has no arguments and is named in a
            // string.
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

/// Public functions, constants, statics and traits whose name occurs at their definitions only. The
/// compiler does not warn of them, because another crate could use them.
fn unused_items(sources: &[(String, String)]) -> Vec<String> {
    let sources: Vec<(&str, Arc<str>)> = sources
        .iter()
        .filter(|(path, _)| !is_test_file(path))
        .map(|(path, source)| (path.as_str(), code(source)))
        .collect();
    let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
    let mut public: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (path, code) in &sources {
        let words: Vec<&str> =
            code.split(|c| !is_name_char(c)).filter(|word| !word.is_empty()).collect();
        for word in &words {
            *uses.entry(*word).or_default() += 1;
        }
        for (at, _) in words.iter().enumerate().filter(|(_, word)| **word == "pub") {
            let mut item =
                words[at + 1..].iter().skip_while(|word| ["async", "const"].contains(*word));
            let kind = item.next().copied().unwrap_or_default();
            let name = match (kind, item.next()) {
                ("fn" | "static" | "trait", Some(name)) => name,
                _ if words.get(at + 1) == Some(&"const") => &kind,
                _ => continue,
            };
            public.entry(*name).or_default().push(path);
        }
    }
    public
        .into_iter()
        .filter(|(name, paths)| uses[name] == paths.len())
        .map(|(name, paths)| format!("{}: `{name}` is used by no code but tests", paths.join(", ")))
        .collect()
}

fn assert_none(files: &[(String, String)], check: fn(&str, &str) -> Vec<String>) {
    assert!(!files.is_empty(), "no sources found");
    let faults: Vec<String> = files.iter().flat_map(|(path, source)| check(path, source)).collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

// ---- the rules can fail ------------------------------------------------------------------

#[test]
fn rooms_in_the_wrong_order_are_found() {
    for (path, bad) in [
        ("src/k8s/views/mod.rs", "use crate::controllers::Shared;"),
        ("src/k8s/views/pools.rs", "use super::super::super::http::Webhook;"),
        ("src/metrics/mod.rs", "use crate::{domain::{reason, pools}, k8s::call};"),
        ("src/http/health_endpoints.rs", "fn f() { crate::agent::run() }"),
        ("src/prober/mod.rs", "use domain::{a, b};\nuse crate::{metrics::Metrics, rancher};"),
        ("src/other/mod.rs", "use crate::k8s::call;"),
        ("src/other.rs", "//! No use of a room."),
    ] {
        assert!(!room_faults(path, bad).is_empty(), "not found: {path}: {bad}");
    }
    for (path, good) in [
        ("src/k8s/mod.rs", "//! crate::controllers\nuse crate::{domain::pools, metrics::Metrics};"),
        ("src/k8s/views/pools.rs", "use super::super::super::metrics::Metrics; use super::http;"),
        ("src/http/mod.rs", "#[cfg(test)]\nmod tests { use crate::cli; }\nuse crate::k8s::call;"),
        ("src/http/mod.rs", "fn f() -> &'static str { r#\"crate::cli::run() \"#; 'c'; \"\\\"\" }"),
        ("src/cli/mod.rs", "use crate::{agent::{self, Agent}, controllers};"),
        ("src/lib.rs", "pub mod agent;"),
        ("src/bin/lease-agent.rs", "use harvester_guest_operator::cli;"),
        ("src/domain/pools/mod.rs", "use crate::network::Segment;"),
    ] {
        assert_eq!(room_faults(path, good), Vec::<String>::new(), "{path}: {good}");
    }
}

#[test]
fn another_table_of_rooms_is_found() {
    let design = read("DESIGN.md");
    for (old, new) in [
        ("| locks, metrics, tls |", "| locks, metrics |"),
        ("| locks, metrics, tls |", "| locks, metrics, rancher, tls |"),
        ("| `src/turns.rs` |", "| `src/places.rs` |"),
        ("| `src/tls.rs` |", "| `tests/tls.rs` |"),
        ("| room | owns | may use |", "| room | owns |"),
    ] {
        let other = design.replace(old, new);
        assert_ne!(other, design, "{old}");
        assert!(!table_faults(&other).is_empty(), "not found: {new}");
    }
}

#[test]
fn bad_uses_of_the_client_are_found() {
    for (path, bad) in [
        ("src/http/health_endpoints.rs", "use kube::{Api, ResourceExt};"),
        ("src/prober/mod.rs", "fn f(c: kube::Client) {}"),
        ("src/metrics/mod.rs", "use kube::*;"),
        ("src/controllers/mod.rs", "use kube::api::{Patch, PatchParams};"),
        ("src/cli/mod.rs", "fn f() { api.create(&kube::api::PostParams::default(), x); }"),
    ] {
        assert!(!client_faults(path, bad).is_empty(), "not found: {path}: {bad}");
    }
    for (path, good) in [
        ("src/http/health_endpoints.rs", "use kube::ResourceExt; // not kube::Api"),
        ("src/controllers/mod.rs", "use kube::{Api, Client};"),
        ("src/k8s/write/mod.rs", "use kube::api::{Patch, PatchParams};"),
    ] {
        assert_eq!(client_faults(path, good), Vec::<String>::new());
    }
}

#[test]
fn sockets_elsewhere_are_found() {
    for bad in
        ["use tokio::net::TcpStream;", "fn f() { hyper::client::conn::http1::handshake(x); }"]
    {
        assert!(
            !socket_faults("src/controllers/load_balancer/publish.rs", bad).is_empty(),
            "{bad}"
        );
        assert!(socket_faults("src/prober/probe.rs", bad).is_empty());
        assert!(socket_faults("src/rancher/transport.rs", bad).is_empty());
        assert!(!socket_faults("src/rancher/tokens.rs", bad).is_empty(), "{bad}");
    }
    assert!(
        socket_faults("src/http/health_endpoints.rs", "use tokio::net::TcpListener;").is_empty()
    );
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
    for bad in [
        "use socket2::Socket;",
        "fn f() { rtnetlink::new_connection() }",
        "fn f() { nix::ifaddrs::getifaddrs() }",
    ] {
        assert!(!privilege_faults("src/k8s/client.rs", bad).is_empty(), "{bad}");
        assert!(privilege_faults("src/agent/packet_socket.rs", bad).is_empty(), "{bad}");
    }
}

#[test]
fn unused_public_items_are_found() {
    let sources = |code: &str| vec![("src/k8s/calls.rs".to_owned(), code.to_owned())];
    for bad in [
        "pub fn f() {}",
        "pub async fn f() {}",
        "pub const fn f() {}",
        "pub const F: u8 = 1;",
        "pub fn f() {} #[cfg(test)] mod tests { fn g() { f() } }",
    ] {
        assert_eq!(unused_items(&sources(bad)).len(), 1, "{bad}");
    }
    for good in ["pub fn f() {} fn g() { f() }", "fn f() {}", "pub(crate) const F: u8 = 1;"] {
        assert_eq!(unused_items(&sources(good)), Vec::<String>::new(), "{good}");
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
