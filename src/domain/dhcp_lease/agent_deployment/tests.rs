//! Tests of the parts of an agent's Deployment, and of Deployments that are not changed.

use super::*;

const NETWORK: &str = "default/vlan100";

fn template() -> Value {
    json!({
        "metadata": {"labels": {"app.kubernetes.io/name": "harvester-guest-operator"}},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app.kubernetes.io/component": "lease-agent"}},
            "template": {
                "metadata": {
                    "labels": {"app.kubernetes.io/component": "lease-agent"},
                    "annotations": {"note": "x"},
                },
                "spec": {"containers": [{
                    "name": "lease-agent", "image": "x:1", "command": ["/lease-agent"],
                    "resources": {"limits": {"memory": "1024Mi"}},
                }]},
            },
        },
    })
}

fn on(cluster_network: &str) -> Value {
    deployment(&template(), NETWORK, cluster_network, &[], None)
}

/// Deployment as the API server returns it: with default values, and with normalized quantities.
fn stored(mut object: Value) -> StoredDeployment {
    object["metadata"]["uid"] = json!("u");
    object["metadata"]["resourceVersion"] = json!("7");
    object["spec"]["progressDeadlineSeconds"] = json!(600);
    let container = &mut object["spec"]["template"]["spec"]["containers"][0];
    container["terminationMessagePath"] = json!("/dev/termination-log");
    container["resources"]["limits"]["memory"] = json!("1Gi");
    StoredDeployment::read(&object)
}

#[test]
fn a_network_gets_an_agent_of_its_own_where_it_is() {
    let made = on("prod");
    let name = agent_name(NETWORK);
    assert_eq!(made["metadata"]["name"], name);
    assert_eq!(made["metadata"]["labels"][MANAGED_BY], MANAGER);
    let selector = made["spec"]["selector"]["matchLabels"].as_object().unwrap();
    let pod = &made["spec"]["template"];
    assert_eq!(selector["loadbalancer.harvesterhci.io/agent"], name);
    assert!(selector.iter().all(|(key, value)| pod["metadata"]["labels"][key] == *value));
    let attached = pod["metadata"]["annotations"][ANNOTATION_NETWORKS].as_str().unwrap();
    let attached: Value = serde_json::from_str(attached).unwrap();
    assert_eq!(attached, json!([{"namespace": "default", "name": "vlan100", "interface": "net1"}]));
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["args"], json!(["--network", NETWORK, "--interface", "net1"]));
    let said = DhcpDeclaration {
        subnets: "10.7.0.9/24, 10.8.0.0/16".into(),
        on_lease_loss: "Keep".into(),
        broadcast: "true".into(),
        ..DhcpDeclaration::default()
    };
    let narrow = deployment(&template(), NETWORK, "", &options(&said), None);
    let args = &narrow["spec"]["template"]["spec"]["containers"][0]["args"];
    assert_eq!(args[4], "--subnets");
    assert_eq!(args[5], "10.7.0.9/24,10.8.0.0/16");
    assert_eq!(args[6], "--on-lease-loss");
    assert_eq!(args[7], "keep");
    assert_eq!(args[8], "--broadcast");
    assert_eq!(container["image"], "x:1", "the rest is the template's");
    assert_eq!(pod["metadata"]["annotations"]["note"], "x");
    let terms =
        &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(
        terms["nodeSelectorTerms"],
        json!([{"matchExpressions": [
            {"key": "network.harvesterhci.io/prod", "operator": "In", "values": ["true"]},
        ]}])
    );
    for everywhere in ["", "mgmt"] {
        assert_eq!(on(everywhere)["spec"]["template"]["spec"].get("affinity"), None);
    }
}

/// A network's name is a whole value, so a name cannot add a field or an argument to the
/// Deployment.
#[test]
fn a_name_injects_nothing() {
    let evil = "default/x\",\"name\":\"y\"}]$(HOME) --interface eth0";
    let made = deployment(&template(), evil, "", &[], None);
    let pod = &made["spec"]["template"];
    let attached = pod["metadata"]["annotations"][ANNOTATION_NETWORKS].as_str().unwrap();
    let attached: Value = serde_json::from_str(attached).unwrap();
    assert_eq!(attached.as_array().unwrap().len(), 1);
    assert_eq!(attached[0].as_object().unwrap().len(), 3);
    assert_eq!(attached[0]["name"], evil.strip_prefix("default/").unwrap());
    assert_eq!(pod["spec"]["containers"][0]["args"].as_array().unwrap().len(), 4);
    assert_eq!(pod["spec"]["containers"].as_array().unwrap().len(), 1);
}

#[test]
fn what_is_as_wanted_is_not_written_again() {
    assert_eq!(plan(Some(on("prod")), None), DeploymentChange::Create(on("prod")));
    assert_eq!(plan(Some(on("prod")), Some(&stored(on("prod")))), DeploymentChange::Nothing);
    assert_eq!(plan(None, None), DeploymentChange::Nothing);
    assert_eq!(plan(None, Some(&stored(on("prod")))), DeploymentChange::Delete);
    let mut leaving = on("prod");
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(plan(Some(on("prod")), Some(&stored(leaving.clone()))), DeploymentChange::Nothing);
    assert_eq!(plan(None, Some(&stored(leaving))), DeploymentChange::Nothing);
}

#[test]
fn what_differs_is_put_right_in_the_version_that_was_seen() {
    let replaces = |wanted: Value, stored: &StoredDeployment| {
        let DeploymentChange::Replace(object) = plan(Some(wanted), Some(stored)) else { panic!() };
        assert_eq!(object["metadata"]["resourceVersion"], "7");
    };
    // First, the cluster network changes. Then a part of the template changes, which only the
    // digest shows.
    replaces(on("other"), &stored(on("prod")));
    replaces(on("mgmt"), &stored(on("prod")));
    let mut template = template();
    template["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({});
    let less = deployment(&template, NETWORK, "", &[], None);
    replaces(less, &stored(on("")));
    // Edits of the stored Deployment by a user.
    let edits: [&dyn Fn(&mut Value); 4] = [
        &|spec| spec["replicas"] = json!(0),
        &|spec| spec["template"]["spec"]["containers"][0]["image"] = json!("y:1"),
        &|spec| spec["template"]["spec"]["containers"] = json!([]),
        &|spec| spec["template"]["metadata"]["annotations"] = json!({}),
    ];
    for edit in edits {
        let mut edited = stored(on("prod"));
        edit(&mut edited.spec);
        replaces(on("prod"), &edited);
    }
}

#[test]
fn foreign_objects_are_never_touched() {
    for label in [Value::Null, json!("Helm"), json!("harvester-guest-operator-2")] {
        let mut object = on("prod");
        object["metadata"]["labels"][MANAGED_BY] = label;
        let theirs = stored(object);
        assert_eq!(plan(Some(on("prod")), Some(&theirs)), DeploymentChange::Foreign);
        assert_eq!(plan(None, Some(&theirs)), DeploymentChange::Nothing);
    }
}

/// The Deployment holds the options that were valid last. The operator can read these options from
/// the Deployment.
#[test]
fn the_options_of_an_agent_are_read_from_its_deployment() {
    let said = DhcpDeclaration {
        subnets: "10.7.0.0/24".into(),
        on_lease_loss: "Keep".into(),
        broadcast: "true".into(),
        ..DhcpDeclaration::default()
    };
    for said in [said, DhcpDeclaration::default()] {
        let options = options(&said);
        let made = deployment(&template(), NETWORK, "prod", &options, None);
        assert_eq!(stored(made.clone()).options(NETWORK), Some(options.clone()));
        // If another field of the Deployment changes, the options stay the same.
        let moved = deployment(&template(), NETWORK, "other", &options, None);
        assert!(matches!(
            plan(Some(moved), Some(&stored(made.clone()))),
            DeploymentChange::Replace(_)
        ));
        assert_eq!(stored(made.clone()).options("default/other"), None);
        let mut theirs = made.clone();
        theirs["metadata"]["labels"][MANAGED_BY] = json!("Helm");
        assert_eq!(stored(theirs).options(NETWORK), None);
        for args in [json!([]), json!(["--network", 7]), Value::Null] {
            let mut edited = made.clone();
            edited["spec"]["template"]["spec"]["containers"][0]["args"] = args;
            assert_eq!(StoredDeployment::read(&edited).options(NETWORK), None);
        }
    }
    assert_eq!(StoredDeployment::default().options(NETWORK), None);
}
