//! Mutation of IPPools, and refusals that would come too late in the validation stage.
//!
//! The API server checks the schema between mutation and validation. If a value has the wrong type,
//! the schema's refusal only names the types. So mutation refuses such a value first, and says how
//! to write the field. Unknown fields need no check here: the API server drops them before
//! mutation, and warns of them or refuses them, as the client asks (KEP-2885).

use serde_json::{Map, Value, json};

use super::super::{AdmissionAnswer, AdmissionRequest, is_leaving, metadata_map};
use super::text;
use api::{LABEL_GLOBAL_POOL, LABEL_VID};

const SCOPE: [&str; 3] = ["project", "namespace", "guestCluster"];

/// Sets the labels that Harvester's own webhook sets, restores an omitted status, and refuses
/// common mistakes in the spec. `vlan`: VLAN ID of the pool's network; `None`: not known.
pub fn mutate(request: &AdmissionRequest<'_>, vlan: Option<u16>) -> AdmissionAnswer {
    let mut answer = AdmissionAnswer::default();
    let judged = request.judged().filter(|_| request.subresource.is_empty());
    let Some(object) = judged else { return answer };
    let mut new = object.clone();
    if let Some(old) = request.old {
        restore_status(&mut new, old);
    }
    if !is_leaving(object) && object.is_object() {
        let old_spec = request.old.map(|old| &old["spec"]);
        if old_spec != Some(&object["spec"]) {
            check(&object["spec"], &mut answer);
        }
        if !answer.refusals.is_empty() {
            return answer;
        }
        label(&mut new, vlan);
        warn_of_flag(request, object, &mut answer);
    }
    answer.object = (new != *object).then_some(new);
    answer
}

/// Network that the pool names. Empty if the field is unset or not text.
pub fn network(object: &Value) -> &str {
    object["spec"]["selector"]["network"].as_str().unwrap_or_default()
}

/// Restores an omitted status. The CRD of Harvester's own chart has no status subresource. With
/// that CRD, a PUT that omits the status would delete the ledger.
fn restore_status(new: &mut Value, old: &Value) {
    let nothing = |status: &Value| status.as_object().is_none_or(Map::is_empty);
    if (new["status"].is_null() || new["status"].is_object())
        && nothing(&new["status"])
        && !nothing(&old["status"])
        && let Some(fields) = new.as_object_mut()
    {
        fields.insert("status".to_owned(), old["status"].clone());
    }
}

/// Sets the two labels that Harvester's webhook derives from the spec: `global-ip-pool` from the
/// scope, `vid` from the network. `vlan`: VLAN ID of the pool's network; `None`: not known. If the
/// VLAN ID is not known, `vid` is set only for a pool on the nodes' own network, to 0.
fn label(new: &mut Value, vlan: Option<u16>) {
    let global = if serves_all(new) { "true" } else { "false" };
    let vid = match vlan {
        Some(vlan) => Some(vlan.to_string()),
        None if network(new).is_empty() => Some("0".to_owned()),
        None => None,
    };
    let Some(labels) = metadata_map(new, "labels") else { return };
    labels.insert(LABEL_GLOBAL_POOL.to_owned(), json!(global));
    if let Some(vid) = vid {
        labels.insert(LABEL_VID.to_owned(), json!(vid));
    }
}

/// Whether the scope has exactly one entry, and each of the entry's three fields is `*`.
fn serves_all(pool: &Value) -> bool {
    let scope = pool["spec"]["selector"]["scope"].as_array().map(Vec::as_slice);
    matches!(scope, Some([one]) if SCOPE.iter().all(|field| one[field] == "*"))
}

/// Warns if the client has newly set the label or annotation `global-ip-pool` to `true`, but the
/// pool is not global. Only the scope makes a pool global. For example, a user exports the manifest
/// of a global pool, and narrows the scope for a new pool. The manifest still has the label.
fn warn_of_flag(request: &AdmissionRequest<'_>, object: &Value, answer: &mut AdmissionAnswer) {
    for place in ["labels", "annotations"] {
        let flag = |of: &Value| text(of, &["metadata", place, LABEL_GLOBAL_POOL]);
        let new = flag(object).filter(|value| request.old.and_then(flag).as_ref() != Some(value));
        if new.is_some_and(|value| value == "true") && !serves_all(object) {
            answer.warn(format!(
                "metadata.{place}: global-ip-pool follows the scope: one entry of three \"*\" makes a pool global"
            ));
        }
    }
}

fn check(spec: &Value, answer: &mut AdmissionAnswer) {
    if !spec.is_object() {
        return;
    }
    check_text(&spec["description"], "spec.description", "text", answer);
    check_ranges(&spec["ranges"], answer);
    check_selector(&spec["selector"], answer);
}

fn check_ranges(ranges: &Value, answer: &mut AdmissionAnswer) {
    let right = "must be a list: - subnet: 192.168.1.0/24";
    if ranges.is_null() || ranges.as_array().is_some_and(Vec::is_empty) {
        return answer.refuse("spec.ranges", format!("range can't be empty: it {right}"));
    }
    let Some(list) = ranges.as_array() else { return answer.refuse("spec.ranges", right) };
    for (index, range) in list.iter().enumerate() {
        let path = format!("spec.ranges[{index}]");
        let Some(fields) = range.as_object() else {
            let right = range.as_str().unwrap_or("192.168.1.0/24");
            answer.refuse(path, format!("must be an object: - subnet: {}", clip(right)));
            continue;
        };
        if fields.get("subnet").is_none_or(Value::is_null) {
            answer
                .refuse(format!("{path}.subnet"), "is missing: a network, such as 192.168.1.0/24");
        }
        for field in ["subnet", "rangeStart", "rangeEnd", "gateway"] {
            check_text(&range[field], &format!("{path}.{field}"), "an address", answer);
        }
        match &range["exclude"] {
            Value::Null | Value::Array(_) => {}
            other => {
                let right = other.as_str().unwrap_or("192.168.1.10");
                answer.refuse(
                    format!("{path}.exclude"),
                    format!("must be a list: [{}]", clip(right)),
                );
            }
        }
    }
}

fn check_selector(selector: &Value, answer: &mut AdmissionAnswer) {
    if selector.is_null() {
        return;
    }
    if !selector.is_object() {
        let right = "must be an object: {priority: 10, network: namespace/name, scope: [...]}";
        return answer.refuse("spec.selector", right);
    }
    check_text(
        &selector["network"],
        "spec.selector.network",
        "namespace/name of a network",
        answer,
    );
    match &selector["priority"] {
        Value::Null => {}
        Value::Number(number) if number.is_u64() || number.is_i64() => {}
        other => {
            let number = other.as_str().and_then(|text| text.trim().parse::<u32>().ok());
            let right = number.map_or_else(|| "10".to_owned(), |number| number.to_string());
            answer.refuse(
                "spec.selector.priority",
                format!("must be a whole number without quotes: priority: {right}"),
            );
        }
    }
    match &selector["scope"] {
        Value::Null => {}
        Value::Array(list) => {
            for (index, entry) in list.iter().enumerate() {
                let path = format!("spec.selector.scope[{index}]");
                if !entry.is_object() {
                    answer.refuse(
                        path,
                        "must be an object: {project: \"*\", namespace: \"*\", guestCluster: \"*\"}",
                    );
                    continue;
                }
                for field in SCOPE {
                    check_text(&entry[field], &format!("{path}.{field}"), "text, or \"*\"", answer);
                }
            }
        }
        other => {
            // If the client sent a map, the API server has already dropped the fields of the map.
            // The message then shows `*` for each field.
            let value =
                |field: &str| other[field].as_str().map_or_else(|| "\"*\"".to_owned(), clip);
            answer.refuse(
                "spec.selector.scope",
                format!(
                    "must be a list: - project: {}, namespace: {}, guestCluster: {}",
                    value("project"),
                    value("namespace"),
                    value("guestCluster")
                ),
            );
        }
    }
}

fn check_text(value: &Value, path: &str, what: &str, answer: &mut AdmissionAnswer) {
    match value {
        Value::Null | Value::String(_) => {}
        Value::Array(list) if list.len() == 1 => {
            answer.refuse(path, format!("must be {what}, not a list: leave out the dash"));
        }
        Value::Number(_) | Value::Bool(_) => {
            answer.refuse(path, format!("must be {what}: \"{value}\", in quotes"));
        }
        _ => answer.refuse(path, format!("must be {what}")),
    }
}

/// Text from a request, cut for a message: 50 characters at most, without control characters.
fn clip(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(50).collect()
}

#[cfg(test)]
mod tests;
