//! Harvester's Go controller and this operator at the same time. The holder of the Lease allocates
//! addresses, and the other's admission accepts that.
//!
//! The Go controller is played: it takes the Lease like client-go (`leaderelection.go`,
//! `tryAcquireOrRenew`; 45 s, tried each 2 s: wrangler, `pkg/leader/leader.go`), and writes claims
//! and statuses by plain updates of whole objects (`pkg/ipam/store/store.go`, `Reserve`;
//! `pkg/controller/loadbalancer/controller.go`, `updateStatus`), under the account and with the
//! rights of its chart (`rbac.yaml`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::{LB_FINALIZER, LoadBalancer};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use testbed::{Proxy, Stalls, Start, Verdict, client_from, eventually};

use crate::support::{Cluster, SOON, address, beside_bare_writes, ready, rest, shows};

/// Limit of the time to an address, whichever controller leads, if the API server answers at once.
const MOST: Duration = Duration::from_secs(15);
/// Lease duration for other replicas of the operator. Its holder trusts a renewal for less.
const LASTS: Duration = Duration::from_secs(3);
const LEASE: &str = "harvester-load-balancer";
const IP_POOLS: &str = "ippools.loadbalancer.harvesterhci.io";
const GO: &str = "harvester-load-balancer-7d9c5b6f4-x2x7k";
/// Annotation of a LoadBalancer whose removal the Go controller tries in vain, as where it could not
/// load the pool.
pub(crate) const REMOVAL_FAILS: &str = "testbed.local/removal-fails";

const ACCOUNT: &str = r#"
apiVersion: v1
kind: ServiceAccount
metadata: {name: harvester-load-balancer, namespace: harvester-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: harvester-load-balancer}
rules:
  - {apiGroups: [loadbalancer.harvesterhci.io], resources: [loadbalancers, ippools], verbs: [get, watch, list, update, create, delete]}
  - {apiGroups: [coordination.k8s.io], resources: [leases], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: harvester-load-balancer}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: harvester-load-balancer}
subjects: [{kind: ServiceAccount, name: harvester-load-balancer, namespace: harvester-system}]
"#;

/// The Go controller, reduced to addresses of guests.
#[derive(Clone)]
pub(crate) struct Go {
    client: Client,
    /// Whether it allocates addresses while it leads.
    works: Arc<AtomicBool>,
}

impl Go {
    pub(crate) async fn new(cluster: &Cluster) -> Result<Self> {
        cluster.bed.apply_yaml(ACCOUNT).await?;
        let account = ("harvester-system", "harvester-load-balancer");
        let file = cluster.bed.service_account_kubeconfig(account.0, account.1, None).await?;
        let client = client_from(&std::fs::read_to_string(file)?).await?;
        let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
        eventually(SOON, "rights of the Go controller", async || {
            leases.get_opt(LEASE).await.map(|_| true)
        })
        .await?;
        Ok(Self { client, works: Arc::new(AtomicBool::new(true)) })
    }

    /// The same where there may be no Lease yet.
    pub(crate) async fn acquire_or_create(&self) -> Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
        if leases.get_opt(LEASE).await?.is_none() {
            let lease = serde_json::from_value(json!({"metadata": {"name": LEASE}, "spec": {}}))?;
            drop(leases.create(&PostParams::default(), &lease).await);
        }
        self.acquire().await
    }

    /// The same, but it allocates nothing.
    pub(crate) fn idle(self) -> Self {
        self.works.store(false, Ordering::Relaxed);
        self
    }

    /// Whether it holds the Lease.
    pub(crate) async fn holds(&self) -> Result<bool> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
        let holder = leases.get_opt(LEASE).await?.and_then(|lease| lease.spec?.holder_identity);
        Ok(holder.as_deref() == Some(GO))
    }

    /// Competes for the Lease until it holds it: once it has not changed for its own duration.
    async fn acquire(&self) -> Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
        let mut seen: Option<(Lease, Instant)> = None;
        loop {
            let mut lease = leases.get(LEASE).await?;
            let spec = lease.spec.clone().unwrap_or_default();
            let since = match &seen {
                Some((old, since)) if old.spec == lease.spec => *since,
                _ => Instant::now(),
            };
            seen = Some((lease.clone(), since));
            let lasts = u64::try_from(spec.lease_duration_seconds.unwrap_or(0))?;
            let is_free = spec.holder_identity.as_deref().is_none_or(str::is_empty);
            if is_free || since.elapsed() >= Duration::from_secs(lasts) {
                lease.spec = serde_json::from_value(json!({
                    "holderIdentity": GO, "leaseDurationSeconds": 45,
                    "leaseTransitions": spec.lease_transitions.unwrap_or(0) + 1,
                }))?;
                if leases.replace(LEASE, &PostParams::default(), &lease).await.is_ok() {
                    return Ok(());
                }
            }
            // The Go controller's interval is 2 s. This test does not depend on it.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Renews the Lease and allocates addresses, until another holds the Lease or this is dropped. A
    /// call that fails is repeated: only a lost Lease ends the process.
    pub(crate) async fn lead(&self) -> Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
        loop {
            let began = Instant::now();
            if let Ok(mut lease) = leases.get(LEASE).await {
                let spec = lease.spec.as_mut().context("no spec")?;
                let is_ours = spec.holder_identity.as_deref() == Some(GO);
                ensure!(is_ours, "leaderelection lost: {spec:?}");
                spec.renew_time = Some(MicroTime(Timestamp::now()));
                drop(leases.replace(LEASE, &PostParams::default(), &lease).await);
            }
            if self.works.load(Ordering::Relaxed) {
                let lbs = self.lbs().list(&ListParams::default()).await;
                for lb in lbs.map(|list| list.items).unwrap_or_default() {
                    if lb.metadata.deletion_timestamp.is_some() {
                        drop(self.take_back(lb).await);
                    } else if address(&lb).is_none() {
                        drop(self.give(lb).await);
                    }
                }
            }
            // Its Lease lasts 45 s, far longer than the longest rest.
            rest(Duration::from_millis(300), began).await;
        }
    }

    /// Releases the Lease if it holds it, as at its end (`ReleaseOnCancel`). A renewal that was under
    /// way when `lead` was ended may come in between: the release is repeated.
    pub(crate) async fn release(&self) -> Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
        eventually(SOON, "release of the Go controller's Lease", async || {
            if self.holds().await? {
                let mut lease = leases.get(LEASE).await?;
                lease.spec = serde_json::from_value(json!({"leaseDurationSeconds": 1}))?;
                leases.replace(LEASE, &PostParams::default(), &lease).await?;
            }
            anyhow::Ok(true)
        })
        .await
    }

    fn lbs(&self) -> Api<LoadBalancer> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Claims an address in the pool, then writes the status.
    async fn give(&self, lb: LoadBalancer) -> Result<()> {
        let kind = kube::core::ApiResource::erase::<harvester_guest_operator::api::IPPool>(&());
        let pools = Api::<kube::core::DynamicObject>::all_with(self.client.clone(), &kind);
        let mut pool = pools.get("pool").await?;
        let used = pool.data["status"]["allocated"].as_object().cloned().unwrap_or_default();
        let free =
            (100..255).map(|last| format!("10.1.0.{last}")).find(|ip| !used.contains_key(ip));
        let ip = free.context("the pool is full")?;
        if !pool.data["status"].is_object() {
            pool.data["status"] = json!({"available": 200, "total": 253, "lastAllocated": ""});
        }
        pool.data["status"]["allocated"][&ip] = Value::from(format!("default/{}", lb.name_any()));
        pool.data["status"]["lastAllocated"] = Value::from(ip.clone());
        pools.replace("pool", &PostParams::default(), &pool).await?;
        let mut value = serde_json::to_value(&lb)?;
        value["status"] = json!({
            "address": ip,
            "allocatedAddress": {"ipPool": "pool", "ip": ip, "mask": "255.255.255.0", "gateway": "10.1.0.1"},
            "conditions": [{"type": "Ready", "status": "True", "message": ""}],
        });
        let lb = serde_json::from_value(value)?;
        self.lbs().replace(&LoadBalancer::name_any(&lb), &PostParams::default(), &lb).await?;
        Ok(())
    }

    /// Releases the address of a LoadBalancer that is being deleted, then lets it go
    /// (`pkg/controller/loadbalancer/controller.go`, `OnRemove`).
    async fn take_back(&self, mut lb: LoadBalancer) -> Result<()> {
        ensure!(!lb.annotations().contains_key(REMOVAL_FAILS), "its pool is not loaded");
        let kind = kube::core::ApiResource::erase::<harvester_guest_operator::api::IPPool>(&());
        let pools = Api::<kube::core::DynamicObject>::all_with(self.client.clone(), &kind);
        let mut pool = pools.get("pool").await?;
        let name = format!("default/{}", lb.name_any());
        if let Some(allocated) = pool.data["status"]["allocated"].as_object_mut() {
            allocated.retain(|_, owner| *owner != name.as_str());
        }
        pools.replace("pool", &PostParams::default(), &pool).await?;
        lb.finalizers_mut().retain(|finalizer| finalizer != LB_FINALIZER);
        self.lbs().replace(&lb.name_any(), &PostParams::default(), &lb).await?;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holder_of_the_lease_gives_addresses_and_is_named() -> Result<()> {
    let cluster = Cluster::start().await?;
    let options = vec!["--lease-duration".to_owned(), LASTS.as_secs().to_string()];
    let admission = Some("https://127.0.0.1:0".to_owned());
    let mut operator = cluster.standby(Start { admission, options, ..Start::default() }).await?;
    operator.leads().await?;
    cluster.registered().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24", "gateway": "10.1.0.1"})).await?;
    // With the operator's own form of the CRD, plain updates of a pool's status are dropped.
    crate::forms::serve_as_harvester_does(&cluster).await?;
    cluster.lb("ours").await?;
    assert_eq!(cluster.address("ours").await?, "10.1.0.2");
    let go = Go::new(&cluster).await?;
    let intruder = cluster.lbs().get("ours").await?;
    ensure!(go.give(intruder).await.is_err(), "a controller that does not lead wrote a status");

    // The process is stopped until it may not trust its last renewal any more, the Go controller gets
    // the Lease, and the process continues. The Lease is freed: for the Go controller it lasts 45 s.
    let stalls = Stalls::watch()?;
    operator.process.signal("STOP")?;
    tokio::time::sleep(LASTS).await;
    let freed = Patch::Merge(json!({"spec": {"holderIdentity": ""}}));
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), "kube-system");
    leases.patch(LEASE, &PatchParams::default(), &freed).await?;
    go.acquire().await?;
    operator.process.signal("CONT")?;
    let leading = tokio::spawn({
        let go = go.clone();
        async move { go.lead().await }
    });
    let since = Instant::now();
    let given = async {
        cluster.lb("theirs").await?;
        cluster.address("theirs").await
    };
    let (given, most) = beside_bare_writes(&cluster, &stalls, MOST, given).await?;
    let took = stalls.elapsed(since);
    println!("served by the Go controller after {took:?}, limit {most:?}");
    ensure!(took < most && given.starts_with("10.1.0.10"), "{given} after {took:?}");
    shows(&operator, "hgo_leader", &[], |leads| leads == 0.0).await?;

    // The holder is named: by metric, Event, and the condition of a LoadBalancer without an
    // address.
    shows(&operator, "hgo_other_controller_leads", &[GO], |leads| leads == 1.0).await?;
    let note = cluster.warned(LEASE, "OtherControllerLeads").await?;
    ensure!(note.contains(GO) && !note.contains("status subresource"), "{note}");
    go.works.store(false, Ordering::Relaxed);
    cluster.lb("unanswered").await?;
    let (status, _, message) = eventually(SOON, "condition", async || {
        let found = ready(&cluster.lbs().get("unanswered").await?);
        anyhow::Ok(Some(found).filter(|(_, reason, _)| reason == "OtherControllerLeads"))
    })
    .await?;
    ensure!(status == "False" && message.contains(GO), "{status}: {message}");
    go.works.store(true, Ordering::Relaxed);
    cluster.address("unanswered").await?;
    ensure!(!leading.is_finished(), "the Go controller ended");

    // It ends, and this operator leads again.
    leading.abort();
    drop(leading.await);
    go.release().await?;
    let since = Instant::now();
    let given = async {
        cluster.lb("again").await?;
        cluster.address("again").await
    };
    let (_, most) = beside_bare_writes(&cluster, &stalls, MOST, given).await?;
    let took = stalls.elapsed(since);
    println!("served by the operator after {took:?}, limit {most:?}");
    ensure!(took < most, "{took:?}, limit {most:?}");
    shows(&operator, "hgo_other_controller_leads", &[], |leads| leads == 0.0).await?;
    cluster.consistent().await
}

/// The operator's form of the CRD drops the Go controller's writes of a pool's status, so that it
/// would allocate one address twice. The Event that names the holder says so, and the form is changed,
/// also when it is put back.
#[tokio::test(flavor = "multi_thread")]
async fn a_form_of_the_crd_that_drops_its_records_is_said_and_changed() -> Result<()> {
    let cluster = Cluster::start().await?;
    let theirs: Lease = serde_json::from_value(json!({
        "metadata": {"name": LEASE},
        "spec": {"holderIdentity": GO, "leaseDurationSeconds": 45},
    }))?;
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), "kube-system");
    leases.create(&PostParams::default(), &theirs).await?;
    let operator = cluster.standby(Start::default()).await?;
    let note = cluster.warned(LEASE, "OtherControllerLeads").await?;
    ensure!(note.contains(GO) && note.contains("removed the subresource from the CRD"), "{note}");
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let is_safe = async || {
        let versions = crds.get(IP_POOLS).await?.spec.versions;
        let subresources = versions.into_iter().filter_map(|version| version.subresources);
        anyhow::Ok(subresources.into_iter().all(|all| all.status.is_none()))
    };
    ensure!(is_safe().await?, "said before it was changed");
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24", "gateway": "10.1.0.1"})).await?;
    eventually(SOON, "the changed form", async || match cluster.pools().get_status("pool").await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(true),
        found => found.map(|_| false),
    })
    .await?;
    let go = Go::new(&cluster).await?;
    let leading = tokio::spawn({
        let go = go.clone();
        async move { go.lead().await }
    });
    for name in ["a", "b", "c"] {
        cluster.lb(name).await?;
        cluster.address(name).await?;
    }
    let given = cluster.addresses().await?;
    let unique: std::collections::BTreeSet<&String> = given.values().collect();
    ensure!(unique.len() == 3, "an address is given twice: {given:?}");
    ensure!(cluster.allocated("pool").await?.len() == 3, "a record was dropped");
    leading.abort();

    let ours = harvester_guest_operator::api::crds().into_iter().find(|c| c.name_any() == IP_POOLS);
    let ours = Patch::Merge(json!({"spec": {"versions": ours.map(|crd| crd.spec.versions)}}));
    crds.patch(IP_POOLS, &PatchParams::default(), &ours).await?;
    eventually(SOON, "the end of the subresource that was put back", is_safe).await?;

    // The operator leads again: the subresource is back, and no claim is lost.
    go.release().await?;
    operator.leads().await?;
    shows(&operator, "hgo_crd_repairs_total", &[IP_POOLS], |repairs| repairs == 1.0).await?;
    ensure!(!is_safe().await?, "counted, and not written");
    cluster.lb("d").await?;
    cluster.address("d").await?;
    let now = cluster.addresses().await?;
    ensure!(given.iter().all(|(name, ip)| now.get(name) == Some(ip)), "{given:?}, then {now:?}");
    cluster.consistent().await
}

/// An API server, or a network, that fails for longer than the Lease lasts for other replicas, but not for
/// the Go controller, which competes all the time.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_of_some_seconds_does_not_hand_the_lease_to_the_go_controller() -> Result<()> {
    let cluster = Cluster::start().await?;
    let proxy = Proxy::start(&cluster.bed).await?;
    let via = Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    let options = ["--lease-duration", "3"].map(str::to_owned).to_vec();
    let operator = cluster.standby(Start { via, options, ..Start::default() }).await?;
    operator.leads().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24", "gateway": "10.1.0.1"})).await?;
    let go = Go::new(&cluster).await?;
    let competing = tokio::spawn({
        let go = go.clone();
        async move { go.acquire().await }
    });
    let failed = Instant::now();
    proxy.set_rule(|_| Verdict::Hang);
    shows(&operator, "hgo_leader", &[], |leads| leads == 0.0).await?;
    tokio::time::sleep(Duration::from_secs(10).saturating_sub(failed.elapsed())).await;
    ensure!(!go.holds().await?, "the Go controller leads after {:?}", failed.elapsed());
    proxy.clear_rule();
    shows(&operator, "hgo_leader", &[], |leads| leads == 1.0).await?;
    cluster.lb("after").await?;
    cluster.address("after").await?;
    ensure!(!competing.is_finished(), "the Go controller got the Lease");
    competing.abort();
    Ok(())
}
