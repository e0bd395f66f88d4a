//! Addresses that the host leases, the controller's part: published, withdrawn and released.
//!
//! No DHCP here: the agents are played. A test holds an agent's Lease, and writes the records'
//! statuses that an agent would write after its requests to a DHCP server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub(crate) mod agents;
mod crash;
mod ipam;
mod life;
mod publishing;
mod record;
mod refused;
mod takeover;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use chrono::{TimeDelta, Utc};
use harvester_guest_operator::api::{ANNOTATION_DHCP, ANNOTATION_NETWORK, DHCPLease, LoadBalancer};
use harvester_guest_operator::domain::dhcp_lease::agent_name;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use testbed::kubevirt::{networks, vlan};
use testbed::{Call, Proxy, Start, Verdict, eventually};
use tokio::task::JoinHandle;

use crate::support::{Cluster, SOON, address, lb, ready};

pub(crate) const NETWORK: &str = "default/vlan7";
const FINALIZER: &str = "loadbalancer.harvesterhci.io/dhcp-release";

/// Holds an agent's Lease until it is dropped, so that the agent seems active. The Lease lasts so
/// long that no stall of the machine makes it expire.
pub(crate) struct Agent {
    client: Client,
    network: &'static str,
    renewing: JoinHandle<()>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

fn agents_lease(client: &Client) -> Api<Lease> {
    Api::namespaced(client.clone(), "harvester-system")
}

/// Declares that the host leases on a network, as an administrator does by the command of docs/dhcp.md.
/// Creates the network if it does not exist.
pub(crate) async fn declare(client: &Client, network: &str) -> Result<()> {
    let (namespace, name) = network.split_once('/').context("no namespace")?;
    let api = networks(client, namespace);
    if api.get_opt(name).await?.is_none() {
        let network = serde_json::from_value(vlan(namespace, name, 7))?;
        api.create(&PostParams::default(), &network).await?;
    }
    let declared = Patch::Merge(json!({"metadata": {"annotations": {ANNOTATION_DHCP: "host"}}}));
    api.patch(name, &PatchParams::default(), &declared).await?;
    Ok(())
}

impl Agent {
    pub(crate) async fn start(cluster: &Cluster, network: &'static str) -> Result<Self> {
        let client = cluster.client.clone();
        declare(&client, network).await?;
        hold(&client, network, "played").await?;
        let renewed = client.clone();
        let renewing = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(5)).await;
                let _ = hold(&renewed, network, "played").await;
            }
        });
        Ok(Self { client, network, renewing })
    }

    /// Ends the agent, which releases its Lease.
    pub(crate) async fn stop(self) -> Result<()> {
        self.renewing.abort();
        hold(&self.client, self.network, "").await
    }
}

async fn hold(client: &Client, network: &str, holder: &str) -> Result<()> {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": agent_name(network)},
        "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": 600,
            "renewTime": format!("{:.6}", Timestamp::now()),
        },
    });
    let params = PatchParams::apply("played-agent").force();
    agents_lease(client).patch(&agent_name(network), &params, &Patch::Apply(&lease)).await?;
    Ok(())
}

/// Writes of a played agent to records.
impl Cluster {
    pub(crate) fn records(&self) -> Api<DHCPLease> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Waits for the record with which an agent would begin.
    async fn record(&self, name: &str) -> Result<DHCPLease> {
        eventually(SOON, &format!("record of {name}"), async || self.records().get_opt(name).await)
            .await
    }

    /// Records a grant of the address for an hour.
    pub(crate) async fn grant(&self, name: &str, ip: &str) -> Result<DHCPLease> {
        self.grant_for(name, ip, TimeDelta::hours(1)).await
    }

    async fn grant_for(&self, name: &str, ip: &str, time: TimeDelta) -> Result<DHCPLease> {
        self.record(name).await?;
        let status = json!({
            "state": "Bound", "address": ip, "prefixLength": 24, "gateway": "10.7.0.1",
            "server": "10.7.0.2", "serverMAC": "02:00:00:00:00:02",
            "leaseSeconds": time.num_seconds().max(0), "expiresAt": (Utc::now() + time).to_rfc3339(),
            "agent": "played",
        });
        self.write_status(name, status).await
    }

    /// Makes the lease expire, without an agent to renew it.
    pub(crate) async fn over(&self, name: &str) -> Result<()> {
        let ended = (Utc::now() - TimeDelta::hours(1)).to_rfc3339();
        self.write_status(name, json!({"expiresAt": ended})).await.map(drop)
    }

    /// Records that the agent gave the address up: the record loses it first.
    async fn take_away(&self, name: &str, state: &str) -> Result<DHCPLease> {
        let nothing = json!({"state": state, "address": null, "expiresAt": null,
            "leaseSeconds": null});
        self.write_status(name, nothing).await
    }

    async fn write_status(&self, name: &str, status: Value) -> Result<DHCPLease> {
        let patch = Patch::Merge(json!({"status": status}));
        Ok(self.records().patch_status(name, &PatchParams::default(), &patch).await?)
    }

    /// Ends the record as an agent does that has released the address and removed its link.
    pub(crate) async fn let_go(&self, name: &str) -> Result<()> {
        eventually(SOON, &format!("deletion of the record {name}"), async || {
            let record = self.records().get(name).await?;
            anyhow::Ok(record.metadata.deletion_timestamp.is_some())
        })
        .await?;
        self.take_away(name, "Released").await?;
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        self.records().patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Creates a LoadBalancer of a guest cluster on the network, with further annotations.
    pub(crate) async fn dhcp_lb(
        &self,
        name: &str,
        annotations: &[(&str, &str)],
    ) -> Result<LoadBalancer> {
        self.dhcp_lb_with(name, annotations, json!({"workloadType": "cluster"})).await
    }

    async fn dhcp_lb_with(
        &self,
        name: &str,
        annotations: &[(&str, &str)],
        mut spec: Value,
    ) -> Result<LoadBalancer> {
        spec["ipam"] = json!("dhcp");
        let mut lb = lb(name, &spec)?;
        let all = [(ANNOTATION_NETWORK, NETWORK)].into_iter().chain(annotations.iter().copied());
        let all = all.map(|(key, value)| (key.to_owned(), value.to_owned()));
        lb.metadata.annotations = Some(all.collect());
        Ok(self.lbs().create(&PostParams::default(), &lb).await?)
    }

    /// Waits until the LoadBalancer publishes that address.
    pub(crate) async fn publishes(&self, name: &str, ip: &str) -> Result<LoadBalancer> {
        eventually(SOON, &format!("{ip} of {name}"), async || {
            let lb = self.lbs().get(name).await.map_err(|e| e.to_string())?;
            if address(&lb).as_deref() == Some(ip) {
                Ok(Some(lb))
            } else {
                Err(format!("{:?} {:?}", address(&lb), ready(&lb)))
            }
        })
        .await
    }

    /// Waits until the LoadBalancer publishes no address, for this reason.
    async fn withdrawn(&self, name: &str, reason: &str) -> Result<String> {
        let message = self.waits(name, reason).await?;
        let lb = self.lbs().get(name).await?;
        ensure!(address(&lb).is_none(), "{reason}, and still {:?}", address(&lb));
        Ok(message)
    }

    pub(crate) async fn record_gone(&self, name: &str) -> Result<()> {
        eventually(SOON, &format!("end of the record {name}"), async || {
            self.records().get_opt(name).await.map(|record| record.is_none())
        })
        .await
    }

    /// Waits until the record is marked for release, or is not.
    async fn is_left(&self, name: &str, left: bool) -> Result<DHCPLease> {
        eventually(SOON, &format!("record of {name}, left: {left}"), async || {
            let record = self.records().get(name).await?;
            anyhow::Ok(Some(record).filter(|r| r.spec.release_after.is_some() == left))
        })
        .await
    }

    async fn delete_record(&self, name: &str) -> Result<()> {
        self.records().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }
}

/// Hides all changes of a kind from the proxy's clients, until its rule is cleared.
async fn blind(proxy: &Proxy, resource: &'static str) -> Result<()> {
    let looks = move |call: &Call| call.resource() == Some(resource) && call.name().is_none();
    proxy.reset();
    proxy.set_rule(move |call| if looks(call) { Verdict::Hang } else { Verdict::Pass });
    proxy.cut_all();
    eventually(SOON, "view that is behind", async || {
        proxy.watches().iter().chain(&proxy.calls()).any(|record| looks(&record.call))
    })
    .await
}

/// Options of an operator that retains a leased address for so many seconds.
fn grace(seconds: u32) -> Start {
    let options = vec!["--dhcp-release-grace".to_owned(), seconds.to_string()];
    Start { options, ..Start::default() }
}

/// UID of an object that must stay the same.
fn uid(record: &DHCPLease) -> String {
    record.uid().unwrap_or_default()
}
