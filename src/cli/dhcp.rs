//! Options of DHCP networks.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::apps::v1::Deployment;

use super::admission::AdmissionArgs;
use crate::controllers::dhcp_agent::AgentOptions;
use crate::domain::dhcp::ClientIdForm;
use crate::domain::dhcp_lease::DhcpNetworks;

/// Options of DHCP networks.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct DhcpArgs {
    /// Seconds for which a leased address outlives its LoadBalancer. A LoadBalancer that is created
    /// again within this time gets the same address at once. A guest cloud provider may delete a
    /// LoadBalancer and create it again up to 300 s later, while the guest announces the address
    /// all the time.
    #[arg(long = "dhcp-release-grace", env = "HGO_DHCP_RELEASE_GRACE", default_value_t = 600)]
    release_grace: u32,
    #[command(flatten)]
    networks: NetworkArgs,
    /// Deployment, as YAML, from which the operator makes the agents of networks with the
    /// annotation loadbalancer.harvesterhci.io/dhcp: host. Without this option the operator makes
    /// no agents.
    #[arg(long = "dhcp-agent", env = "HGO_DHCP_AGENT")]
    agent: Option<String>,
}

/// Options for the networks on which the host cluster leases addresses.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct NetworkArgs {
    /// Networks on which the host leases addresses, separated by commas: namespace/name of each
    /// NetworkAttachmentDefinition. The operator deploys no agents for these networks: the chart
    /// does, or you do. By default, the DHCP clients on a network send a DUID as their client
    /// identifier. If the entry of the network ends in =mac, they send their hardware address
    /// instead. If the entry ends in =none, they send no client identifier.
    #[arg(long = "dhcp-networks", env = "HGO_DHCP_NETWORKS", value_delimiter = ',', value_parser = listed)]
    networks: Vec<(String, ClientIdForm)>,
    /// Namespaces, separated by commas. The host leases addresses on a network of these namespaces
    /// if its NetworkAttachmentDefinition has the annotation
    /// loadbalancer.harvesterhci.io/dhcp: host.
    #[arg(
        long = "dhcp-namespaces",
        env = "HGO_DHCP_NAMESPACES",
        value_delimiter = ',',
        default_value = "default"
    )]
    namespaces: Vec<String>,
    /// Network for the leased addresses of VM load balancers: namespace/name of the
    /// NetworkAttachmentDefinition. The option counts for a VM load balancer that names no network.
    /// The host must lease addresses on this network.
    #[arg(
        long = "dhcp-default-network",
        env = "HGO_DHCP_DEFAULT_NETWORK",
        value_parser = network,
        default_value = ""
    )]
    default_network: String,
}

impl DhcpArgs {
    /// Time for which a leased address outlives its LoadBalancer.
    pub(super) fn release_grace(&self) -> Duration {
        Duration::from_secs(self.release_grace.into())
    }

    /// Settings for the agents' Deployments; `None` if the operator makes no agents.
    pub(super) fn agents(&self, admission: &AdmissionArgs) -> anyhow::Result<Option<AgentOptions>> {
        let Some(text) = self.agent.as_deref().filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        // Text that is not a Deployment is refused here. Values of a network are filled in later,
        // when the operator makes the network's agent.
        let template: Deployment =
            serde_saphyr::from_str(text).context("--dhcp-agent: must be a Deployment, as YAML")?;
        let containers = template.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
        ensure!(
            containers.is_some_and(|pod| pod.containers.len() == 1),
            "--dhcp-agent: spec.template.spec.containers must have one entry"
        );
        Ok(Some(AgentOptions {
            namespace: admission.namespace.clone(),
            template: serde_json::to_value(&template)?,
            owner: admission.admission_owner.clone(),
        }))
    }

    /// Values of the options in [`NetworkArgs`]. Empty names in lists are left out.
    pub(super) fn networks(&self) -> DhcpNetworks {
        self.networks.networks()
    }
}

impl NetworkArgs {
    /// Values of these options. Empty names in lists are left out.
    pub(super) fn networks(&self) -> DhcpNetworks {
        let is_given = |name: &&String| !name.is_empty();
        let listed = self.networks.iter().filter(|(name, _)| is_given(&name)).cloned();
        DhcpNetworks {
            listed: listed.collect(),
            namespaces: self.namespaces.iter().filter(is_given).cloned().collect(),
            default: self.default_network.clone(),
        }
    }
}

/// Parses an entry of `--dhcp-networks`: the network's namespace/name, then `=` and one of `duid`,
/// `mac` and `none`. An entry without `=` means `duid`.
fn listed(text: &str) -> Result<(String, ClientIdForm), String> {
    let (name, form) = text.split_once('=').unwrap_or((text, "duid"));
    Ok((network(name)?, form.parse()?))
}

/// Parses a network's name. Accepts empty text: two consecutive commas in `--dhcp-networks` give an
/// empty name, and `--dhcp-default-network` is empty by default.
fn network(text: &str) -> Result<String, String> {
    let named = super::namespace_and_name(text).is_some();
    if named || text.is_empty() {
        Ok(text.to_owned())
    } else {
        Err("must be namespace/name".to_owned())
    }
}
