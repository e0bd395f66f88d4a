//! Output of the chart: valid manifests, the plain ones in config/, and a rollout that cannot hang.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::domain::dhcp_lease::agent_name;

use harvester_guest_operator::domain::dhcp_lease::agent_deployment::deployment;
use serde_json::{Value, json};
use testbed::{Bed, Chart, Shared, Version, repository, tools};

use super::{all_on, default_objects, object, objects, read};

const LOAD_BALANCER: &str = "loadbalancers.loadbalancer.harvesterhci.io";

#[tokio::test]
async fn it_passes_lint_with_default_values_and_with_everything_on() {
    let chart = Chart::locate().await.unwrap();
    chart.helm("lint", &["--strict"]).await.unwrap();
    chart.helm("lint", &["--strict", "--values", &all_on()]).await.unwrap();
}

#[tokio::test]
async fn both_versions_of_helm_render_the_same() {
    let mut rendered = Vec::new();
    for version in [Version::Three, Version::Four] {
        let helm = testbed::Helm::new(version).await.unwrap();
        let chart = Chart::locate().await.unwrap();
        let path = chart.path().unwrap().to_owned();
        let values = all_on();
        let args = ["template", "a", &path, "--kube-version", "v1.36.3", "--values", &values];
        let text = helm.run(&args).await.unwrap();
        let mut objects: Vec<String> = text
            .split("\n---\n")
            .map(|text| serde_saphyr::from_str::<Value>(text).unwrap().to_string())
            .collect();
        objects.sort();
        rendered.push(objects);
    }
    assert_eq!(rendered[0], rendered[1]);
}

/// The operator watches an agent's Lease under the name that the chart gives Lease and agent.
#[tokio::test]
async fn agents_are_called_what_the_operator_calls_them() {
    let chart = Chart::locate().await.unwrap();
    let (n, d) = ("n".repeat(28), "d".repeat(60));
    for network in
        ["default/vlan100", "a-b/c", "a/b.c", &format!("{n}/d"), &format!("a/{}.{d}", &n[2..])]
    {
        let value = format!("leaseAgent.networks[0].network={network}");
        let all = objects(&chart.render(&["--set", &value]).await.unwrap());
        object(&all, "Deployment", &agent_name(network));
    }
}

/// The chart and the operator make the same agent. It leaves an unreachable node at once, and a
/// node that is only not ready after 30 s.
#[tokio::test]
async fn the_operator_makes_agents_as_the_chart_does() {
    const NETWORK: &str = "default/vlan100";
    let chart = Chart::locate().await.unwrap();
    let more = "leaseAgent.networks[0].network=default/vlan100,leaseAgent.tolerations[0].operator=Exists,\
                priorityClassName=p,podLabels.a=b,commonLabels.c=d,podAnnotations.e=f,imagePullSecrets[0].name=g";
    let all = objects(&chart.render(&["--set", more]).await.unwrap());
    let listed = &object(&all, "Deployment", &agent_name(NETWORK))["spec"];
    let operator = object(&all, "Deployment", "harvester-guest-operator");
    let env = operator["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap();
    let given = env.iter().find(|variable| variable["name"] == "HGO_DHCP_AGENT").unwrap();
    let template: Value = serde_saphyr::from_str(given["value"].as_str().unwrap()).unwrap();
    let made = deployment(&template, NETWORK, "", &[], None);
    assert_eq!(made["spec"], *listed, "the operator's (left), the chart's");
    let pod = &listed["template"]["spec"];
    let tolerated = pod["tolerations"].as_array().unwrap();
    for (taint, seconds) in [("not-ready", 30), ("unreachable", 0)] {
        let key = format!("node.kubernetes.io/{taint}");
        let one = tolerated.iter().find(|toleration| toleration["key"] == key).unwrap();
        let (effect, stays) = (&one["effect"], &one["tolerationSeconds"]);
        assert_eq!((effect, stays), (&json!("NoExecute"), &json!(seconds)));
    }
    // Two, on different nodes where possible; an upgrade needs no node for a third one.
    assert_eq!(listed["replicas"], 2);
    let spread = &pod["topologySpreadConstraints"][0];
    assert_eq!(spread["whenUnsatisfiable"], "ScheduleAnyway");
    assert_eq!(spread["topologyKey"], "kubernetes.io/hostname");
    assert_eq!(spread["matchLabelKeys"], json!(["loadbalancer.harvesterhci.io/agent"]));
    assert_eq!(listed["strategy"]["rollingUpdate"], json!({"maxSurge": 0, "maxUnavailable": 1}));
    // Without the annotation's namespaces this right is not granted, and each agent's Lease is
    // named.
    let none = ["--set", more, "--set-json", "leaseAgent.namespaces=[]"];
    let without = chart.render(&none).await.unwrap();
    let text = without.values().cloned().collect::<String>();
    assert!(!text.contains("HGO_DHCP_AGENT") && !text.contains("operator-deployments"));
    let without = objects(&without);
    let role = object(&without, "Role", "harvester-guest-operator-lease-agent");
    assert_eq!(role["rules"][0]["resourceNames"], json!([agent_name(NETWORK)]));
}

#[tokio::test]
async fn config_is_what_the_chart_renders() {
    let plain = Chart::locate().await.unwrap().plain().await.unwrap();
    let mut stored = BTreeMap::new();
    for folder in ["manager", "rbac"] {
        for entry in fs::read_dir(repository().join("config").join(folder)).unwrap() {
            let name = format!("{folder}/{}", entry.unwrap().file_name().into_string().unwrap());
            stored.insert(name.clone(), read(&format!("config/{name}")));
        }
    }
    let names = |files: &BTreeMap<String, String>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&stored), names(&plain), "config/ (left): run `make config`");
    for (name, text) in &plain {
        assert!(stored[name] == *text, "config/{name} differs from the chart: run `make config`");
    }
}

#[tokio::test]
async fn the_crds_are_those_of_the_repository() {
    let names = |folder: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(repository().join(folder)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let files = "charts/harvester-guest-operator/files/crds";
    assert_eq!(names("crds"), names(files), "run `make crds`");
    let chart = Chart::locate().await.unwrap();
    let rendered = objects(&chart.render(&["--set", "crds.mode=always"]).await.unwrap());
    for name in names("crds") {
        let text = read(&format!("crds/{name}"));
        assert!(text == read(&format!("{files}/{name}")), "{files}/{name}: run `make crds`");
        let crd: Value = serde_saphyr::from_str(&text).unwrap();
        let name = crd["metadata"]["name"].as_str().unwrap();
        let ours = object(&rendered, "CustomResourceDefinition", name);
        assert!(numbers(&ours["spec"]) == numbers(&crd["spec"]), "{name}");
        assert_eq!(ours["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
    }
    // The operator writes the caBundle. Helm does not remove a field that it does not render.
    let load_balancer = object(&rendered, "CustomResourceDefinition", LOAD_BALANCER);
    let client = &load_balancer["spec"]["conversion"]["webhook"]["clientConfig"];
    assert!(client["service"].is_object() && client.get("caBundle").is_none(), "{client}");
    let never = chart.render(&["--set", "crds.mode=never"]).await.unwrap();
    assert!(!never.contains_key("crds.yaml"));
}

/// Nothing is rendered that harms a cluster that cannot be asked: CRDs in the place of Harvester's, or a
/// budget that keeps a single node from being drained.
#[tokio::test]
async fn where_it_is_only_rendered_the_defaults_harm_nothing() {
    let rendered = default_objects().await;
    let names = |kind: &str| -> BTreeSet<String> {
        let all = rendered.iter().filter(|object| object["kind"] == kind);
        all.map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let own =
        ["dhcpleases.loadbalancer.harvesterhci.io", "tokenrotations.credentials.harvesterhci.io"];
    assert_eq!(names("CustomResourceDefinition"), BTreeSet::from(own.map(str::to_owned)));
    for kind in ["PodDisruptionBudget", "Job"] {
        assert!(names(kind).is_empty(), "{kind}");
    }
}

/// The value, with each 0 as 0.0.
fn numbers(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.clone(), numbers(value))).collect()
        }
        Value::Array(items) => items.iter().map(numbers).collect(),
        Value::Number(number) => json!(number.as_f64()),
        other => other.clone(),
    }
}

/// Pods need no place before another has left one, with `maxSurge: 0`. No required rule needs a
/// second node, and no budget counts pods that must stay.
#[tokio::test]
async fn a_single_node_has_room_for_every_rollout() {
    let rendered = default_objects().await;
    let deployment = object(&rendered, "Deployment", "harvester-guest-operator");
    let rolling = json!({"maxSurge": 0, "maxUnavailable": 1});
    assert_eq!(deployment["spec"]["strategy"]["rollingUpdate"], rolling);
    let spec = &deployment["spec"]["template"]["spec"];
    let anti = spec["affinity"]["podAntiAffinity"].as_object().unwrap();
    assert_eq!(
        anti.keys().collect::<Vec<_>>(),
        ["preferredDuringSchedulingIgnoredDuringExecution"]
    );
    for constraint in spec["topologySpreadConstraints"].as_array().unwrap() {
        assert_eq!(constraint["whenUnsatisfiable"], "ScheduleAnyway");
    }
    let ports = spec["containers"][0]["ports"].as_array().unwrap();
    assert!(ports.iter().all(|port| port.get("hostPort").is_none()));
    let chart = Chart::locate().await.unwrap();
    let always = ["--set", "podDisruptionBudget.mode=always"];
    let rendered = objects(&chart.render(&always).await.unwrap());
    let budget = object(&rendered, "PodDisruptionBudget", "harvester-guest-operator");
    assert_eq!(budget["spec"]["maxUnavailable"], 1);
    assert!(budget["spec"].get("minAvailable").is_none());
}

/// Every Deployment's account is in both FlowSchemas. Kubernetes 1.28 does not serve their version.
#[tokio::test]
async fn every_account_has_seats_of_the_api_server_that_tenants_cannot_take() {
    let chart = Chart::locate().await.unwrap();
    let values = "serviceAccount.name=other,leaseAgent.networks[0].network=default/vlan100";
    let rendered = objects(&chart.render(&["--set", values]).await.unwrap());
    let accounts: BTreeSet<&str> = rendered
        .iter()
        .filter(|object| object["kind"] == "Deployment")
        .map(|object| object["spec"]["template"]["spec"]["serviceAccountName"].as_str().unwrap())
        .collect();
    assert_eq!(accounts, BTreeSet::from(["other", "harvester-guest-operator-lease-agent"]));
    for (name, level) in [
        ("harvester-guest-operator-leader-election", "leader-election"),
        ("harvester-guest-operator", "workload-high"),
    ] {
        let spec = &object(&rendered, "FlowSchema", name)["spec"];
        assert_eq!(spec["priorityLevelConfiguration"]["name"], level);
        let subjects = spec["rules"][0]["subjects"].as_array().unwrap();
        let named: Vec<&Value> =
            subjects.iter().map(|subject| &subject["serviceAccount"]).collect();
        let theirs = named.iter().map(|account| account["name"].as_str().unwrap());
        assert_eq!(theirs.collect::<BTreeSet<_>>(), accounts);
        assert!(named.iter().all(|account| account["namespace"] == "harvester-system"));
    }
    let older = chart.render(&["--kube-version", "v1.28.15+rke2r1"]).await.unwrap();
    assert!(objects(&older).iter().all(|object| object["kind"] != "FlowSchema"));
    assert!(objects(&older).iter().any(|object| object["kind"] == "Deployment"));
}

/// The API server itself checks pods by the Pod Security Standards: the operator's pod passes
/// `restricted`, and a pod with a capability does not.
#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_accepts_every_object() -> Result<()> {
    let bed = Shared::take_bare().await?;
    testbed::install(&bed).await?;
    bed.apply_yaml(&monitoring_crds()).await?;
    bed.crds_established().await?;
    for namespace in
        ["cattle-dashboards", "cattle-system", "other", "guests", "prod", "rancher-credentials"]
    {
        bed.kubectl(&["create", "namespace", namespace]).await?;
    }
    let chart = Chart::locate().await?;
    let values = all_on();
    for options in [&[][..], &["--values", &values][..]] {
        let rendered = chart.render(options).await?;
        let schemas = Schemas::of(&bed).await?;
        for (path, text) in &rendered {
            bed.dry_run(text).await.with_context(|| path.clone())?;
            schemas.check(text).await.with_context(|| path.clone())?;
        }
        let schemas = schemas.wrong("kind: Service\napiVersion: v1\nspec: {ports: [{prt: 1}]}\n");
        ensure!(schemas.await, "the schemas accept anything");
    }
    let restricted = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: restricted\n  labels:\n    \
                      pod-security.kubernetes.io/enforce: restricted\n";
    bed.apply_yaml(restricted).await?;
    let rendered = objects(&chart.render(&["--set", "serviceAccount.name=default"]).await?);
    let template = &object(&rendered, "Deployment", "harvester-guest-operator")["spec"]["template"];
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": template["spec"],
        "metadata": {"name": "pod", "namespace": "restricted"}});
    bed.dry_run(&pod.to_string()).await?;
    pod["spec"]["containers"][0]["securityContext"]["capabilities"]["add"] = json!(["NET_RAW"]);
    ensure!(bed.dry_run(&pod.to_string()).await.is_err(), "the standard is not enforced");
    Ok(())
}

/// CRDs of Prometheus Operator's kinds, which accept any content.
pub(crate) fn monitoring_crds() -> String {
    let crd = |kind: &str, plural: &str| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.monitoring.coreos.com")},
            "spec": {
                "group": "monitoring.coreos.com", "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {
                    "openAPIV3Schema": {
                        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    },
                }}],
            },
        })
    };
    let kinds = [
        ("ServiceMonitor", "servicemonitors"),
        ("PodMonitor", "podmonitors"),
        ("PrometheusRule", "prometheusrules"),
    ];
    let texts = kinds.map(|(kind, plural)| crd(kind, plural).to_string());
    texts.join("\n---\n")
}

/// Schemas for kubeconform, from the API server's own OpenAPI document.
struct Schemas {
    dir: tempfile::TempDir,
    program: std::path::PathBuf,
}

impl Schemas {
    async fn of(bed: &Bed) -> Result<Self> {
        let text = bed.kubectl(&["get", "--raw", "/openapi/v2"]).await?;
        let mut api: Value = serde_json::from_str(&text)?;
        strict(&mut api);
        let definitions = &api["definitions"];
        let dir = tempfile::TempDir::new()?;
        for (name, definition) in definitions.as_object().context("no definitions")? {
            let kinds = definition["x-kubernetes-group-version-kind"].as_array();
            for kind in kinds.into_iter().flatten().filter_map(|kind| kind["kind"].as_str()) {
                let mut used = BTreeMap::new();
                collect(definitions, name, &mut used);
                let file = dir.path().join(format!("{}.json", kind.to_lowercase()));
                let is_ours = name.contains("harvesterhci") || name.contains("monitoring.coreos");
                let is_newest = name.contains(".v1.") || is_ours;
                if is_newest {
                    let reference = format!("#/definitions/{name}");
                    let schema = json!({"$ref": reference, "definitions": used});
                    fs::write(file, schema.to_string())?;
                }
            }
        }
        Ok(Self { dir, program: tools().await?.path("kubeconform").to_owned() })
    }

    async fn check(&self, text: &str) -> Result<()> {
        let file = self.dir.path().join("manifest.yaml");
        fs::write(&file, text)?;
        let place = format!("{}/{{{{ .ResourceKind }}}}.json", self.dir.path().display());
        let mut command = Command::new(&self.program);
        command.args(["-strict", "-schema-location", &place]).arg(file);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "kubeconform: {said}");
        Ok(())
    }

    async fn wrong(&self, text: &str) -> bool {
        self.check(text).await.is_err()
    }
}

/// Refuses fields that a schema does not name, and permits numbers for int-or-string fields.
fn strict(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get("format").is_some_and(|format| format == "int-or-string") {
                fields.insert("type".to_owned(), json!(["string", "integer"]));
                fields.remove("format");
            }
            let open = fields.contains_key("x-kubernetes-preserve-unknown-fields");
            if fields.get("properties").is_some_and(Value::is_object)
                && !fields.contains_key("additionalProperties")
                && !open
            {
                fields.insert("additionalProperties".to_owned(), json!(false));
            }
            fields.values_mut().for_each(strict);
        }
        Value::Array(items) => items.iter_mut().for_each(strict),
        _ => {}
    }
}

/// Collects a definition and all that it refers to.
fn collect(definitions: &Value, name: &str, used: &mut BTreeMap<String, Value>) {
    if used.contains_key(name) {
        return;
    }
    let definition = &definitions[name];
    used.insert(name.to_owned(), definition.clone());
    let text = definition.to_string();
    for part in text.split("\"#/definitions/").skip(1) {
        if let Some((name, _)) = part.split_once('"') {
            collect(definitions, name, used);
        }
    }
}
