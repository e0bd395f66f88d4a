//! Conversion of `LoadBalancer` from one version to the other.
//!
//! Invariants:
//!
//! * The conversion refuses no object that the API server can send, because one refused object
//!   would make its whole list fail.
//! * Conversion to the other version and back returns the same object, whichever version comes
//!   first. Exception: a field that does not fit into the annotation is lost (see [`annotations`]).
//! * In metadata, only the annotations described below are changed.
//!
//! Values that the other version cannot express are carried in an annotation (see [`annotations`]).
//! The annotation is named after the version that has these fields. The conversion back removes the
//! fields from the annotation. A client's edit has precedence over the annotation: if a carried
//! field has a counterpart in the other version, the carried value is restored only if the
//! counterpart still has the value that the conversion wrote.
//!
//! | v1beta1 | v1alpha1 | rule |
//! |---|---|---|
//! | `description`, `listeners[]`, `address`, `conditions` | the same | a listener's name and protocol, which v1alpha1 requires, are filled in |
//! | `ipam` | the same | v1alpha1 requires the field: unset becomes `pool` |
//! | `backendServerSelector` | `backendServers` | the values of the label `harvesterhci.io/vmName`. An edit of `backendServers` replaces the whole selector |
//! | `healthCheck`, five numbers | the same, `PeriodSeconds` with a capital | v1alpha1 requires the fields: unset becomes the default. An edit of one number leaves the other numbers as they were |
//! | `healthCheck`, other fields | | carried while there is a `healthCheck` |
//! | `workloadType`, `ipPool`, `requestedAddresses`, `ipv6Pool`, `ipFamilyPolicy` | | carried |
//! | `status`, other fields | | carried |
//! | fields that neither version has | the same | the API server drops them where its schema lacks them |
//!
//! **A tenant can write the annotation**, like the rest of the object. A value in the annotation
//! has no more effect than the same field sent in v1beta1:
//!
//! * A value that does not have the type of its field is ignored.
//! * The API server validates the object after conversion.
//! * Admission is called in v1beta1 (`matchPolicy: Equivalent`) with the converted new and old
//!   object. So admission decides for both versions who may write `status.allocatedAddress` or
//!   `spec.ipPool`.
//! * The API server checks only the CEL rules of the request's version. So admission also checks
//!   the CEL rules of v1beta1 for fields that v1alpha1 lacks (an immutable `workloadType`, reserved
//!   fields, a health check's protocol and path).

pub mod annotations;

use std::fmt;

use serde_json::{Map, Value, json};

use annotations::CarriedFields;
use api::{self, ANNOTATION_V1ALPHA1_FIELDS, ANNOTATION_V1BETA1_FIELDS, LABEL_VM_NAME, v1alpha1};

/// Numeric field of a health check: (name in v1beta1, name in v1alpha1, default if the field is not
/// set).
type HealthNumber = (&'static str, &'static str, i32);

/// Fields of a health check that are numbers.
const HEALTH: [HealthNumber; 5] = [
    ("port", "port", 0),
    ("successThreshold", "successThreshold", 1),
    ("failureThreshold", "failureThreshold", 3),
    ("periodSeconds", "PeriodSeconds", 5),
    ("timeoutSeconds", "timeoutSeconds", 3),
];
/// Fields of a health check that v1alpha1 lacks.
const HEALTH_V1BETA1: [&str; 5] =
    ["protocol", "path", "expectedStatuses", "serverName", "caBundle"];

/// A version of `LoadBalancer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `loadbalancer.harvesterhci.io/v1alpha1`, which old clients request.
    V1alpha1,
    /// `loadbalancer.harvesterhci.io/v1beta1`, which the API server stores.
    V1beta1,
}

/// Part of a LoadBalancer that is converted: its spec or its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Spec,
    Status,
}

/// Error: the `apiVersion` of an object is not a version of `LoadBalancer`. The field is this
/// `apiVersion`, cut to 100 characters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a version of LoadBalancer: the versions are {V1ALPHA1} and {V1BETA1}")]
pub struct NoVersion(pub String);

const V1ALPHA1: &str = "loadbalancer.harvesterhci.io/v1alpha1";
const V1BETA1: &str = "loadbalancer.harvesterhci.io/v1beta1";

impl Version {
    /// Parses an `apiVersion`. The error says that `LoadBalancer` has no such version.
    pub fn parse(api_version: &str) -> Result<Self, NoVersion> {
        match api_version {
            V1ALPHA1 => Ok(Self::V1alpha1),
            V1BETA1 => Ok(Self::V1beta1),
            other => Err(NoVersion(other.chars().take(100).collect())),
        }
    }

    /// Annotation that carries the fields of this version, in an object of the other version.
    fn annotation(self) -> &'static str {
        match self {
            Self::V1alpha1 => ANNOTATION_V1ALPHA1_FIELDS,
            Self::V1beta1 => ANNOTATION_V1BETA1_FIELDS,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1alpha1 => V1ALPHA1,
            Self::V1beta1 => V1BETA1,
        })
    }
}

impl Section {
    fn name(self) -> &'static str {
        match self {
            Self::Spec => "spec",
            Self::Status => "status",
        }
    }
}

/// Converts a LoadBalancer to the version `to`. An object that has this version already is returned
/// unchanged. The error says that the object's `apiVersion` is no version of `LoadBalancer`.
pub fn convert(mut object: Value, to: Version) -> Result<Value, NoVersion> {
    let from = Version::parse(object["apiVersion"].as_str().unwrap_or_default())?;
    let Some(fields) = object.as_object_mut().filter(|_| from != to) else { return Ok(object) };
    fields.insert("apiVersion".to_owned(), json!(to.to_string()));
    let travelled = annotations::take(fields, to.annotation());
    let mut lost = CarriedFields::default();
    for section in [Section::Spec, Section::Status] {
        let source = match fields.remove(section.name()) {
            Some(Value::Object(source)) => Some(source),
            None => None,
            // A section that is not a JSON object is copied unchanged.
            Some(other) => {
                fields.insert(section.name().to_owned(), other);
                continue;
            }
        };
        let target = recall(section, to, source.as_ref(), &travelled);
        let back = translate(section, to, target.as_ref());
        lost.add(section.name(), source, back);
        if let Some(target) = target {
            fields.insert(section.name().to_owned(), Value::Object(target));
        }
    }
    annotations::put(fields, from.annotation(), lost);
    Ok(object)
}

/// Converts a section to the version `to`, and restores the fields `travelled`, which the
/// annotation carried. A field is not restored if its value has a wrong type, or if a client has
/// edited the counterpart of the field in `source`. Exception: an edited health check is merged
/// with the carried one. `source`: the section before the conversion. `None`, as `source` or as the
/// result: the object lacks the section.
fn recall(
    section: Section,
    to: Version,
    source: Option<&Map<String, Value>>,
    travelled: &CarriedFields,
) -> Option<Map<String, Value>> {
    let from = if to == Version::V1beta1 { Version::V1alpha1 } else { Version::V1beta1 };
    let plain = translate(section, from, source);
    if travelled.section_is_unset(section.name()) && translate(section, to, None).as_ref() == source
    {
        return None;
    }
    let mut is_set = plain.is_some();
    let mut target = plain.unwrap_or_default();
    for (key, value) in travelled.of(section.name()) {
        if value.is_some_and(|value| !fits(section, to, key, value)) {
            continue;
        }
        let there = counterpart(section, to, key);
        let now = there.and_then(|there| source.and_then(|source| source.get(there)));
        let unchanged = there.is_none() || field(section, to, key, value).as_ref() == now;
        let value = match (value, now) {
            _ if unchanged => value.cloned(),
            (Some(value), Some(now))
                if (section, to, key) == (Section::Spec, Version::V1beta1, "healthCheck") =>
            {
                Some(merge_health(value, now))
            }
            _ => continue,
        };
        is_set = true;
        match value {
            Some(value) => drop(target.insert(key.to_owned(), value)),
            None => drop(target.remove(key)),
        }
    }
    is_set.then_some(target)
}

/// Converts a section from the version `from` to the other version. Restores no fields from the
/// annotation. `None`, as `source` or as the result: the object lacks the section. Exception: an
/// absent spec of v1beta1 becomes a spec with `ipam`, which v1alpha1 requires.
fn translate(
    section: Section,
    from: Version,
    source: Option<&Map<String, Value>>,
) -> Option<Map<String, Value>> {
    let required = (section, from) == (Section::Spec, Version::V1beta1);
    let mut target = Map::new();
    if required {
        let ipam = source.and_then(|source| source.get("ipam"));
        target.extend(field(section, from, "ipam", ipam).map(|ipam| ("ipam".to_owned(), ipam)));
    }
    for (key, value) in source.into_iter().flatten() {
        let Some(there) = counterpart(section, from, key) else { continue };
        if let Some(value) = field(section, from, key, Some(value)) {
            target.insert(there.to_owned(), value);
        }
    }
    (source.is_some() || required).then_some(target)
}

/// Name that the field `key` of the version `from` has in the other version. `None`: the other
/// version lacks the field.
fn counterpart(section: Section, from: Version, key: &str) -> Option<&str> {
    match (section, from, key) {
        (Section::Spec, Version::V1beta1, "backendServerSelector") => Some("backendServers"),
        (Section::Spec, Version::V1alpha1, "backendServers") => Some("backendServerSelector"),
        // A name that is not a field of the version `from`, such as `backendServers` in v1beta1, is
        // not copied. The other version would read it as its own field.
        (
            Section::Spec,
            _,
            "workloadType"
            | "ipPool"
            | "requestedAddresses"
            | "ipv6Pool"
            | "ipFamilyPolicy"
            | "backendServers"
            | "backendServerSelector",
        )
        | (
            Section::Status,
            _,
            "addresses" | "allocatedAddress" | "backendServers" | "endpoints"
            | "observedGeneration",
        ) => None,
        _ => Some(key),
    }
}

/// Value that the field `key` gets in the other version. `None`: the field is not set in the other
/// version. `value`: value of the field in the version `from`; `None` if it is not set.
fn field(section: Section, from: Version, key: &str, value: Option<&Value>) -> Option<Value> {
    if section == Section::Status {
        return value.cloned();
    }
    match (from, key) {
        (Version::V1beta1, "ipam") => {
            let known = value.filter(|value| **value == "pool" || **value == "dhcp");
            Some(known.cloned().unwrap_or_else(|| json!("pool")))
        }
        (Version::V1beta1, "listeners") => match value {
            Some(Value::Array(listeners)) => Some(listeners.iter().map(listener).collect()),
            other => other.cloned(),
        },
        (Version::V1beta1, "backendServerSelector") => value
            .and_then(|selector| selector.get(LABEL_VM_NAME))
            .filter(|vms| are_names(vms))
            .cloned(),
        (Version::V1alpha1, "backendServers") => {
            value.filter(|vms| are_names(vms)).map(|vms| json!({LABEL_VM_NAME: vms}))
        }
        (Version::V1beta1, "healthCheck") => value.and_then(show_health),
        (Version::V1alpha1, "healthCheck") => value.and_then(read_health),
        _ => value.cloned(),
    }
}

fn are_names(value: &Value) -> bool {
    value.as_array().is_some_and(|names| !names.is_empty() && names.iter().all(Value::is_string))
}

fn listener(listener: &Value) -> Value {
    let mut shown = listener.clone();
    if let Value::Object(fields) = &mut shown {
        for (key, default) in [("name", ""), ("protocol", "TCP")] {
            if !fields.get(key).is_some_and(Value::is_string) {
                fields.insert(key.to_owned(), json!(default));
            }
        }
    }
    shown
}

/// Converts a health check from v1beta1 to v1alpha1. `None`: `value` is neither a JSON object nor
/// null.
fn show_health(value: &Value) -> Option<Value> {
    translate_health(value, |fields, (name, older, default)| {
        Some((older, json!(number(fields.get(name), default))))
    })
}

/// Returns `value` as a number, or `default` if `value` is not a whole number from 0 to `i32::MAX`.
/// The schema of v1alpha1 accepts the result.
fn number(value: Option<&Value>, default: i32) -> i32 {
    let number = value.and_then(Value::as_i64).and_then(|number| i32::try_from(number).ok());
    number.filter(|number| *number >= 0).unwrap_or(default)
}

/// Converts a health check from v1alpha1 to v1beta1. `None`: `value` is neither a JSON object nor
/// null.
fn read_health(value: &Value) -> Option<Value> {
    translate_health(value, |fields, (name, older, _)| Some((name, fields.get(older)?.clone())))
}

/// Converts a health check to the other version. `None`: `value` is neither a JSON object nor null.
/// `field`: returns the name and the value that one of the numbers ([`HEALTH`]) has in the other
/// version, or `None` if this number is not set.
fn translate_health(
    value: &Value,
    field: impl Fn(&Map<String, Value>, HealthNumber) -> Option<(&'static str, Value)>,
) -> Option<Value> {
    let fields = match value {
        Value::Object(fields) => fields,
        Value::Null => return Some(Value::Null),
        _ => return None,
    };
    let mut translated = fields.clone();
    translated.retain(|key, _| {
        let is_number = HEALTH.iter().any(|(name, older, _)| key == name || key == older);
        !is_number && !HEALTH_V1BETA1.contains(&key.as_str())
    });
    let numbers = HEALTH.into_iter().filter_map(|names| field(fields, names));
    translated.extend(numbers.map(|(name, number)| (name.to_owned(), number)));
    Some(Value::Object(translated))
}

/// Merges the health check `travelled` (in v1beta1, from the annotation) with `now` (the same
/// health check in v1alpha1, which a client may have edited). The result is in v1beta1. Numbers
/// that the client did not edit, and fields that v1alpha1 lacks, come from `travelled`. The other
/// fields come from `now`.
fn merge_health(travelled: &Value, now: &Value) -> Value {
    let read = read_health(now).unwrap_or(Value::Null);
    let (Value::Object(travelled), Value::Object(mut merged)) = (travelled, read.clone()) else {
        return read;
    };
    for key in HEALTH_V1BETA1 {
        if let Some(value) = travelled.get(key) {
            merged.insert(key.to_owned(), value.clone());
        }
    }
    for (name, older, default) in HEALTH {
        let stored = travelled.get(name);
        if now.get(older) == Some(&json!(number(stored, default))) {
            match stored {
                Some(stored) => drop(merged.insert(name.to_owned(), stored.clone())),
                None => drop(merged.remove(name)),
            }
        }
    }
    Value::Object(merged)
}

/// Whether `value`, which the annotation carried, has the type of the field `key`. Any user may
/// have written the annotation, and one value of a wrong type would make clients fail to read each
/// list that contains the object.
fn fits(section: Section, version: Version, key: &str, value: &Value) -> bool {
    let mut alone = Map::from_iter([(key.to_owned(), value.clone())]);
    match (section, version) {
        (Section::Spec, Version::V1beta1) => read::<api::LoadBalancerSpec>(alone),
        (Section::Status, Version::V1beta1) => read::<api::LoadBalancerStatus>(alone),
        (Section::Spec, Version::V1alpha1) => {
            alone.entry("ipam").or_insert_with(|| json!("pool"));
            read::<v1alpha1::LoadBalancerSpec>(alone)
        }
        (Section::Status, Version::V1alpha1) => read::<v1alpha1::LoadBalancerStatus>(alone),
    }
}

fn read<T: serde::de::DeserializeOwned>(fields: Map<String, Value>) -> bool {
    serde_json::from_value::<T>(Value::Object(fields)).is_ok()
}

#[cfg(test)]
mod tests;
