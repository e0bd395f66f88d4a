//! The number of values in a JSON text, counted before the text is parsed.
//!
//! A value takes as little as two bytes of text, but 24 or more bytes of memory. A map takes
//! hundreds of bytes of memory. So a limit on the length of the text is not enough to limit the
//! memory that the values take.

/// Upper bound of the number of values that a parser would make from a JSON text. Keys are not
/// counted. The count takes one pass and no allocation. If the text is not valid JSON, the bound
/// holds for the values before the first error.
pub fn most_values(json: &str) -> usize {
    1 + count(json, |byte| matches!(byte, b',' | b'[' | b'{'))
}

/// Number of maps in a JSON text. A map takes hundreds of bytes of memory even if it has only one
/// field, because the first node of the tree that stores the fields has room for eleven of them.
pub fn maps(json: &str) -> usize {
    count(json, |byte| byte == b'{')
}

/// Counts the bytes for which `counts` returns `true`, except the bytes within quoted strings.
fn count(json: &str, counts: impl Fn(u8) -> bool) -> usize {
    let mut found = 0;
    let (mut is_quoted, mut is_escaped) = (false, false);
    for byte in json.bytes() {
        if is_quoted {
            is_quoted = is_escaped || byte != b'"';
            is_escaped = !is_escaped && byte == b'\\';
        } else {
            is_quoted = byte == b'"';
            found += usize::from(counts(byte));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn values(of: &Value) -> usize {
        1 + match of {
            Value::Array(list) => list.iter().map(values).sum(),
            Value::Object(map) => map.values().map(values).sum(),
            _ => 0,
        }
    }

    #[test]
    fn text_within_quotes_does_not_count() {
        assert_eq!(most_values("1"), 1);
        assert_eq!(most_values(r#"",[{\",[{\\""#), 1);
        assert_eq!(most_values(r#"["\\",1]"#), 3);
        assert_eq!(most_values(&json!({"a": [1, 2], "b": "x,y"}).to_string()), 5);
        assert_eq!(maps(r#"{"{":[{},"\"{",{"a":{}}]}"#), 4);
        let text = format!("[{}0]", "0,".repeat(999));
        assert_eq!(most_values(&text), 1_001);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i32>().prop_map(Value::from),
            r#"[a,"\\\[\{]{0,6}"#.prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(r#"[a,"\\\[]{0,4}"#, inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_text_has_more_values_than_that(value in any_value()) {
            let bound = most_values(&value.to_string());
            prop_assert!(values(&value) <= bound);
            prop_assert!(bound <= 2 * values(&value));
        }
    }
}
