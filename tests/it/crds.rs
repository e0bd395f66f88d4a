//! The CRD files match the types of `src/api`, and match what Harvester serves today: guests, UIs
//! and stored objects rely on every name and type below.
//!
//! Another test has the server's own verdict on them (structural schemas, CEL).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::Path;

use harvester_guest_operator::api::{self, IPPool, LoadBalancer, TokenRotation};
use harvester_guest_operator::domain::pools::ranges::PoolRanges;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Secret, Service, ServiceAccount};
use k8s_openapi::api::flowcontrol::v1::FlowSchema;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const IP_POOL: &str = "ippools.loadbalancer.harvesterhci.io";
const LOAD_BALANCER: &str = "loadbalancers.loadbalancer.harvesterhci.io";
const TOKEN_ROTATION: &str = "tokenrotations.credentials.harvesterhci.io";

#[test]
fn the_files_are_what_the_types_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds");
    let mut expected = Vec::new();
    for crd in api::crds() {
        let file = format!("{}.yaml", crd.spec.names.plural);
        let stored = fs::read_to_string(folder.join(&file)).unwrap_or_default();
        assert!(
            stored == api::to_yaml(&crd).unwrap(),
            "crds/{file} differs from src/api: run `make crds`"
        );
        expected.push(file);
    }
    for entry in fs::read_dir(&folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(expected.contains(&name), "crds/{name} belongs to no type: remove it");
    }
}

#[test]
fn the_names_are_those_that_are_served_today() {
    for (name, kind, plural, singular, short, scope) in [
        (IP_POOL, "IPPool", "ippools", "ippool", json!(["pool", "pools"]), "Cluster"),
        (
            LOAD_BALANCER,
            "LoadBalancer",
            "loadbalancers",
            "loadbalancer",
            json!(["lb", "lbs"]),
            "Namespaced",
        ),
    ] {
        let crd = crd(name);
        assert_eq!(crd["spec"]["group"], "loadbalancer.harvesterhci.io");
        assert_eq!(crd["spec"]["scope"], scope);
        let names = &crd["spec"]["names"];
        assert_eq!(names["kind"], kind);
        assert_eq!(names["plural"], plural);
        assert_eq!(names["singular"], singular);
        assert_eq!(names["shortNames"], short);
        let version = stored(&crd);
        assert_eq!(version["name"], "v1beta1");
        assert_eq!((&version["served"], &version["storage"]), (&json!(true), &json!(true)));
    }
}

/// Guests write `status.address` of a LoadBalancer by a plain update, and have no right to a
/// subresource. An edit of a pool's spec must not change its ledger.
#[test]
fn only_pools_have_a_status_subresource() {
    let load_balancer = crd(LOAD_BALANCER);
    let subresources = &stored(&load_balancer)["subresources"];
    assert!(subresources.is_null() || *subresources == json!({}), "{subresources}");
    let pool = crd(IP_POOL);
    assert_eq!(stored(&pool)["subresources"], json!({"status": {}}));
}

#[test]
fn every_field_of_a_load_balancer_has_its_type() {
    assert_fields(
        LOAD_BALANCER,
        &[
            ("spec.description", "string"),
            ("spec.workloadType", "string"),
            ("spec.ipam", "string"),
            ("spec.ipPool", "string"),
            ("spec.listeners", "array"),
            ("spec.listeners[].name", "string"),
            ("spec.listeners[].port", "integer"),
            ("spec.listeners[].protocol", "string"),
            ("spec.listeners[].backendPort", "integer"),
            ("spec.backendServerSelector", "object"),
            ("spec.backendServerSelector{}", "array"),
            ("spec.backendServerSelector{}[]", "string"),
            ("spec.healthCheck.port", "integer"),
            ("spec.healthCheck.successThreshold", "integer"),
            ("spec.healthCheck.failureThreshold", "integer"),
            ("spec.healthCheck.periodSeconds", "integer"),
            ("spec.healthCheck.timeoutSeconds", "integer"),
            ("status.address", "string"),
            ("status.allocatedAddress.ipPool", "string"),
            ("status.allocatedAddress.ip", "string"),
            ("status.allocatedAddress.mask", "string"),
            ("status.allocatedAddress.gateway", "string"),
            ("status.backendServers", "array"),
            ("status.backendServers[]", "string"),
            ("status.conditions[].type", "string"),
            ("status.conditions[].status", "string"),
            ("status.conditions[].message", "string"),
            ("status.conditions[].reason", "string"),
            ("status.conditions[].lastUpdateTime", "string"),
            ("status.conditions[].lastTransitionTime", "string"),
        ],
    );
    let crd = crd(LOAD_BALANCER);
    assert_eq!(field(&crd, "spec.workloadType")["enum"], json!(["vm", "cluster"]));
    assert_eq!(field(&crd, "spec.ipam")["enum"], json!(["pool", "dhcp"]));
    // Stored objects may lack them.
    assert!(field(&crd, "spec")["required"].is_null());
    assert_eq!(field(&crd, "spec.listeners[]")["required"], json!(["port"]));
}

#[test]
fn every_field_of_a_pool_has_its_type() {
    assert_fields(
        IP_POOL,
        &[
            ("spec.description", "string"),
            ("spec.ranges", "array"),
            ("spec.ranges[].subnet", "string"),
            ("spec.ranges[].rangeStart", "string"),
            ("spec.ranges[].rangeEnd", "string"),
            ("spec.ranges[].gateway", "string"),
            ("spec.selector.network", "string"),
            ("spec.selector.priority", "integer"),
            ("spec.selector.scope", "array"),
            ("spec.selector.scope[].project", "string"),
            ("spec.selector.scope[].namespace", "string"),
            ("spec.selector.scope[].guestCluster", "string"),
            ("status.total", "integer"),
            ("status.available", "integer"),
            ("status.lastAllocated", "string"),
            ("status.allocated", "object"),
            ("status.allocated{}", "string"),
            ("status.allocatedHistory", "object"),
            ("status.allocatedHistory{}", "string"),
            ("status.conditions[].type", "string"),
            ("status.conditions[].status", "string"),
            ("status.conditions[].message", "string"),
            ("status.conditions[].reason", "string"),
            ("status.conditions[].lastUpdateTime", "string"),
            ("status.conditions[].lastTransitionTime", "string"),
        ],
    );
    let crd = crd(IP_POOL);
    assert_eq!(field(&crd, "spec.ranges[]")["required"], json!(["subnet"]));
    // A priority is an unsigned 32-bit number.
    assert_eq!(field(&crd, "spec.selector.priority")["minimum"], json!(0.0));
    assert_eq!(field(&crd, "spec.selector.priority")["maximum"], json!(4_294_967_295.0));
}

/// Maps of other types would repeat every address in managedFields.
#[test]
fn the_ledger_is_made_of_atomic_maps() {
    let crd = crd(IP_POOL);
    for map in ["allocated", "allocatedOwners", "allocatedHistory"] {
        let schema = field(&crd, &format!("status.{map}"));
        assert_eq!(schema["x-kubernetes-map-type"], "atomic", "status.{map}");
    }
}

#[test]
fn the_samples_fit_the_types() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/samples");
    let mut kinds = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        for document in text.split("\n---\n") {
            let value: Value = serde_saphyr::from_str(document).unwrap();
            let kind = value["kind"].as_str().unwrap().to_owned();
            let crd = match kind.as_str() {
                "Namespace" => continue,
                "IPPool" => {
                    let pool: IPPool = serde_json::from_value(value.clone()).unwrap();
                    PoolRanges::parse(&pool.spec.ranges).unwrap();
                    crd(IP_POOL)
                }
                "LoadBalancer" => {
                    serde_json::from_value::<LoadBalancer>(value.clone()).unwrap();
                    crd(LOAD_BALANCER)
                }
                "TokenRotation" => {
                    serde_json::from_value::<TokenRotation>(value.clone()).unwrap();
                    crd(TOKEN_ROTATION)
                }
                other => panic!("{}: no sample of {other} is expected", path.display()),
            };
            let unknown = unknown_fields(field(&crd, "spec"), &value["spec"], "spec");
            assert!(unknown.is_empty(), "{}: {unknown:?}", path.display());
            kinds.push(kind);
        }
    }
    for expected in ["IPPool", "LoadBalancer", "TokenRotation"] {
        assert!(kinds.iter().any(|kind| kind == expected), "no sample of {expected}");
    }
}

/// Manifests are the same after they are read as their types and written again: no misspelt field,
/// none that the server would drop.
#[test]
fn the_manifests_fit_their_types() {
    let mut count = 0;
    for folder in ["config/rbac", "config/manager"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            for document in fs::read_to_string(&path).unwrap().split("\n---\n") {
                let value: Value = serde_saphyr::from_str(document).unwrap();
                let again = match value["kind"].as_str().unwrap() {
                    "ServiceAccount" => round_trip::<ServiceAccount>(&value),
                    "ClusterRole" => round_trip::<ClusterRole>(&value),
                    "ClusterRoleBinding" => round_trip::<ClusterRoleBinding>(&value),
                    "Role" => round_trip::<Role>(&value),
                    "RoleBinding" => round_trip::<RoleBinding>(&value),
                    "Deployment" => round_trip::<Deployment>(&value),
                    "FlowSchema" => round_trip::<FlowSchema>(&value),
                    "Service" => round_trip::<Service>(&value),
                    "Secret" => round_trip::<Secret>(&value),
                    "MutatingWebhookConfiguration" => {
                        round_trip::<MutatingWebhookConfiguration>(&value)
                    }
                    "ValidatingWebhookConfiguration" => {
                        round_trip::<ValidatingWebhookConfiguration>(&value)
                    }
                    other => panic!("{}: {other} is not expected", path.display()),
                };
                assert_eq!(again, value, "{}", path.display());
                count += 1;
            }
        }
    }
    assert!(count > 0);
}

/// The Role admits the default Lease of the operator.
#[test]
fn the_role_names_the_default_lease() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("config/rbac/lease-role.yaml")).unwrap();
    let role: Role = serde_saphyr::from_str(text.split("\n---\n").next().unwrap()).unwrap();
    let rules = role.rules.unwrap();
    let name = rules.iter().find_map(|rule| rule.resource_names.as_ref()?.first()).unwrap();
    let lease = format!("\"{}/{name}\"", role.metadata.namespace.unwrap());
    let options = fs::read_to_string(root.join("src/cli/mod.rs")).unwrap();
    assert!(options.contains(&lease), "src/cli has another default than {lease}");
}

fn round_trip<T: DeserializeOwned + Serialize>(value: &Value) -> Value {
    serde_json::to_value(serde_json::from_value::<T>(value.clone()).unwrap()).unwrap()
}

// ---- reading -----------------------------------------------------------------------------

/// The generated CRD, parsed from the text that is installed.
fn crd(name: &str) -> Value {
    let crds = api::crds();
    let crd = crds.iter().find(|crd| crd.metadata.name.as_deref() == Some(name)).unwrap();
    serde_saphyr::from_str(&api::to_yaml(crd).unwrap()).unwrap()
}

fn stored(crd: &Value) -> &Value {
    let versions = crd["spec"]["versions"].as_array().unwrap();
    versions.iter().find(|version| version["storage"] == true).unwrap()
}

/// Schema of a field. `[]` stands for the items of a list, `{}` for the values of a map.
fn field<'a>(crd: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(&stored(crd)["schema"]["openAPIV3Schema"], |schema, part| {
        let name = part.trim_end_matches(['[', ']', '{', '}']);
        let mut schema = &schema["properties"][name];
        let mut rest = &part[name.len()..];
        while !rest.is_empty() {
            schema = &schema[if rest.starts_with("[]") { "items" } else { "additionalProperties" }];
            rest = &rest[2..];
        }
        schema
    })
}

fn assert_fields(name: &str, fields: &[(&str, &str)]) {
    let crd = crd(name);
    for (path, type_) in fields {
        assert_eq!(field(&crd, path)["type"], *type_, "{name}: {path}");
    }
}

/// Fields that the server would drop.
fn unknown_fields(schema: &Value, value: &Value, path: &str) -> Vec<String> {
    match value {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(key, value)| {
                let path = format!("{path}.{key}");
                let known = [&schema["properties"][key], &schema["additionalProperties"]];
                match known.into_iter().find(|schema| schema.is_object()) {
                    Some(schema) => unknown_fields(schema, value, &path),
                    None => vec![path],
                }
            })
            .collect(),
        Value::Array(items) => {
            items.iter().flat_map(|item| unknown_fields(&schema["items"], item, path)).collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn unknown_fields_are_found() {
    let crd = crd(IP_POOL);
    let unknown = |spec| unknown_fields(field(&crd, "spec"), &spec, "spec");
    assert_eq!(unknown(json!({"ranges": [{"subnett": "x"}]})), ["spec.ranges.subnett"]);
    assert!(unknown(json!({"ranges": [{"subnet": "x"}], "selector": {"priority": 1}})).is_empty());
}
