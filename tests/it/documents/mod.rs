//! Documents say what is so: README and the pages in docs/ list every metric, option, reason and Event,
//! their links lead somewhere, their pages are generated where they can be, and what they show is run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub(crate) mod blocks;
mod commands;
mod generated;
mod objects;
mod quotations;
mod steps;

use std::collections::BTreeSet;
use std::fs;

use crate::hygiene::{files, has_extension, make_targets, read, read_folder, root};

/// Longest README, in lines: the rest is in docs/.
const README_LINES: usize = 200;
const CONTENTS: &str = "docs/README.md";
const WALK: &str = "docs/follow-one-loadbalancer.md";
/// Longest walk, in lines: it is read in one go.
const WALK_LINES: usize = 40;

/// Every document, and its text.
fn documents() -> Vec<(String, String)> {
    files()
        .into_iter()
        .filter(|file| has_extension(file, "md"))
        .filter_map(|file| Some((file.clone(), fs::read_to_string(root().join(file)).ok()?)))
        .collect()
}

/// README and the pages in docs/.
fn pages() -> Vec<(String, String)> {
    let is_page = |file: &str| file == "README.md" || file.starts_with("docs/");
    documents().into_iter().filter(|(file, _)| is_page(file)).collect()
}

/// The text of all pages.
fn book() -> String {
    pages().into_iter().map(|(_, text)| text + "\n").collect()
}

#[test]
fn the_readme_is_short() {
    let lines = read("README.md").lines().count();
    assert!(lines <= README_LINES, "README.md has {lines} lines: {README_LINES} at most");
}

#[test]
fn the_contents_name_every_page() {
    let named: BTreeSet<String> = links(&read(CONTENTS)).into_iter().collect();
    for (file, _) in pages() {
        let Some(page) = file.strip_prefix("docs/").filter(|_| file != CONTENTS) else { continue };
        assert!(named.contains(page), "{CONTENTS} does not name {page}");
    }
}

/// A page of a task begins with what works: after its title comes a block of code.
#[test]
fn every_task_begins_with_what_works() {
    let contents = read(CONTENTS);
    let tasks = contents.split("## ").find(|part| part.starts_with("Tasks")).unwrap();
    let tasks = links(tasks);
    assert!(tasks.len() > 5, "{tasks:?}");
    for page in tasks {
        let text = read(&format!("docs/{page}"));
        let mut lines = text.lines().filter(|line| !line.is_empty());
        assert!(lines.next().unwrap().starts_with("# "), "{page} has no title");
        assert!(lines.next().unwrap().starts_with("```"), "{page} does not begin with code");
    }
}

#[test]
fn every_make_target_in_a_document_exists() {
    let makefile = read("Makefile");
    let targets = make_targets();
    let mut mentioned = BTreeSet::new();
    for (file, document) in documents() {
        for name in names_after(&document, "make ", |c| c.is_ascii_lowercase()) {
            // In a sentence "make" is a verb; in code it is this program.
            if document.contains(&format!("`make {name}`"))
                || document
                    .lines()
                    .any(|line| line.trim_start().starts_with(&format!("make {name}")))
            {
                assert!(targets.contains(&name), "{file}: `make {name}` does not exist");
                mentioned.insert(name);
            }
        }
    }
    // `cargo run` does not take it.
    let refused = |line: &&str| line.contains("cargo run") && line.contains("--workspace");
    assert_eq!(makefile.lines().find(refused), None);
    let readme = read("README.md");
    for command in ["demo", "test"] {
        assert!(mentioned.contains(command), "no document mentions `make {command}`");
        assert!(readme.contains(&format!("`make {command}`")), "README.md: no `make {command}`");
    }
}

#[test]
fn every_link_within_the_repository_leads_somewhere() {
    for (file, document) in documents() {
        let folder = root().join(&file).parent().unwrap().to_owned();
        for link in links(&document) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() { root().join(&file) } else { folder.join(path) };
            assert!(target.exists(), "{file}: the link to {link} leads nowhere");
            if !anchor.is_empty() && target.extension().is_some_and(|e| e == "md") {
                let headings = headings(&fs::read_to_string(&target).unwrap());
                assert!(headings.contains(anchor), "{file}: no heading for {link}: {headings:?}");
            }
        }
    }
}

/// The walk for newcomers, and any other page: a function that a link to a file names is in that file.
#[test]
fn every_function_that_a_link_names_is_in_its_file() {
    let mut walk = 0;
    for (file, document) in documents() {
        let folder = root().join(&file).parent().unwrap().to_owned();
        for (function, path) in functions(&document) {
            let code = fs::read_to_string(folder.join(&path)).unwrap_or_default();
            assert!(defines(&code, &function), "{file}: {path} has no function {function}");
            walk += usize::from(file == WALK);
        }
    }
    let lines = read(WALK).lines().count();
    assert!(walk >= 10 && lines <= WALK_LINES, "{WALK}: {walk} functions in {lines} lines");
}

/// Links from the name of a function, in backquotes, to a Rust file: both of them.
fn functions(document: &str) -> Vec<(String, String)> {
    let links = prose(document);
    let links = links.split("[`").skip(1).filter_map(|link| {
        let (name, rest) = link.split_once("`](")?;
        let (path, _) = rest.split_once(')').filter(|(path, _)| has_extension(path, "rs"))?;
        Some((name.to_owned(), path.to_owned()))
    });
    links.collect()
}

fn defines(code: &str, function: &str) -> bool {
    let begins = |end: char| code.contains(&format!("fn {function}{end}"));
    begins('(') || begins('<')
}

#[test]
fn functions_are_found_in_links_and_code() {
    let document = "see [`a`](x.rs), [`b`](y.md), [c](z.rs)\n```\n[`d`](w.rs)\n```\n";
    assert_eq!(functions(document), [("a".to_owned(), "x.rs".to_owned())]);
    let code = "async fn a(x: u8) {}\nfn go<T>() {}\n// calls b()\n";
    assert!(defines(code, "a") && defines(code, "go"));
    assert!(!defines(code, "b") && !defines(code, "g") && !defines("", "a"));
}

/// Every picture is shown somewhere, has words for who cannot see it, fits a dark page, and fetches
/// nothing.
#[test]
fn every_picture_can_be_read() {
    let shown = book();
    let pictures: Vec<String> =
        files().into_iter().filter(|file| has_extension(file, "svg")).collect();
    assert!(pictures.len() >= 4, "{pictures:?}");
    for file in pictures {
        let text = read(&file);
        let name = file.rsplit_once('/').unwrap().1;
        assert!(shown.contains(&format!("images/{name})")), "{file}: no page shows it");
        for part in ["<title", "<desc", "prefers-color-scheme: dark", "viewBox"] {
            assert!(text.contains(part), "{file}: no {part}");
        }
        for part in ["<script", "href", "<image", "@import"] {
            assert!(!text.contains(part), "{file}: {part}");
        }
        balanced(&file, &text);
    }
    for line in shown.lines().filter(|line| line.contains("![")) {
        assert!(!line.contains("![]"), "a picture without words: {line}");
    }
}

/// Each element of an XML text is closed by its own name.
fn balanced(file: &str, text: &str) {
    let mut open = Vec::new();
    for tag in text.split('<').skip(1).map(|rest| rest.split_once('>').unwrap().0) {
        let name = tag.trim_start_matches('/').split(|c: char| c.is_whitespace() || c == '/');
        let name = name.into_iter().next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{file}: </{name}>");
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{file}: not closed: {open:?}");
}

#[test]
fn the_documents_name_every_metric_and_no_other() {
    let documented = names_with(&book(), "hgo_", |c| c.is_ascii_lowercase() || c == '_');
    let source = read_folder("src/metrics/");
    let built = names_with(&source, "\"hgo_", |c| c.is_ascii_lowercase() || c == '_');
    let built = built.iter().map(|name| name.trim_start_matches('"').to_owned()).collect();
    assert_eq!(documented, built, "documents (left) against src/metrics (right)");
    let tables = first_cells(&read("docs/reference/metrics.md"), "name");
    assert_eq!(tables, built, "tables of docs/reference/metrics.md (left)");
}

#[test]
fn the_documents_name_every_option_and_no_other() {
    let upper = |c: char| c.is_ascii_uppercase() || c == '_';
    let documented = names_with(&book(), "HGO_", upper);
    let mut built = BTreeSet::new();
    for file in files().iter().filter(|file| file.starts_with("src/cli/")) {
        built.extend(names_with(&read(file), "\"HGO_", upper));
    }
    let built: BTreeSet<String> =
        built.iter().map(|name| name.trim_start_matches('"').to_owned()).collect();
    assert_eq!(documented, built, "documents (left) against src/cli (right)");
    let deployed = names_with(&read("config/manager/deployment.yaml"), "HGO_", upper);
    assert!(deployed.is_subset(&built), "config/manager: {deployed:?} against {built:?}");
}

#[test]
fn the_documents_explain_every_reason_and_no_other() {
    let source = read("src/domain/reason.rs");
    let built: BTreeSet<String> = literals(&source).filter(|word| is_reason(word)).collect();
    let documented = first_cells(&book(), "Reason");
    assert_eq!(documented, built, "documents (left) against src/domain/reason.rs (right)");
}

#[test]
fn the_documents_name_only_events_that_are_written() {
    let mut built = BTreeSet::new();
    for file in files().iter().filter(|file| file.starts_with("src/")) {
        built.extend(literals(&read(file)).filter(|word| is_reason(word)));
    }
    let mut named = first_cells(&book(), "Event");
    assert!(!named.is_empty());
    let whys = first_cells(&book(), "why");
    assert!(whys.contains("KeptByRancher"));
    named.extend(whys);
    // A step that fails gives its name to the reason.
    let is_built = |word: &&String| {
        let step = word.strip_suffix("Failed").unwrap_or_default();
        built.contains(*word) || built.contains(step)
    };
    let unknown: Vec<_> = named.iter().filter(|word| !is_built(word)).collect();
    assert!(unknown.is_empty(), "no such Events or reasons: {unknown:?}");
}

/// A word in the form of a reason: `NoAvailableIP`.
fn is_reason(word: &str) -> bool {
    word.len() > 2
        && word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.chars().all(|c| c.is_ascii_alphanumeric())
}

/// The content of every string literal that has neither quotes nor line breaks in it.
fn literals(source: &str) -> impl Iterator<Item = String> + '_ {
    source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| line.split('"').skip(1).step_by(2).map(str::to_owned))
}

/// The words in backquotes in the first column of every table whose first heading is this.
fn first_cells(document: &str, heading: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut inside = false;
    for line in document.lines() {
        let Some(cell) = line.strip_prefix('|').and_then(|line| line.split('|').next()) else {
            inside = false;
            continue;
        };
        if inside {
            found.extend(cell.split('`').skip(1).step_by(2).map(str::to_owned));
        }
        inside |= cell.trim() == heading;
    }
    found
}

fn names_with(text: &str, prefix: &str, belongs: fn(char) -> bool) -> BTreeSet<String> {
    names_after(text, prefix, belongs).into_iter().map(|name| format!("{prefix}{name}")).collect()
}

/// Names after each occurrence of the prefix, as long as their characters belong to a name.
fn names_after(text: &str, prefix: &str, belongs: fn(char) -> bool) -> BTreeSet<String> {
    text.match_indices(prefix)
        .map(|(at, _)| text[at + prefix.len()..].chars().take_while(|c| belongs(*c)).collect())
        .filter(|name: &String| !name.is_empty())
        .collect()
}

fn links(document: &str) -> Vec<String> {
    prose(document)
        .match_indices("](")
        .map(|(at, _)| prose(document)[at + 2..].chars().take_while(|c| *c != ')').collect())
        .collect()
}

/// Anchors of headings, as GitHub makes them.
fn headings(document: &str) -> BTreeSet<String> {
    prose(document)
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            line.trim_start_matches('#')
                .trim()
                .to_lowercase()
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
        .collect()
}

/// The document without its blocks of code.
fn prose(document: &str) -> String {
    document.split("```").step_by(2).collect()
}

#[test]
fn documents_are_read_as_they_are_written() {
    let document = "# A b\n|Reason|x|\n|-|-|\n|`One`, `Two`|`Three`|\n\n|`Four`|\n\
        see [it](a/b.md#c-d)\n```\n# not a heading\n[no](link)\n```\n";
    assert_eq!(
        first_cells(document, "Reason"),
        BTreeSet::from(["One".to_owned(), "Two".to_owned()])
    );
    assert_eq!(links(document), ["a/b.md#c-d"]);
    assert_eq!(headings(document), BTreeSet::from(["a-b".to_owned()]));
    assert_eq!(
        names_with("use hgo_a_b, hgo_c.", "hgo_", |c| c.is_ascii_lowercase() || c == '_'),
        BTreeSet::from(["hgo_a_b".to_owned(), "hgo_c".to_owned()])
    );
    let words: Vec<String> = literals("a => \"One\", // \"\n// \"Two\"\nb(\"x y\")").collect();
    assert!(words.contains(&"One".to_owned()) && !words.contains(&"Two".to_owned()));
}
