//! Texts in annotations and ConfigMaps, which tenants and admins write: manual releases, fields
//! carried between versions, kube-vip's addresses.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};

use harvester_guest_operator::domain::conversion::{Version, convert};
use harvester_guest_operator::domain::pools::kube_vip_import::{ImportFacts, plan};
use harvester_guest_operator::domain::pools::manual_release::ManualRelease;
use harvester_guest_operator::domain::pools::ranges::PoolRanges;
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

const OURS: [&str; 2] = ["v1alpha1-fields", "v1beta1-fields"];

/// Converts an object of each version with the text under both names, there and back.
fn travels(text: &str) {
    for (from, to) in [(Version::V1alpha1, Version::V1beta1), (Version::V1beta1, Version::V1alpha1)]
    {
        let mut object = json!({
            "apiVersion": from.to_string(), "kind": "LoadBalancer",
            "spec": {"ipam": "pool", "healthCheck": {"port": 80}}, "status": {"address": "10.0.0.7"},
        });
        for name in OURS {
            let name = format!("loadbalancer.harvesterhci.io/{name}");
            object["metadata"]["annotations"][name] = json!(text);
        }
        let there = convert(object.clone(), to).unwrap();
        // A field of the object takes precedence over a carried one. Unset means pool.
        assert!(there["spec"]["ipam"].as_str().unwrap_or("pool") == "pool", "{there}");
        assert_eq!(there["status"]["address"], "10.0.0.7");
        if to == Version::V1beta1 {
            serde_json::from_value::<harvester_guest_operator::api::LoadBalancer>(there.clone())
                .unwrap();
        }
        let annotations = there["metadata"]["annotations"].as_object();
        let size: usize = annotations
            .into_iter()
            .flatten()
            .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
            .sum();
        assert!(size <= 256 * 1024 || size <= 2 * text.len() + 200, "{size}");
        // Further conversions change nothing.
        let back = convert(there.clone(), from).unwrap();
        let again = convert(back.clone(), to).unwrap();
        assert_eq!(stripped(&again), stripped(&there));
    }
}

fn stripped(object: &Value) -> Value {
    json!([object["spec"], object["status"]])
}

/// Imports a ConfigMap; each line of the text is `key: value`.
fn kube_vip(text: &str) {
    let data: BTreeMap<String, String> = text
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let known = ImportFacts::default();
    let import = plan(&data, &known);
    for pool in &import.pools {
        PoolRanges::parse(&pool.spec.ranges).unwrap();
    }
    assert!(import.report(&BTreeSet::new()).len() < 17 * 1024 * 4);
}

fuzz_target!(|text: &str| {
    if let Ok(release) = ManualRelease::parse(text) {
        let (namespace, name) = release.name.split_once('/').unwrap();
        assert!(!namespace.is_empty() && !name.is_empty() && !name.contains('/'));
    }
    travels(text);
    kube_vip(text);
});
