//! The `lease-agent` process: it leases the addresses of one network while it holds the network's
//! Lease, and is a standby otherwise.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Parser, ValueEnum};
use ipnet::Ipv4Net;
use tokio::signal::unix::{SignalKind, signal};

use super::controller::identity;
use super::logs::LogOptions;
use crate::agent::{self, DhcpAgent};
use crate::domain::dhcp::{ClientOptions, ProbeTiming};
use crate::domain::dhcp_lease::agent_name;
use crate::domain::leader_election::ElectionPace;
use crate::http::health_endpoints;
use crate::k8s::agent_records::RecordClient;
use crate::k8s::client;
use crate::k8s::events::EventRecorder;
use crate::k8s::leadership::{LeaderElector, Leadership, LeadershipState};
use crate::k8s::write::ApiWriter;
use crate::metrics::Metrics;

/// Duration of the network's Lease for leader election, in seconds. It is long enough that an agent
/// on a busy machine remains the leader although it stalls for some seconds. The agent accepts no
/// DHCP lease that is shorter than this time.
const NETWORK_LEASE_SECONDS: u8 = 10;
/// Time limit for the removal of links when the agent ends. The removal of a thousand links takes a
/// second.
const CLEARING: Duration = Duration::from_secs(10);

/// Leases addresses from the DHCP server of one network. One agent leads, a second one stands by.
#[derive(Clone, Debug, Parser)]
#[command(name = "lease-agent", version)]
pub struct LeaseAgent {
    #[command(flatten)]
    pub(super) logs: LogOptions,
    /// Network of the agent: namespace/name of its NetworkAttachmentDefinition.
    #[arg(long, env = "HGO_NETWORK")]
    network: String,
    /// Name of the agent's network interface on the network of --network.
    #[arg(long, env = "HGO_INTERFACE", default_value = "net1")]
    interface: String,
    /// Probe by ARP of a newly granted address, before the address is used. quick: three probes
    /// within half a second. standard: the times of RFC 5227, four to seven seconds. off: no probe.
    #[arg(long, env = "HGO_ARP_PROBE", value_enum, default_value_t = ArpProbe::Quick)]
    arp_probe: ArpProbe,
    /// Subnets whose addresses may be leased, such as 10.0.0.0/24, separated by commas. Offers of
    /// other addresses are refused. Without subnets, addresses of any subnet may be leased. The
    /// operator does not publish an address of the cluster itself, even if it is leased.
    #[arg(long, env = "HGO_SUBNETS", value_delimiter = ',', value_name = "CIDR")]
    subnets: Vec<Ipv4Net>,
    /// Treatment of an address whose lease expires without an answer of a DHCP server. withdraw:
    /// the LoadBalancer loses the address. keep: the address stays published. A kept address is
    /// lost when a server refuses it or grants another address. It is also lost when the server of
    /// the expired lease offers another address, or when a second host answers ARP for it.
    #[arg(long, env = "HGO_ON_LEASE_LOSS", value_enum, ignore_case = true, default_value_t = LeaseLossOption::Withdraw)]
    on_lease_loss: LeaseLossOption,
    /// Asks DHCP servers to broadcast every answer. Needed if a device on the way to the server
    /// drops answers to addresses that it has not seen yet.
    #[arg(long, env = "HGO_BROADCAST")]
    broadcast: bool,
    /// Kubeconfig file. Default: the file that the variable KUBECONFIG names, else ~/.kube/config,
    /// else the ServiceAccount of the pod.
    #[arg(long, env = "HGO_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the operator. The network's Lease is in this namespace.
    #[arg(long, env = "HGO_NAMESPACE", default_value = "harvester-system")]
    namespace: String,
    /// Address on which /metrics, /healthz and /readyz listen.
    #[arg(long, env = "HGO_HTTP_ADDR", default_value = "0.0.0.0:8081")]
    http_addr: SocketAddr,
    /// Name of this process in the Lease. Default: host name and process id.
    #[arg(long, env = "HGO_IDENTITY")]
    identity: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ArpProbe {
    Quick,
    Standard,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LeaseLossOption {
    Withdraw,
    Keep,
}

/// Runs the agent until SIGTERM or SIGINT. `Err`: the start has failed, or one of the main tasks
/// has ended before such a signal.
pub(super) async fn run(args: LeaseAgent) -> anyhow::Result<()> {
    agent::drop_privileges()?;
    ensure!(
        super::namespace_and_name(&args.network).is_some(),
        "--network {:?}: must be namespace/name",
        args.network
    );
    agent::may_open(&args.interface).with_context(|| format!("--interface {}", args.interface))?;
    let me = args.identity.clone().unwrap_or_else(identity);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;

    let (metrics, dhcp) = Metrics::agent()?;
    let config = client::config(args.kubeconfig.as_deref(), client::CONNECT).await?;
    // The Lease has its own connections, so that a burst of other calls cannot delay a renewal.
    let lease_client = client::through(config.clone(), &metrics)?;
    let client = client::through(config, &metrics)?;
    let leadership = Arc::new(Leadership::default());
    let agent = DhcpAgent {
        network: args.network,
        interface: args.interface,
        me: me.clone(),
        options: ClientOptions {
            probe: match args.arp_probe {
                ArpProbe::Quick => ProbeTiming::QUICK,
                ArpProbe::Standard => ProbeTiming::RFC_5227,
                ArpProbe::Off => ProbeTiming::OFF,
            },
            subnets: args.subnets.into(),
            keep: args.on_lease_loss == LeaseLossOption::Keep,
            broadcast: args.broadcast,
            ..ClientOptions::default()
        },
        writer: ApiWriter::new(client.clone(), leadership.clone(), metrics.clone()),
        events: EventRecorder::start(client.clone(), &me, metrics.clone()),
        records: RecordClient::new(client, metrics.clone()),
        leadership: leadership.clone(),
        metrics,
        dhcp,
        first_expiry: Arc::default(),
    };
    let (address, server) = health_endpoints::serve(args.http_addr, agent.clone()).await?;
    let mut server = tokio::spawn(server);
    let lease = agent_name(&agent.network);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), me, %address, network = agent.network, lease, "started");

    let pace = ElectionPace::new(NETWORK_LEASE_SECONDS);
    let elector = LeaderElector::new(lease_client, (&args.namespace, &lease), me, pace);
    let spoke = AtomicBool::new(false);
    let result = tokio::select! {
        back = elector.run(&leadership) => Err(anyhow::anyhow!("{back}")),
        result = terms(&agent, &spoke) => result,
        result = &mut server => Err(anyhow::anyhow!("the HTTP server ended: {result:?}")),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    // The term of leadership is over, so this agent sends no frame any more and releases no
    // address. This agent removes its links now, before another agent can take over these links. If
    // another agent on the same machine leads already, that agent makes the links again at once.
    if spoke.into_inner() {
        tokio::select! {
            _ = elector.run(&leadership), if leadership.is_current() => {}
            cleared = tokio::time::timeout(CLEARING, agent.clear()) => {
                let cleared = cleared.with_context(|| format!("not done within {CLEARING:?}"));
                if let Err(error) = cleared.and_then(|cleared| cleared) {
                    tracing::warn!(error = format!("{error:#}"), "cannot remove the links of this agent");
                }
            }
        }
    }
    elector.release(&leadership).await;
    tracing::info!("stopped");
    result
}

/// Leases addresses during each term of this agent. Never returns `Ok`. `Err`: changes of the
/// leadership can no longer be received. `spoke`: set to true when the first term begins.
async fn terms(agent: &DhcpAgent, spoke: &AtomicBool) -> anyhow::Result<()> {
    let mut leading = agent.leadership.subscribe();
    loop {
        leading.wait_for(|leads| *leads).await?;
        spoke.store(true, Ordering::Relaxed);
        // The term continues while the API server does not answer, so that the agent can renew its
        // leases. The term ends when another agent takes the Lease.
        let mut state = agent.leadership.state();
        tokio::select! {
            biased;
            changed = state.wait_for(|state| *state == LeadershipState::Lost) => {
                changed?;
                tracing::warn!("lost the network's Lease: DHCP stopped on this replica");
            }
            result = agent.term() => {
                if let Err(error) = result {
                    tracing::error!(error = format!("{error:#}"), "term ended, starting a new one");
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
    }
}
