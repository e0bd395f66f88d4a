//! Maximum lengths of texts that are stored and reported, and the cut of longer texts.

/// Maximum length, in bytes, of messages in conditions, errors and webhook answers. The same
/// maximum applies to the value of an annotation that is kept in memory for a LoadBalancer or a
/// network.
pub const LONGEST_TEXT: usize = 1024;
/// Maximum length, in bytes, of a name, an address, a time or another short field of an object that
/// is kept in memory.
pub const LONGEST_WORD: usize = 320;

/// Returns the text, cut to at most `longest` bytes. A text that was cut ends with three dots,
/// which count as three of these bytes.
pub fn cut(mut text: String, longest: usize) -> String {
    shorten(&mut text, longest);
    text
}

/// Cuts the text to at most `longest` bytes. A text that was cut ends with three dots, which count
/// as three of these bytes.
pub fn shorten(text: &mut String, longest: usize) {
    if text.len() <= longest {
        return;
    }
    let end = text.floor_char_boundary(longest.saturating_sub(3));
    text.truncate(end);
    text.push_str("...");
    text.shrink_to_fit();
}

/// Cuts the text like [`shorten`]. `None` stays `None`.
pub fn shorten_some(text: &mut Option<String>, longest: usize) {
    if let Some(text) = text {
        shorten(text, longest);
    }
}

/// First `most` items, separated by commas, and the number of the others, such as
/// `a, b and 7 more`.
pub fn some_of(items: impl ExactSizeIterator<Item = String>, most: usize) -> String {
    let more = items.len().saturating_sub(most);
    let shown = items.take(most).collect::<Vec<_>>().join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

/// Returns the text if it has at most `longest` bytes. `None`: the text is longer. A name or UID
/// that identifies an object is not cut, because the cut text could identify another object.
pub fn within(text: &str, longest: usize) -> Option<&str> {
    Some(text).filter(|text| text.len() <= longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(cut("short".into(), 10), "short");
        assert_eq!(cut("0123456789".into(), 10), "0123456789");
        assert_eq!(cut("0123456789a".into(), 10), "0123456...");
        assert_eq!(cut("ääääää".into(), 10), "äää...");
    }

    #[test]
    fn of_many_items_the_first_are_named_and_the_others_counted() {
        let some = |items: &[&str]| some_of(items.iter().map(ToString::to_string), 2);
        assert_eq!(some(&[]), "");
        assert_eq!(some(&["a", "b"]), "a, b");
        assert_eq!(some(&["a", "b", "c", "d"]), "a, b and 2 more");
    }

    #[test]
    fn a_text_within_its_limit_is_whole_and_a_longer_one_is_none() {
        assert_eq!(within("", 0), Some(""));
        assert_eq!(within("0123456789", 10), Some("0123456789"));
        assert_eq!(within("0123456789a", 10), None);
        assert_eq!(within("ääääää", 11), None, "the limit is in bytes");
    }
}
