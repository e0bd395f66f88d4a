//! Refusals with a remedy, for frequent mistakes. The schema's own refusals come later and name
//! only types.

use serde_json::Value;

use super::{AdmissionAnswer, is_blank, shown};

/// Refuses frequent mistakes in the spec that the client sent. Called before admission fills in
/// fields.
pub(super) fn give(object: &Value, answer: &mut AdmissionAnswer) {
    let Some(spec) = object.get("spec") else { return };
    word(spec, "ipam", &["pool", "dhcp"], ipam, answer);
    word(spec, "workloadType", &["vm", "cluster"], workload, answer);
    match spec.get("listeners") {
        Some(Value::Object(_)) => answer.refuse(
            "spec.listeners",
            "it is a map: use a list, [{name: http, port: 80, backendPort: 8080}]",
        ),
        Some(Value::Array(listeners)) => {
            for (i, listener) in listeners.iter().enumerate() {
                for field in ["port", "backendPort"] {
                    number(listener, &format!("spec.listeners[{i}]"), field, answer);
                }
            }
        }
        _ => {}
    }
    for field in ["port", "successThreshold", "failureThreshold", "periodSeconds", "timeoutSeconds"]
    {
        number(&spec["healthCheck"], "spec.healthCheck", field, answer);
    }
    selector(spec, answer);
}

/// Refuses the text in the field `field` of the spec, unless the text is empty or among `words`.
/// `meant`: function that returns the remedy for a wrong text.
fn word(
    spec: &Value,
    field: &str,
    words: &[&str],
    meant: fn(&str) -> &'static str,
    answer: &mut AdmissionAnswer,
) {
    let Some(text) = spec[field].as_str() else { return };
    if !text.is_empty() && !words.contains(&text) {
        let sent = shown(&spec[field]);
        answer.refuse(format!("spec.{field}"), format!("{sent} is not valid: {}", meant(text)));
    }
}

fn ipam(text: &str) -> &'static str {
    match text.to_lowercase().as_str() {
        "ippool" | "pool" | "ip-pool" | "pools" => "use pool (or dhcp)",
        "dhcp" => "use dhcp (or pool)",
        _ => "use pool or dhcp",
    }
}

fn workload(text: &str) -> &'static str {
    match text.to_lowercase().as_str() {
        "vm" | "vms" | "virtualmachine" => "use vm (or cluster)",
        "cluster" | "guest" | "guestcluster" | "clusters" => "use cluster (or vm)",
        _ => "use vm or cluster",
    }
}

/// Refuses text in a field that must be a number, for example a number in quotes. `of`: the map
/// that has the field. `path`: path of this map in the object.
fn number(of: &Value, path: &str, field: &str, answer: &mut AdmissionAnswer) {
    if let Some(text) = of[field].as_str() {
        let sent = shown(&of[field]);
        let right = match text.trim().parse::<u16>() {
            Ok(number) => format!("write {number}, without quotes"),
            Err(_) => "use a number; port names are not resolved".to_owned(),
        };
        answer.refuse(format!("{path}.{field}"), format!("{sent} is text: {right}"));
    }
}

fn selector(spec: &Value, answer: &mut AdmissionAnswer) {
    let field = "spec.backendServerSelector";
    match spec.get("backendServerSelector") {
        Some(Value::Object(selector)) => {
            for (label, values) in selector {
                let path = format!("{field}[{label}]");
                if label == "matchLabels" || label == "matchExpressions" {
                    answer.refuse(
                        path,
                        "is not supported here: write each label and its values, app: [web, api]",
                    );
                } else if values.is_string() || values.is_number() || values.is_boolean() {
                    let one = values.as_str().map_or_else(|| values.to_string(), str::to_owned);
                    let one = shown(&Value::from(one));
                    answer.refuse(path, format!("{} is not a list: use [{one}]", shown(values)));
                }
            }
        }
        Some(other) if !is_blank(other) => {
            answer.refuse(field, format!("{} is not a map: use label: [value, ...]", shown(other)));
        }
        _ => {}
    }
}
