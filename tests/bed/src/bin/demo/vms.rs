//! VMs behind an address: they run, pause and stop, with objects as KubeVirt writes them, and an
//! announcer with kube-vip's rules publishes the address.

use std::time::Instant;

use anyhow::{Context as _, Result};
use kube::Client;
use kube::api::PostParams;
use testbed::kubevirt::{Guest, Nic, Vm, networks, vlan};
use testbed::{Announcer, Announcing, Bed, eventually};

use crate::PATIENCE;
use crate::objects::balancers;

const NAME: &str = "vm-web";

/// Runs the step and returns the announcer, which ends when it is dropped.
pub(crate) async fn run(bed: &Bed) -> Result<(Announcer, String)> {
    let client = bed.admin();
    let network = serde_json::from_value(vlan("demo", "vlan100", 100))?;
    networks(&client, "demo").create(&PostParams::default(), &network).await?;
    let announcer = Announcer::start(client.clone(), Announcing::default());
    let vm = |name: &str, address: &str| {
        Vm::new("demo", name).label("app", "web").nic(Nic::attached("eth0", "vlan100", &[address]))
    };

    let start = Instant::now();
    let mut first = Guest::run(&client, vm("web-1", "10.100.0.101"), "node-1").await?;
    let mut second = Guest::run(&client, vm("web-2", "10.100.0.102"), "node-2").await?;
    let mut longest = shows(&client, start, "web-1 and web-2 run", (2, 2), "Announced").await?;

    let start = Instant::now();
    first.pause(true).await?;
    longest = longest.max(shows(&client, start, "web-1 is paused", (2, 1), "Announced").await?);

    let start = Instant::now();
    second.stop().await?;
    longest = longest.max(shows(&client, start, "web-2 stops", (1, 0), "BackendsNotReady").await?);

    let start = Instant::now();
    first.pause(false).await?;
    longest = longest.max(shows(&client, start, "web-1 goes on", (1, 1), "Announced").await?);
    let seen = format!("an address leads to 2, 1, 0, 1 ready VMs, within {longest} ms of a change");
    Ok((announcer, seen))
}

/// Waits until the LoadBalancer reports these counts of VMs and of ready VMs, with this reason.
/// Returns the time since the start in milliseconds.
async fn shows(
    client: &Client,
    start: Instant,
    what: &str,
    counts: (i64, i64),
    reason: &str,
) -> Result<u128> {
    let api = balancers(client, "demo");
    let address = eventually(PATIENCE, what, async || {
        let lb = api.get(NAME).await.map_err(|e| e.to_string())?;
        let status = &lb.data["status"];
        let count = |field: &str| status["endpoints"][field].as_i64().unwrap_or(-1);
        let is = status["conditions"][0]["reason"].as_str().unwrap_or_default();
        let address = status["address"].as_str().unwrap_or_default();
        if (count("total"), count("ready")) == counts && is == reason && !address.is_empty() {
            Ok(Some(address.to_owned()))
        } else {
            Err(status.to_string())
        }
    })
    .await
    .with_context(|| format!("demo/{NAME} when {what}"))?;
    let ((total, ready), took) = (counts, start.elapsed().as_millis());
    println!("      {what}: {address} leads to {ready} of {total}, {reason}, after {took} ms");
    Ok(took)
}
