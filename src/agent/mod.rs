//! The DHCP agent of one network: it holds all leases of the network.
//!
//! This is the only part of the operator with privileges. A term begins when the agent acquires the
//! network's Lease. The agent then reads the records, corrects the links, and resumes each client
//! from its record. The term ends at once when another process holds the Lease. No state in memory
//! survives the end of a term: the next term starts from the records.
//!
//! Invariants:
//!
//! * The agent sends frames only while it is the leader. Exception: while the API server is silent,
//!   the agent also sends requests to extend held leases.
//! * Frames leave on the agent's interface only.
//! * An address is in the record before it may be used. The address is released only after the
//!   deletion of the record was requested.

mod health;
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

pub use self::health::AgentHealth;
use self::netlink::KernelLinks;
pub use self::packet_socket::may_open;
pub use self::privileges::drop_privileges;
use self::term::AgentTerm;
use crate::domain::dhcp::ClientOptions;
use crate::k8s::agent_records::RecordClient;
use crate::k8s::clock;
use crate::k8s::events::EventRecorder;
use crate::k8s::leadership::Leadership;
use crate::k8s::write::ApiWriter;
use crate::metrics::DhcpMetrics;

/// Configuration of one agent.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// NetworkAttachmentDefinition of the network, as `namespace/name`.
    pub network: String,
    /// Name of the agent's interface on the network.
    pub interface: String,
    /// Name of this agent, as it is written into records.
    pub me: String,
    /// Options that all clients have. The agent sets the options that differ between clients.
    pub client: ClientOptions,
}

/// Agent of one network, with its dependencies.
#[derive(Clone)]
pub struct DhcpAgent {
    /// Settings of the agent.
    pub settings: AgentSettings,
    /// Reader of DHCPLeases.
    pub records: RecordClient,
    /// Writer of DHCPLeases. It writes only while this process holds the network's Lease.
    pub writer: ApiWriter,
    /// State that says whether this process holds the network's Lease.
    pub leadership: Arc<Leadership>,
    /// Recorder of Events.
    pub events: EventRecorder,
    /// Metrics of the DHCP leases.
    pub dhcp: DhcpMetrics,
    /// Earliest expiry of the DHCP leases that this agent holds, for the metrics.
    pub expiry: Arc<ExpiryGauge>,
}

/// Earliest expiry of the DHCP leases that this agent holds. Each request for metrics computes the
/// remaining time from this expiry.
#[derive(Debug, Default)]
pub struct ExpiryGauge {
    /// Earliest expiry of a lease, in milliseconds on the agent's clock. 0: no lease expires.
    first_expiry: AtomicU64,
}

impl ExpiryGauge {
    /// Sets two metrics: the time until the first lease expires, and the leadership. `speaks`:
    /// whether this process holds the network's Lease.
    pub fn show(&self, dhcp: &DhcpMetrics, speaks: bool) {
        let end = Duration::from_millis(self.first_expiry.load(Ordering::Relaxed));
        let left = end.saturating_sub(clock::now()).as_secs();
        dhcp.first_expiry.set(i64::try_from(left).unwrap_or(i64::MAX));
        dhcp.speaks.set(i64::from(speaks));
    }

    fn set(&self, end: Option<Duration>) {
        let millis = end.map_or(0, |end| u64::try_from(end.as_millis()).unwrap_or(u64::MAX));
        self.first_expiry.store(millis, Ordering::Relaxed);
    }
}

impl DhcpAgent {
    /// Runs one term of leadership. Returns only if the term ends with an error.
    pub async fn term(&self) -> anyhow::Result<()> {
        let result = AgentTerm::begin(self).await?.run().await;
        self.expiry.set(None);
        result
    }

    /// Removes all links that this agent or an earlier agent made for the network. Called before
    /// the process exits.
    pub async fn clear(&self) -> anyhow::Result<()> {
        let (links, _changes) = KernelLinks::connect(&self.settings.network)?;
        links.remove_all_but(&HashSet::new()).await?;
        Ok(())
    }
}
