//! What a client's events are to metrics, logs and people.

use super::Agent;
use super::lease::Lease;
use crate::domain::dhcp::{Event, Record, Trouble, reason};

/// Counts, logs and tells what happened to a lease.
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
            tracing::debug!(record, %server, %address, %why, "an offer of no use");
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
            normal(
                "ServerChanged",
                format!("{to} gave the address more time, and no longer {from}"),
            );
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
            warning("AddressInUse", format!("{address} was handed back: {by} has it"));
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
                    "{address} was not given back: {by} has it. Its server frees it when its lease ends"
                ),
            );
        }
        Event::Undisputed => tracing::debug!(record, "undisputed"),
        Event::Retry => dhcp.retries.inc(),
        Event::Released { address } => {
            normal("AddressReleased", format!("{address} was given back"));
        }
        Event::Duplicate { from } => {
            warning(
                "DuplicateClient",
                format!("{from} speaks with the hardware address {}", lease.identity.mac),
            );
        }
        Event::Ignored(why) => {
            dhcp.frames_dropped.inc();
            tracing::debug!(record, ?why, "ignored a frame");
        }
    }
}

/// Tells people of what is wrong, once.
pub(super) fn trouble(agent: &Agent, lease: &Lease, record: &Record) {
    let told_otherwise = |trouble: &Trouble| {
        matches!(
            trouble,
            Trouble::AddressInUse(_)
                | Trouble::TooManyInUse(_)
                | Trouble::Taken(_)
                | Trouble::Expired
                | Trouble::Changed
        )
    };
    if let Some(trouble) = record.trouble.as_ref().filter(|trouble| !told_otherwise(trouble)) {
        tracing::warn!(record = lease.title(), "{trouble}");
        agent.events.warning(lease.reference(), reason(*trouble), trouble.to_string());
    }
}
