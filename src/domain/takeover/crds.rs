//! The operator's form of a CRD in the place of Harvester's, and the way back.
//!
//! Invariant: a patch that replaces a form records it on the same object, unless it is the operator's
//! own.

use serde_json::{Value, json};

/// Annotation of a CRD: versions and Helm's marks before the operator's form replaced them, as JSON.
pub const ANNOTATION_FORM: &str = "loadbalancer.harvesterhci.io/form-before-takeover";
/// Label by which Helm recognizes what it manages.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Annotations by which Helm recognizes to which release an object belongs: name and namespace.
const RELEASE: [&str; 2] = ["meta.helm.sh/release-name", "meta.helm.sh/release-namespace"];

/// Merge patch that puts the versions `ours` into the stored CRD, and has the Helm release of the
/// operator, if there is one, own it: a later `helm upgrade` of the operator then upgrades the CRD.
pub fn adopted(stored: &Value, ours: &Value, operator: &Value) -> Value {
    let annotations = &stored["metadata"]["annotations"];
    let release = RELEASE.map(|key| &operator["metadata"]["annotations"][key]);
    let before = annotations[ANNOTATION_FORM].as_str();
    let before = before.and_then(|record| serde_json::from_str::<Value>(record).ok());
    let mut record = json!({
        "versions": stored["spec"]["versions"],
        "managedBy": stored["metadata"]["labels"][MANAGED_BY],
        "release": RELEASE.map(|key| &annotations[key]),
    });
    if let Some(before) = before {
        if is_operators(stored) {
            record["versions"] = before["versions"].clone();
        }
        // Who puts another form back may leave the operator's marks.
        if RELEASE.map(|key| &annotations[key]) == release {
            record["managedBy"] = before["managedBy"].clone();
            record["release"] = before["release"].clone();
        }
    }
    let record = record.to_string();
    let mut patch = json!({
        "metadata": {
            "resourceVersion": stored["metadata"]["resourceVersion"],
            "annotations": {ANNOTATION_FORM: record},
        },
        "spec": {"versions": ours},
    });
    if release.iter().all(|value| value.is_string()) {
        patch["metadata"]["labels"][MANAGED_BY] = json!("Helm");
        for (key, value) in RELEASE.into_iter().zip(release) {
            patch["metadata"]["annotations"][key] = value.clone();
        }
    }
    patch
}

/// Merge patch that puts back what [`adopted`] recorded. A form that Harvester's chart has put back
/// itself, which may be a newer one, stays. `None`: there is no record.
pub fn restored(stored: &Value) -> Option<Value> {
    let metadata = &stored["metadata"];
    let record = metadata["annotations"][ANNOTATION_FORM].as_str()?;
    let record: Value = serde_json::from_str(record).ok()?;
    let mut patch = json!({
        "metadata": {
            "resourceVersion": metadata["resourceVersion"],
            "labels": {MANAGED_BY: record["managedBy"]},
            "annotations": {ANNOTATION_FORM: null},
        },
    });
    for (index, key) in RELEASE.into_iter().enumerate() {
        patch["metadata"]["annotations"][key] = record["release"][index].clone();
    }
    if is_operators(stored) {
        patch["spec"] = json!({"versions": record["versions"]});
    }
    Some(patch)
}

/// Merge patch that serves every version without the status subresource, which drops the status in
/// the plain updates of the Go controller. `None`: no version has it.
pub fn without_status(stored: &Value) -> Option<Value> {
    let mut versions = stored["spec"]["versions"].clone();
    let mut had = false;
    for version in versions.as_array_mut()?.iter_mut().filter_map(Value::as_object_mut) {
        if let Some(Value::Object(subresources)) = version.get_mut("subresources") {
            had |= subresources.remove("status").is_some();
        }
    }
    had.then(|| {
        json!({
            "metadata": {"resourceVersion": stored["metadata"]["resourceVersion"]},
            "spec": {"versions": versions},
        })
    })
}

/// Whether the form is one of the operator's, of whatever version: only those have validation rules.
fn is_operators(stored: &Value) -> bool {
    has_rules(&stored["spec"]["versions"])
}

fn has_rules(value: &Value) -> bool {
    match value {
        Value::Object(map) => {
            map.contains_key("x-kubernetes-validations") || map.values().any(has_rules)
        }
        Value::Array(list) => list.iter().any(has_rules),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "meta.helm.sh/release-name";
    const NAMESPACE: &str = "meta.helm.sh/release-namespace";

    fn ours(text: &str) -> Value {
        json!([{
            "name": "v1beta1", "subresources": {"status": {}},
            "schema": {"x-kubernetes-validations": [{"rule": text}]},
        }])
    }

    fn harvesters(column: &str) -> Value {
        json!([{"name": "v1beta1", "schema": {}, "column": column, "subresources": {}}])
    }

    /// A CRD that Harvester's chart has installed.
    fn stored() -> Value {
        json!({
            "metadata": {
                "resourceVersion": "5",
                "labels": {MANAGED_BY: "Helm"},
                "annotations": {NAME: "harvester", NAMESPACE: "harvester-system", "other": "stays"},
            },
            "spec": {"versions": harvesters("a"), "conversion": {"strategy": "Webhook"}},
        })
    }

    fn operator() -> Value {
        json!({"metadata": {"annotations": {NAME: "hgo", NAMESPACE: "lb"}}})
    }

    fn apply(mut stored: Value, patch: &Value) -> Value {
        json_patch::merge(&mut stored, patch);
        stored
    }

    fn adopt(stored: Value, ours: &Value) -> Value {
        let patch = adopted(&stored, ours, &operator());
        apply(stored, &patch)
    }

    #[test]
    fn what_is_adopted_and_restored_is_as_before() {
        let adopted = adopt(stored(), &ours("a"));
        assert_eq!(adopted["spec"]["versions"], ours("a"));
        assert_eq!(adopted["spec"]["conversion"]["strategy"], "Webhook");
        assert_eq!(adopted["metadata"]["annotations"][NAME], "hgo");
        assert_eq!(adopted["metadata"]["resourceVersion"], "5");
        let patch = restored(&adopted).unwrap();
        assert_eq!(apply(adopted, &patch), stored());
        assert_eq!(restored(&stored()), None);
    }

    #[test]
    fn a_newer_form_of_the_operator_keeps_the_record_of_harvesters() {
        let adopted = adopt(adopt(stored(), &ours("a")), &ours("b"));
        assert_eq!(adopted["spec"]["versions"], ours("b"));
        let patch = restored(&adopted).unwrap();
        assert_eq!(apply(adopted, &patch), stored());
    }

    #[test]
    fn a_form_that_harvesters_chart_put_back_is_the_one_to_go_back_to() {
        let mut upgraded = adopt(stored(), &ours("a"));
        upgraded["spec"]["versions"] = harvesters("b");
        let patch = restored(&upgraded).unwrap();
        assert_eq!(apply(upgraded.clone(), &patch)["spec"]["versions"], harvesters("b"));
        let again = adopt(upgraded, &ours("a"));
        let patch = restored(&again).unwrap();
        let restored = apply(again, &patch);
        assert_eq!(restored["spec"]["versions"], harvesters("b"));
        assert_eq!(restored["metadata"], stored()["metadata"]);
    }

    #[test]
    fn an_operator_without_helm_leaves_helms_marks() {
        let stored = stored();
        let patch = adopted(&stored, &ours("a"), &json!({"metadata": {}}));
        let adopted = apply(stored, &patch);
        assert_eq!(adopted["metadata"]["annotations"][NAME], "harvester");
    }

    #[test]
    fn only_the_status_subresource_goes() {
        let stored = adopt(stored(), &ours("a"));
        let safe = without_status(&stored).unwrap();
        let safe = apply(stored, &safe);
        assert_eq!(safe["spec"]["versions"][0]["subresources"], json!({}));
        assert!(is_operators(&safe));
        assert_eq!(without_status(&safe), None);
    }
}
