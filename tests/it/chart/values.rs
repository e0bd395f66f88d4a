//! The schema refuses a wrong value by its name, and knows every value; the reference lists them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use harvester_guest_operator::api::TokenRotation;
use serde_json::{Value, json};
use tempfile::TempDir;
use testbed::Chart;

use super::{read, yaml};

const VALUES: &str = "charts/harvester-guest-operator/values.yaml";
const PAGE: &str = "docs/reference/chart-values.md";
const SCHEMA: &str = "charts/harvester-guest-operator/values.schema.json";

/// Values files, and the name that the refusal must contain.
const WRONG: [(&str, &str); 66] = [
    ("replicaCout: 2", "replicaCout"),
    ("replicasCount: 2", "replicasCount"),
    ("replicaCount: two", "/replicaCount"),
    ("replicaCount: 0", "/replicaCount"),
    ("replicaCount: 2.5", "/replicaCount"),
    ("Image: {}", "Image"),
    ("image: operator:latest", "/image"),
    ("image: {repo: x}", "repo"),
    ("image: {pullPolicy: always}", "/image/pullPolicy"),
    ("image: {tag: 1.0}", "/image/tag"),
    ("image: {digest: abc}", "/image/digest"),
    ("imagePullSecret: [{name: x}]", "imagePullSecret"),
    ("imagePullSecrets: [x]", "/imagePullSecrets/0"),
    ("serviceAccount: {annotation: {}}", "annotation"),
    ("serviceAccount: {create: 'yes'}", "/serviceAccount/create"),
    ("serviceAccount: {name: Some_Body}", "/serviceAccount/name"),
    ("commonLabels: {team: 1}", "/commonLabels/team"),
    ("podLabels: {a b: c}", "a b"),
    ("podAnnotations: [a]", "/podAnnotations"),
    ("podSecurityContext: {runAsUser: root}", "/podSecurityContext/runAsUser"),
    ("securityContext: {readonlyRootFilesystem: true}", "readonlyRootFilesystem"),
    ("securityContext: {capabilities: {dropp: [ALL]}}", "dropp"),
    ("resources: {limit: {cpu: 1}}", "limit"),
    ("resources: {limits: {memory: lots}}", "/resources/limits/memory"),
    ("nodeSelector: {disk: true}", "/nodeSelector/disk"),
    ("toleration: []", "toleration"),
    ("tolerations: [{opeator: Exists}]", "opeator"),
    ("tolerations: [{effect: Never}]", "/tolerations/0/effect"),
    ("affinity: {podAntiAfinity: {}}", "podAntiAfinity"),
    ("topologySpreadConstraints: [{maxSkew: 1}]", "topologyKey"),
    ("priorityClassName: 7", "/priorityClassName"),
    ("podDisruptionBudget: {enabled: true}", "enabled"),
    ("podDisruptionBudget: {mode: sometimes}", "/podDisruptionBudget/mode"),
    ("lease: harvester-load-balancer", "/lease"),
    ("log: {level: info}", "level"),
    ("log: {format: xml}", "/log/format"),
    ("webhook: {replicasCount: 1}", "replicasCount"),
    ("webhook: {httpsPort: '8443'}", "/webhook/httpsPort"),
    ("webhook: {httpsPort: 443}", "/webhook/httpsPort"),
    ("webhook: {clientCA: {secret: x}}", "secret"),
    ("metrics: {port: 70000}", "/metrics/port"),
    ("crds: {mode: 'yes'}", "/crds/mode"),
    ("crds: {install: true}", "install"),
    ("crds: {repair: 'yes'}", "/crds/repair"),
    ("takeover: {automatic: 'yes'}", "/takeover/automatic"),
    ("networkPolicy: {metricsFrom: [{}]}", "/networkPolicy/metricsFrom/0"),
    ("networkPolicy: {from: []}", "from"),
    ("serviceMonitor: {interval: 30}", "/serviceMonitor/interval"),
    ("prometheusRule: {disabled: [HGONoLeeder]}", "/prometheusRule/disabled/0"),
    ("prometheusRule: {extraRules: [{alert: A}]}", "expr"),
    ("dashboard: {label: x}", "label"),
    ("additionalTrustedCAs: {pem: x}", "/additionalTrustedCAs/pem"),
    ("credentials: {rancher: {secret: rancher}}", "secret"),
    ("credentials: {rancher: {secretName: Rancher}}", "/credentials/rancher/secretName"),
    ("credentials: {rancher: {namespace: ''}}", "/credentials/rancher/namespace"),
    ("leaseAgent: {namespaces: default}", "/leaseAgent/namespaces"),
    ("leaseAgent: {namespaces: ['*']}", "/leaseAgent/namespaces/0"),
    ("leaseAgent: {defaultNetwork: vlan1}", "/leaseAgent/defaultNetwork"),
    ("leaseAgent: {networks: [default/vlan1]}", "/leaseAgent/networks/0"),
    ("leaseAgent: {networks: [{network: vlan1}]}", "/leaseAgent/networks/0/network"),
    ("leaseAgent: {arpProbe: none}", "/leaseAgent/arpProbe"),
    ("leaseAgent: {replicas: 0}", "/leaseAgent/replicas"),
    (
        "leaseAgent: {networks: [{network: a/b, subnets: [10.7.0.0]}]}",
        "/leaseAgent/networks/0/subnets/0",
    ),
    (
        "leaseAgent: {networks: [{network: a/b, onLeaseLoss: keep}]}",
        "/leaseAgent/networks/0/onLeaseLoss",
    ),
    ("leaseAgent: {networks: [{network: a/b, clientID: hostname}]}", "clientID"),
    ("leaseAgent: {networks: [{network: a/b, interface: far-too-long-for-linux}]}", "interface"),
];

/// Path of the public authorities in the image.
const PUBLIC: &str = "/etc/ssl/certs/ca-certificates.crt";

#[tokio::test]
async fn what_is_wrong_is_refused_by_name() {
    let chart = Chart::locate().await.unwrap();
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("values.yaml");
    let path = file.to_str().unwrap();
    // The first wrong value of each key at once, then the second: a refusal names all.
    let mut rounds: Vec<BTreeMap<&str, (&str, &str)>> = Vec::new();
    for (values, named) in WRONG {
        let key = values.split(':').next().unwrap();
        let round = rounds.iter().position(|round| !round.contains_key(key));
        let round = round.unwrap_or_else(|| {
            rounds.push(BTreeMap::new());
            rounds.len() - 1
        });
        rounds[round].insert(key, (values, named));
    }
    for round in rounds {
        let all: Vec<&str> = round.values().map(|(values, _)| *values).collect();
        std::fs::write(&file, all.join("\n")).unwrap();
        let Err(error) = chart.render(&["--values", path]).await else {
            panic!("not refused: {all:#?}")
        };
        let error = format!("{error:#}");
        assert!(error.contains("the schema"), "{all:#?}: refused by something else: {error}");
        for (key, (values, named)) in round {
            let quoted = [format!("'{named}'"), format!("{named}'")];
            let names =
                |line: &str| line.contains(key) && quoted.iter().any(|named| line.contains(named));
            assert!(error.lines().any(names), "{values}: {error}");
        }
    }
}

#[tokio::test]
async fn what_does_not_fit_together_is_refused() {
    let chart = Chart::locate().await.unwrap();
    let error = chart.render(&["--set", "serviceAccount.create=false"]).await.unwrap_err();
    assert!(format!("{error:#}").contains("serviceAccount.name"), "{error:#}");
    for (namespace, named) in [
        (r#"{"name": "a", "secrets": ["b"], "serviceAccounts": ["c"]}"#, "a: secrets and"),
        (r#"{"name": "kube-system"}"#, "kube-system: the Secrets"),
        (
            r#"{"name": "harvester-system", "serviceAccounts": ["c"]}"#,
            "harvester-system: the Secrets",
        ),
        (r#"{"name": "cattle-global-data"}"#, "cattle-global-data: the Secrets"),
    ] {
        let set = format!("credentials.namespaces=[{namespace}]");
        let error = chart.render(&["--set-json", &set]).await.unwrap_err();
        assert!(format!("{error:#}").contains(named), "{namespace}: {error:#}");
    }
}

/// A company's own authorities, as text or as an existing ConfigMap, beside the image's.
#[tokio::test]
async fn further_authorities_are_trusted_beside_those_of_the_image() {
    let chart = Chart::locate().await.unwrap();
    let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let text = json!({"pem": pem}).to_string();
    for (values, map) in [
        (text.as_str(), "harvester-guest-operator-trusted-cas"),
        (r#"{"configMap": "company"}"#, "company"),
    ] {
        let set = format!("additionalTrustedCAs={values}");
        let rendered = chart.render(&["--set-json", &set]).await.unwrap();
        let deployment: Value =
            serde_saphyr::from_str(&rendered["manager/deployment.yaml"]).unwrap();
        let pod = &deployment["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let folder = &container["volumeMounts"][0]["mountPath"];
        assert_eq!(pod["volumes"][0]["configMap"]["name"], map);
        let variables = container["env"].as_array().unwrap();
        let of =
            |name| &variables.iter().find(|variable| variable["name"] == name).unwrap()["value"];
        assert_eq!((of("SSL_CERT_FILE"), of("SSL_CERT_DIR")), (&json!(PUBLIC), folder));
        let made = rendered.get("manager/trusted-cas.yaml");
        let made = made.map(|text| serde_saphyr::from_str::<Value>(text).unwrap());
        assert_eq!(
            made.map(|map| map["data"]["ca.crt"].clone()),
            (map != "company").then(|| json!(pem))
        );
    }
    let other = r#"credentials={"namespaces": [{"name": "a", "secrets": ["b"]}], "rancher": {"secretName": "c", "namespace": "a"}}"#;
    let error = chart.render(&["--set-json", other]).await.unwrap_err();
    assert!(format!("{error:#}").contains("c must be one of them"), "{error:#}");
    let both = r#"additionalTrustedCAs={"configMap": "a", "pem": "-----BEGIN CERTIFICATE----- -----END CERTIFICATE-----"}"#;
    let error = chart.render(&["--set-json", both]).await.unwrap_err();
    assert!(format!("{error:#}").contains("additionalTrustedCAs"), "{error:#}");
}

/// Rights to accounts' tokens and to Secrets: accounts and Secrets are named where the values name
/// them.
#[tokio::test]
async fn rights_to_credentials_are_as_narrow_as_the_values() {
    let chart = Chart::locate().await.unwrap();
    let of = async |namespace: &str| {
        let set = format!("credentials.namespaces=[{namespace}]");
        let rendered = chart.render(&["--set-json", &set]).await.unwrap();
        let role = rendered["rbac/credentials.yaml"].split("---\n");
        let mut role = role.filter(|part| part.contains("kind: Role\n"));
        let role = role.next().unwrap().to_owned();
        let about = |resource: &str| {
            let role: Value = serde_saphyr::from_str(&role).unwrap();
            let rules = role["rules"].as_array().unwrap().clone();
            rules.into_iter().find(|rule| rule["resources"][0] == resource)
        };
        let env = rendered["manager/deployment.yaml"].lines();
        let env =
            env.skip_while(|line| !line.contains("HGO_CREDENTIAL_NAMESPACES")).nth(1).unwrap();
        (about("secrets").unwrap(), about("serviceaccounts/token"), env.trim().to_owned())
    };
    let (secrets, tokens, env) = of(r#"{"name": "a"}"#).await;
    assert_eq!((tokens, secrets.get("resourceNames"), env.as_str()), (None, None, "value: a"));
    let (_, tokens, _) = of(r#"{"name": "a", "serviceAccounts": ["*"]}"#).await;
    assert_eq!(tokens.unwrap().get("resourceNames"), None);
    let (_, tokens, _) = of(r#"{"name": "a", "serviceAccounts": ["b", "c"]}"#).await;
    assert_eq!(tokens.unwrap()["resourceNames"], json!(["b", "c"]));
    let (secrets, tokens, env) = of(r#"{"name": "cattle-system", "secrets": ["b", "c"]}"#).await;
    assert_eq!(secrets["resourceNames"], json!(["b", "c"]));
    assert_eq!(secrets["verbs"], json!(["get", "list", "watch", "patch"]));
    assert_eq!((tokens, env.as_str()), (None, "value: cattle-system/b+c"));
}

/// Two values and one Secret are enough to renew every cloud credential of a user.
#[tokio::test]
async fn one_value_has_all_cloud_credentials_renewed() {
    const KIND: &str = "credentials.harvesterhci.io/v1alpha1/TokenRotation";
    let chart = Chart::locate().await.unwrap();
    let set = "credentials.rancher.secretName=rancher";
    let rendered = chart.render(&["--set", set, "--api-versions", KIND]).await.unwrap();
    let made: Value = serde_saphyr::from_str(&rendered["credentials.yaml"]).unwrap();
    let rotation: TokenRotation = serde_json::from_value(made.clone()).unwrap();
    assert_eq!(rotation.metadata.namespace.as_deref(), Some("rancher-credentials"));
    assert_eq!(made["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
    assert!(rotation.spec.target.all_cloud_credentials.is_some());
    let server = rotation.spec.rancher.unwrap();
    assert_eq!((server.minter.secret_name.as_str(), server.url), ("rancher", None));
    assert!(rendered["manager/deployment.yaml"].contains("value: rancher-credentials/rancher"));
    let role = &rendered["rbac/credentials.yaml"];
    assert!(role.contains("namespace: rancher-credentials") && role.contains("- rancher\n"));
    // Helm cannot create a TokenRotation before its CRD exists. The namespace may be in the list
    // already.
    let other = r#"credentials={"namespaces": [{"name": "a"}], "rancher": {"secretName": "b", "namespace": "a"}}"#;
    let rendered = chart.render(&["--set-json", other]).await.unwrap();
    assert!(!rendered.contains_key("credentials.yaml"));
    assert_eq!(rendered["rbac/credentials.yaml"].matches("\nkind: Role\n").count(), 1);
    assert!(!chart.render(&[]).await.unwrap().contains_key("rbac/credentials.yaml"));
}

/// Values that Rancher sets for every chart.
#[tokio::test]
async fn what_rancher_sets_is_taken() {
    let chart = Chart::locate().await.unwrap();
    let set = "global.cattle.systemDefaultRegistry=mirror.example,global.cattle.clusterId=local";
    let rendered = chart.render(&["--set", set]).await.unwrap();
    assert!(rendered["manager/deployment.yaml"].contains("image: mirror.example/harvester-guest"));
}

#[test]
fn the_schema_knows_every_value_and_no_other() {
    let schema: Value = serde_json::from_str(&read(SCHEMA)).unwrap();
    let mut faults = String::new();
    compare(&schema, &schema, &yaml(VALUES), "", &mut faults);
    assert!(faults.is_empty(), "{faults}");
    closed(&schema, "", &mut faults);
    assert!(faults.is_empty(), "{faults}");
}

fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(reference) => root.pointer(reference.trim_start_matches('#')).unwrap(),
        None => schema,
    }
}

/// Compares values and properties: every value has a property, and every property a value, so no
/// default is hidden.
fn compare(root: &Value, schema: &Value, value: &Value, path: &str, faults: &mut String) {
    let schema = resolved(root, schema);
    let Some(properties) = schema["properties"].as_object() else { return };
    // A value that is passed on to Kubernetes, such as affinity, may be empty.
    let Some(values) = value.as_object().filter(|values| !values.is_empty()) else { return };
    let passed_on = ["ecurityContext", "resources"].iter().any(|end| path.ends_with(end));
    for (name, value) in values {
        match properties.get(name) {
            Some(schema) => compare(root, schema, value, &format!("{path}.{name}"), faults),
            None => drop(writeln!(faults, "{path}.{name}: not in the schema")),
        }
    }
    for name in properties.keys().filter(|name| !values.contains_key(*name)) {
        if !passed_on && !path.contains("Context.") && *name != "global" {
            let _ = writeln!(faults, "{path}.{name}: not in values.yaml");
        }
    }
}

/// Checks that every object of the schema refuses unknown fields.
fn closed(schema: &Value, path: &str, faults: &mut String) {
    match schema {
        Value::Object(fields) => {
            if fields.contains_key("properties")
                && fields.get("type").is_some_and(Value::is_string)
                && fields.get("additionalProperties") != Some(&Value::Bool(false))
            {
                let _ = writeln!(faults, "{path}: takes anything");
            }
            for (name, field) in fields {
                closed(field, &format!("{path}/{name}"), faults);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| closed(item, path, faults)),
        _ => {}
    }
}

#[test]
fn the_reference_lists_every_value_with_its_default() {
    let mut built = BTreeMap::new();
    leaves(&yaml(VALUES), "", &mut built);
    let page = read(PAGE);
    let mut documented = BTreeMap::new();
    for line in page.lines().skip_while(|line| !line.starts_with("| value |")).skip(2) {
        let Some(row) = line.strip_prefix('|') else { break };
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let default = cells[1].trim_matches(['`', '*']).to_owned();
        for name in cells[0].split('`').skip(1).step_by(2) {
            documented.insert(name.to_owned(), default.clone());
        }
    }
    assert_eq!(documented, built, "{PAGE} (left) against values.yaml (right)");
}

/// Values as the reference lists them: a security context or a set of resources is one value.
pub(crate) fn leaves(value: &Value, path: &str, found: &mut BTreeMap<String, String>) {
    let whole = ["ecurityContext", "resources", "labels"].iter().any(|end| path.ends_with(end));
    if let Some(fields) = value.as_object().filter(|fields| !fields.is_empty() && !whole) {
        for (name, value) in fields {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            leaves(value, &path, found);
        }
        return;
    }
    let text = match value {
        Value::Object(fields) if !fields.is_empty() => "see there".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    found.insert(path.to_owned(), text);
}
