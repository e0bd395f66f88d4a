//! Conversion of a client's [`LeaseRecord`] to the status of a DHCPLease, and of such a status to a
//! [`RecordedLease`].
//!
//! The times in a DHCPLease are by the wall clock. The times of a client are offsets on its own
//! clock. Only this module converts the times of one clock to those of the other. Invariant: an
//! invalid field of a DHCPLease counts as absent.

use std::time::Duration;

use chrono::{DateTime, FixedOffset, TimeDelta};
use serde_json::{Map, Value};

use crate::dhcp::{AnnouncedAddress, ClientTrouble, LeaseRecord, Mac, RecordedLease};
use crate::object_fields::condition::{condition, with_condition};
use crate::object_fields::rfc3339;
use api::{Condition, ConditionStatus, DHCPLeaseStatus, LeaseState, OnLeaseLoss};

/// One moment, as read on the client's clock and on the wall clock.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Time on the client's clock, as an offset from its start.
    pub now: Duration,
    /// Time on the wall clock.
    pub wall: DateTime<FixedOffset>,
}

impl Moment {
    fn text(&self, at: Duration) -> String {
        let delta = |by: Duration| TimeDelta::from_std(by).unwrap_or(TimeDelta::MAX);
        let time = if at >= self.now {
            self.wall.checked_add_signed(delta(at.saturating_sub(self.now)))
        } else {
            self.wall.checked_sub_signed(delta(self.now.saturating_sub(at)))
        };
        rfc3339::to_millisecond(time.unwrap_or(self.wall))
    }
}

/// Status to write into a DHCPLease. `record`: what the client reports. `at`: the present moment.
/// `agent`: name of the agent that writes. `former`: the stored status.
pub fn report(
    record: &LeaseRecord,
    at: Moment,
    agent: &str,
    former: &DHCPLeaseStatus,
) -> DHCPLeaseStatus {
    let mut status = DHCPLeaseStatus {
        state: Some(record.state),
        agent: Some(agent.to_owned()),
        ..DHCPLeaseStatus::default()
    };
    if let Some(lease) = &record.lease {
        status.address = Some(lease.address.to_string());
        status.prefix_length = lease.prefix.map(i32::from);
        status.gateway = lease.gateway.map(|gateway| gateway.to_string());
        status.name_servers = lease.name_servers.iter().map(ToString::to_string).collect();
        status.server = Some(lease.server.to_string());
        status.server_mac = Some(lease.server_mac.to_string());
        status.lease_seconds = lease.seconds.map(i64::from);
        status.renew_at = Some(at.text(lease.renew));
        status.rebind_at = lease.rebind.map(|rebind| at.text(rebind));
        status.expires_at = lease.expires.map(|end| at.text(end));
        status.obtained_at = Some(at.text(lease.obtained));
    }
    status.on_lease_loss = record.keeps.then_some(OnLeaseLoss::Keep);
    if let Some(announced) = &record.announced {
        status.announcers = announced.by.iter().map(ToString::to_string).collect();
        if record.lease.is_none() {
            status.former_address = Some(announced.address.to_string());
        }
    }
    let mut ready = match (&record.lease, &record.trouble) {
        (Some(lease), trouble) => {
            let text = trouble.map_or_else(String::new, |trouble| format!("; {trouble}"));
            let message = format!("{} is leased from {}{text}", lease.address, lease.server);
            let reason = if *trouble == Some(ClientTrouble::Kept) {
                reason(ClientTrouble::Kept)
            } else {
                BOUND
            };
            (ConditionStatus::True, reason, message)
        }
        (None, Some(trouble)) => (ConditionStatus::False, reason(*trouble), trouble.to_string()),
        (None, None) if record.state == LeaseState::Released => {
            (ConditionStatus::False, "Released", "the address was released".to_owned())
        }
        (None, None) => {
            (ConditionStatus::False, "NotLeased", "no address has been leased yet".to_owned())
        }
    };
    if let Some((address, by)) = record.still_announced {
        let still = format!("; {by} still announces {address}, which is no longer leased");
        ready.2.push_str(&still);
    }
    status.conditions = conditions(&former.conditions, ready, at);
    status
}

/// Status to write into a record if the link of its lease could not be made. `why`: the reason.
/// `at`: the present moment. `former`: the stored status.
pub fn link_failed(why: &str, at: Moment, former: &DHCPLeaseStatus) -> DHCPLeaseStatus {
    let ready = if former.address.is_some() {
        let message = format!("the address is leased, but its lease cannot be renewed: {why}");
        (ConditionStatus::True, LINK_FAILED, message)
    } else {
        (ConditionStatus::False, LINK_FAILED, why.to_owned())
    };
    let conditions = conditions(&former.conditions, ready, at);
    DHCPLeaseStatus { conditions, ..former.clone() }
}

const BOUND: &str = "Bound";
const LINK_FAILED: &str = "LinkFailed";

/// Word that names a client's trouble: the reason in the condition `Ready` and in Events. These
/// words do not change from version to version, because alerts and scripts may depend on them.
pub fn reason(trouble: ClientTrouble) -> &'static str {
    match trouble {
        ClientTrouble::NoOffer => "NoOffer",
        ClientTrouble::Refused => "Refused",
        ClientTrouble::AddressInUse(_)
        | ClientTrouble::TooManyInUse(_)
        | ClientTrouble::Taken(_) => "AddressInUse",
        ClientTrouble::Unusable { .. } => "UnusableOffer",
        ClientTrouble::AnswersForAll(_) => "ProxyARP",
        ClientTrouble::ServerSilent => "ServerSilent",
        ClientTrouble::Expired => "Expired",
        ClientTrouble::Kept => "Kept",
        ClientTrouble::Changed => "Changed",
    }
}

fn conditions(
    former: &[Condition],
    (status, reason, message): (ConditionStatus, &str, String),
    at: Moment,
) -> Vec<Condition> {
    let now = rfc3339::to_second(at.wall);
    with_condition(former, condition(status, reason, message), &now)
        .unwrap_or_else(|| former.to_vec())
}

/// Merge patch (RFC 7396) that replaces the stored status by the new one. The patch has all fields
/// of `new`, even the unchanged ones: the API server may have stored an earlier write whose answer
/// was lost, so `stored` may be out of date. A field that only `stored` has is removed.
pub fn status_patch(new: &DHCPLeaseStatus, stored: &DHCPLeaseStatus) -> Value {
    let fields = |status: &DHCPLeaseStatus| match serde_json::to_value(status) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let mut patch = fields(new);
    for (name, _) in fields(stored) {
        patch.entry(name).or_insert(Value::Null);
    }
    Value::Object(patch)
}

/// Lease that a former process of the agent held, read from the status of the record. `wall`: the
/// current time. `None`: the status contains no lease.
pub fn held(status: &DHCPLeaseStatus, wall: DateTime<FixedOffset>) -> Option<RecordedLease> {
    let time = |text: &Option<String>| rfc3339::parse(text.as_deref()?);
    let until = |end: DateTime<FixedOffset>| (end - wall).to_std().unwrap_or_default();
    let seconds = status.lease_seconds.and_then(|seconds| u32::try_from(seconds).ok());
    Some(RecordedLease {
        address: status.address.as_deref()?.parse().ok()?,
        prefix: status.prefix_length.and_then(|prefix| u8::try_from(prefix).ok()),
        gateway: status.gateway.as_deref().and_then(|gateway| gateway.parse().ok()),
        name_servers: status.name_servers.iter().filter_map(|server| server.parse().ok()).collect(),
        server: status.server.as_deref()?.parse().ok()?,
        server_mac: status.server_mac.as_deref().and_then(|mac| mac.parse().ok()),
        announcers: announcers(status),
        seconds,
        age: time(&status.obtained_at)
            .and_then(|since| (wall - since).to_std().ok())
            .unwrap_or_default(),
        left: time(&status.expires_at).map(until).unwrap_or_default(),
    })
}

/// Address that a former process of the agent held and lost, read from the status of the record.
/// `None`: the status contains no such address.
pub fn former(status: &DHCPLeaseStatus) -> Option<AnnouncedAddress> {
    let address = status.former_address.as_deref()?.parse().ok()?;
    Some(AnnouncedAddress { address, by: announcers(status) })
}

fn announcers(status: &DHCPLeaseStatus) -> Vec<Mac> {
    status.announcers.iter().filter_map(|mac| mac.parse().ok()).collect()
}

#[cfg(test)]
mod tests;
