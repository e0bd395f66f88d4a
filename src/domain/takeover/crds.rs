//! Replacement of Harvester's form of a CRD by the operator's form, and the way back. The form of a
//! CRD is its `spec.versions`.
//!
//! Invariant: a patch that replaces a form of another program records this form on the same CRD. If
//! the CRD already has a form of the operator, no patch overwrites the recorded form.

use serde_json::{Value, json};

use api::MANAGED_BY;

/// Annotation of a CRD with the values that the operator has replaced: `spec.versions`, and Helm's
/// label and annotations. The annotation's value is JSON.
pub const ANNOTATION_FORM: &str = "loadbalancer.harvesterhci.io/form-before-takeover";
/// Annotation of IPPool's CRD. A replica of the operator removes the status subresource when
/// another controller leads, and marks the CRD with this annotation.
pub const ANNOTATION_STATUS_REMOVED: &str = "loadbalancer.harvesterhci.io/status-removed";
/// Annotations with the name and the namespace of the Helm release to which an object belongs.
const RELEASE: [&str; 2] = ["meta.helm.sh/release-name", "meta.helm.sh/release-namespace"];

/// Kind of form that a stored CRD has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrdForm {
    /// Form that needs no repair. It is one of these:
    /// * A form of any version of the operator, if the CRD has no [`ANNOTATION_STATUS_REMOVED`].
    /// * A form of another program, such as Harvester's, if the CRD has no [`ANNOTATION_FORM`].
    ///   Without this annotation, no take-over of the CRD is in effect.
    Expected,
    /// The operator's form, from which a replica has removed the status subresource.
    StatusRemoved,
    /// A form of another program. This form has replaced the operator's form, for example in an
    /// upgrade of Harvester.
    Replaced,
}

/// Finds out which kind of form a stored CRD has.
pub fn form(stored: &Value) -> CrdForm {
    let annotations = &stored["metadata"]["annotations"];
    match is_operators(stored) {
        true if annotations[ANNOTATION_STATUS_REMOVED].is_string() => CrdForm::StatusRemoved,
        false if annotations[ANNOTATION_FORM].is_string() => CrdForm::Replaced,
        _ => CrdForm::Expected,
    }
}

/// Merge patch that puts the versions `ours` back into the CRD `stored`, after another program has
/// replaced them. In [`ANNOTATION_FORM`], the other program's versions replace the recorded ones.
/// The recorded values of Helm's label and annotations stay. The CRD's own label and annotations of
/// Helm stay too.
pub fn repaired(stored: &Value, ours: &Value) -> Value {
    let former = recorded(stored).filter(Value::is_object);
    let mut former = former.unwrap_or_else(|| json!({}));
    former["versions"] = stored["spec"]["versions"].clone();
    let noted = json!({ANNOTATION_FORM: former.to_string(), ANNOTATION_STATUS_REMOVED: null});
    replacing(stored, ours, &noted)
}

/// Merge patch that gives every version the status subresource again, after [`without_status`] has
/// removed it.
pub fn with_status(stored: &Value) -> Value {
    let mut versions = stored["spec"]["versions"].clone();
    for version in versions.as_array_mut().into_iter().flatten() {
        version["subresources"]["status"] = json!({});
    }
    replacing(stored, &versions, &json!({ANNOTATION_STATUS_REMOVED: null}))
}

/// Merge patch that puts the versions `ours` into the CRD `stored`. The patch records the replaced
/// versions, and Helm's label and annotations, with two exceptions:
/// * If the replaced versions are the operator's, an earlier record of versions stays.
/// * If the CRD belongs to the operator's Helm release already, an earlier record of Helm's label
///   and annotations stays.
///
/// `operator`: the operator's Deployment. If it belongs to a Helm release, the CRD belongs to this
/// release after the patch, so that a later `helm upgrade` of the operator upgrades the CRD.
pub fn adopted(stored: &Value, ours: &Value, operator: &Value) -> Value {
    let annotations = &stored["metadata"]["annotations"];
    let release = RELEASE.map(|key| &operator["metadata"]["annotations"][key]);
    let mut former = json!({
        "versions": stored["spec"]["versions"],
        "managedBy": stored["metadata"]["labels"][MANAGED_BY],
        "release": RELEASE.map(|key| &annotations[key]),
    });
    if let Some(before) = recorded(stored) {
        if is_operators(stored) {
            former["versions"] = before["versions"].clone();
        }
        // The CRD may still have the label and annotations of the operator's Helm release, also if
        // another program has put back its own form. In that case, the earlier record of Helm's
        // label and annotations stays.
        if RELEASE.map(|key| &annotations[key]) == release {
            former["managedBy"] = before["managedBy"].clone();
            former["release"] = before["release"].clone();
        }
    }
    let noted = json!({ANNOTATION_FORM: former.to_string(), ANNOTATION_STATUS_REMOVED: null});
    let mut patch = replacing(stored, ours, &noted);
    if release.iter().all(|value| value.is_string()) {
        patch["metadata"]["labels"][MANAGED_BY] = json!("Helm");
        for (key, value) in RELEASE.into_iter().zip(release) {
            patch["metadata"]["annotations"][key] = value.clone();
        }
    }
    patch
}

/// Merge patch that puts back what [`ANNOTATION_FORM`] records: Helm's label and annotations, and
/// the versions. `None`: the CRD has no record, or the record is not JSON.
///
/// If the CRD has a form of another program, the patch leaves the CRD's versions as they are. They
/// may be newer than the recorded ones, for example after an upgrade of Harvester.
pub fn restored(stored: &Value) -> Option<Value> {
    let metadata = &stored["metadata"];
    let former = recorded(stored)?;
    let mut patch = json!({
        "metadata": {
            "resourceVersion": metadata["resourceVersion"],
            "labels": {MANAGED_BY: former["managedBy"]},
            "annotations": {ANNOTATION_FORM: null, ANNOTATION_STATUS_REMOVED: null},
        },
    });
    for (index, key) in RELEASE.into_iter().enumerate() {
        patch["metadata"]["annotations"][key] = former["release"][index].clone();
    }
    if is_operators(stored) {
        patch["spec"] = json!({"versions": former["versions"]});
    }
    Some(patch)
}

/// Merge patch that removes the status subresource from every version, and marks the CRD with
/// [`ANNOTATION_STATUS_REMOVED`]. With the subresource, the API server would drop the status that
/// Harvester's Go controller writes by plain updates. `None`: no version has the subresource.
pub fn without_status(stored: &Value) -> Option<Value> {
    let mut versions = stored["spec"]["versions"].clone();
    let mut had = false;
    for version in versions.as_array_mut()?.iter_mut().filter_map(Value::as_object_mut) {
        if let Some(Value::Object(subresources)) = version.get_mut("subresources") {
            had |= subresources.remove("status").is_some();
        }
    }
    had.then(|| replacing(stored, &versions, &json!({ANNOTATION_STATUS_REMOVED: "true"})))
}

/// Merge patch that replaces the versions of the CRD `stored` by `versions`, and sets the given
/// `annotations`. An annotation with the value null is removed.
fn replacing(stored: &Value, versions: &Value, annotations: &Value) -> Value {
    json!({
        "metadata": {
            "resourceVersion": stored["metadata"]["resourceVersion"],
            "annotations": annotations,
        },
        "spec": {"versions": versions},
    })
}

/// Value of [`ANNOTATION_FORM`]. `None`: the annotation is missing, or is not JSON.
fn recorded(stored: &Value) -> Option<Value> {
    serde_json::from_str(stored["metadata"]["annotations"][ANNOTATION_FORM].as_str()?).ok()
}

/// Whether the stored form is from any version of the operator. Only the operator's forms have
/// validation rules.
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
    fn a_newer_form_of_the_operator_keeps_the_form_of_harvester() {
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
        assert_eq!(form(&safe), CrdForm::StatusRemoved);
        assert_eq!(without_status(&safe), None);
        let back = with_status(&safe);
        let back = apply(safe, &back);
        assert_eq!(back["spec"]["versions"], ours("a"));
        assert_eq!(form(&back), CrdForm::Expected);
    }

    #[test]
    fn a_form_that_replaced_the_operators_is_found_and_replaced() {
        assert_eq!(form(&stored()), CrdForm::Expected, "the operator's never replaced it");
        let mut upgraded = adopt(stored(), &ours("a"));
        assert_eq!(form(&upgraded), CrdForm::Expected);
        upgraded["spec"]["versions"] = harvesters("b");
        assert_eq!(form(&upgraded), CrdForm::Replaced);
        // In the first round, the CRD has the label and annotations that `adopted` wrote. In the
        // second round, a chart has written its own.
        for marks in [["hgo", "lb"], ["harvester", "harvester-system"]] {
            let mut upgraded = upgraded.clone();
            for (key, value) in RELEASE.into_iter().zip(marks) {
                upgraded["metadata"]["annotations"][key] = json!(value);
            }
            let patch = repaired(&upgraded, &ours("a"));
            let again = apply(upgraded, &patch);
            assert_eq!(again["spec"]["versions"], ours("a"));
            assert_eq!(form(&again), CrdForm::Expected);
            let patch = restored(&again).unwrap();
            let restored = apply(again, &patch);
            assert_eq!(restored["spec"]["versions"], harvesters("b"));
            assert_eq!(restored["metadata"], stored()["metadata"]);
            assert_eq!(form(&restored), CrdForm::Expected);
        }
    }
}
