//! The rows of [`super::lb_rows`], with admission and without.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use harvester_guest_operator::api::LoadBalancer;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use testbed::kubevirt::create_node;
use testbed::{Operator, eventually};

use super::itself;
use super::lb_rows::{How, Off, On, ROWS, Row};
use super::said::{Said, ask};
use crate::support::{Cluster, SOON, ready};
use crate::vms::input::as_harvester_ships_it;

pub(super) const TEAM: &str =
    "/apis/loadbalancer.harvesterhci.io/v1beta1/namespaces/team/loadbalancers";

/// Existing objects. Pools give addresses from `.2` on; `team` is in project `local/ours`, `theirs`
/// in `local/theirs`.
const SCENE: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: team, annotations: {field.cattle.io/projectId: "local:ours"}}
---
apiVersion: v1
kind: Namespace
metadata: {name: theirs, annotations: {field.cattle.io/projectId: "local:theirs"}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: tenant, namespace: team}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: tenant, namespace: team}
rules:
  - {apiGroups: [loadbalancer.harvesterhci.io], resources: ["*"], verbs: ["*"]}
  - {apiGroups: [kubevirt.io], resources: ["*"], verbs: ["*"]}
  - {apiGroups: [""], resources: [services], verbs: [get, list, create, update, patch, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: tenant, namespace: team}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: tenant}
subjects: [{kind: ServiceAccount, name: tenant, namespace: team}]
---
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: IPPool
metadata: {name: ours}
spec: {ranges: [{subnet: 10.1.0.0/24}], selector: {scope: [{project: local/ours, namespace: "*", guestCluster: "*"}]}}
---
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: IPPool
metadata: {name: theirs}
spec: {ranges: [{subnet: 10.2.0.0/24}], selector: {scope: [{project: local/theirs, namespace: "*", guestCluster: "*"}]}}
---
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: IPPool
metadata: {name: named}
spec: {ranges: [{subnet: 10.3.0.0/24}]}
---
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: IPPool
metadata: {name: full}
spec: {ranges: [{subnet: 10.4.0.5/32}]}
---
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: IPPool
metadata: {name: vlan}
spec: {ranges: [{subnet: 10.5.0.0/24}], selector: {network: team/vlan7, scope: [{project: "*", namespace: team, guestCluster: "*"}]}}
---
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: IPPool
metadata: {name: going, finalizers: [example.com/stays]}
spec: {ranges: [{subnet: 10.6.0.0/24}]}
---
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: LoadBalancer
metadata: {name: victim, namespace: theirs}
spec: {workloadType: cluster}
---
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: LoadBalancer
metadata: {name: filler, namespace: theirs}
spec: {workloadType: cluster, ipPool: full}
---
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: LoadBalancer
metadata: {name: squatter, namespace: theirs}
spec: {workloadType: cluster, ipam: dhcp}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: a-node, namespace: team, labels: {guestcluster.harvesterhci.io/name: blue}}
spec: {networks: [{name: pods, pod: {}}, {name: lan, multus: {networkName: vlan7}}]}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: red-1, namespace: team, labels: {harvesterhci.io/creator: docker-machine-driver-harvester}}
spec: {networks: [{name: lan, multus: {networkName: team/vlan7}}]}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: gone-1
  namespace: team
  labels: {harvesterhci.io/creator: docker-machine-driver-harvester, guestcluster.harvesterhci.io/name: gone}
  annotations: {harvesterhci.io/removeAllPersistentVolumeClaims: "true"}
spec: {}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: stays-1
  namespace: team
  labels: {harvesterhci.io/creator: docker-machine-driver-harvester, guestcluster.harvesterhci.io/name: kubernetes}
  annotations: {harvesterhci.io/removeAllPersistentVolumeClaims: "true"}
spec: {}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: elsewhere-1
  namespace: theirs
  labels: {harvesterhci.io/creator: docker-machine-driver-harvester, guestcluster.harvesterhci.io/name: elsewhere}
  annotations: {harvesterhci.io/removeAllPersistentVolumeClaims: "true"}
spec: {}
"#;

/// A cluster with the scene, a leading operator, and a tenant.
pub(super) struct Stage {
    pub(super) cluster: Cluster,
    pub(super) tenant: Client,
    _operator: Operator,
}

impl Stage {
    pub(super) async fn set(admission: bool) -> Result<Self> {
        Self::set_on(Cluster::start().await?, admission).await
    }

    async fn set_on(cluster: Cluster, admission: bool) -> Result<Self> {
        cluster.bed.apply_yaml(SCENE).await?;
        create_node(&cluster.client, "node-1", &[], "10.0.0.11").await?;
        cluster.pools().delete("going", &DeleteParams::default()).await?;
        let operator = if admission {
            let operator = cluster.standby(itself()).await?;
            operator.leads().await?;
            cluster.registered().await?;
            operator
        } else {
            cluster.operator().await?
        };
        let token = cluster.bed.service_account_token("team", "tenant").await?;
        let tenant = cluster.bed.client_for(&token).await?;
        let stage = Self { cluster, tenant, _operator: operator };
        for name in ["victim", "filler"] {
            stage.has_reason("theirs", name, "Allocated").await?;
        }
        stage.has_reason("theirs", "squatter", "DHCP").await?;
        // Its guest says so, and the host does not lease.
        let reported = Patch::Merge(json!({"status": {"address": "10.9.0.8"}}));
        stage.lbs("theirs").patch("squatter", &PatchParams::default(), &reported).await?;
        stage.sees_machines().await?;
        Ok(stage)
    }

    /// Waits until the operator has listed VMs: no request that depends on them may come earlier.
    async fn sees_machines(&self) -> Result<()> {
        let body = json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
            "metadata": {"name": "early", "labels": {"cloudprovider.harvesterhci.io/cluster": "gone"}},
            "spec": {"workloadType": "cluster", "ipPool": "named"},
        });
        eventually(SOON, "list of VMs", async || {
            let said =
                ask(&self.tenant, "POST", TEAM, &body).await.map_err(|e| format!("{e:#}"))?;
            if said.message().contains("is being removed") {
                return Ok(true);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
            let lb = self.lbs("team").get("early").await.map_err(|e| e.to_string())?;
            let seen = ready(&lb).1 == "GuestClusterRemoved";
            self.end("early").await.map_err(|e| format!("{e:#}"))?;
            if seen { Ok(true) } else { Err(format!("{said:?}")) }
        })
        .await
    }

    pub(super) fn lbs(&self, namespace: &str) -> Api<LoadBalancer> {
        Api::namespaced(self.cluster.client.clone(), namespace)
    }

    pub(super) async fn has_reason(&self, namespace: &str, name: &str, reason: &str) -> Result<()> {
        eventually(SOON, &format!("{reason} of {namespace}/{name}"), async || {
            let lb = self.lbs(namespace).get(name).await.map_err(|e| e.to_string())?;
            let is = ready(&lb);
            if is.1 == reason { Ok(true) } else { Err(format!("{is:?}")) }
        })
        .await
    }

    /// Deletes a LoadBalancer of the team, and waits until it is gone.
    pub(super) async fn end(&self, name: &str) -> Result<()> {
        let lbs = self.lbs("team");
        match lbs.delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
            other => drop(other?),
        }
        let gone = async || lbs.get_opt(name).await.map(|lb| lb.is_none());
        eventually(SOON, &format!("end of {name}"), gone).await
    }

    /// Makes a row's request as the tenant.
    async fn ask(&self, row: &Row, name: &str) -> Result<Said> {
        let one = format!("{TEAM}/{name}");
        match row.how {
            How::Create(text) => ask(&self.tenant, "POST", TEAM, &whole(text)?).await,
            How::Merge(text) => {
                ask(&self.tenant, "PATCH", &one, &serde_saphyr::from_str(text)?).await
            }
            How::Put(text) | How::PutByGo(text) => {
                // The operator may write in between.
                for _ in 0..10 {
                    let mut object = serde_json::to_value(self.lbs("team").get(name).await?)?;
                    if matches!(row.how, How::PutByGo(_)) {
                        object = through_go(object);
                    }
                    json_patch::merge(&mut object, &serde_saphyr::from_str::<Value>(text)?);
                    let said = ask(&self.tenant, "PUT", &one, &object).await?;
                    if said.code != 409 {
                        return Ok(said);
                    }
                }
                bail!("conflict after conflict")
            }
        }
    }

    async fn play(&self, row: &Row, admission: bool) -> Result<()> {
        let text = match row.how {
            How::Create(text) if row.before.is_empty() => text,
            _ => row.before,
        };
        let object = whole(text)?;
        let name = object["metadata"]["name"].as_str().context("no name")?.to_owned();
        if !row.before.is_empty() {
            let lb = serde_json::from_value(object)?;
            self.lbs("team").create(&PostParams::default(), &lb).await?;
            self.has_reason("team", &name, row.waits_for).await?;
        }
        let said = self.ask(row, &name).await?;
        if row.before.is_empty() && !said.accepted() {
            let stored = self.lbs("team").get_opt(&name).await?;
            ensure!(stored.is_none(), "refused, and stored: {said:?}");
        }
        if admission {
            row.on.iter().try_for_each(|on| check(on, &said))?;
        } else {
            match row.off {
                Off::Accept => ensure!(said.accepted(), "refused: {said:?}"),
                Off::Schema(text) => {
                    ensure!(said.code == 422 && said.message().contains(text), "{said:?}");
                }
            }
            if !row.then.0.is_empty() {
                self.ends_as(&name, row.then).await?;
            }
        }
        self.end(&name).await
    }

    /// Waits until the operator alone has given the object this condition and this claim.
    async fn ends_as(&self, name: &str, (reason, pool): (&str, &str)) -> Result<()> {
        eventually(SOON, &format!("{reason} from {pool:?}"), async || {
            let lb = self.lbs("team").get(name).await.map_err(|e| e.to_string())?;
            let status = lb.status.clone().unwrap_or_default().allocated_address;
            let from = status.and_then(|a| a.ip_pool).unwrap_or_default();
            let is = ready(&lb);
            if is.1 == reason && from == pool { Ok(true) } else { Err(format!("{is:?} {from}")) }
        })
        .await
    }
}

fn check(on: &On<'_>, said: &Said) -> Result<()> {
    match on {
        On::Silent => said.silent()?,
        On::Warn(text) => said.warned(text)?,
        On::Refuse(field, text) => said.refused_by_webhook(field, text)?,
        On::Schema(text) => said.refused_by_schema(text)?,
        On::Has(path, value) => {
            let is = said.body.pointer(path).map(|is| match is {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            });
            ensure!(said.accepted() && is.as_deref() == Some(value), "{path} is {is:?}: {said:?}");
        }
        On::Lacks(path) => {
            let is = said.body.pointer(path);
            ensure!(said.accepted() && is.is_none(), "{path} is {is:?}: {said:?}");
        }
    }
    Ok(())
}

/// Completes a short object.
pub(super) fn whole(text: &str) -> Result<Value> {
    let short: Value = serde_saphyr::from_str(text)?;
    let name = short["name"].as_str().unwrap_or("lb");
    let mut object = json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": name, "namespace": "team"}, "spec": short["spec"],
    });
    for part in ["labels", "annotations"] {
        if !short[part].is_null() {
            object["metadata"][part] = short[part].clone();
        }
    }
    if !short["status"].is_null() {
        object["status"] = short["status"].clone();
    }
    Ok(object)
}

/// Removes the fields that a current Go client loses when it reads an object.
fn through_go(mut object: Value) -> Value {
    if let Some(status) = object["status"].as_object_mut() {
        let known = ["address", "allocatedAddress", "backendServers", "conditions"];
        status.retain(|field, _| known.contains(&field.as_str()));
        status.entry("allocatedAddress").or_insert_with(|| json!({}));
    }
    object
}

async fn play(admission: bool) -> Result<()> {
    let stage = Stage::set(admission).await?;
    let mut failures = Vec::new();
    for row in ROWS {
        if let Err(error) = stage.play(row, admission).await {
            failures.push(format!("{}: {error:#}", row.name));
            for name in ["lb", "1web", "a.b", "a".repeat(64).as_str()] {
                let _ = stage.end(name).await;
            }
        }
    }
    println!("{} of {} rows as expected", ROWS.len() - failures.len(), ROWS.len());
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    let victim = stage.lbs("theirs").get("victim").await?;
    ensure!(victim.resource_version().is_some());
    let squatter = stage.lbs("theirs").get("squatter").await?;
    ensure!(squatter.status.and_then(|s| s.address).as_deref() == Some("10.9.0.8"));
    stage.lbs("theirs").delete("squatter", &DeleteParams::default()).await?;
    stage.cluster.consistent().await
}

#[tokio::test(flavor = "multi_thread")]
async fn with_admission_each_request_gets_its_answer() -> Result<()> {
    play(true).await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_admission_the_schema_and_the_operator_say_what_they_can() -> Result<()> {
    play(false).await
}

/// Harvester's own CRD has none of the rules.
#[tokio::test(flavor = "multi_thread")]
async fn on_harvesters_form_admission_says_what_its_schema_does_not() -> Result<()> {
    let cluster = Cluster::start().await?;
    as_harvester_ships_it(&cluster).await?;
    // An object from before the rules.
    let team = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    cluster.bed.apply_yaml(&team.to_string()).await?;
    let old = whole("{name: old, spec: {listeners: [{name: a, port: 80}, {name: a, port: 81}]}}")?;
    let lbs: Api<LoadBalancer> = Api::namespaced(cluster.client.clone(), "team");
    lbs.create(&PostParams::default(), &serde_json::from_value(old)?).await?;
    let stage = Stage::set_on(cluster, true).await?;
    for (spec, field, text) in [
        (json!({"listeners": []}), "spec.listeners", "needs at least one"),
        (
            json!({"listeners": [{"name": "a", "port": 80}, {"name": "a", "port": 81}]}),
            "spec.listeners[1].name",
            "is the name of spec.listeners[0] as well",
        ),
        (
            json!({"listeners": [{"name": "a", "port": 80}, {"name": "b", "port": 80}]}),
            "spec.listeners[1].port",
            "TCP 80 is the port of spec.listeners[0] as well",
        ),
        (
            json!({"listeners": [{"name": "a", "port": 80, "protocol": "SCTP"}]}),
            "spec.listeners[0].protocol",
            "must be TCP or UDP",
        ),
        (json!({"listeners": [{"name": "A", "port": 80}]}), "spec.listeners[0].name", "lower-case"),
        (json!({"listeners": [{"name": "a", "port": 0}]}), "spec.listeners[0].port", "1 to 65535"),
        (
            json!({"listeners": [{"name": "a", "port": 80, "backendPort": 65536}]}),
            "spec.listeners[0].backendPort",
            "1 to 65535",
        ),
        (
            json!({"listeners": [{"name": "a", "port": 80}], "healthCheck": {"port": 81}}),
            "spec.healthCheck.port",
            "81 is no backend port of a TCP listener",
        ),
        (
            json!({"listeners": [{"name": "a", "port": 80}], "healthCheck": {"port": 80, "periodSeconds": -1}}),
            "spec.healthCheck.periodSeconds",
            "-1 is negative",
        ),
        (
            json!({"workloadType": "cluster", "ipam": "dhcp", "ipPool": "named"}),
            "spec.ipPool",
            "must be unset when spec.ipam is dhcp",
        ),
    ] {
        let mut object = whole("{spec: {}}")?;
        object["spec"] = spec;
        let said = ask(&stage.tenant, "POST", TEAM, &object).await?;
        check(&On::Refuse(field, text), &said).with_context(|| object["spec"].to_string())?;
    }
    let said = ask(&stage.tenant, "POST", TEAM, &whole("{spec: {workloadType: cluster}}")?).await?;
    check(&On::Silent, &said)?;
    let one = format!("{TEAM}/lb");
    for (field, value) in [("ipam", "dhcp"), ("workloadType", "vm")] {
        let patch = json!({"spec": {field: value, "listeners": [{"name": "a", "port": 80}]}});
        let said = ask(&stage.tenant, "PATCH", &one, &patch).await?;
        check(&On::Refuse(&format!("spec.{field}"), "is immutable"), &said)?;
    }
    // Old faults may stay, and are corrected one by one.
    let old = format!("{TEAM}/old");
    for patch in [
        json!({"metadata": {"labels": {"a": "b"}}}),
        json!({"spec": {"description": "x"}}),
        json!({"spec": {"listeners": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]}}),
    ] {
        check(&On::Silent, &ask(&stage.tenant, "PATCH", &old, &patch).await?)?;
    }
    let worse =
        json!({"spec": {"listeners": [{"name": "a", "port": 80}, {"name": "a", "port": 81}]}});
    let said = ask(&stage.tenant, "PATCH", &old, &worse).await?;
    check(&On::Refuse("spec.listeners[1].name", "as well"), &said)
}
