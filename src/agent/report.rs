//! Reports a client's events as metrics, logs and Kubernetes Events.

use super::DhcpAgent;
use super::managed_lease::ManagedLease;
use crate::domain::dhcp::{ClientEvent, ClientTrouble, LeaseRecord};
use crate::domain::dhcp_lease::status::reason;

/// Reports an event of a lease. Depending on its kind, the event is counted in the metrics, logged,
/// or published as a Kubernetes Event.
pub(super) fn event(agent: &DhcpAgent, lease: &ManagedLease, event: &ClientEvent) {
    let dhcp = &agent.dhcp;
    let record = lease.title();
    let normal = |word: &str, note: String| {
        tracing::info!(record, "{note}");
        agent.events.normal(lease.reference(), word, note);
    };
    let warning = |word: &str, note: String| {
        tracing::warn!(record, "{note}");
        agent.events.warning(lease.reference(), word, note);
    };
    match event {
        ClientEvent::Offered { server, address } => {
            tracing::debug!(record, %server, %address, "the DHCP server offers an address");
        }
        ClientEvent::Unusable { server, address, why } => {
            tracing::debug!(
                record, %server, %address, %why,
                "the offer of the DHCP server cannot be used"
            );
        }
        ClientEvent::Acquired { address, server, took } => {
            dhcp.acquire_seconds.observe(took.as_secs_f64());
            normal("AddressLeased", format!("{address} is leased from {server}"));
        }
        ClientEvent::Renewed { server, took } => {
            dhcp.renew_seconds.observe(took.as_secs_f64());
            tracing::debug!(record, %server, "the DHCP server renewed the lease");
        }
        ClientEvent::ServerChanged { from, to } => {
            let note = format!("DHCP server {to} extended the lease, instead of {from}");
            normal("ServerChanged", note);
        }
        ClientEvent::Lost { address, why } => {
            let why = match why {
                ClientTrouble::Refused => "the DHCP server refused the address",
                ClientTrouble::Taken(_) => {
                    "the lease has expired, and another host has the address"
                }
                ClientTrouble::Changed => "the DHCP server granted another address",
                ClientTrouble::Expired => "the lease has expired",
                // No loss has another cause.
                other => &other.to_string(),
            };
            warning("AddressLost", format!("{address} is lost: {why}"));
        }
        ClientEvent::Nak { server, heeded } => {
            dhcp.naks.inc();
            tracing::info!(record, %server, heeded, "the DHCP server refused the address");
        }
        ClientEvent::Declined { address, by, .. } => {
            dhcp.declines.inc();
            let note = format!("the agent declined {address}, because host {by} uses it");
            warning("AddressInUse", note);
        }
        ClientEvent::StillAnnounced { address, by } => {
            let note = format!("{address} is no longer leased, but host {by} still announces it");
            warning("StillAnnounced", note);
        }
        ClientEvent::NotReleased { address, by } => {
            warning(
                "NotReleased",
                format!(
                    "the agent ended the release of {address}, because host {by} uses it: the DHCP \
                     server may keep the lease until it expires, or have granted the address to \
                     this host"
                ),
            );
        }
        ClientEvent::Undisputed => tracing::debug!(record, "no other host has the granted address"),
        ClientEvent::Retry => dhcp.retries.inc(),
        ClientEvent::Released { address } => {
            normal("AddressReleased", format!("{address} was released"));
        }
        ClientEvent::Duplicate { from } => {
            let mac = lease.identity.mac;
            warning(
                "DuplicateClient",
                format!("host {from} sends DHCP messages with this lease's hardware address {mac}"),
            );
        }
        ClientEvent::Ignored(why) => {
            dhcp.frames_dropped.inc();
            tracing::debug!(record, ?why, "ignored a frame");
        }
    }
}

/// Reports the trouble of a record, by a log line and an Event. Skips the kinds of trouble for
/// which [`event`] always records an Event.
pub(super) fn trouble(agent: &DhcpAgent, lease: &ManagedLease, record: &LeaseRecord) {
    let is_event = |trouble: &ClientTrouble| {
        matches!(
            trouble,
            ClientTrouble::AddressInUse(_)
                | ClientTrouble::TooManyInUse(_)
                | ClientTrouble::Taken(_)
                | ClientTrouble::Expired
                | ClientTrouble::Changed
        )
    };
    if let Some(trouble) = record.trouble.as_ref().filter(|trouble| !is_event(trouble)) {
        tracing::warn!(record = lease.title(), "{trouble}");
        agent.events.warning(lease.reference(), reason(*trouble), trouble.to_string());
    }
}
