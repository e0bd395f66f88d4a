//! Command lines. Every option of a long-running process is also an environment variable `HGO_…`.

mod admission;
mod cloud_config;
mod controller;
mod core_dumps;
mod dhcp;
mod lease_agent;
mod logs;
mod preview;
mod rancher_secret;
mod support;
mod takeover;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

pub use self::lease_agent::LeaseAgent;
use self::logs::LogOptions;
use crate::domain::leader_election::{DEFAULT_LEASE_SECONDS, LEASE_SECONDS};

/// Longest time in which `preview` or `takeover` establishes a connection to the API server, by TCP
/// and TLS. A call without a deadline waits this long for an API server that is silent in the TLS
/// handshake.
const PATIENCE: Duration = Duration::from_secs(30);

/// Load-balancer addresses for guests of Harvester.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    #[command(flatten)]
    logs: LogOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Allocates and publishes the addresses of LoadBalancers. Run two replicas or more: one leads,
    /// the others stand by.
    Controller(Box<ControllerArgs>),
    /// Makes, prints, renews and revokes a guest cluster's access to Harvester: the cloud config of
    /// its cloud provider and CSI driver.
    CloudConfig(Box<cloud_config::CloudConfigArgs>),
    /// Prints what the operator would do in this cluster: addresses, objects that it would write,
    /// credentials that expire soon. The command only reads, and the operator need not be
    /// installed.
    Preview(Box<preview::PreviewArgs>),
    /// Takes over from Harvester's Go controller, or goes back to it. Prints the plan; --apply
    /// carries the plan out.
    Takeover(Box<takeover::TakeoverArgs>),
    /// Reads an API key of a Rancher from standard input, tests it, and prints a Secret. With this
    /// Secret the operator renews the cloud credentials of the key's user, or puts a
    /// ServiceAccount's token into one of them.
    RancherSecret(rancher_secret::RancherSecretArgs),
    /// Prints a report for maintainers: versions, pools, LoadBalancers that wait, last decisions.
    /// The report contains no secrets.
    Support(ConnectionOptions),
    /// Prints the CustomResourceDefinitions.
    Crds {
        /// Directory to write to, one file for each CRD, instead of standard output.
        #[arg(long)]
        out: Option<PathBuf>,
    },
}

/// Options to reach the API server, and the leader's Lease.
#[derive(Clone, Debug, clap::Args)]
struct ConnectionOptions {
    /// Kubeconfig file. Default: the file that the variable KUBECONFIG names, else ~/.kube/config,
    /// else the ServiceAccount of the pod.
    #[arg(long, env = "HGO_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Lease that only the leader holds, as namespace/name. The default is the Lease of the Go
    /// controller, so that the operator and the Go controller never work at the same time.
    #[arg(long, env = "HGO_LEASE", default_value = "kube-system/harvester-load-balancer")]
    lease: String,
}

impl ConnectionOptions {
    /// Namespace and name in `--lease`. `Err`: the option is not of the form namespace/name.
    fn lease(&self) -> anyhow::Result<(&str, &str)> {
        namespace_and_name(&self.lease)
            .with_context(|| format!("--lease {:?}: must be namespace/name", self.lease))
    }
}

/// Namespace and name in a text of the form namespace/name. `None`: one of the two is empty or
/// missing, or the text has a second slash.
fn namespace_and_name(text: &str) -> Option<(&str, &str)> {
    let (namespace, name) = text.split_once('/')?;
    let is_valid = !namespace.is_empty() && !name.is_empty() && !name.contains('/');
    is_valid.then_some((namespace, name))
}

/// Options of `controller`.
#[derive(Clone, Debug, clap::Args)]
struct ControllerArgs {
    #[command(flatten)]
    reach: ConnectionOptions,
    /// Address on which /metrics, /healthz and /readyz listen.
    #[arg(long, env = "HGO_HTTP_ADDR", default_value = "0.0.0.0:8080")]
    http_addr: SocketAddr,
    /// Name of this replica in the Lease and in Events. Default: host name and process id.
    #[arg(long, env = "HGO_IDENTITY")]
    identity: Option<String>,
    /// Name of the node on which this replica runs. If some replicas reach a VM and others do not,
    /// messages contain this name. A replica on the leader's node does not count as a second
    /// opinion.
    #[arg(long, env = "HGO_NODE")]
    node: Option<String>,
    /// Seconds, 3 to 60, after which another replica takes over the Lease of a leader that does not
    /// renew it. A larger value suits a slow API server or machines that stall, but then a dead
    /// leader is replaced later.
    #[arg(
        long,
        env = "HGO_LEASE_DURATION",
        default_value_t = DEFAULT_LEASE_SECONDS,
        value_parser = clap::value_parser!(u8).range(LEASE_SECONDS)
    )]
    lease_duration: u8,
    /// Puts the operator's form of the CRDs back after another form has replaced it, for example in
    /// an upgrade of Harvester. The operator does this at most once in ten minutes. Without this
    /// option, the operator only reports the other form, and works with that form.
    #[arg(long, env = "HGO_REPAIR_CRDS")]
    repair_crds: bool,
    #[command(flatten)]
    dhcp: dhcp::DhcpArgs,
    /// Namespaces, separated by commas, whose TokenRotations are carried out. The operator needs
    /// rights in each of them. In other namespaces, it touches no Secret except the one with the
    /// certificates of its webhooks. With an entry of the form NAMESPACE/SECRET+SECRET, the
    /// operator touches only these Secrets in this namespace.
    #[arg(long, env = "HGO_CREDENTIAL_NAMESPACES", value_delimiter = ',')]
    credential_namespaces: Vec<String>,
    #[command(flatten)]
    admission: admission::AdmissionArgs,
}

/// Parses texts of the form NAMESPACE or NAMESPACE/SECRET+SECRET. Returns a map from each namespace
/// to the Secrets that the operator may touch there. An empty set allows all Secrets of the
/// namespace. Several texts for one namespace allow what one of them allows. A text without a
/// namespace, such as the empty one between two commas, is skipped: an empty namespace would stand
/// for all namespaces.
fn namespaces(texts: &[String]) -> BTreeMap<String, BTreeSet<String>> {
    let mut allowed = BTreeMap::<String, BTreeSet<String>>::new();
    for text in texts {
        let (namespace, secrets) = text.split_once('/').unwrap_or((text, ""));
        let names = secrets.split('+').filter(|name| !name.is_empty()).map(str::to_owned);
        let secrets: BTreeSet<String> = names.collect();
        match allowed.entry(namespace.to_owned()) {
            Entry::Vacant(new) => drop(new.insert(secrets)),
            Entry::Occupied(all) if all.get().is_empty() => {}
            Entry::Occupied(mut all) if secrets.is_empty() => all.get_mut().clear(),
            Entry::Occupied(mut some) => some.get_mut().extend(secrets),
        }
    }
    allowed.remove("");
    allowed
}

/// Runs the command that the command line names.
pub async fn run(cli: Cli) -> anyhow::Result<()> {
    let undumped = core_dumps::forbid();
    match cli.command {
        Command::Controller(args) => {
            cli.logs.start(&undumped)?;
            Box::pin(controller::run(*args)).await
        }
        Command::CloudConfig(args) => Box::pin(cloud_config::run(*args)).await,
        Command::RancherSecret(args) => Box::pin(rancher_secret::run(args)).await,
        Command::Preview(args) => Box::pin(preview::run(*args)).await,
        Command::Takeover(args) => Box::pin(takeover::run(*args)).await,
        Command::Support(reach) => support::run(&reach).await,
        Command::Crds { out } => crds(out.as_deref()),
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    write!(std::io::stdout(), "{text}").context("cannot write to standard output")
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

#[cfg(test)]
mod tests {
    use super::{namespace_and_name, namespaces};

    #[test]
    fn a_name_in_a_namespace_has_one_slash_and_two_parts() {
        assert_eq!(namespace_and_name("ns/web"), Some(("ns", "web")));
        for text in ["", "web", "/web", "ns/", "ns/web/status"] {
            assert_eq!(namespace_and_name(text), None, "{text:?}");
        }
    }

    #[test]
    fn several_entries_for_a_namespace_allow_what_one_of_them_allows() {
        for (texts, wanted) in [
            ("", "{}"),
            ("a,", r#"{"a": {}}"#),
            ("a/x+y,b", r#"{"a": {"x", "y"}, "b": {}}"#),
            ("a/x,a/y", r#"{"a": {"x", "y"}}"#),
            ("a/x,a", r#"{"a": {}}"#),
            ("a,a/x", r#"{"a": {}}"#),
            ("/x,a/x", r#"{"a": {"x"}}"#),
        ] {
            let texts: Vec<String> = texts.split(',').map(str::to_owned).collect();
            assert_eq!(format!("{:?}", namespaces(&texts)), wanted, "{texts:?}");
        }
    }
}
