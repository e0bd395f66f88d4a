//! Merge patches (RFC 7396) that contain only the changed fields.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Merge patch that turns the value `old` into the value `new`. `None`: the two values are equal.
pub fn merge_patch(old: &Value, new: &Value) -> Option<Value> {
    let (Value::Object(before), Value::Object(after)) = (old, new) else {
        return (old != new).then(|| new.clone());
    };
    let removed = before.keys().filter(|key| !after.contains_key(*key));
    let mut changes: Map<String, Value> = removed.map(|key| (key.clone(), Value::Null)).collect();
    for (key, value) in after {
        if let Some(change) = merge_patch(before.get(key).unwrap_or(&Value::Null), value) {
            changes.insert(key.clone(), change);
        }
    }
    (!changes.is_empty()).then_some(Value::Object(changes))
}

/// Entries of a merge patch that turns the map `old` into the map `new`. Removed entries become
/// `null`. Only changed entries are copied, because a map may have thousands of entries.
pub fn changed_entries(
    old: &BTreeMap<String, String>,
    new: &BTreeMap<String, String>,
) -> Map<String, Value> {
    let removed =
        old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let written = new
        .iter()
        .filter(|(key, value)| old.get(*key) != Some(value))
        .map(|(key, value)| (key.clone(), Value::from(value.as_str())));
    removed.chain(written).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn merged(target: &Value, patch: &Value) -> Value {
        let mut target = target.clone();
        json_patch::merge(&mut target, patch);
        target
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_patch_leads_to_what_was_meant(
            old in proptest::collection::btree_map("[a-c]", 0..3_i32, 0..4),
            new in proptest::collection::btree_map("[a-c]", 0..3_i32, 0..4),
        ) {
            let (old, new) = (json!({"x": old, "y": 1}), json!({"x": new, "y": 1}));
            match merge_patch(&old, &new) {
                None => prop_assert_eq!(old, new),
                Some(patch) => prop_assert_eq!(merged(&old, &patch), new),
            }
        }

        #[test]
        fn the_entries_of_a_map_are_those_of_its_patch(
            old in proptest::collection::btree_map("[a-c]", "[x-z]", 0..4),
            new in proptest::collection::btree_map("[a-c]", "[x-z]", 0..4),
        ) {
            let entries = Value::Object(changed_entries(&old, &new));
            let patch = merge_patch(&json!(old), &json!(new));
            prop_assert_eq!(entries, patch.unwrap_or_else(|| json!({})));
        }
    }
}
