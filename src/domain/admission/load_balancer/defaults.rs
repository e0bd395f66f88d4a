//! Fields that admission fills in, so that a stored object has:
//! * the values that the selectors of pools match;
//! * all settings of its health check, if it is a VM load balancer and the check has a port;
//! * a request for its former address, if it was restored from a backup.

use serde_json::{Map, Value, json};

use super::super::metadata_map;
use super::{AdmissionAnswer, AdmissionRequest, is_blank, is_guest, read, shown};
use crate::load_balancer::facts::{self, LbSurroundings, Project};
use api::{
    ANNOTATION_ALLOCATED, ANNOTATION_CLUSTER, ANNOTATION_MANAGEMENT_NETWORK, ANNOTATION_NAMESPACE,
    ANNOTATION_NETWORK, ANNOTATION_PROJECT, LABEL_CLUSTER,
};

/// Fields of a health check, and the value that each gets if it is unset. Used only for a check
/// with a port.
const HEALTH_DEFAULTS: [(&str, i32); 4] =
    [("successThreshold", 1), ("failureThreshold", 3), ("periodSeconds", 5), ("timeoutSeconds", 3)];

/// Sets these annotations:
/// * namespace: the object's own namespace;
/// * project: the project of this namespace. If the namespace is in no project, the annotation is
///   removed. If the project is not known, the annotation stays;
/// * network and cluster: only in a guest's LoadBalancer, if they are unset and their values are
///   known.
///
/// Warns if the client newly sent another value for namespace or project.
pub(super) fn annotations(
    object: &mut Value,
    request: &AdmissionRequest<'_>,
    around: &LbSurroundings,
    answer: &mut AdmissionAnswer,
) {
    let guest = is_guest(object);
    let label = object["metadata"]["labels"].get(LABEL_CLUSTER).cloned();
    let Some(given) = metadata_map(object, "annotations") else { return };
    let before = request.old.and_then(|old| old.pointer("/metadata/annotations"));
    let mut owned = |key: &str, of: &str, value: Option<&str>| {
        let sent = given.get(key).filter(|sent| !is_blank(sent)).cloned();
        match value {
            Some(value) => drop(given.insert(key.to_owned(), json!(value))),
            None => drop(given.remove(key)),
        }
        let is_news = before.and_then(|before| before.get(key)) != sent.as_ref();
        if let Some(sent) = sent.filter(|sent| is_news && sent.as_str() != value) {
            let field = key.rsplit('/').next().unwrap_or(key);
            let sent = shown(&sent);
            answer.warn(match value {
                Some(value) => format!("annotation {field}: set to {value:?}, {of}, not to {sent}"),
                None => format!(
                    "annotation {field}: removed: the namespace is in no project, not in {sent}"
                ),
            });
        }
    };
    owned(ANNOTATION_NAMESPACE, "the LoadBalancer's namespace", Some(request.namespace));
    let whose = "the namespace's project";
    match &around.project {
        Project::In(project) => owned(ANNOTATION_PROJECT, whose, Some(project)),
        Project::Outside => owned(ANNOTATION_PROJECT, whose, None),
        Project::Unknown => {}
    }
    if guest {
        let management = given.get(ANNOTATION_MANAGEMENT_NETWORK).cloned();
        let of_vms = || around.vm_network.as_ref().map(|network| json!(network));
        let network = management.filter(|network| !is_blank(network)).or_else(of_vms);
        if_silent(given, ANNOTATION_NETWORK, network);
        if_silent(given, ANNOTATION_CLUSTER, label);
    }
}

/// Copies the claim in the status of a new object to the annotation [`ANNOTATION_ALLOCATED`],
/// unless this annotation is set. By the annotation, the object requests the same address again. A
/// new object has such a status if it was restored from a backup.
pub(super) fn former(object: &mut Value, request: &AdmissionRequest<'_>) {
    let published = read(request, object).as_ref().and_then(facts::published);
    let Some(claim) = published else { return };
    if let Some(given) = metadata_map(object, "annotations") {
        if_silent(given, ANNOTATION_ALLOCATED, Some(json!(facts::written(&claim))));
    }
}

fn if_silent(given: &mut Map<String, Value>, key: &str, value: Option<Value>) {
    if given.get(key).is_none_or(is_blank)
        && let Some(value) = value.filter(|value| !is_blank(value))
    {
        given.insert(key.to_owned(), value);
    }
}

/// Fills in the defaults of a VM load balancer's health check, if the check has a port. Warns if a
/// default was filled in, unless the stored object (`old`) already has the resulting health check.
pub(super) fn health_check(object: &mut Value, old: Option<&Value>, answer: &mut AdmissionAnswer) {
    let vm =
        object.pointer("/spec/workloadType").is_none_or(|type_| is_blank(type_) || type_ == "vm");
    let check = object.pointer_mut("/spec/healthCheck").and_then(Value::as_object_mut);
    let Some(check) = check.filter(|_| vm) else { return };
    if check.get("port").and_then(Value::as_i64).is_none_or(|port| port <= 0) {
        return;
    }
    let mut filled = false;
    for (field, default) in HEALTH_DEFAULTS {
        if check.get(field).is_none_or(|value| is_blank(value) || *value == 0) {
            check.insert(field.to_owned(), json!(default));
            filled = true;
        }
    }
    let stored = old.and_then(|old| old.pointer("/spec/healthCheck")).and_then(Value::as_object);
    if filled && stored != Some(check) {
        answer.warn(
            "spec.healthCheck: the defaults are success 1, failure 3, period 5 s, timeout 3 s (Harvester's webhook: 2, 2, 1 s, 1 s)",
        );
    }
}
