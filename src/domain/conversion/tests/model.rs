//! Tests of two properties of all objects that the schemas allow: conversion to the other version
//! and back returns the same object, and the schema of the other version allows the converted
//! object. Objects are made from the generated schemas, so no field is forgotten.

// The bounds in the schemas are whole numbers, which a double represents exactly.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::Map;

use super::super::*;
use super::{ALPHA, BETA, to};
use api;

static CRD: LazyLock<Value> = LazyLock::new(|| json!(api::crds().remove(1)));

fn schema(version: Version) -> &'static Value {
    let name = version.to_string();
    let versions = CRD["spec"]["versions"].as_array().unwrap();
    let found = versions.iter().find(|v| name.ends_with(v["name"].as_str().unwrap()));
    &found.unwrap()["schema"]["openAPIV3Schema"]
}

/// Strategy for the values that a schema allows.
fn value(schema: &Value) -> BoxedStrategy<Value> {
    let plain = match schema["type"].as_str() {
        Some("object") if schema["properties"].is_object() => fields(schema),
        Some("object") => {
            let of = value(&schema["additionalProperties"]);
            let keys = prop::sample::select(vec![LABEL_VM_NAME, LABEL_VM_NAME, "app", "", "ü"]);
            let keys = keys.prop_map(str::to_owned);
            prop::collection::btree_map(keys, of, 0..3).prop_map(|map| json!(map)).boxed()
        }
        Some("array") => {
            let items = prop::collection::vec(value(&schema["items"]), 0..3);
            items.prop_map(Value::Array).boxed()
        }
        Some("integer") => integer(schema),
        Some("string") => text(schema),
        other => panic!("{other:?}: {schema}"),
    };
    if schema["nullable"] == json!(true) {
        return prop_oneof![9 => plain, 1 => Just(Value::Null)].boxed();
    }
    plain
}

fn fields(schema: &Value) -> BoxedStrategy<Value> {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let mut all = Just(Map::new()).boxed();
    for (name, schema) in schema["properties"].as_object().unwrap() {
        let name = name.clone();
        let always = required.contains(&json!(name));
        let one = value(schema).prop_map(Some);
        let one = if always { one.boxed() } else { prop_oneof![one, Just(None)].boxed() };
        all = (all, one)
            .prop_map(move |(mut all, one)| {
                all.extend(one.map(|one| (name.clone(), one)));
                all
            })
            .boxed();
    }
    all.prop_map(Value::Object).boxed()
}

fn integer(schema: &Value) -> BoxedStrategy<Value> {
    let long = schema["format"] == "int64";
    let bound = |key: &str, other: i64| schema[key].as_f64().map_or(other, |f| f as i64);
    let (low, high) = if long { (i64::MIN, i64::MAX) } else { (i32::MIN.into(), i32::MAX.into()) };
    let (low, high) = (bound("minimum", low), bound("maximum", high));
    let usual = prop::sample::select(vec![0_i64, 1, 3, 5, 80, 443]);
    let usual = usual.prop_map(move |n| n.clamp(low, high));
    prop_oneof![usual, Just(low), Just(high), low..=high].prop_map(|n| json!(n)).boxed()
}

fn text(schema: &Value) -> BoxedStrategy<Value> {
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<Value> = values.iter().filter(|v| v.is_string()).cloned().collect();
        return prop::sample::select(values).boxed();
    }
    let longest = usize::try_from(schema["maxLength"].as_i64().unwrap_or(9)).unwrap().min(9);
    let usual = vec!["", "TCP", "UDP", "a", "\"\\", "ü", "10.0.0.7", "{\"x\":1}", "\u{0}"];
    let any = prop::collection::vec(any::<char>(), 0..longest).prop_map(String::from_iter);
    prop_oneof![prop::sample::select(usual).prop_map(str::to_owned), any]
        .prop_map(|t| json!(t))
        .boxed()
}

/// Faults of a value that violates the schema. Empty: the schema allows the value.
fn faults(schema: &Value, value: &Value, path: &str) -> Vec<String> {
    let fault = |what: &str| vec![format!("{path}: {what}: {value}")];
    if value.is_null() {
        return if schema["nullable"] == json!(true) { vec![] } else { fault("null") };
    }
    if let Some(values) = schema["enum"].as_array()
        && !values.contains(value)
    {
        return fault("not of the enum");
    }
    match (schema["type"].as_str(), value) {
        (Some("object"), Value::Object(map)) => {
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let missing = required.iter().filter(|name| !map.contains_key(name.as_str().unwrap()));
            let mut found: Vec<String> = missing.map(|name| format!("{path}: no {name}")).collect();
            for (key, value) in map {
                let known = [&schema["properties"][key], &schema["additionalProperties"]];
                match known.into_iter().find(|schema| schema.is_object()) {
                    Some(schema) => found.extend(faults(schema, value, &format!("{path}.{key}"))),
                    None => found.push(format!("{path}.{key}: unknown")),
                }
            }
            found
        }
        (Some("array"), Value::Array(items)) => {
            items.iter().flat_map(|item| faults(&schema["items"], item, path)).collect()
        }
        (Some("string"), Value::String(text)) => {
            let longest = schema["maxLength"].as_i64().unwrap_or(i64::MAX);
            let fits = i64::try_from(text.chars().count()).unwrap() <= longest;
            if fits { vec![] } else { fault("too long") }
        }
        (Some("integer"), Value::Number(number)) => {
            let number = number.as_i64().unwrap();
            let low = schema["minimum"].as_f64().is_none_or(|low| number as f64 >= low);
            let high = schema["maximum"].as_f64().is_none_or(|high| number as f64 <= high);
            if low && high { vec![] } else { fault("out of bounds") }
        }
        _ => fault("of another type"),
    }
}

/// Strategy for objects that the schema of a version allows, with annotations. Some objects have an
/// annotation of a name that the conversion uses.
fn object(version: Version) -> BoxedStrategy<Value> {
    let properties = &schema(version)["properties"];
    let spec = value(&properties["spec"]);
    let status = prop_oneof![value(&properties["status"]), Just(Value::Null)];
    // Texts that are not carried fields. The conversion restores fields from the annotation
    // `others`, which belongs to the other version. So this annotation gets only these texts.
    let garbage = vec!["", "?", "{\"spec\":5}", "{\"specs\":{}}"];
    let mut texts = garbage.clone();
    texts.extend(["{}", "{\"spec\":{\"ipPool\":\"x\"}}", "{\"kept\":\"{}\"}"]);
    let own = prop::option::weighted(0.2, prop::sample::select(texts));
    let other = prop::option::weighted(0.2, prop::sample::select(garbage));
    let unknown = prop::option::of(prop::sample::select(vec!["", "x", "\"{}\""]));
    (spec, status, own, other, unknown).prop_map(move |(spec, status, own, other, unknown)| {
        let mut object = json!({
            "apiVersion": version.to_string(), "kind": "LoadBalancer", "spec": spec,
            "metadata": {"name": "web", "namespace": "default", "uid": "u", "labels": {"a": "b"}},
        });
        if !status.is_null() {
            object["status"] = status;
        }
        let (mine, others) = match version {
            ALPHA => (ANNOTATION_V1ALPHA1_FIELDS, ANNOTATION_V1BETA1_FIELDS),
            BETA => (ANNOTATION_V1BETA1_FIELDS, ANNOTATION_V1ALPHA1_FIELDS),
        };
        for (key, text) in [(mine, own), (others, other), ("example.com/unknown", unknown)] {
            if let Some(text) = text {
                object["metadata"]["annotations"][key] = json!(text);
            }
        }
        object
    })
    .boxed()
}

fn conforms(object: &Value, version: Version) -> Result<(), TestCaseError> {
    let schema = schema(version);
    for section in ["spec", "status"] {
        if object.get(section).is_some() || section == "spec" {
            let found = faults(&schema["properties"][section], &object[section], section);
            prop_assert!(found.is_empty(), "{found:?}\n{object:#}");
        }
    }
    Ok(())
}

/// Metadata without the two annotations that carry fields.
fn identity(object: &Value) -> Value {
    let mut metadata = object["metadata"].clone();
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, _| !key.ends_with("-fields"));
    }
    if metadata["annotations"].as_object().is_none_or(Map::is_empty) {
        metadata.as_object_mut().unwrap().remove("annotations");
    }
    metadata
}

fn there_and_back(object: &Value, other: Version, own: Version) -> Result<(), TestCaseError> {
    conforms(object, own)?;
    let there = to(object, other);
    conforms(&there, other)?;
    prop_assert_eq!(identity(&there), identity(object));
    let back = to(&there, own);
    prop_assert_eq!(&back, object, "through {:#}", there);
    prop_assert_eq!(to(&back, other), there);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn v1beta1_comes_back_as_it_was(object in object(BETA)) {
        there_and_back(&object, ALPHA, BETA)?;
    }

    #[test]
    fn v1alpha1_comes_back_as_it_was(object in object(ALPHA)) {
        there_and_back(&object, BETA, ALPHA)?;
    }

    /// A client replaces the spec of `one`, shown in v1alpha1, by the spec of `other`. After that,
    /// `other` supplies the fields that v1alpha1 has, and `one` supplies the remaining fields.
    #[test]
    fn edits_in_v1alpha1_win(one in object(BETA), other in object(BETA)) {
        let (mut shown, other) = (to(&one, ALPHA), to(&other, ALPHA));
        shown["spec"] = other["spec"].clone();
        shown["status"] = json!({"address": "10.9.9.9"});
        let stored = to(&shown, BETA);
        conforms(&stored, BETA)?;
        let again = to(&stored, ALPHA);
        prop_assert_eq!(&again["spec"], &shown["spec"]);
        prop_assert_eq!(&again["status"], &shown["status"]);
        for field in ["workloadType", "ipPool", "requestedAddresses", "ipv6Pool", "ipFamilyPolicy"] {
            prop_assert_eq!(stored["spec"].get(field), one["spec"].get(field), "{}", field);
        }
    }

    /// An object of any shape, with any annotations, can be converted to the other version.
    #[test]
    fn nothing_that_has_a_version_fails(
        spec in any_json(), status in any_json(), metadata in any_json(), text in any_json(),
        beta in any::<bool>(), named in any::<bool>(),
    ) {
        let (own, other) = if beta { (BETA, ALPHA) } else { (ALPHA, BETA) };
        let mut object = json!({"apiVersion": own.to_string(), "spec": spec, "status": status});
        object["metadata"] = if named {
            let text = text.to_string();
            json!({"annotations": {ANNOTATION_V1BETA1_FIELDS: text, ANNOTATION_V1ALPHA1_FIELDS: text}})
        } else {
            metadata
        };
        let there = to(&object, other);
        prop_assert_eq!(&there["apiVersion"], &json!(other.to_string()));
        to(&there, own);
    }
}

/// JSON made of words that have a meaning for the conversion.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(|b| json!(b)),
        any::<i64>().prop_map(|n| json!(n)),
        any::<f64>().prop_map(|n| json!(n)),
        prop::sample::select(vec!["", "pool", "spec", "spec.ipam", "{}"]).prop_map(|s| json!(s)),
    ];
    let keys = prop::sample::select(vec![
        "spec",
        "status",
        "unset",
        "kept",
        "cut",
        "annotations",
        "ipam",
        "listeners",
        "healthCheck",
        "port",
        "PeriodSeconds",
        "periodSeconds",
        "path",
        "backendServers",
        "backendServerSelector",
        LABEL_VM_NAME,
        "allocatedAddress",
        "workloadType",
        "address",
        "other",
    ]);
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map(keys.clone(), inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}
