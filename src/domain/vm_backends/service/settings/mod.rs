//! Settings that users made on a Service. They are carried from a deleted Service to the Service
//! that replaces it.
//!
//! Invariants:
//!
//! * Fields that the operator owns are never carried.
//! * `spec.externalIPs` is never carried. Traffic for the addresses in this field is redirected to
//!   the Service. The settings are stored in an EndpointSlice, so authors of EndpointSlices could
//!   otherwise redirect any address.
//! * If the settings are too long, at least the first source range of the Service is carried.
//!   Without ranges, the next Service would let all clients in.

use serde_json::{Map, Value, json};

use super::{
    ANNOUNCING_NODE, ASKED_ADDRESS, ASKED_INTERFACE, ASKED_VLAN, HELD_UNTIL, IGNORED,
    MADE_WITH_POLICY, MADE_WITH_PORTS,
};
use api::ANNOTATION_NETWORK;

/// Annotation on an EndpointSlice. The annotation stores the settings of a deleted Service until
/// the Service is created again with these settings.
pub const SETTINGS: &str = "loadbalancer.harvesterhci.io/service-settings";

/// Longest text of settings, in bytes. All annotations of one object together may have 256 KiB, and
/// the other annotations of an EndpointSlice are normally short. If the other annotations are long,
/// the API server refuses the text. Then the text from [`without_metadata`] is tried.
const LONGEST: usize = 240 * 1024;
/// Field of a Service's spec with the source ranges: the networks of the admitted clients.
const SOURCE_RANGES: &str = "loadBalancerSourceRanges";
/// Fields of a Service's spec that belong to users.
const FIELDS: [&str; 9] = [
    "allocateLoadBalancerNodePorts",
    "externalTrafficPolicy",
    "internalTrafficPolicy",
    "loadBalancerClass",
    SOURCE_RANGES,
    "publishNotReadyAddresses",
    "sessionAffinity",
    "sessionAffinityConfig",
    "trafficDistribution",
];
/// Fields of a Service's spec that the API server assigns. A Service that replaces a deleted one
/// asks for the same values. If the API server refuses the new Service, a second try asks for none
/// of them ([`without_allotted`]). No try asks for the same `ipFamilies`. A new Service with other
/// families does not ask for the same cluster IPs.
const ALLOTTED: [&str; 4] = ["clusterIP", "clusterIPs", "healthCheckNodePort", "ipFamilies"];
/// Fields of a Service's port that belong to users.
const OF_A_PORT: [&str; 2] = ["appProtocol", "nodePort"];

/// Settings that are carried from a deleted Service to the Service that replaces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarriedSettings {
    /// JSON of a Service that has only the settings.
    pub text: String,
    /// Kinds of settings that `text` lacks, completely or in part. With all of them, `text` would
    /// be too long. `None`: `text` includes all settings.
    pub lost: Option<&'static str>,
}

/// Reads the settings of a stored Service. The Service that replaces it must get these settings.
pub fn of(service: &Value) -> CarriedSettings {
    let metadata = &service["metadata"];
    let mut annotations = object(&metadata["annotations"]);
    // The interface that the operator chose for a network is not carried, because the new Service
    // may have another network.
    if annotations.contains_key(ANNOTATION_NETWORK) {
        for hint in [ANNOTATION_NETWORK, ASKED_INTERFACE, ASKED_VLAN] {
            annotations.remove(hint);
        }
    }
    if annotations.remove(HELD_UNTIL).is_some() {
        annotations.remove(IGNORED);
    }
    for key in [ASKED_ADDRESS, MADE_WITH_POLICY, MADE_WITH_PORTS, ANNOUNCING_NODE] {
        annotations.remove(key);
    }
    let (labels, spec) = (&metadata["labels"], spec_of(service));
    for (metadata, lost) in [
        (json!({"labels": labels, "annotations": annotations}), None),
        (json!({"labels": labels}), Some("annotations")),
    ] {
        let text = text_of(&metadata, &spec);
        if text.len() <= LONGEST {
            return CarriedSettings { text, lost };
        }
    }
    without_metadata(service)
}

/// Reads the settings of a stored Service, without its annotations and labels. If the text would be
/// longer than `LONGEST`, source ranges are left out from the end of their list, but never the
/// first.
pub fn without_metadata(service: &Value) -> CarriedSettings {
    let mut spec = spec_of(service);
    let text = text_of(&json!({}), &spec);
    if text.len() <= LONGEST {
        return CarriedSettings { text, lost: Some("annotations and labels") };
    }
    remove_ranges(&mut spec, text.len() - LONGEST);
    let lost = Some("annotations, labels and source ranges");
    CarriedSettings { text: text_of(&json!({}), &spec), lost }
}

/// Part of the stored Service's spec that is carried.
fn spec_of(service: &Value) -> Map<String, Value> {
    let mut spec = picked(&service["spec"], &[&FIELDS[..], &ALLOTTED].concat());
    let ports = service["spec"]["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of_port = |port: &Value| picked(port, &[&["port", "protocol"][..], &OF_A_PORT].concat());
    spec.insert("ports".to_owned(), ports.iter().map(of_port).map(Value::Object).collect());
    spec
}

fn text_of(metadata: &Value, spec: &Map<String, Value>) -> String {
    json!({"metadata": metadata, "spec": spec}).to_string()
}

/// Removes source ranges from the end of their list, until the text of `spec` is at least `excess`
/// bytes shorter. The first range always stays.
fn remove_ranges(spec: &mut Map<String, Value>, excess: usize) {
    let ranges = spec.get_mut(SOURCE_RANGES).and_then(Value::as_array_mut);
    let Some(ranges) = ranges else { return };
    let mut removed = 0;
    while removed < excess && ranges.len() > 1 {
        // The text of each range but the first begins with a comma.
        removed += ranges.pop().map_or(0, |range| range.to_string().len() + 1);
    }
}

/// Adds `settings`, the [`CarriedSettings::text`] of a deleted Service, to the new `service`. Text
/// that is not valid changes nothing.
pub fn applied(mut service: Value, settings: &str) -> Value {
    let Ok(settings) = serde_json::from_str::<Value>(settings) else { return service };
    let mut annotations = object(&settings["metadata"]["annotations"]);
    let has_hints = [ASKED_INTERFACE, ASKED_VLAN].iter().any(|key| annotations.contains_key(*key));
    let mut made = object(&service["metadata"]["annotations"]);
    if has_hints {
        // A user chose the interface of the earlier Service, so the operator's choice for the new
        // Service is removed.
        made.remove(ASKED_INTERFACE);
        made.remove(ANNOTATION_NETWORK);
    }
    annotations.append(&mut made);
    let mut labels = object(&settings["metadata"]["labels"]);
    labels.append(&mut object(&service["metadata"]["labels"]));
    service["metadata"]["annotations"] = Value::Object(annotations);
    service["metadata"]["labels"] = Value::Object(labels);
    let stored = &settings["spec"];
    let same_family = stored["ipFamilies"] == service["spec"]["ipFamilies"];
    for field in FIELDS.iter().chain(&ALLOTTED) {
        let fits = same_family || !field.starts_with("clusterIP");
        if *field != "ipFamilies" && fits && !stored[*field].is_null() {
            service["spec"][*field] = stored[*field].clone();
        }
    }
    if let Some(policy) = service["spec"].get("externalTrafficPolicy").cloned() {
        service["metadata"]["annotations"][MADE_WITH_POLICY] = policy;
    }
    let before = stored["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    for port in service["spec"]["ports"].as_array_mut().into_iter().flatten() {
        let same = |b: &&Value| b["port"] == port["port"] && b["protocol"] == port["protocol"];
        let Some(before) = before.iter().find(same) else { continue };
        for field in OF_A_PORT {
            if !before[field].is_null() {
                port[field] = before[field].clone();
            }
        }
    }
    service
}

/// Removes from the new `service` the fields whose values another Service may have by now: cluster
/// IPs and node ports. The API server then assigns new values.
pub fn without_allotted(mut service: Value) -> Value {
    if let Some(spec) = service["spec"].as_object_mut() {
        for field in ["clusterIP", "clusterIPs", "healthCheckNodePort"] {
            spec.remove(field);
        }
        let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
        for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
            port.remove("nodePort");
        }
    }
    service
}

fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

fn picked(from: &Value, fields: &[&str]) -> Map<String, Value> {
    let of = |field: &&str| Some(((*field).to_owned(), from.get(*field)?.clone()));
    fields.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests;
