//! Shared by the scenarios: a cluster with the operator's CRDs and rights, and the steps of guests.
//! The steps of administrators are in [`pools`], and the metrics of an operator in [`operators`].

mod floor;
mod operators;
mod pools;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _};
use harvester_guest_operator::api::{IPPool, LoadBalancer};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use testbed::{Operator, Shared, Start, eventually};

pub(crate) use self::floor::{BareWrites, SERVED_AGAIN, beside_bare_writes};
pub(crate) use self::operators::{nothing_failed, shows, unanswered, writes};
pub(crate) use self::pools::pool;

/// Deadline for conditions that take milliseconds, on a machine that may be busy.
pub(crate) const SOON: Duration = Duration::from_mins(2);
/// Deadline for bursts.
pub(crate) const LATER: Duration = Duration::from_mins(5);
/// Longest pause of a stand-in after a long round.
const LONGEST_REST: Duration = Duration::from_secs(2);
/// Number of equal reads, and their interval, after which no change is under way.
const QUIET: (u32, Duration) = (15, Duration::from_millis(200));
/// Terms of leadership that outlive a stall of the machine of some seconds. Tests of the end of a
/// term set shorter ones.
const LEASE: [&str; 2] = ["--lease-duration", "10"];

/// The right to lead by a Lease of another name, which no installation has.
const OTHER_LEASE: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: another-lease, namespace: kube-system}
rules:
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    resourceNames: [another]
    verbs: [get, update]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: another-lease, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: another-lease}
subjects:
  - {kind: ServiceAccount, name: harvester-guest-operator, namespace: harvester-system}
";

/// A control plane with the operator installed, not yet running. The chart's objects are installed,
/// so the operator has the chart's rights, and at the end the test checks that no request was
/// forbidden.
pub(crate) struct Cluster {
    pub(crate) bed: Shared,
    pub(crate) client: Client,
    /// Whether the test has removed rights.
    robbed: AtomicBool,
}

impl Cluster {
    pub(crate) async fn start() -> Result<Self> {
        let bed = Shared::take().await?;
        Ok(Self { client: bed.admin(), bed, robbed: AtomicBool::new(false) })
    }

    /// Starts a control plane that can call webhooks in the network of the test, for this test
    /// alone.
    pub(crate) async fn start_here() -> Result<Self> {
        let bed = Shared::start_here().await?;
        Ok(Self { client: bed.admin(), bed, robbed: AtomicBool::new(false) })
    }

    /// Notes that the test removes rights, so that refusals are no fault.
    pub(crate) fn robbed(&self) {
        self.robbed.store(true, Ordering::Relaxed);
    }

    /// Starts an operator and waits until it leads.
    pub(crate) async fn operator(&self) -> Result<Operator> {
        let operator = self.standby(Start::default()).await?;
        operator.leads().await?;
        Ok(operator)
    }

    /// Starts an operator, whether it leads or not.
    pub(crate) async fn standby(&self, mut start: Start) -> Result<Operator> {
        if !start.options.iter().any(|option| option == LEASE[0]) {
            start.options.extend(LEASE.map(str::to_owned));
        }
        let binary = Path::new(env!("CARGO_BIN_EXE_harvester-guest-operator"));
        Operator::start(&self.bed, binary, start).await
    }

    /// Starts an operator that leads at the same time as another one, by a Lease of another name.
    pub(crate) async fn second_leader(&self, start: Start) -> Result<Operator> {
        self.bed.apply_yaml(OTHER_LEASE).await?;
        let lease = Some("kube-system/another".to_owned());
        let operator = self.standby(Start { lease, ..start }).await?;
        operator.leads().await?;
        Ok(operator)
    }

    /// Deletes the Lease of a killed operator, instead of waiting for its expiry.
    pub(crate) async fn free_lease(&self) -> Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
        leases.delete("harvester-load-balancer", &DeleteParams::default()).await?;
        Ok(())
    }

    pub(crate) fn lbs(&self) -> Api<LoadBalancer> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub(crate) fn pools(&self) -> Api<IPPool> {
        Api::all(self.client.clone())
    }

    /// Creates a LoadBalancer of a guest cluster.
    pub(crate) async fn lb(&self, name: &str) -> Result<LoadBalancer> {
        self.lb_with(name, json!({"workloadType": "cluster", "ipam": "pool"})).await
    }

    pub(crate) async fn lb_with(&self, name: &str, spec: Value) -> Result<LoadBalancer> {
        Ok(self.lbs().create(&PostParams::default(), &lb(name, &spec)?).await?)
    }

    /// Creates many LoadBalancers at the same time.
    pub(crate) async fn lbs_at_once(&self, names: impl IntoIterator<Item = String>) -> Result<()> {
        futures::stream::iter(names)
            .map(Ok)
            .try_for_each_concurrent(16, async |name: String| self.lb(&name).await.map(drop))
            .await
    }

    pub(crate) async fn delete(&self, name: &str) -> Result<()> {
        self.lbs().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    pub(crate) async fn deleted(&self, name: &str) -> Result<()> {
        self.delete(name).await?;
        eventually(SOON, &format!("end of {name}"), async || {
            self.lbs().get_opt(name).await.map(|lb| lb.is_none())
        })
        .await
    }

    /// Waits for the LoadBalancer's address.
    pub(crate) async fn address(&self, name: &str) -> Result<String> {
        let what = format!("address of {name}");
        eventually(SOON, &what, async || self.lbs().get(name).await.map(|lb| address(&lb))).await
    }

    /// Waits until the LoadBalancer is not ready for this reason, and returns the message.
    pub(crate) async fn waits(&self, name: &str, reason: &str) -> Result<String> {
        eventually(SOON, &format!("{reason} of {name}"), async || {
            let lb = self.lbs().get(name).await.map_err(|e| e.to_string())?;
            let ready = ready(&lb);
            if ready.0 == "False" && ready.1 == reason {
                Ok(Some(ready.2))
            } else {
                Err(format!("{ready:?}"))
            }
        })
        .await
    }

    /// Waits until so many LoadBalancers have an address.
    pub(crate) async fn addressed(&self, count: usize) -> Result<()> {
        eventually(LATER, &format!("{count} addresses"), async || {
            let list = self.lbs().list(&ListParams::default()).await.map_err(|e| e.to_string())?;
            let have = list.items.iter().filter(|lb| address(lb).is_some()).count();
            if have == count { Ok(true) } else { Err(format!("{have}")) }
        })
        .await
    }

    /// Published claims, by LoadBalancer.
    pub(crate) async fn addresses(&self) -> Result<BTreeMap<String, String>> {
        let list = self.lbs().list(&ListParams::default()).await?;
        Ok(list.iter().filter_map(|lb| Some((lb.name_any(), address(lb)?))).collect())
    }

    /// Deletes all LoadBalancers, 16 at once, and waits until none is left. One call for the whole
    /// collection deletes one after the other, and takes longer than a client waits when the
    /// machine is busy.
    pub(crate) async fn delete_all(&self) -> Result<()> {
        let list = self.lbs().list_metadata(&ListParams::default()).await?;
        futures::stream::iter(list)
            .map(Ok)
            .try_for_each_concurrent(16, async |lb| self.delete(&lb.name_any()).await)
            .await?;
        self.all_gone().await
    }

    /// Waits until no LoadBalancer is left.
    pub(crate) async fn all_gone(&self) -> Result<()> {
        let first = ListParams::default().limit(1);
        eventually(LATER, "end of all LoadBalancers", async || {
            self.lbs().list_metadata(&first).await.map(|list| list.items.is_empty())
        })
        .await
    }

    /// Waits for a Warning about an object, and returns its note.
    pub(crate) async fn warned(&self, name: &str, reason: &str) -> Result<String> {
        let events: Api<Event> = Api::all(self.client.clone());
        eventually(SOON, &format!("Event {reason} about {name}"), async || {
            let list = events.list(&ListParams::default()).await?;
            let is = |e: &Event| {
                let about = e.regarding.as_ref().and_then(|r| r.name.as_deref());
                about == Some(name) && e.reason.as_deref() == Some(reason)
            };
            let found = list.items.into_iter().find(is);
            let warning = found.filter(|e| e.type_.as_deref() == Some("Warning"));
            anyhow::Ok(warning.map(|e| e.note.unwrap_or_default()))
        })
        .await
    }

    pub(crate) async fn patch_lb(&self, name: &str, patch: Value) -> Result<LoadBalancer> {
        Ok(self.lbs().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !std::thread::panicking() && !self.robbed.load(Ordering::Relaxed) {
            let asked = self.bed.asked().map(|asked| asked.forbidden);
            assert!(
                asked.as_ref().is_ok_and(BTreeMap::is_empty),
                "the operator may not: {asked:#?}"
            );
        }
    }
}

/// A LoadBalancer; with type vm and without listeners it listens on port 80.
pub(crate) fn lb(name: &str, spec: &Value) -> Result<LoadBalancer> {
    let mut spec = spec.clone();
    if spec["workloadType"] != "cluster" && spec.get("listeners").is_none() {
        spec["listeners"] = listeners();
    }
    Ok(serde_json::from_value(json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
        "kind": "LoadBalancer",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }))?)
}

/// A single listener.
pub(crate) fn listeners() -> Value {
    json!([{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 8080}])
}

/// Claim that a LoadBalancer publishes.
pub(crate) fn address(lb: &LoadBalancer) -> Option<String> {
    lb.status.as_ref()?.allocated_address.as_ref()?.ip.clone()
}

/// Status, reason and message of the `Ready` condition.
pub(crate) fn ready(lb: &LoadBalancer) -> (String, String, String) {
    let status = lb.status.clone().unwrap_or_default();
    status.conditions.into_iter().find(|c| c.type_ == "Ready").map_or_else(Default::default, |c| {
        (format!("{:?}", c.status), c.reason.unwrap_or_default(), c.message.unwrap_or_default())
    })
}

/// Pauses a stand-in that polls: for a tick, or for as long as its last round took, so that it leaves a
/// slow machine time for others.
pub(crate) async fn rest(tick: Duration, began: Instant) {
    tokio::time::sleep(tick.max(began.elapsed().min(LONGEST_REST))).await;
}

/// Waits until a value is the same for some reads: no change is under way then.
pub(crate) async fn settled<T: PartialEq>(
    what: &str,
    mut read: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let (mut last, mut same) = (read().await?, 0);
    eventually(LATER, &format!("end of changes of {what}"), async || {
        tokio::time::sleep(QUIET.1).await;
        let now = read().await?;
        same = if now == last { same + 1 } else { 0 };
        last = now;
        anyhow::Ok(same >= QUIET.0)
    })
    .await?;
    Ok(last)
}
