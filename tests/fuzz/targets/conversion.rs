//! A ConversionReview of any shape, and the conversion of one object there and back.
#![no_main]

use harvester_guest_operator::domain::conversion::{Version, convert};
use harvester_guest_operator::http::conversion::review;
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

fn round_trip(spec: &Value, status: &Value, annotations: &Value) {
    for (from, to) in
        [(Version::V1alpha1, Version::V1beta1), (Version::V1beta1, Version::V1alpha1)]
    {
        let object = json!({
            "apiVersion": from.to_string(), "kind": "LoadBalancer",
            "metadata": {"name": "web", "annotations": annotations},
            "spec": spec, "status": status,
        });
        let there = convert(object.clone(), to).unwrap();
        assert_eq!(there["apiVersion"], to.to_string());
        let back = convert(there.clone(), from).unwrap();
        assert_eq!(back["apiVersion"], from.to_string());
        assert_eq!(back["metadata"]["name"], "web");
        // Without carried fields the object returns unchanged, if it fits the types of its version.
        if annotations.is_null() && from == Version::V1beta1 && fits(&object) {
            let [was, is] = [&object, &back].map(|o| json!([o["spec"], o["status"]]));
            assert_eq!(was, is, "through {there}");
        }
    }
}

fn fits(object: &Value) -> bool {
    type Stored = harvester_guest_operator::api::LoadBalancer;
    let Ok(read) = serde_json::from_value::<Stored>(object.clone()) else { return false };
    // Fields that the API server would drop.
    let known = serde_json::to_value(read).unwrap();
    is_part(&object["spec"], &known["spec"]) && is_part(&object["status"], &known["status"])
}

fn is_part(value: &Value, known: &Value) -> bool {
    match (value, known) {
        (Value::Object(value), Value::Object(known)) => value.iter().all(|(key, value)| {
            known.get(key).is_some_and(|known| is_part(value, known))
        }),
        (Value::Array(value), Value::Array(known)) => {
            value.len() == known.len() && value.iter().zip(known).all(|(v, k)| is_part(v, k))
        }
        (value, known) => value == known,
    }
}

fuzz_target!(|data: &[u8]| {
    if let Ok(answer) = review(data) {
        let answer: Value = serde_json::from_slice(&answer.text).unwrap();
        // Skipped parts need not be text.
        let Ok(question) = serde_json::from_slice::<Value>(data) else { return };
        assert_eq!(answer["response"]["uid"], question["request"]["uid"]);
        if answer["response"]["result"]["status"] == "Success" {
            let count = |value: &Value| value.as_array().map_or(0, Vec::len);
            assert_eq!(
                count(&answer["response"]["convertedObjects"]),
                count(&question["request"]["objects"])
            );
        }
    }
    if let Ok(object) = serde_json::from_slice::<Value>(data) {
        round_trip(&object["spec"], &object["status"], &object["metadata"]["annotations"]);
    }
});
