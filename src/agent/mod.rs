//! The agent of one network: it holds all leases of it.
//!
//! The only room with privileges. A term begins when the network's Lease is won: the records are
//! read, the links put right, the clients go on where the records say they were. It ends at once when
//! another process has the claim, and nothing of it is kept: what counts is in the records. Invariants: no
//! frame leaves without a current claim, but those that ask for more time for what is held while the API
//! server is silent; frames leave on the agent's interface only; a record has an address before anybody may
//! use it, and loses it before it is given up.

mod clock;
mod hands;
mod health;
mod lease;
mod links;
mod privileges;
mod tell;
mod term;
mod wire;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use ipnet::Ipv4Net;

pub use self::health::Health;
use self::links::Links;
use self::term::Term;
use crate::domain::dhcp::Probe;
use crate::k8s::events::Events;
use crate::k8s::lease::Leadership;
use crate::k8s::records::Records;
use crate::k8s::write::Writer;
use crate::metrics::Dhcp;

/// What one agent is to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `namespace/name` of the NetworkAttachmentDefinition.
    pub network: String,
    /// The interface that leads there.
    pub interface: String,
    /// Its name in records.
    pub me: String,
    /// How a fresh address is probed.
    pub probe: Probe,
    /// Subnets whose addresses may be leased. Empty: any.
    pub subnets: Arc<[Ipv4Net]>,
    /// Whether an address is kept after its lease has ended without an answer.
    pub keep: bool,
    /// Whether servers are asked to broadcast their answers in any case.
    pub broadcast: bool,
}

/// What it does that with.
#[derive(Clone)]
pub struct Agent {
    /// What it is to do.
    pub settings: Settings,
    /// Reads records.
    pub records: Records,
    /// Writes, while it may.
    pub writer: Writer,
    /// Whether it may.
    pub leadership: Arc<Leadership>,
    /// Tells people.
    pub events: Events,
    /// Counts.
    pub dhcp: Dhcp,
    /// How things stand.
    pub standing: Arc<Standing>,
}

/// What is worked out when somebody asks for metrics.
#[derive(Debug, Default)]
pub struct Standing {
    /// When the first lease ends, on the agent's clock in milliseconds; 0 for never.
    first_expiry: AtomicU64,
}

impl Standing {
    /// Brings the metrics up to date.
    pub fn show(&self, dhcp: &Dhcp, speaks: bool) {
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

/// Gives up all privileges but two. To be called before there is a second thread.
pub fn drop_privileges() -> anyhow::Result<()> {
    privileges::keep_two()
}

/// Whether the interface is there and may be listened on; whoever can do that can speak there too.
pub fn check(interface: &str) -> anyhow::Result<()> {
    wire::may_open(interface).with_context(|| format!("--interface {interface}"))
}

impl Agent {
    /// One term. It does not end by itself but by a fault.
    pub async fn term(&self) -> anyhow::Result<()> {
        let result = Term::begin(self).await?.run().await;
        self.standing.set(None);
        result
    }

    /// Removes the links of the network that this agent made: it is about to end.
    pub async fn clear(&self) -> anyhow::Result<()> {
        let (links, _changes) = Links::connect(&self.settings.network)?;
        links.remove_all_but(&HashSet::new()).await?;
        Ok(())
    }
}
