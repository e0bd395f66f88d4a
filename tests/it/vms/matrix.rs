//! Phase, Ready condition, pods and migration of a VM, all combined, and the resulting endpoint.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::json;
use testbed::eventually;
use testbed::kubevirt::{Launcher, Nic, Phase, Ready, Vm};

use super::raw;
use crate::support::{Cluster, LATER};

/// Columns: phase and Ready of the VMI, and a further fact of it or `-`; pod on the VMI's node, and
/// on another, or `-`; endpoint. Written by hand.
const TABLE: &str = "
    Pending        no-pod       -         -         -         out
    Scheduling     no           -         unready   -         out
    Scheduled      no           -         ready     -         out
    Scheduled      yes          -         ready     -         out
    WaitingForSync yes          -         ready     -         out
    Succeeded      yes          -         ready     -         out
    Succeeded      no           -         ended     -         out
    Failed         yes          -         ready     -         out
    Failed         no           deleted   -         -         out
    Running        yes          -         ready     -         ready
    Running        yes          -         unready   -         not ready
    Running        yes          -         deleted   -         serving, terminating
    Running        yes          -         leaving   -         terminating
    Running        yes          -         ended     -         not ready
    Running        yes          -         -         -         not ready
    Running        no           -         ready     -         not ready
    Running        no           -         unready   -         not ready
    Running        no           -         deleted   -         terminating
    Running        no           -         ended     -         not ready
    Running        no           -         -         -         not ready
    Running        terminating  -         ready     -         not ready
    Running        terminating  -         unready   -         not ready
    Running        terminating  -         deleted   -         serving, terminating
    Running        terminating  -         leaving   -         terminating
    Running        none         -         ready     -         not ready
    Running        none         -         deleted   -         terminating
    Running        yes          paused    ready     -         not ready
    Running        no           paused    unready   -         not ready
    Running        yes          deleted   ready     -         serving, terminating
    Running        yes          deleted   deleted   -         serving, terminating
    Running        terminating  deleted   deleted   -         serving, terminating
    Running        terminating  deleted   ready     -         serving, terminating
    Running        terminating  deleted   leaving   -         terminating
    Running        terminating  deleted   -         -         terminating
    Running        no           deleted   deleted   -         terminating
    Running        yes          migrating ready     ready     ready
    Running        yes          migrating ready     unready   ready
    Running        yes          migrating unready   ready     not ready
    Running        yes          migrating deleted   ready     serving, terminating
    Running        yes          migrating -         ready     not ready
    Running        no           migrating ready     ready     not ready
    Running        yes          migrated  ready     ended     ready
    Running        yes          migrated  ready     deleted   ready
    Running        yes          migrated  ready     ready     ready
    Running        yes          migrated  unready   ready     not ready
    Running        no           migrated  ready     ended     not ready
    Running        yes          failed    ready     ended     ready
    Running        yes          failed    ready     deleted   ready
    Running        yes          failed    unready   ended     not ready
    Running        yes          aborted   ready     ended     ready
    Running        no           aborted   unready   ended     not ready
    Unknown        yes          -         ready     -         not ready
    Unknown        no           -         ready     -         not ready
    Unknown        yes          -         unready   -         not ready
    Unknown        yes          -         deleted   -         terminating
    Unknown        yes          deleted   ready     -         terminating
    Unknown        yes          -         -         -         not ready
    Unknown        yes          migrating ready     ready     not ready
";

#[tokio::test(flavor = "multi_thread")]
async fn every_state_of_a_vm_gives_the_endpoint_of_the_table() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let _operator = cluster.operator().await?;
    cluster.vm_lb("web").await?;
    let rows: Vec<Vec<&str>> = TABLE
        .lines()
        .map(|line| line.split_whitespace().collect())
        .filter(|row: &Vec<&str>| !row.is_empty())
        .collect();
    let made = futures::stream::iter(rows.iter().enumerate())
        .map(anyhow::Ok)
        .try_for_each_concurrent(16, async |(number, row)| {
            write(&cluster, number, row).await.with_context(|| format!("{row:?}"))
        });
    made.await?;
    let expected: BTreeMap<String, String> = rows
        .iter()
        .enumerate()
        .map(|(number, row)| (name(number, row), row[5..].join(" ")))
        .filter(|(_, state)| state != "out")
        .collect();
    eventually(LATER, "endpoints of the table", async || {
        let found = cluster.endpoints("web").await.map_err(|e| format!("{e:#}"))?;
        let found: BTreeMap<String, String> =
            found.into_iter().map(|(name, e)| (name, e.state)).collect();
        let wrong: Vec<_> = expected
            .keys()
            .chain(found.keys())
            .filter(|name| expected.get(*name) != found.get(*name))
            .map(|name| (name, expected.get(name), found.get(name)))
            .collect();
        if wrong.is_empty() { Ok(true) } else { Err(format!("expected and found: {wrong:#?}")) }
    })
    .await?;
    println!("{} states, {} endpoints", rows.len(), expected.len());
    Ok(())
}

/// Name of a row's VM, with the row's number.
fn name(number: usize, row: &[&str]) -> String {
    let words = row[..5].iter().filter(|word| **word != "-").copied().collect::<Vec<_>>();
    format!("row-{number:02}-{}", words.join("-").to_lowercase())
}

async fn write(cluster: &Cluster, number: usize, row: &[&str]) -> Result<()> {
    let client = &cluster.client;
    let [phase, ready, what, here, elsewhere] = row[..5] else { bail!("not a row") };
    let mut vm = Vm::new("default", &name(number, row)).label("app", "web");
    // Not on the pod network: there a VM without a pod has no address.
    let address = format!("192.168.1.{}", number + 1);
    vm = vm.nic(Nic::attached("eth0", "default/vlan1", &[&address]));
    vm.phase = match phase {
        "Pending" => Phase::Pending,
        "Scheduling" => Phase::Scheduling,
        "Scheduled" => Phase::Scheduled,
        "WaitingForSync" => Phase::WaitingForSync,
        "Succeeded" => Phase::Succeeded,
        "Failed" => Phase::Failed,
        "Running" => Phase::Running,
        "Unknown" => Phase::Unknown,
        other => bail!("no phase {other}"),
    };
    vm.ready = match ready {
        "yes" => Some(Ready::yes()),
        "no" => Some(Ready::no("ContainersNotReady")),
        "no-pod" => Some(Ready::no("PodNotExists")),
        "terminating" => Some(Ready::no("PodTerminating")),
        "none" => None,
        other => bail!("no Ready {other}"),
    };
    vm.agent = true;
    vm.paused = what == "paused";
    vm.node = Some("node-1".to_owned());
    vm.migration = match what {
        "migrating" => Some(json!({"sourceNode": "node-1", "targetNode": "node-2"})),
        "migrated" => {
            Some(json!({"sourceNode": "node-2", "targetNode": "node-1", "completed": true}))
        }
        "failed" => Some(json!({"completed": true, "failed": true})),
        "aborted" => Some(json!({"completed": true, "failed": true, "abortStatus": "Succeeded"})),
        _ => None,
    };
    let uid = raw::create(client, &vm).await?;
    for (number, (node, state)) in [("node-2", elsewhere), ("node-1", here)].into_iter().enumerate()
    {
        let ready = matches!(state, "ready" | "deleted");
        let mut pod = raw::launcher(&vm, number, node, ready);
        match state {
            "-" => continue,
            "ended" => {
                pod = Launcher { phase: "Succeeded", ready: Ready::no("PodCompleted"), ..pod };
            }
            "ready" | "unready" | "deleted" | "leaving" => {}
            other => bail!("no pod {other}"),
        }
        raw::create_pod(client, &vm, &uid, &pod).await?;
        raw::write_pod(client, &vm, &pod).await?;
        if matches!(state, "deleted" | "leaving") {
            raw::delete_pod(client, &vm, &pod, false).await?;
        }
    }
    if what == "deleted" {
        raw::delete(client, &vm).await?;
    }
    Ok(())
}
