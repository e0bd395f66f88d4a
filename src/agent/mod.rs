//! DHCP agent of one network: the program that leases the network's addresses. No other part of
//! the operator has privileges.
//!
//! A term begins when the agent acquires the network's Lease. The agent then reads the records,
//! removes links that no record needs, makes the missing links, and resumes the clients. The term
//! ends as soon as the agent sees that it has lost the Lease, or after an error. No state in memory
//! survives the end of a term: the next term starts from the records.
//!
//! Invariants:
//!
//! * The agent sends frames only while it is the leader. Exception: while the API server is silent,
//!   the agent also sends requests to confirm or extend held leases.
//! * Frames leave on the agent's interface only.
//! * An address is in its record before it may be used. The agent releases the address only after
//!   the deletion of the record was requested.

mod link_worker;
mod managed_lease;
mod netlink;
mod packet_socket;
mod privileges;
mod report;
mod term;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use self::netlink::KernelLinks;
pub use self::packet_socket::may_open;
pub use self::privileges::drop_privileges;
use self::term::AgentTerm;
use crate::domain::dhcp::ClientOptions;
use crate::http::health_endpoints::Process;
use crate::k8s::agent_records::RecordClient;
use crate::k8s::clock;
use crate::k8s::events::EventRecorder;
use crate::k8s::leadership::Leadership;
use crate::k8s::write::ApiWriter;
use crate::metrics::{DhcpMetrics, Metrics};

/// Agent of one network, with its options and dependencies.
#[derive(Clone)]
pub struct DhcpAgent {
    /// NetworkAttachmentDefinition of the network, as `namespace/name`.
    pub network: String,
    /// Name of the agent's interface on the network.
    pub interface: String,
    /// Name of this agent, as it is written into records.
    pub me: String,
    /// Options of the clients. The agent overwrites some fields for each client, such as `phase`.
    pub options: ClientOptions,
    /// Reader of DHCPLeases.
    pub records: RecordClient,
    /// Writer of DHCPLeases. It writes only while this process holds the network's Lease.
    pub writer: ApiWriter,
    /// State that says whether this process holds the network's Lease.
    pub leadership: Arc<Leadership>,
    /// Recorder of Events.
    pub events: EventRecorder,
    /// Metrics of this process.
    pub metrics: Metrics,
    /// Metrics of the DHCP leases.
    pub dhcp: DhcpMetrics,
    /// Earliest expiry of a DHCP lease that this agent holds, in milliseconds on the agent's clock.
    /// 0: no lease expires. Each request for metrics computes the remaining time from this expiry.
    pub first_expiry: Arc<AtomicU64>,
}

impl DhcpAgent {
    /// Runs one term of leadership. Returns only if the term ends with an error.
    pub async fn term(&self) -> anyhow::Result<()> {
        let _metrics = TermMetrics(self);
        AgentTerm::begin(self).await?.run().await
    }

    fn set_first_expiry(&self, end: Option<Duration>) {
        let millis = end.map_or(0, |end| u64::try_from(end.as_millis()).unwrap_or(u64::MAX));
        self.first_expiry.store(millis, Ordering::Relaxed);
    }

    /// Removes all links that this agent or an earlier agent made for the network. Called before
    /// the process exits.
    pub async fn clear(&self) -> anyhow::Result<()> {
        let (links, _changes) = KernelLinks::connect(&self.network)?;
        links.remove_all_but(&HashSet::new()).await?;
        Ok(())
    }
}

/// Guard that sets the metrics of leases to the values of a standby at the end of a term. The term
/// may end without a return: when the network's Lease is lost, the term's future is dropped, and
/// this guard with it.
struct TermMetrics<'a>(&'a DhcpAgent);

impl Drop for TermMetrics<'_> {
    fn drop(&mut self) {
        let dhcp = &self.0.dhcp;
        self.0.set_first_expiry(None);
        dhcp.leases.reset();
        dhcp.servers.set(0);
        dhcp.still_announced.set(0);
    }
}

impl Process for DhcpAgent {
    fn metrics(&self) -> &Metrics {
        let end = Duration::from_millis(self.first_expiry.load(Ordering::Relaxed));
        let left = end.saturating_sub(clock::now()).as_secs();
        self.dhcp.first_expiry.set(i64::try_from(left).unwrap_or(i64::MAX));
        self.dhcp.speaks.set(i64::from(self.leadership.is_current()));
        &self.metrics
    }

    fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    /// Whether the elector has finished its first round, with or without success. The agent need
    /// not be the leader: a standby counts as ready too, because it takes over as soon as no other
    /// agent holds the network's Lease.
    fn readiness(&self) -> Result<(), &'static str> {
        if self.leadership.has_finished_round() {
            Ok(())
        } else {
            Err("the Lease of the network has not been read yet")
        }
    }
}
