//! Consistency of the chart's objects: labels and ports by which one refers to another exist.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use testbed::Chart;

use super::{all_on, objects};

/// All objects that the chart can render.
async fn all() -> Vec<Value> {
    objects(&Chart::locate().await.unwrap().render(&["--values", &all_on()]).await.unwrap())
}

fn of_kind<'a>(all: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let found: Vec<_> = all.iter().filter(|object| object["kind"] == kind).collect();
    assert!(!found.is_empty(), "no {kind}");
    found
}

fn selects(labels: &Value, object: &Value) -> bool {
    let labels = labels.as_object().unwrap();
    assert!(!labels.is_empty());
    labels.iter().all(|(key, value)| object["metadata"]["labels"][key] == *value)
}

/// Pod templates with these labels.
fn pods<'a>(all: &'a [Value], labels: &Value) -> Vec<&'a Value> {
    let templates = of_kind(all, "Deployment").into_iter().map(|pod| &pod["spec"]["template"]);
    let found: Vec<_> = templates.filter(|pod| selects(labels, pod)).collect();
    assert!(!found.is_empty(), "no pod has the labels {labels}");
    found
}

/// Names of a pod's ports.
fn ports(pod: &Value) -> BTreeSet<&str> {
    let ports = pod["spec"]["containers"][0]["ports"].as_array().unwrap();
    ports.iter().map(|port| port["name"].as_str().unwrap()).collect()
}

/// Every port of every pod is admitted, and no other.
#[tokio::test]
async fn policies_admit_the_ports_that_pods_have() {
    let all = all().await;
    let mut reached = 0;
    for policy in of_kind(&all, "NetworkPolicy") {
        let rules = policy["spec"]["ingress"].as_array().unwrap();
        let admitted = rules.iter().flat_map(|rule| rule["ports"].as_array().unwrap());
        let admitted: BTreeSet<_> = admitted.map(|port| port["port"].as_str().unwrap()).collect();
        for pod in pods(&all, &policy["spec"]["podSelector"]["matchLabels"]) {
            assert_eq!(admitted, ports(pod), "{} admits (left)", policy["metadata"]["name"]);
            reached += 1;
        }
    }
    assert_eq!(reached, of_kind(&all, "Deployment").len(), "each pod has one policy");
}

/// Monitors match: with either kind each process is scraped.
#[tokio::test]
async fn monitors_find_every_pod_and_its_port() {
    let all = all().await;
    let everybody = of_kind(&all, "Deployment").len();
    for monitor in of_kind(&all, "PodMonitor") {
        let found = pods(&all, &monitor["spec"]["selector"]["matchLabels"]);
        assert_eq!(found.len(), everybody);
        let port = monitor["spec"]["podMetricsEndpoints"][0]["port"].as_str().unwrap();
        assert!(found.iter().all(|pod| ports(pod).contains(port)), "{port}");
    }
    for monitor in of_kind(&all, "ServiceMonitor") {
        let services = of_kind(&all, "Service").into_iter();
        let mut services = services
            .filter(|service| selects(&monitor["spec"]["selector"]["matchLabels"], service));
        let wanted = &monitor["spec"]["endpoints"][0]["port"];
        let has_it = |service: &&Value| service["spec"]["ports"][0]["name"] == *wanted;
        let service = &services.find(has_it).expect("no Service with the monitor's port")["spec"];
        assert_eq!(pods(&all, &service["selector"]).len(), everybody);
        // Metrics of a replica that is not ready report the cause.
        assert_eq!(service["publishNotReadyAddresses"], true);
    }
    for service in of_kind(&all, "Service") {
        let target = service["spec"]["ports"][0]["targetPort"].as_str().unwrap();
        let found = pods(&all, &service["spec"]["selector"]);
        assert!(found.iter().all(|pod| ports(pod).contains(target)), "{target}");
    }
}

/// Probes use paths that each process answers, and an agent has the capabilities that it needs.
#[tokio::test]
async fn pods_are_probed_and_have_the_capabilities_that_they_need() {
    let all = all().await;
    for deployment in of_kind(&all, "Deployment") {
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
            assert_eq!(container[probe]["httpGet"], json!({"path": path, "port": "http"}));
        }
        let is_agent = container["command"] == json!(["/lease-agent"]);
        let mut expected = json!({"drop": ["ALL"]});
        if is_agent {
            expected["add"] = json!(["NET_ADMIN", "NET_RAW"]);
        }
        assert_eq!(container["securityContext"]["capabilities"], expected);
    }
}
