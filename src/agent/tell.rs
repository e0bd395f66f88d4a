//! Reports a client's events as metrics, logs and Kubernetes Events.

use super::Agent;
use super::lease::Lease;
use crate::domain::dhcp::{Event, Record, Trouble, reason};

/// Counts, logs and publishes an event of a lease.
pub(super) fn event(agent: &Agent, lease: &Lease, event: &Event) {
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
        Event::Offered { server, address } => {
            tracing::debug!(record, %server, %address, "offered");
        }
        Event::Unusable { server, address, why } => {
            tracing::debug!(record, %server, %address, %why, "offer is unusable");
        }
        Event::Acquired { address, server, took } => {
            dhcp.acquire_seconds.observe(took.as_secs_f64());
            normal("AddressLeased", format!("{address} is leased from {server}"));
        }
        Event::Renewed { server, took } => {
            dhcp.renew_seconds.observe(took.as_secs_f64());
            tracing::debug!(record, %server, "renewed");
        }
        Event::ServerChanged { from, to } => {
            normal("ServerChanged", format!("{to} extended the lease instead of {from}"));
        }
        Event::Lost { address, how } => {
            warning("AddressLost", format!("{address} is lost: {how:?}"));
        }
        Event::Nak { server, heeded } => {
            dhcp.naks.inc();
            tracing::info!(record, %server, heeded, "refused");
        }
        Event::Declined { address, by, .. } => {
            dhcp.declines.inc();
            warning("AddressInUse", format!("{address} was declined: {by} uses it"));
        }
        Event::StillAnnounced { address, by } => {
            warning(
                "StillAnnounced",
                format!("{address} is no longer leased, and {by} still announces it"),
            );
        }
        Event::NotReleased { address, by } => {
            warning(
                "NotReleased",
                format!(
                    "{address} was not released: {by} uses it. The server frees it when the lease expires"
                ),
            );
        }
        Event::Undisputed => tracing::debug!(record, "undisputed"),
        Event::Retry => dhcp.retries.inc(),
        Event::Released { address } => {
            normal("AddressReleased", format!("{address} was released"));
        }
        Event::Duplicate { from } => {
            warning(
                "DuplicateClient",
                format!("{from} sends DHCP with the hardware address {}", lease.identity.mac),
            );
        }
        Event::Ignored(why) => {
            dhcp.frames_dropped.inc();
            tracing::debug!(record, ?why, "ignored a frame");
        }
    }
}

/// Reports what keeps an address from use as a warning, unless [`event`] reports it already.
pub(super) fn trouble(agent: &Agent, lease: &Lease, record: &Record) {
    let is_event = |trouble: &Trouble| {
        matches!(
            trouble,
            Trouble::AddressInUse(_)
                | Trouble::TooManyInUse(_)
                | Trouble::Taken(_)
                | Trouble::Expired
                | Trouble::Changed
        )
    };
    if let Some(trouble) = record.trouble.as_ref().filter(|trouble| !is_event(trouble)) {
        tracing::warn!(record = lease.title(), "{trouble}");
        agent.events.warning(lease.reference(), reason(*trouble), trouble.to_string());
    }
}
