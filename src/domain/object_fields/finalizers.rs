//! Lists of finalizers. A patch replaces the whole list, so the patch also contains the finalizers
//! of other programs. As a precondition, the patch contains the resourceVersion of the object from
//! which the list was read.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

/// Copy of `list` with the finalizer `name` added at the end. `None`: the list already has this
/// finalizer.
pub fn with_finalizer(list: &[String], name: &str) -> Option<Vec<String>> {
    let is_missing = list.iter().all(|one| one != name);
    is_missing.then(|| list.iter().cloned().chain([name.to_owned()]).collect())
}

/// Copy of `list` without the finalizers `names`. `None`: the list has none of them.
pub fn without_finalizers(list: &[String], names: &[&str]) -> Option<Vec<String>> {
    let is_kept = |one: &&String| !names.contains(&one.as_str());
    let rest: Vec<String> = list.iter().filter(is_kept).cloned().collect();
    (rest.len() < list.len()).then_some(rest)
}

/// Merge patch that removes the finalizers `names` from the object with the metadata `meta`.
/// `None`: the object has none of them.
pub fn removal_patch(meta: &ObjectMeta, names: &[&str]) -> Option<Value> {
    let rest = without_finalizers(meta.finalizers.as_deref().unwrap_or_default(), names)?;
    Some(json!({"metadata": {"resourceVersion": meta.resource_version, "finalizers": rest}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_finalizer_is_added_once_and_last() {
        assert_eq!(with_finalizer(&[], "ours"), Some(list(&["ours"])));
        assert_eq!(with_finalizer(&list(&["b", "a"]), "ours"), Some(list(&["b", "a", "ours"])));
        assert_eq!(with_finalizer(&list(&["ours", "a"]), "ours"), None);
    }

    #[test]
    fn other_finalizers_stay_in_their_order() {
        let all = list(&["b", "ours", "a", "ours", "old"]);
        assert_eq!(without_finalizers(&all, &["ours"]), Some(list(&["b", "a", "old"])));
        assert_eq!(without_finalizers(&all, &["old", "ours"]), Some(list(&["b", "a"])));
        assert_eq!(without_finalizers(&list(&["ours"]), &["ours"]), Some(Vec::new()));
        assert_eq!(without_finalizers(&list(&["a"]), &["ours"]), None);
        assert_eq!(without_finalizers(&[], &["ours"]), None);
    }

    #[test]
    fn a_removal_requires_the_version_that_was_read() {
        let mut meta = ObjectMeta { resource_version: Some("7".into()), ..ObjectMeta::default() };
        assert_eq!(removal_patch(&meta, &["ours"]), None);
        meta.finalizers = Some(list(&["ours", "a"]));
        let patch = json!({"metadata": {"resourceVersion": "7", "finalizers": ["a"]}});
        assert_eq!(removal_patch(&meta, &["ours"]), Some(patch));
    }
}
