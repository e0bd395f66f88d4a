//! Rust sources, read as the checks need them, without comments and tests: words and paths without
//! literals, or the texts of literals alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// Code of each source that a check has read. Most checks read the same sources, and a program that
/// is not optimized parses them for seconds.
static CODES: Mutex<BTreeMap<String, Arc<str>>> = Mutex::new(BTreeMap::new());

/// All Rust files below a folder, as path from the repository's root, and text.
pub(crate) fn sources(folder: &str) -> Vec<(String, String)> {
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

/// Modules of a file, and the file's own.
pub(super) fn modules(path: &str) -> Vec<&str> {
    let path = path.trim_start_matches("src/").trim_end_matches(".rs");
    path.split('/').filter(|part| *part != "mod").collect()
}

/// Whether a file contains nothing but tests, by its path.
pub(crate) fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

/// The source without white space, comments, literals and tests.
pub(super) fn code(source: &str) -> Arc<str> {
    // The checks run side by side in one order. So each waits here for what another is parsing.
    let mut codes = CODES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(code) = codes.get(source) {
        return code.clone();
    }
    let mut out = String::with_capacity(source.len());
    write(source.parse().expect("tokens of Rust"), &mut out);
    let code: Arc<str> = out.into();
    codes.insert(source.to_owned(), code.clone());
    code
}

fn write(tokens: TokenStream, out: &mut String) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '#' && is_test(tokens.peek()) => {
                while tokens.next().is_some_and(|token| !ends_item(&token)) {}
            }
            TokenTree::Punct(mark) => out.push(mark.as_char()),
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::None => ("", ""),
                };
                out.push_str(open);
                write(group.stream(), out);
                out.push_str(close);
            }
            word => {
                if out.ends_with(is_name_char) {
                    out.push(' ');
                }
                match word {
                    TokenTree::Ident(name) => out.push_str(&name.to_string()),
                    _ => out.push('0'),
                }
            }
        }
    }
}

/// Whether the token is the `[cfg(test)]` of an attribute.
fn is_test(token: Option<&TokenTree>) -> bool {
    let Some(TokenTree::Group(group)) = token else { return false };
    let text = group.stream().to_string();
    group.delimiter() == Delimiter::Bracket && text.replace(' ', "") == "cfg(test)"
}

fn ends_item(token: &TokenTree) -> bool {
    match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(mark) => mark.as_char() == ';',
        _ => false,
    }
}

/// Text of each string literal of the source, without comments and tests.
pub(crate) fn string_literals(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    collect_strings(source.parse().expect("tokens of Rust"), &mut found);
    found
}

fn collect_strings(tokens: TokenStream, found: &mut Vec<String>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '#' && is_test(tokens.peek()) => {
                while tokens.next().is_some_and(|token| !ends_item(&token)) {}
            }
            TokenTree::Group(group) if !is_doc_comment(&group) => {
                collect_strings(group.stream(), found);
            }
            TokenTree::Literal(literal) => found.extend(string(&literal.to_string())),
            TokenTree::Group(_) | TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}

/// Whether the group is `[doc = "…"]`, into which a doc comment is parsed.
fn is_doc_comment(group: &Group) -> bool {
    let mut tokens = group.stream().into_iter();
    let is_doc = matches!(tokens.next(), Some(TokenTree::Ident(name)) if name == "doc");
    is_doc && matches!(tokens.next(), Some(TokenTree::Punct(mark)) if mark.as_char() == '=')
}

/// Text of a string literal. `None`: the literal is a number, a character or bytes.
fn string(literal: &str) -> Option<String> {
    if let Some(raw) = literal.strip_prefix('r') {
        return raw.trim_matches('#').strip_prefix('"')?.strip_suffix('"').map(str::to_owned);
    }
    let mut chars = literal.strip_prefix('"')?.strip_suffix('"')?.chars().peekable();
    let mut text = String::new();
    while let Some(c) = chars.next() {
        let escaped = if c == '\\' { chars.next() } else { None };
        match escaped {
            None => text.push(c),
            Some('n') => text.push('\n'),
            Some('t') => text.push('\t'),
            // The end of the line and the indentation of the next one are no part of the text.
            Some('\n') => while chars.next_if(|c| c.is_whitespace()).is_some() {},
            Some('u') => {
                let code: String = chars.by_ref().skip(1).take_while(|c| *c != '}').collect();
                text.extend(u32::from_str_radix(&code, 16).ok().and_then(char::from_u32));
            }
            Some(other) => text.push(other),
        }
    }
    Some(text)
}

pub(super) fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether the word occurs, not as a part of a longer name.
pub(super) fn has_word(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        let starts = !word.starts_with(is_name_char) || !code[..at].ends_with(is_name_char);
        starts && !code[at + word.len()..].starts_with(is_name_char)
    })
}

/// Rest of each path that begins with `root`: names, or the group of a `use`.
pub(super) fn trees<'a>(code: &'a str, root: &str) -> Vec<&'a str> {
    let begins = |at: &usize| {
        let before = &code[..*at];
        !before.ends_with(is_name_char) && !before.ends_with("::")
    };
    let starts = code.match_indices(root).map(|(at, _)| at).filter(begins);
    starts
        .map(|at| {
            let rest = &code[at + root.len()..];
            let mut depth = 0;
            let end = rest.find(|c| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                let inside = depth > 0 && (c == ',' || c == ' ');
                depth < 0 || !(inside || is_name_char(c) || ":{}*".contains(c))
            });
            &rest[..end.unwrap_or(rest.len())]
        })
        .collect()
}

/// First names of a tree: its own, or those of its group.
pub(super) fn heads(tree: &str) -> Vec<&str> {
    let first = |text| str::split(text, |c| !is_name_char(c)).next().unwrap_or_default();
    let Some(group) = tree.strip_prefix('{') else { return vec![first(tree)] };
    branches(group).map(first).collect()
}

/// Whole paths of a tree: its own, or one for each name in its groups.
pub(super) fn paths(tree: &str) -> Vec<String> {
    let (path, group) = tree.split_at(tree.find('{').unwrap_or(tree.len()));
    match group.strip_prefix('{') {
        Some(group) if path.is_empty() || path.ends_with("::") => {
            let group = group.strip_suffix('}').unwrap_or(group);
            branches(group).flat_map(paths).map(|rest| format!("{path}{rest}")).collect()
        }
        _ => vec![path.split(' ').next().unwrap_or_default().to_owned()],
    }
}

/// Branches of a group, whose opening brace is cut off.
fn branches(group: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    group.split(move |c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    })
}
