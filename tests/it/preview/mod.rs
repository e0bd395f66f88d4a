//! The `preview` command beside a controller that runs: what it says is what the operator then does,
//! and the API server's audit log has no write of its.

mod rights;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::{Condition, IPPool, LoadBalancer};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DynamicObject, ListParams, ObjectList};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use testbed::{eventually, kubevirt};

use crate::command;
use crate::other_controller::Go;
use crate::support::{Cluster, LATER, SOON, address, ready, settled};

/// The account of config/preview, as an administrator applies it.
const RBAC: &str = include_str!("../../../config/preview/rbac.yaml");
const NAMESPACE: &str = "harvester-system";
const ACCOUNT: &str = "harvester-guest-operator-preview";
const USER: &str = "system:serviceaccount:harvester-system:harvester-guest-operator-preview";

/// Output of the command.
#[derive(Debug, Default)]
struct Printed {
    ok: bool,
    text: String,
}

/// A line of a table: the cells but for the name.
type Cells = Vec<String>;

impl Printed {
    /// Rows of the table whose head begins with this, by name. Columns are those of the head.
    fn table(&self, head: &str) -> BTreeMap<String, Cells> {
        let mut lines = self.text.lines().skip_while(|line| !line.trim_start().starts_with(head));
        let Some(head) = lines.next() else { return BTreeMap::new() };
        let mut starts: Vec<usize> = Vec::new();
        let mut gap = 2;
        for (at, c) in head.char_indices() {
            if c != ' ' && gap >= 2 {
                starts.push(at);
            }
            gap = if c == ' ' { gap + 1 } else { 0 };
        }
        let rows = lines.take_while(|line| line.starts_with("  "));
        rows.map(|line| {
            let chars: Vec<char> = line.chars().collect();
            let ends = starts.iter().skip(1).copied().chain([usize::MAX]);
            let cell = |(from, to): (&usize, usize)| {
                let cell = chars.get(*from..to.min(chars.len())).unwrap_or_default();
                cell.iter().collect::<String>().trim().to_owned()
            };
            let mut cells: Vec<String> = starts.iter().zip(ends).map(cell).collect();
            (cells.remove(0), cells)
        })
        .collect()
    }

    /// Lines of a section.
    fn section(&self, title: &str) -> Vec<&str> {
        let lines = self.text.lines().skip_while(|line| !line.starts_with(title));
        lines.skip(1).take_while(|line| line.starts_with("  ")).map(str::trim).collect()
    }

    /// Objects that would be written.
    fn written(&self) -> BTreeSet<String> {
        let lines = self.section("Would be written");
        lines.iter().filter_map(|line| Some(line.split_once(": ")?.0.to_owned())).collect()
    }
}

impl Cluster {
    /// Creates the account, and returns a kubeconfig with its token.
    async fn previewer(&self) -> Result<PathBuf> {
        self.bed.apply_yaml(RBAC).await?;
        self.bed.service_account_kubeconfig(NAMESPACE, ACCOUNT, None).await
    }
}

/// Runs the command.
async fn preview(kubeconfig: &Path, options: &[&str]) -> Result<Printed> {
    let output = command::run(kubeconfig, &[&["preview"], options].concat()).await?;
    let text = [output.stdout, output.stderr].concat();
    Ok(Printed { ok: output.status.success(), text: String::from_utf8(text)? })
}

/// Runs it once the roles that were applied a moment ago are known to the API server.
async fn granted(kubeconfig: &Path, options: &[&str]) -> Result<Printed> {
    eventually(SOON, "a plan with all rights", async || {
        let printed = preview(kubeconfig, options).await.map_err(|error| format!("{error:#}"))?;
        let complete = printed.ok && !printed.text.contains("the right to");
        if complete { Ok(Some(printed)) } else { Err(printed.text) }
    })
    .await
}

/// Versions of the objects that the plan is about, by kind and name.
async fn versions(cluster: &Cluster) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    note::<LoadBalancer>(cluster, &mut all).await?;
    note::<IPPool>(cluster, &mut all).await?;
    note::<Service>(cluster, &mut all).await?;
    note::<EndpointSlice>(cluster, &mut all).await?;
    let instances = kubevirt::instances(&cluster.client, "default");
    let list: ObjectList<DynamicObject> = instances.list(&ListParams::default()).await?;
    for vm in list {
        let name = format!("VirtualMachineInstance default/{}", vm.name_any());
        all.insert(name, vm.resource_version().unwrap_or_default());
    }
    // Kubernetes' own.
    all.retain(|name, _| !name.ends_with(" default/kubernetes"));
    Ok(all)
}

async fn note<K>(cluster: &Cluster, all: &mut BTreeMap<String, String>) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    for object in Api::<K>::all(cluster.client.clone()).list(&ListParams::default()).await? {
        let namespace = object.namespace().map(|name| format!("{name}/")).unwrap_or_default();
        let name = format!("{} {namespace}{}", K::kind(&()), object.name_any());
        all.insert(name, object.resource_version().unwrap_or_default());
    }
    Ok(())
}

/// The condition as a line of the plan says it.
fn said(ready: (String, String, String)) -> [String; 3] {
    let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    // A message with a line break or a run of blanks would not fit into a table.
    [or_dash(ready.0), or_dash(ready.1), ready.2]
}

fn pool_ready(pool: &IPPool) -> (String, String, String) {
    let conditions = pool.status.clone().unwrap_or_default().conditions;
    let ready: Option<Condition> = conditions.into_iter().find(|c| c.type_ == "Ready");
    ready.map_or_else(Default::default, |c| {
        (format!("{:?}", c.status), c.reason.unwrap_or_default(), c.message.unwrap_or_default())
    })
}

/// World on Harvester's own CRDs, while another controller leads.
#[tokio::test(flavor = "multi_thread")]
async fn what_it_says_is_what_the_operator_then_does() -> Result<()> {
    let cluster = Cluster::start().await?;
    crate::forms::serve_as_harvester_does(&cluster).await?;
    let _guests = world::store(&cluster).await?;
    let go = Go::new(&cluster).await?.idle();
    go.acquire_or_create().await?;
    let leading = tokio::spawn({
        let go = go.clone();
        async move { go.lead().await }
    });
    let kubeconfig = cluster.previewer().await?;
    cluster.bed.apply_yaml(world::SECRETS).await?;

    let before = versions(&cluster).await?;
    let printed = granted(&kubeconfig, &["--credential-namespaces", "guests"]).await?;
    println!("{}", printed.text);
    ensure!(printed.text.contains("another controller ("), "{}", printed.text);
    ensure!(versions(&cluster).await? == before, "an object was written");

    // The audit log: every request of this user, and no verb but these two.
    let asked = cluster.bed.asked()?;
    let of_it = asked.by_user.get(USER).context("the audit log does not have the user")?;
    let is_read = |right: &&String| right.ends_with(" get") || right.ends_with(" list");
    let writes: Vec<&String> = of_it.iter().filter(|right| !is_read(right)).collect();
    ensure!(of_it.len() > 15 && writes.is_empty(), "{writes:?} of {of_it:?}");

    let lbs = printed.table("LOADBALANCER");
    ensure!(lbs.len() == world::LBS, "{lbs:#?}");
    world::is_printed(&printed, &lbs)?;

    // Now the operator leads.
    leading.abort();
    drop(leading.await);
    go.release().await?;
    let _operator = cluster.operator().await?;
    for (name, cells) in &lbs {
        let [_, gets, ready_cell, reason, message] = cells.as_slice() else {
            anyhow::bail!("{cells:?}")
        };
        let short = name.strip_prefix("default/").context("another namespace")?;
        eventually(LATER, &format!("{name} as foreseen: {cells:?}"), async || {
            let lb = cluster.lbs().get_opt(short).await.map_err(|error| error.to_string())?;
            let Some(lb) = lb else {
                return if gets == "-" { Ok(true) } else { Err("it is gone".to_owned()) };
            };
            let has = address(&lb).unwrap_or_else(|| "-".to_owned());
            let now = said(ready(&lb));
            let is = has == *gets && now == [ready_cell, reason, message].map(Clone::clone);
            if is { Ok(true) } else { Err(format!("{has} {now:?}")) }
        })
        .await?;
    }
    for (name, cells) in printed.table("IPPOOL") {
        eventually(SOON, &format!("pool {name} as foreseen: {cells:?}"), async || {
            let pool = cluster.pools().get(&name).await.map_err(|error| error.to_string())?;
            let now = said(pool_ready(&pool));
            if now[..] == cells[1..] { Ok(true) } else { Err(format!("{now:?}")) }
        })
        .await?;
    }
    // Nothing else was written, and nothing less.
    let after = settled("all objects", async || versions(&cluster).await).await?;
    let changed: BTreeSet<String> = before
        .keys()
        .chain(after.keys())
        .filter(|name| before.get(*name) != after.get(*name))
        .cloned()
        .collect();
    let kinds = ["LoadBalancer", "IPPool", "Service", "EndpointSlice", "VirtualMachineInstance"];
    let foreseen: BTreeSet<String> = printed
        .written()
        .into_iter()
        .filter(|object| kinds.iter().any(|kind| object.starts_with(&format!("{kind} "))))
        .collect();
    assert_eq!(foreseen, changed, "foreseen (left) and changed");
    Ok(())
}

/// A cluster that has nothing of the operator: its CRDs, KubeVirt and Multus are missing too.
#[tokio::test(flavor = "multi_thread")]
async fn it_goes_on_where_kinds_are_not_served() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", serde_json::json!({"subnet": "10.1.0.0/24"})).await?;
    cluster.lb("lb").await?;
    for crd in [
        "tokenrotations.credentials.harvesterhci.io",
        "dhcpleases.loadbalancer.harvesterhci.io",
        "virtualmachineinstances.kubevirt.io",
        "virtualmachines.kubevirt.io",
        "network-attachment-definitions.k8s.cni.cncf.io",
    ] {
        cluster.bed.kubectl(&["delete", "crd", crd]).await?;
    }
    let kubeconfig = cluster.previewer().await?;
    let printed = eventually(SOON, "a plan without these kinds", async || {
        let printed = preview(&kubeconfig, &[]).await.map_err(|error| format!("{error:#}"))?;
        let is = printed.ok && printed.text.contains("this cluster does not serve virtualmachines");
        if is && !printed.text.contains("the right to") {
            Ok(Some(printed))
        } else {
            Err(printed.text)
        }
    })
    .await?;
    let lbs = printed.table("LOADBALANCER");
    assert_eq!(lbs["default/lb"][..4], ["-", "10.1.0.2", "True", "Allocated"]);
    let unknown = printed.section("Not known");
    assert_eq!(unknown.len(), 2, "{unknown:?}");
    ensure!(printed.text.contains("leader:     none"), "{}", printed.text);

    // Without the kinds that it is about, it says so.
    cluster.bed.kubectl(&["delete", "crd", "ippools.loadbalancer.harvesterhci.io"]).await?;
    eventually(SOON, "an error", async || {
        let printed = preview(&kubeconfig, &[]).await.map_err(|error| format!("{error:#}"))?;
        let is =
            !printed.ok && printed.text.contains("list ippools: the cluster does not serve them");
        if is { Ok(true) } else { Err(printed.text) }
    })
    .await
}
