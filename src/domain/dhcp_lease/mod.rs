//! Addresses that the host leases by DHCP: for which LoadBalancers, what becomes of each one's
//! record, and when a recorded address may be published.
//!
//! The host leases on the networks that are declared for it. Whether their agents are there just now
//! says when there is an address, never who leases it. That is settled when a LoadBalancer gets its
//! first address, and stays: one at `0.0.0.0` is its announcer's until it is made again, one with a
//! record is the host's. Invariants: an
//! address is published only while its record says that it may be used, and never when somebody
//! else has it; a record goes only when no LoadBalancer of its name wants it.

mod address_conflict;
pub mod agent_deployment;
pub(crate) mod agent_name;
pub mod network_status;
mod networks;
mod requested_identity;
mod retention;
pub(crate) mod status;
mod takeover;

use std::net::Ipv4Addr;
use std::time::Duration;

use chrono::{DateTime, FixedOffset, TimeDelta};
use ipnet::Ipv4Net;
use serde_json::{Value, json};

use crate::dhcp::{ClientIdForm, Identity};
use crate::load_balancer::facts;
use crate::reason::{LEASE_LOST, NoLease};
use crate::vm_backends::service;
pub use address_conflict::{Other, Pool, World, obstacle};
use api::{
    ANNOTATION_DHCP, DHCP_FINALIZER, DHCPLease, DHCPLeaseSpec, LeaseState, LoadBalancer,
    OnLeaseLoss, READY,
};
pub use networks::{Agent, Declaration, Form, Networks};
pub use requested_identity::{ASKING, Asked, Fault, asked};
pub use retention::{Keeping, keep, without_finalizer};
pub use takeover::{AGAIN as TAKEOVER_AGAIN, is_possible as may_be_taken_over, needs_service};

/// By how much clocks of two machines may differ before a Lease counts as left behind.
const CLOCKS_APART: TimeDelta = TimeDelta::seconds(60);

/// Who leases, as the annotation chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The host, by the network's agent.
    Host,
    /// Whoever announces the address.
    Guest,
}

/// What to do next for a LoadBalancer whose address comes from a DHCP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Its announcer leases the address. The text says why, if that was decided now.
    Guest(Option<String>),
    /// The host leases, and there is no record yet.
    Create,
    /// The host is to lease what an announcer leases: this merge patch notes whose lease that is.
    Adopt(Value),
    /// The record is to be given back, and must not be: it is wanted again.
    Keep,
    /// There is no address that may be published.
    Wait(NoLease),
    /// This address may be published unless it is in somebody's way.
    Take(Lease),
}

/// An address that is leased, with what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub ip: Ipv4Addr,
    /// The subnet's mask, if the server told it.
    pub mask: Option<Ipv4Addr>,
    /// The subnet's router, if the server told it.
    pub gateway: Option<Ipv4Addr>,
    /// Where it was leased.
    pub network: String,
}

/// What a step rests on.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The LoadBalancer. Not one that is being deleted.
    pub lb: &'a LoadBalancer,
    /// Its network; empty for none.
    pub network: &'a str,
    /// The record by its name.
    pub record: Option<&'a DHCPLease>,
    /// Whether the host leases on its network.
    pub declared: bool,
    /// Why it leases nothing anew there, if an annotation of the network cannot be followed.
    pub fault: Option<&'a str>,
    /// Whether the agent of the record's network, or else of its own, is there.
    pub serving: bool,
    /// Service by which an announcer leases so far.
    pub service: Option<&'a service::Stored>,
    /// Whether the term is so young that an agent may have had no time to write what it renewed while the
    /// API server was away.
    pub early: bool,
    /// The time.
    pub now: DateTime<FixedOffset>,
}

/// The Lease of a network's agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Who holds it; empty for nobody.
    pub holder: String,
    /// For how long after each renewal.
    pub duration: Duration,
    /// Time of acquisition by the holder's clock.
    pub acquired: Option<DateTime<FixedOffset>>,
    /// When the holder's clock says that it was renewed.
    pub renewed: Option<DateTime<FixedOffset>>,
    /// `metadata.resourceVersion`: any change is a sign of life.
    pub version: String,
}

/// Whether the agent is there, when the last sign of life was seen so long ago.
pub fn serves(holding: &Holding, silent_for: Duration) -> bool {
    !holding.holder.is_empty() && silent_for < holding.duration
}

/// Whether a Lease that is seen for the first time was plainly left behind by somebody who died:
/// without this, its duration would have to be waited for.
pub fn is_left_behind(holding: &Holding, now: DateTime<FixedOffset>) -> bool {
    let lasts = TimeDelta::from_std(holding.duration).unwrap_or(TimeDelta::MAX);
    let end = |renewed: DateTime<FixedOffset>| {
        renewed.checked_add_signed(lasts)?.checked_add_signed(CLOCKS_APART)
    };
    holding.renewed.and_then(end).is_some_and(|end| end < now)
}

/// Who is to lease, by the annotation. An error: it says something else, as the text tells.
pub fn choice(lb: &LoadBalancer) -> Result<Option<Choice>, String> {
    let annotations = lb.metadata.annotations.as_ref();
    match annotations.and_then(|all| all.get(ANNOTATION_DHCP)).map(String::as_str) {
        None | Some("") => Ok(None),
        Some("host") => Ok(Some(Choice::Host)),
        Some("guest") => Ok(Some(Choice::Guest)),
        Some(other) => {
            Err(format!("{other:?} must be host or guest: who leases the address, which is IPv4"))
        }
    }
}

/// What to do next.
pub fn step(seen: &Seen<'_>) -> Step {
    let Seen { lb, network, record, declared, fault, serving, .. } = *seen;
    let leased = facts::leased(lb);
    let choice = choice(lb);
    if choice == Ok(Some(Choice::Guest)) && leased.is_none() {
        let why = format!("the annotation {ANNOTATION_DHCP} has the announcer lease the address");
        return Step::Guest(Some(why).filter(|_| !facts::has_address(lb)));
    }
    let is_guests = is_guests(lb);
    if let Some(record) = record.filter(|record| !is_guests || record.spec.release_after.is_none())
    {
        return with(record, seen);
    }
    if is_guests {
        return takeover::begin(seen);
    }
    let host = match choice {
        // What it was told before, it is not to find out for itself now.
        Ok(choice) => choice == Some(Choice::Host) || leased.is_some(),
        Err(fault) => {
            let fault = format!("metadata.annotations[{ANNOTATION_DHCP}]: {fault}");
            return Step::Wait(NoLease::Annotation(fault));
        }
    };
    if let Some(fault) = asked(lb).err().filter(|_| declared || host) {
        return Step::Wait(NoLease::Annotation(fault.text()));
    }
    if let Some(why) = takeover::waits(seen) {
        return Step::Wait(why);
    }
    if let Some(fault) = fault {
        return Step::Wait(NoLease::NetworkFault {
            network: network.to_owned(),
            fault: fault.to_owned(),
        });
    }
    if declared && serving {
        return Step::Create;
    }
    if declared || host {
        return Step::Wait(NoLease::NoAgent { network: network.to_owned(), declared });
    }
    Step::Guest(Some(if network.is_empty() {
        "no network is named, and so no agent leases on it: the announcer leases the address"
            .to_owned()
    } else {
        format!(
            "the host does not lease on network {network}: the announcer leases the address; the annotation {ANNOTATION_DHCP}=host on the NetworkAttachmentDefinition would have the host do so"
        )
    }))
}

/// With a record, the host leases.
fn with(record: &DHCPLease, seen: &Seen<'_>) -> Step {
    let Seen { lb, network, declared, serving, early, now, .. } = *seen;
    if record.metadata.deletion_timestamp.is_some() {
        return Step::Wait(NoLease::Returning);
    }
    if has_moved(record, lb, network) {
        return Step::Wait(NoLease::OtherNetwork { network: record.spec.network.clone() });
    }
    if is_anothers(record, lb) {
        return Step::Wait(NoLease::OtherIdentity);
    }
    if record.spec.release_after.is_some() {
        return Step::Keep;
    }
    let published = |lease: &Lease| early && facts::leased(lb) == Some(lease.ip);
    if let Some(lease) = usable(record, now).or_else(|| recorded(record).filter(published)) {
        return Step::Take(lease);
    }
    let said = record.status.iter().flat_map(|status| &status.conditions);
    let said = said.clone().find(|c| c.type_ == READY).and_then(|ready| ready.message.clone());
    let network = record.spec.network.clone();
    Step::Wait(if was_lost(record, lb) {
        NoLease::Lost { network, said, agent: serving }
    } else if serving {
        NoLease::Pending { network, said }
    } else {
        NoLease::NoAgent { network, declared }
    })
}

/// Whether a LoadBalancer without address was made again on another network than its record's. One
/// with an address keeps it, whatever its annotations say later.
fn has_moved(record: &DHCPLease, lb: &LoadBalancer, network: &str) -> bool {
    !network.is_empty() && record.spec.network != network && facts::leased(lb).is_none()
}

/// Whether its announcer leases its address.
fn is_guests(lb: &LoadBalancer) -> bool {
    facts::has_address(lb) && facts::leased(lb).is_none()
}

/// Whether a LoadBalancer without address asks to be another client than its record's. One with an address
/// keeps it, whatever its annotations say later.
fn is_anothers(record: &DHCPLease, lb: &LoadBalancer) -> bool {
    facts::leased(lb).is_none() && asked(lb).is_ok_and(|asked| !asked.fits(record))
}

/// Whether it had an address: then it is not just late.
fn was_lost(record: &DHCPLease, lb: &LoadBalancer) -> bool {
    let status = lb.status.as_ref();
    let ready = status.and_then(|s| s.conditions.iter().find(|c| c.type_ == READY));
    facts::leased(lb).is_some()
        || ready.is_some_and(|ready| ready.reason.as_deref() == Some(LEASE_LOST))
        || record.status.as_ref().is_some_and(|status| status.state == Some(LeaseState::Lost))
}

/// The address that a record says may be used now.
pub fn usable(record: &DHCPLease, now: DateTime<FixedOffset>) -> Option<Lease> {
    let good = |end| end > now || keeps(record);
    recorded(record).filter(|_| ends(record).is_none_or(good))
}

/// Whether the address of a record is kept after its end: see [`OnLeaseLoss`].
pub fn keeps(record: &DHCPLease) -> bool {
    record.status.as_ref().is_some_and(|status| status.on_lease_loss == Some(OnLeaseLoss::Keep))
}

/// The address that a record has, whether its time is over by the clock or not.
fn recorded(record: &DHCPLease) -> Option<Lease> {
    let status = record.status.as_ref()?;
    let over = matches!(status.state, Some(LeaseState::Lost | LeaseState::Released));
    let ip: Ipv4Addr = status.address.as_ref()?.parse().ok()?;
    if over || !is_host(ip) {
        return None;
    }
    let length = status.prefix_length.and_then(|length| u8::try_from(length).ok());
    let subnet = length.and_then(|length| Ipv4Net::new(ip, length).ok());
    let gateway = status.gateway.as_ref().and_then(|gateway| gateway.parse().ok());
    let network = record.spec.network.clone();
    Some(Lease { ip, mask: subnet.map(|subnet| subnet.netmask()), gateway, network })
}

/// What can be one host's own address. The agent looks closer.
fn is_host(ip: Ipv4Addr) -> bool {
    !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.is_broadcast())
}

/// When the address of a record ends unless it is renewed. `None`: never, or there is none.
pub fn ends(record: &DHCPLease) -> Option<DateTime<FixedOffset>> {
    let status = record.status.as_ref().filter(|status| status.address.is_some())?;
    // A time that makes no sense has passed: what is not known to be ours is not ours.
    status.expires_at.as_ref().map(|at| time(at).unwrap_or_default())
}

/// Whether so little of an address's time is left that it should have been renewed long ago.
pub fn is_overdue(record: &DHCPLease, now: DateTime<FixedOffset>) -> bool {
    let lasts = record.status.as_ref().and_then(|status| status.lease_seconds);
    let (Some(end), Some(lasts)) = (ends(record), lasts) else { return false };
    (end - now).num_seconds() < lasts / 8
}

fn time(text: &str) -> Option<DateTime<FixedOffset>> {
    DateTime::parse_from_rfc3339(text).ok()
}

/// The record of a LoadBalancer, as it is created. `form` is its network's of client identifiers.
pub fn record(
    lb: &LoadBalancer,
    cluster: &str,
    network: &str,
    form: ClientIdForm,
) -> Result<DHCPLease, Fault> {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    let (namespace, name) = (part(&lb.metadata.namespace), part(&lb.metadata.name));
    let asked = asked(lb)?;
    let identity = asked.identity(Identity::derive(cluster, network, &namespace, &name), form);
    let spec = DHCPLeaseSpec {
        network: network.to_owned(),
        mac_address: identity.mac.to_string(),
        client_id: identity.client_id.map(|id| id.to_string()).unwrap_or_default(),
        hostname: identity.hostname,
        requested_address: asked.address().map(|address| address.to_string()),
        broadcast: asked.broadcast(),
        release_after: None,
    };
    let mut record = DHCPLease::new(lb.metadata.name.as_deref().unwrap_or_default(), spec);
    record.metadata.namespace.clone_from(&lb.metadata.namespace);
    record.metadata.finalizers = Some(vec![DHCP_FINALIZER.to_owned()]);
    Ok(record)
}

/// Whether a DHCP server would take the holders of two records for one client.
pub fn is_one_client(one: &DHCPLeaseSpec, other: &DHCPLeaseSpec) -> bool {
    let same_id = !one.client_id.is_empty() && one.client_id == other.client_id;
    one.network == other.network && (one.mac_address == other.mac_address || same_id)
}

/// The merge patch that has a record given back then; `None` takes that back.
pub fn release_after(record: &DHCPLease, at: Option<DateTime<FixedOffset>>) -> Value {
    let at = at.map(|at| at.to_rfc3339_opts(chrono::SecondsFormat::Millis, true));
    json!({
        "metadata": {"resourceVersion": record.metadata.resource_version},
        "spec": {"releaseAfter": at},
    })
}

#[cfg(test)]
mod tests;
