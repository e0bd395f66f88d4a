//! Owns the site of an agent: a segment with a DHCP server, and a control plane.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::{
    ANNOTATION_NETWORK, DHCP_FINALIZER, DHCPLease, DHCPLeaseStatus,
};
use harvester_guest_operator::domain::dhcp::ClientIdentity;
use harvester_guest_operator::domain::dhcp_lease::agent_name;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use testbed::net::dhcp::{DhcpServer, Kind, Scope};
use testbed::net::{Netns, Segment, isolated};
use testbed::{LeaseAgent, Operator, Start, eventually};

use crate::support::{Cluster, LATER, SOON, address, lb, ready};

/// Network that agents here lease on.
pub(crate) const NETWORK: &str = "default/lan";
/// The agent's interface.
pub(crate) const INTERFACE: &str = "net1";
/// Manifests of the agent's rights, as the chart renders them.
pub(crate) const RIGHTS: &str = include_str!("rights.yaml");
/// The agent's ServiceAccount: namespace and name.
pub(crate) const ACCOUNT: (&str, &str) =
    ("harvester-system", "harvester-guest-operator-lease-agent");

/// A control plane, a segment, and a DHCP server on it.
pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    pub(crate) host: Netns,
    pub(crate) segment: Segment,
    /// The switch's port of the agent's interface.
    pub(crate) port: String,
    /// The server's machine.
    pub(crate) router: Netns,
    pub(crate) server: DhcpServer,
    pub(crate) scope: Scope,
    /// Path of the agent's program.
    pub(crate) program: PathBuf,
    kubeconfig: PathBuf,
    /// Further options of the agents.
    pub(crate) options: Vec<&'static str>,
}

/// Runs a test's body on a site, in a network of its own.
pub(crate) fn on_site<F>(
    kind: Kind,
    scope: Scope,
    body: impl FnOnce(Site) -> F + Send + 'static,
) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    on_site_with(false, kind, scope, body)
}

/// Runs a test's body on a site where the API server can call webhooks in that network.
pub(crate) fn on_site_with_webhooks<F>(
    kind: Kind,
    scope: Scope,
    body: impl FnOnce(Site) -> F + Send + 'static,
) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    on_site_with(true, kind, scope, body)
}

fn on_site_with<F>(
    webhooks: bool,
    kind: Kind,
    scope: Scope,
    body: impl FnOnce(Site) -> F + Send + 'static,
) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    isolated(async move |host: Netns| {
        // Another network of the same machine, on which the agent must send no frame.
        let elsewhere = Segment::new("elsewhere").await?;
        let port = elsewhere.plug(&host, "net9").await?;
        let cluster =
            if webhooks { Cluster::start_here().await? } else { Cluster::start().await? };
        body(Site::start(cluster, host, kind, scope).await?).await?;
        let said = frames(&elsewhere, &port).await?;
        ensure!(said == 0, "{said} frames on an interface that is not the agent's");
        Ok(())
    })
}

/// Number of frames that a port of a switch has received from its machine.
async fn frames(segment: &Segment, port: &str) -> Result<u64> {
    let shown = segment.switch().ip(&format!("-s -j link show {port}")).await?;
    let shown: serde_json::Value = serde_json::from_str(&shown)?;
    shown[0]["stats64"]["rx"]["packets"].as_u64().context("no count of frames")
}

impl Site {
    /// Starts everything but the agent.
    async fn start(cluster: Cluster, host: Netns, kind: Kind, scope: Scope) -> Result<Self> {
        let segment = Segment::new("switch").await?;
        let port = segment.plug(&host, INTERFACE).await?;
        let router = segment.attach("dhcp", &scope.interface()).await?;
        let server = DhcpServer::start(kind, &router, "eth0", &scope).await?;
        cluster.bed.apply_yaml(RIGHTS).await?;
        let kubeconfig = cluster.bed.service_account_kubeconfig(ACCOUNT.0, ACCOUNT.1, None).await?;
        let program = env!("CARGO_BIN_EXE_lease-agent").into();
        let options = Vec::new();
        Ok(Self {
            cluster,
            host,
            segment,
            port,
            router,
            server,
            scope,
            program,
            kubeconfig,
            options,
        })
    }

    /// Starts an agent, whether it is active or not.
    pub(crate) async fn standby(&self, interface: &str) -> Result<LeaseAgent> {
        start_agent(&self.program, &self.kubeconfig, interface, &self.options).await
    }

    /// Starts an agent and waits until it is active.
    pub(crate) async fn agent(&self) -> Result<LeaseAgent> {
        let agent = self.standby(INTERFACE).await?;
        agent.speaks().await?;
        Ok(agent)
    }

    /// Kills an agent and deletes its Lease, so that the next one need not wait for the end of its
    /// term.
    pub(crate) async fn kill(&self, agent: &mut LeaseAgent) -> Result<()> {
        agent.process.kill9()?;
        let leases: Api<Lease> = Api::namespaced(self.cluster.client.clone(), ACCOUNT.0);
        leases.delete(&agent_name(NETWORK), &DeleteParams::default()).await?;
        Ok(())
    }

    /// Starts a leading operator that retains the leases of deleted LoadBalancers for `grace`
    /// seconds.
    pub(crate) async fn operator(&self, grace: u32) -> Result<Operator> {
        let options = ["--dhcp-release-grace", &grace.to_string(), "--dhcp-networks", NETWORK];
        let options = options.map(str::to_owned).to_vec();
        let start = Start { options, ..Start::default() };
        let operator = self.cluster.standby(start).await?;
        operator.leads().await?;
        Ok(operator)
    }

    /// Creates a LoadBalancer with a leased address.
    pub(crate) async fn ask(&self, name: &str) -> Result<()> {
        let mut lb = lb(name, &json!({"workloadType": "cluster", "ipam": "dhcp"}))?;
        lb.annotations_mut().insert(ANNOTATION_NETWORK.to_owned(), NETWORK.to_owned());
        self.cluster.lbs().create(&PostParams::default(), &lb).await?;
        Ok(())
    }

    /// Waits until the LoadBalancer has a leased address.
    pub(crate) async fn has(&self, name: &str) -> Result<String> {
        eventually(LATER, &format!("leased address of {name}"), async || {
            let lb = self.cluster.lbs().get(name).await.map_err(|error| error.to_string())?;
            match (address(&lb), ready(&lb)) {
                (Some(address), (_, reason, _)) if reason == "Leased" => Ok(Some(address)),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    pub(crate) fn records(&self) -> Api<DHCPLease> {
        Api::namespaced(self.cluster.client.clone(), "default")
    }

    /// Creates the record of a LoadBalancer, as the operator would.
    pub(crate) async fn lease(&self, name: &str) -> Result<ClientIdentity> {
        let identity = identity(name);
        self.records().create(&PostParams::default(), &record(name, &identity)?).await?;
        Ok(identity)
    }

    /// Creates record number `n` of many.
    pub(crate) async fn lease_at(&self, n: usize) -> Result<ClientIdentity> {
        self.lease(&format!("lb-{n}")).await
    }

    /// Status of the record.
    pub(crate) async fn status(&self, name: &str) -> Result<DHCPLeaseStatus> {
        Ok(self.records().get(name).await?.status.unwrap_or_default())
    }

    /// Waits for an address in the record and this condition on its status, and returns the status.
    pub(crate) async fn bound(
        &self,
        name: &str,
        what: &str,
        is: impl Fn(&DHCPLeaseStatus) -> bool,
    ) -> Result<DHCPLeaseStatus> {
        eventually(LATER, &format!("{what} of {name}"), async || {
            let status = self.status(name).await.map_err(|error| error.to_string())?;
            if status.address.is_some() && is(&status) {
                Ok(Some(status))
            } else {
                Err(format!("{status:?}"))
            }
        })
        .await
    }

    /// Waits for any address.
    pub(crate) async fn address(&self, name: &str) -> Result<String> {
        let status = self.bound(name, "address", |_| true).await?;
        status.address.context("no address")
    }

    /// Waits until the lease ends later than in that status.
    pub(crate) async fn renewed(
        &self,
        name: &str,
        since: &DHCPLeaseStatus,
    ) -> Result<DHCPLeaseStatus> {
        let before = since.expires_at.clone();
        // Times of one format sort like the times themselves.
        self.bound(name, "renewal", |status| status.expires_at > before).await
    }

    /// Deletes the record and waits until it is gone.
    pub(crate) async fn deleted(&self, name: &str) -> Result<()> {
        self.records().delete(name, &DeleteParams::default()).await?;
        eventually(LATER, &format!("end of {name}"), async || {
            self.records().get_opt(name).await.map(|record| record.is_none())
        })
        .await
    }

    /// Names of the links that agents made here.
    pub(crate) async fn links(&self) -> Result<Vec<String>> {
        let shown = self.host.ip("-o link show type macvlan").await?;
        Ok(shown
            .lines()
            .filter_map(|line| Some(line.split(": ").nth(1)?.split('@').next()?.to_owned()))
            .collect())
    }

    /// Waits until exactly these leases have a link.
    pub(crate) async fn linked(&self, leases: &[&ClientIdentity]) -> Result<()> {
        let mut wanted: Vec<String> = leases.iter().map(|identity| link(identity)).collect();
        wanted.sort();
        eventually(SOON, "link for each lease", async || {
            let mut links = self.links().await.map_err(|error| error.to_string())?;
            links.sort();
            if links == wanted { Ok(true) } else { Err(format!("{links:?}, not {wanted:?}")) }
        })
        .await
    }

    /// Number of frames that a port of the segment has received from its machine.
    pub(crate) async fn frames_from(&self, port: &str) -> Result<u64> {
        frames(&self.segment, port).await
    }
}

/// Identity of a record's holder for a server.
pub(crate) fn identity(name: &str) -> ClientIdentity {
    ClientIdentity::derive("cluster", NETWORK, "default", name)
}

/// Name of a lease's link.
pub(crate) fn link(identity: &ClientIdentity) -> String {
    format!("lb{}", identity.mac.to_string().replace(':', ""))
}

/// The record of a LoadBalancer, as the operator would create it.
pub(crate) fn record(name: &str, identity: &ClientIdentity) -> Result<DHCPLease> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1alpha1",
        "kind": "DHCPLease",
        "metadata": {"name": name, "namespace": "default", "finalizers": [DHCP_FINALIZER]},
        "spec": {
            "network": NETWORK,
            "macAddress": identity.mac.to_string(),
            "clientID": identity.client_id.as_ref().map(ToString::to_string).unwrap_or_default(),
            "hostname": identity.hostname,
        },
    }))?)
}

/// Starts an agent of the network, whether it is active or not.
pub(crate) async fn start_agent(
    program: &Path,
    kubeconfig: &Path,
    interface: &str,
    options: &[&str],
) -> Result<LeaseAgent> {
    let args = [&["--network", NETWORK, "--interface", interface], options].concat();
    LeaseAgent::start(program, kubeconfig, &args, None).await
}
