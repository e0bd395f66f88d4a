//! Tests of the defaults, bounds and faults of the health check in a spec.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::{BackendProbe, CheckSettings, ProbeRequest};
use super::{LONGEST_PERIOD, LONGEST_TIMEOUT, MOST_IN_A_ROW, check, form};
use api::LoadBalancerSpec;

const PEM: &str = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";

fn spec(health_check: &Value) -> LoadBalancerSpec {
    serde_json::from_value(json!({
        "listeners": [
            {"name": "a", "port": 80, "backendPort": 8080},
            {"name": "b", "port": 443},
            {"name": "c", "port": 444, "backendPort": 0},
        ],
        "healthCheck": health_check,
    }))
    .unwrap()
}

fn good(health_check: &Value) -> CheckSettings {
    check(&spec(health_check)).unwrap().unwrap()
}

fn fault(health_check: &Value) -> String {
    check(&spec(health_check)).unwrap_err().to_string()
}

#[test]
fn without_a_port_nothing_is_probed() {
    assert_eq!(check(&spec(&Value::Null)), Ok(None));
    assert_eq!(check(&spec(&json!({}))), Ok(None));
    assert_eq!(check(&spec(&json!({"port": 0, "periodSeconds": -1}))), Ok(None));
    let mut guest = spec(&json!({"port": 9}));
    guest.workload_type = Some(api::WorkloadType::Cluster);
    assert_eq!(check(&guest), Ok(None));
}

/// `form` applies the CRD's rules to every health check, for any type of workload, even if no
/// backend is probed.
#[test]
fn the_form_is_judged_without_listeners() {
    let result = |check: Value| form(&serde_json::from_value(check).unwrap());
    for (check, beginning) in [
        (json!({"protocol": "tcp"}), "spec.healthCheck.port: it is 0 or unset: must be set"),
        (json!({"port": -1}), "spec.healthCheck.port: -1 is no port"),
        (json!({"port": 65536}), "spec.healthCheck.port: 65536 is no port"),
        (json!({"path": "/x"}), "spec.healthCheck.path: it belongs to http and https"),
        (json!({"serverName": "a"}), "spec.healthCheck.serverName: it belongs to http"),
        (json!({"expectedStatuses": [200]}), "spec.healthCheck.expectedStatuses: it belongs"),
        (json!({"caBundle": PEM}), "spec.healthCheck.caBundle: it belongs to https"),
        (json!({"port": 1, "protocol": "icmp"}), "spec.healthCheck.protocol: \"icmp\" is unknown"),
        (json!({"port": 1, "protocol": "http", "path": "x"}), "spec.healthCheck.path: \"x\" is no"),
        (json!({"port": 1, "protocol": "http", "serverName": "-"}), "spec.healthCheck.serverName"),
        (json!({"timeoutSeconds": -1}), "spec.healthCheck.timeoutSeconds: -1 is negative"),
    ] {
        let fault = result(check.clone()).unwrap_err().to_string();
        assert!(fault.starts_with(beginning), "{check}: {fault}");
    }
    for check in [json!({}), json!({"port": 9}), json!({"port": 9, "protocol": "http"})] {
        assert_eq!(result(check), Ok(()));
    }
}

#[test]
fn zero_and_unset_mean_the_documented_defaults() {
    let expected = CheckSettings {
        probe: BackendProbe::Tcp,
        port: 8080,
        success_threshold: 1,
        failure_threshold: 3,
        period: Duration::from_secs(5),
        timeout: Duration::from_secs(3),
    };
    assert_eq!(good(&json!({"port": 8080})), expected);
    let zeros = json!({"port": 8080, "protocol": "tcp", "successThreshold": 0,
        "failureThreshold": 0, "periodSeconds": 0, "timeoutSeconds": 0, "caBundle": "",
        "serverName": "", "expectedStatuses": []});
    assert_eq!(good(&zeros), expected);
    assert_eq!(good(&json!({"port": 443})).port, 443);
    assert_eq!(good(&json!({"port": 444})).port, 444);
}

#[test]
fn what_is_set_counts_up_to_its_bound() {
    let set = good(&json!({"port": 443, "successThreshold": 2, "failureThreshold": 4,
        "periodSeconds": 7, "timeoutSeconds": 9}));
    assert_eq!((set.success_threshold, set.failure_threshold), (2, 4));
    assert_eq!((set.period, set.timeout), (Duration::from_secs(7), Duration::from_secs(9)));
    let most = i32::MAX;
    let set = good(&json!({"port": 443, "successThreshold": most, "failureThreshold": most,
        "periodSeconds": most, "timeoutSeconds": most}));
    assert_eq!((set.success_threshold, set.failure_threshold), (MOST_IN_A_ROW, MOST_IN_A_ROW));
    assert_eq!((set.period, set.timeout), (LONGEST_PERIOD, LONGEST_TIMEOUT));
}

#[test]
fn http_and_https_take_a_request() {
    let request = ProbeRequest { path: "/".into(), expected: vec![], server_name: None };
    assert_eq!(good(&json!({"port": 443, "protocol": "http"})).probe, BackendProbe::Http(request));
    let full = good(&json!({"port": 443, "protocol": "https", "path": "/a?b=%20",
        "expectedStatuses": [100, 599], "serverName": "www.example.com", "caBundle": PEM}));
    let request = ProbeRequest {
        path: "/a?b=%20".into(),
        expected: vec![100, 599],
        server_name: Some("www.example.com".into()),
    };
    assert_eq!(full.probe, BackendProbe::Https(request, Some(PEM.into())));
}

#[test]
fn faults_name_the_field_what_is_wrong_and_what_would_be_right() {
    assert_eq!(
        fault(&json!({"port": 80})),
        "spec.healthCheck.port: 80 is no backend port of a TCP listener: use the backendPort of one of \
         spec.listeners (its port, if that is unset)"
    );
    let long = format!("/{}", "x".repeat(1024));
    let name = format!("{}.com", "x".repeat(64));
    for (field, bad) in [
        ("port", json!({"port": -1})),
        ("port", json!({"port": 70_000})),
        ("successThreshold", json!({"port": 443, "successThreshold": -1})),
        ("failureThreshold", json!({"port": 443, "failureThreshold": -2})),
        ("periodSeconds", json!({"port": 443, "periodSeconds": i32::MIN})),
        ("timeoutSeconds", json!({"port": 443, "timeoutSeconds": -1})),
        ("protocol", json!({"port": 443, "protocol": "udp"})),
        ("protocol", json!({"port": 443, "protocol": "HTTP"})),
        ("protocol", json!({"port": 443, "protocol": ""})),
        ("path", json!({"port": 443, "path": "/"})),
        ("path", json!({"port": 443, "protocol": "http", "path": ""})),
        ("path", json!({"port": 443, "protocol": "http", "path": "healthz"})),
        ("path", json!({"port": 443, "protocol": "http", "path": "/a b"})),
        ("path", json!({"port": 443, "protocol": "http", "path": "/a\r\nX: y"})),
        ("path", json!({"port": 443, "protocol": "http", "path": "/ä"})),
        ("path", json!({"port": 443, "protocol": "http", "path": long})),
        ("expectedStatuses", json!({"port": 443, "expectedStatuses": [200]})),
        ("expectedStatuses", json!({"port": 443, "protocol": "http", "expectedStatuses": [99]})),
        ("expectedStatuses", json!({"port": 443, "protocol": "http", "expectedStatuses": [600]})),
        ("expectedStatuses", json!({"port": 443, "protocol": "http", "expectedStatuses": [-200]})),
        (
            "expectedStatuses",
            json!({"port": 443, "protocol": "http",
            "expectedStatuses": vec![200; 33]}),
        ),
        ("serverName", json!({"port": 443, "serverName": "a"})),
        ("serverName", json!({"port": 443, "protocol": "http", "serverName": "a_b"})),
        ("serverName", json!({"port": 443, "protocol": "http", "serverName": "a..b"})),
        ("serverName", json!({"port": 443, "protocol": "http", "serverName": "-a"})),
        ("serverName", json!({"port": 443, "protocol": "http", "serverName": "a\r\nb"})),
        ("serverName", json!({"port": 443, "protocol": "http", "serverName": name})),
        ("caBundle", json!({"port": 443, "protocol": "http", "caBundle": PEM})),
        ("caBundle", json!({"port": 443, "caBundle": PEM})),
        ("caBundle", json!({"port": 443, "protocol": "https", "caBundle": "secret"})),
        (
            "caBundle",
            json!({"port": 443, "protocol": "https",
            "caBundle": "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----"}),
        ),
        (
            "caBundle",
            json!({"port": 443, "protocol": "https",
            "caBundle": PEM.replace("CERTIFICATE", "PRIVATE KEY")}),
        ),
    ] {
        let fault = fault(&bad);
        assert!(fault.starts_with(&format!("spec.healthCheck.{field}: ")), "{bad}: {fault}");
        assert!(fault.is_ascii() && !fault.contains(['\r', '\n']) && fault.len() < 250, "{fault}");
    }
}

#[test]
fn other_text_around_certificates_does_not_matter() {
    let key = PEM.replace("CERTIFICATE", "PRIVATE KEY");
    let mixed = format!("# mine\n{key}\n{PEM}");
    good(&json!({"port": 443, "protocol": "https", "caBundle": mixed}));
}
