//! The command lines. Every option of what runs for long is also an environment variable, `HGO_…`.

mod admission;
mod cloud_config;
mod controller;
mod core_dumps;
mod dhcp;
mod lease_agent;
mod logs;
mod support;
mod takeover;

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Parser, Subcommand};

pub use self::lease_agent::LeaseAgent;
use self::logs::Logs;
use crate::domain::leader_election::{DEFAULT_LEASE_SECONDS, LEASE_SECONDS};

/// Load-balancer addresses for guests of Harvester.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    #[command(flatten)]
    logs: Logs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Gives LoadBalancers their addresses. Run two or more: one leads, the others stand by.
    Controller(Box<ControllerArgs>),
    /// Makes, prints, renews and revokes a guest cluster's way into Harvester: the cloud config of its
    /// cloud provider and CSI driver.
    CloudConfig(Box<cloud_config::CloudConfigArgs>),
    /// Takes over from Harvester's Go controller, or goes back to it. Prints the plan; --apply carries it out.
    Takeover(Box<takeover::TakeoverArgs>),
    /// Prints what a maintainer asks for first: versions, pools, who waits, last decisions. No secrets.
    Support(Reach),
    /// Prints the CustomResourceDefinitions.
    Crds {
        /// Writes one file a CRD into this directory instead.
        #[arg(long)]
        out: Option<PathBuf>,
    },
}

/// Where the API server is, and in it the leader.
#[derive(Clone, Debug, clap::Args)]
struct Reach {
    /// Kubeconfig file. Else KUBECONFIG and the default file, else the pod's own account.
    #[arg(long, env = "HGO_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// The Lease that only the leader holds, as namespace/name. The default is the Go
    /// controller's, so that the two never work at the same time.
    #[arg(long, env = "HGO_LEASE", default_value = "kube-system/harvester-load-balancer")]
    lease: String,
}

impl Reach {
    /// Namespace and name of the Lease.
    fn lease(&self) -> anyhow::Result<(&str, &str)> {
        self.lease
            .split_once('/')
            .filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty())
            .with_context(|| format!("--lease {:?}: must be namespace/name", self.lease))
    }
}

/// Options of `controller`.
#[derive(Clone, Debug, clap::Args)]
struct ControllerArgs {
    #[command(flatten)]
    reach: Reach,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(long, env = "HGO_HTTP_ADDR", default_value = "0.0.0.0:8080")]
    http_addr: SocketAddr,
    /// This replica's name in the Lease and in Events. Default: host name and process id.
    #[arg(long, env = "HGO_IDENTITY")]
    identity: Option<String>,
    /// The node that this replica runs on: where two replicas do not reach the same VMs, that is said, and
    /// one on the leader's own node does not count as a second opinion.
    #[arg(long, env = "HGO_NODE")]
    node: Option<String>,
    /// Seconds, 3 to 60, after which the Lease of a leader that no longer renews it is taken. More
    /// where the API server is slow or machines stand still; a dead leader is missed for longer.
    #[arg(
        long,
        env = "HGO_LEASE_DURATION",
        default_value_t = DEFAULT_LEASE_SECONDS,
        value_parser = clap::value_parser!(u8).range(LEASE_SECONDS)
    )]
    lease_duration: u8,
    #[command(flatten)]
    dhcp: dhcp::DhcpArgs,
    /// Namespaces, separated by commas, in which TokenRotations are carried out. The operator needs rights
    /// in each; elsewhere it touches no Secret. NAMESPACE/SECRET+SECRET: it touches those Secrets alone.
    #[arg(long, env = "HGO_CREDENTIAL_NAMESPACES", value_delimiter = ',')]
    credential_namespaces: Vec<String>,
    #[command(flatten)]
    admission: admission::AdmissionArgs,
}

/// Runs what the command line says.
pub async fn run(cli: Cli) -> anyhow::Result<()> {
    let undumped = core_dumps::forbid();
    match cli.command {
        Command::Controller(args) => {
            cli.logs.start(&undumped)?;
            Box::pin(controller::run(*args)).await
        }
        Command::CloudConfig(args) => Box::pin(cloud_config::run(*args)).await,
        Command::Takeover(args) => Box::pin(takeover::run(*args)).await,
        Command::Support(reach) => support::run(&reach).await,
        Command::Crds { out } => crds(out.as_deref()),
    }
}

/// Runs the agent of a network.
pub async fn run_agent(cli: LeaseAgent) -> anyhow::Result<()> {
    cli.logs.start(&core_dumps::forbid())?;
    Box::pin(lease_agent::run(cli)).await
}

fn crds(out: Option<&Path>) -> anyhow::Result<()> {
    for crd in crate::api::crds() {
        let text = crate::api::to_yaml(&crd)?;
        match out {
            Some(directory) => {
                std::fs::create_dir_all(directory)?;
                std::fs::write(directory.join(format!("{}.yaml", crd.spec.names.plural)), text)?;
            }
            None => write!(std::io::stdout(), "---\n{text}")?,
        }
    }
    Ok(())
}
