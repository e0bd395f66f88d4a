//! Blocks of code in documents.

use super::{documents, pages};
use crate::hygiene::read;

/// Languages of blocks: what a test runs (`sh`, and the lines of `console` after `$`), sends to an API server
/// (`yaml`), or leaves alone (`text`).
const LANGUAGES: [&str; 4] = ["sh", "console", "yaml", "text"];

/// A block of code.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// File and line of its first line, `docs/pools.md:3`.
    pub(super) place: String,
    pub(super) language: String,
    pub(super) text: String,
}

/// The blocks of all pages.
pub(super) fn of_pages() -> Vec<Block> {
    pages().iter().flat_map(|(file, text)| blocks(file, text)).collect()
}

/// Text of the first block of a page that has this part.
pub(crate) fn block_with(file: &str, part: &str) -> Option<String> {
    let mut texts = blocks(file, &read(file)).into_iter().map(|block| block.text);
    texts.find(|text| text.contains(part))
}

pub(super) fn blocks(file: &str, text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in (1..).zip(text.lines()) {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(language), None) => {
                let place = format!("{file}:{}", number + 1);
                let language = language.trim().to_owned();
                open = Some(Block { place, language, text: String::new() });
            }
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some(block)) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{file}: a block does not end");
    found
}

#[test]
fn every_block_says_what_it_is() {
    let mut count = 0;
    for (file, text) in documents() {
        for block in blocks(&file, &text) {
            let (place, language) = (&block.place, &block.language);
            let known = LANGUAGES.contains(&language.as_str());
            assert!(known, "{place}: {language:?}: must be one of {LANGUAGES:?}");
            count += 1;
        }
    }
    assert!(count > 50, "{count} blocks");
}

#[test]
fn blocks_are_found() {
    let text = "a\n```sh\nb\n\nc\n```\n```yaml\n```\n";
    let block = |place: &str, language: &str, text: &str| Block {
        place: place.to_owned(),
        language: language.to_owned(),
        text: text.to_owned(),
    };
    assert_eq!(blocks("x", text), [block("x:3", "sh", "b\n\nc\n"), block("x:8", "yaml", "")]);
}
