//! Addresses that the host leases by DHCP: the LoadBalancers that get such an address, the life of
//! each record, and the conditions for publishing a recorded address.
//!
//! The host leases addresses on the declared networks. While a network's agent is not active, new
//! LoadBalancers on this network wait for their addresses.
//!
//! Either the host or the announcer leases the address of a LoadBalancer. This party is settled
//! when the record is created, or when `0.0.0.0` is published for the announcer. It stays the same
//! until the LoadBalancer is created again. Exceptions:
//!
//! * The announcer replaces the host, if the annotation [`ANNOTATION_DHCP`] chooses the announcer
//!   while no address that the host leased is published.
//! * The host replaces the announcer, if the host takes over the lease (`kube_vip_takeover`).
//!
//! Invariants:
//!
//! * An address is published only while its record says that it may be used. A published address
//!   stays in two more cases: while the operator cannot read the record, and at the start of a
//!   leader's term, even if the recorded expiry has passed.
//! * An address is not newly published while [`why_unusable`] returns a reason against it.
//! * The operator deletes a record only when no LoadBalancer of the record's name needs the record.

mod address_conflict;
pub mod agent_deployment;
mod agent_name;
mod kube_vip_takeover;
pub mod network_status;
mod networks;
mod requested_identity;
mod retention;
pub mod status;

use std::net::Ipv4Addr;
use std::time::Duration;

use chrono::{DateTime, FixedOffset, TimeDelta};
use ipnet::Ipv4Net;
use serde_json::{Value, json};

use crate::LeasedAddress;
use crate::dhcp::{ClientIdForm, ClientIdentity};
use crate::load_balancer::facts;
use crate::object_fields::rfc3339;
use crate::reason::{LEASE_LOST, NoLease};
use crate::vm_backends::service;
pub use address_conflict::{AddressUses, OtherHolder, PoolSegment, why_unusable};
pub use agent_name::{AGENT_PREFIX, agent_name};
use api::{
    ANNOTATION_DHCP, DHCP_FINALIZER, DHCPLease, DHCPLeaseSpec, KUBE_VIP_HOSTNAME, KUBE_VIP_HWADDR,
    LeaseState, LoadBalancer, OnLeaseLoss, READY,
};
pub use kube_vip_takeover::{
    AGAIN as TAKEOVER_AGAIN, is_possible as may_be_taken_over, needs_service,
};
pub use networks::{DhcpDeclaration, DhcpNetworks, NetworkForm, WantedAgent};
pub use requested_identity::{ASKING, AnnotationFault, RequestedIdentity, asked};
pub use retention::{RetentionStep, retention_step, without_finalizer};

/// Largest assumed difference between the clocks of two machines. A Lease counts as abandoned if
/// its last renewal expired longer ago than this difference.
const CLOCKS_APART: TimeDelta = TimeDelta::seconds(60);

/// Party that leases the address of a LoadBalancer. The annotation [`ANNOTATION_DHCP`] may choose
/// the party.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeasingParty {
    /// The agent of the network leases the address, on the host.
    Host,
    /// The announcer of the address leases it, in the guest or on the host.
    Guest,
}

/// Next step for a LoadBalancer whose address comes from a DHCP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeasingStep {
    /// The announcer leases the address. The text says why, for the message of the LoadBalancer's
    /// condition. `None`: this step adds no reason to the message.
    Guest(Option<String>),
    /// Create the record: the host is to lease the address, and there is no record yet.
    Create,
    /// Begin to take over the announcer's lease. The value is a merge patch for the LoadBalancer.
    /// The patch stores the identity of the announcer's DHCP client.
    Adopt(Value),
    /// Cancel the planned release of the record's address, because the LoadBalancer needs this
    /// address.
    Keep,
    /// Wait, because there is no address that may be published. The value is the reason.
    Wait(NoLease),
    /// Publish this address, if [`why_unusable`] finds no reason against it.
    Take(LeasedAddress),
}

/// Facts that decide the next step for a LoadBalancer.
#[derive(Clone, Copy, Debug)]
pub struct LeasingFacts<'a> {
    /// LoadBalancer. It must not be one that is being deleted.
    pub lb: &'a LoadBalancer,
    /// Network of the LoadBalancer, `namespace/name`. Empty: the LoadBalancer has no network.
    pub network: &'a str,
    /// Record with the name of the LoadBalancer. `None`: there is none.
    pub record: Option<&'a DHCPLease>,
    /// Whether the network is a declared one: the host leases addresses on it.
    pub declared: bool,
    /// Reason why the host starts no new leases on the network: one of its annotations is not
    /// valid. `None`: no annotation prevents new leases.
    pub fault: Option<&'a str>,
    /// Whether the agent of the record's network is active. If there is no record: whether the
    /// agent of `network` is active.
    pub serving: bool,
    /// Service of the LoadBalancer. `None`: there is none. During a takeover, this is the Service
    /// for which the announcer has leased the address.
    pub service: Option<&'a service::StoredService>,
    /// Whether the leader's term has just begun. Then a published address stays even if the
    /// recorded expiry of its lease has passed. The agent may have renewed the lease while the API
    /// server was unavailable, and may not have recorded the renewal yet.
    pub early: bool,
    /// Current time.
    pub now: DateTime<FixedOffset>,
}

/// Lease object of a network's agent (with a capital L: `coordination.k8s.io/v1`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentLease {
    /// Holder of the Lease. Empty: no agent holds the Lease.
    pub holder: String,
    /// Time for which a renewal of the Lease is valid.
    pub duration: Duration,
    /// Time at which the holder acquired the Lease, on the holder's clock.
    pub acquired: Option<DateTime<FixedOffset>>,
    /// Time of the last renewal of the Lease, on the holder's clock.
    pub renewed: Option<DateTime<FixedOffset>>,
    /// `metadata.resourceVersion` of the Lease. Each renewal changes it.
    pub version: String,
}

/// Whether an agent holds the Lease and is active. The agent is active while `silent_for` is
/// shorter than the Lease's duration. `silent_for`: time since a change of the Lease was last
/// observed.
pub fn serves(holding: &AgentLease, silent_for: Duration) -> bool {
    !holding.holder.is_empty() && silent_for < holding.duration
}

/// Whether a Lease counts as abandoned when the operator reads it for the first time. `true`: at
/// `now`, its last renewal has been expired for more than `CLOCKS_APART`. `false`: the Lease counts
/// as abandoned only after it has stayed unchanged for its whole duration.
pub fn is_left_behind(holding: &AgentLease, now: DateTime<FixedOffset>) -> bool {
    let lasts = TimeDelta::from_std(holding.duration).unwrap_or(TimeDelta::MAX);
    let end = |renewed: DateTime<FixedOffset>| {
        renewed.checked_add_signed(lasts)?.checked_add_signed(CLOCKS_APART)
    };
    holding.renewed.and_then(end).is_some_and(|end| end < now)
}

/// Party that the annotation [`ANNOTATION_DHCP`] of the LoadBalancer chooses to lease the address.
/// `Ok(None)`: the annotation is missing or empty. `Err`: its value is neither `host` nor `guest`.
pub fn choice(lb: &LoadBalancer) -> Result<Option<LeasingParty>, String> {
    let annotations = lb.metadata.annotations.as_ref();
    match annotations.and_then(|all| all.get(ANNOTATION_DHCP)).map(String::as_str) {
        None | Some("") => Ok(None),
        Some("host") => Ok(Some(LeasingParty::Host)),
        Some("guest") => Ok(Some(LeasingParty::Guest)),
        Some(other) => Err(format!(
            "{other:?} must be host or guest: the annotation chooses which of the two leases the IPv4 address"
        )),
    }
}

/// Decides the next step for a LoadBalancer, from the facts `seen`.
pub fn step(seen: &LeasingFacts<'_>) -> LeasingStep {
    let LeasingFacts { lb, network, record, declared, fault, serving, .. } = *seen;
    let leased = facts::leased(lb);
    let choice = choice(lb);
    if choice == Ok(Some(LeasingParty::Guest)) && leased.is_none() {
        let why = format!(
            "the announcer leases the address, because the annotation {ANNOTATION_DHCP} is guest"
        );
        return LeasingStep::Guest(Some(why).filter(|_| !facts::has_address(lb)));
    }
    let is_guests = is_guests(lb);
    if let Some(record) = record.filter(|record| !is_guests || record.spec.release_after.is_none())
    {
        return with(record, seen);
    }
    if is_guests {
        return kube_vip_takeover::begin(seen);
    }
    let host = match choice {
        // The host leases if the annotation chooses the host, or if the host has leased the
        // published address.
        Ok(choice) => choice == Some(LeasingParty::Host) || leased.is_some(),
        Err(fault) => {
            let fault = format!("metadata.annotations[{ANNOTATION_DHCP}]: {fault}");
            return LeasingStep::Wait(NoLease::Annotation(fault));
        }
    };
    if let Some(fault) = asked(lb).err().filter(|_| declared || host) {
        return LeasingStep::Wait(NoLease::Annotation(fault.text()));
    }
    if let Some(why) = kube_vip_takeover::waits(seen) {
        return LeasingStep::Wait(why);
    }
    if let Some(fault) = fault {
        return LeasingStep::Wait(NoLease::NetworkFault {
            network: network.to_owned(),
            fault: fault.to_owned(),
        });
    }
    if declared && serving {
        return LeasingStep::Create;
    }
    if declared || host {
        return LeasingStep::Wait(NoLease::NoAgent { network: network.to_owned(), declared });
    }
    LeasingStep::Guest(Some(if network.is_empty() {
        "the LoadBalancer names no network: the announcer leases the address".to_owned()
    } else {
        format!(
            "the host does not lease on network {network}: the announcer leases the address; for a lease by the host, set the annotation {ANNOTATION_DHCP}=host on the NetworkAttachmentDefinition"
        )
    }))
}

/// Decides the next step for a LoadBalancer whose address the host leases. `record`: the record of
/// the LoadBalancer.
fn with(record: &DHCPLease, seen: &LeasingFacts<'_>) -> LeasingStep {
    let LeasingFacts { lb, network, declared, serving, early, now, .. } = *seen;
    if record.metadata.deletion_timestamp.is_some() {
        return LeasingStep::Wait(NoLease::Returning);
    }
    if has_moved(record, lb, network) {
        return LeasingStep::Wait(NoLease::OtherNetwork { network: record.spec.network.clone() });
    }
    if is_anothers(record, lb) {
        return LeasingStep::Wait(NoLease::OtherIdentity);
    }
    if record.spec.release_after.is_some() {
        return LeasingStep::Keep;
    }
    let published = |lease: &LeasedAddress| early && facts::leased(lb) == Some(lease.ip);
    if let Some(lease) = usable(record, now).or_else(|| recorded(record).filter(published)) {
        return LeasingStep::Take(lease);
    }
    let said = record.status.iter().flat_map(|status| &status.conditions);
    let said = said.clone().find(|c| c.type_ == READY).and_then(|ready| ready.message.clone());
    let network = record.spec.network.clone();
    LeasingStep::Wait(if was_lost(record, lb) {
        NoLease::Lost { network, said, agent: serving }
    } else if serving {
        NoLease::Pending { network, said }
    } else {
        NoLease::NoAgent { network, declared }
    })
}

/// Whether a LoadBalancer and its record are on different networks. For example, the LoadBalancer
/// was created again on another network. `false` also in these cases:
///
/// * The LoadBalancer has no network.
/// * The LoadBalancer's status has an address that the host leased. A later change of the
///   LoadBalancer's network does not count.
fn has_moved(record: &DHCPLease, lb: &LoadBalancer, network: &str) -> bool {
    !network.is_empty() && record.spec.network != network && facts::leased(lb).is_none()
}

/// Whether the announcer leases the LoadBalancer's address. `true`: the published address is
/// `0.0.0.0`. `false` also for a LoadBalancer that still publishes an address of a pool after
/// `spec.ipam` was changed to `dhcp`.
fn is_guests(lb: &LoadBalancer) -> bool {
    facts::has_address(lb) && facts::leased(lb).is_none() && facts::published(lb).is_none()
}

/// Whether a LoadBalancer requests a client identity that its record does not have. `false` also in
/// these cases:
///
/// * The LoadBalancer's status has an address that the host leased. A later change of the
///   LoadBalancer's annotations does not count.
/// * An annotation that requests the identity is not valid.
fn is_anothers(record: &DHCPLease, lb: &LoadBalancer) -> bool {
    facts::leased(lb).is_none() && asked(lb).is_ok_and(|asked| !asked.fits(record))
}

/// Whether the condition Ready of the LoadBalancer must say that its leased address was lost. If
/// not, the condition says that the address is pending, or that no agent is active. Precondition:
/// the record has no address that may be published. `true` if one of these holds:
///
/// * The LoadBalancer's status still has a leased address.
/// * The LoadBalancer's stored condition has the reason [`LEASE_LOST`].
/// * The record has the state [`LeaseState::Lost`].
fn was_lost(record: &DHCPLease, lb: &LoadBalancer) -> bool {
    facts::leased(lb).is_some()
        || facts::ready(lb).is_some_and(|ready| ready.reason.as_deref() == Some(LEASE_LOST))
        || record.status.as_ref().is_some_and(|status| status.state == Some(LeaseState::Lost))
}

/// Address of a record. `None`: the record has no address that may be used at `now`.
pub fn usable(record: &DHCPLease, now: DateTime<FixedOffset>) -> Option<LeasedAddress> {
    let good = |end| end > now || keeps(record);
    recorded(record).filter(|_| expiry(record).is_none_or(good))
}

/// Whether the address of a record is kept after its lease has expired: see [`OnLeaseLoss`].
pub fn keeps(record: &DHCPLease) -> bool {
    record.status.as_ref().is_some_and(|status| status.on_lease_loss == Some(OnLeaseLoss::Keep))
}

/// Address of a record, whether or not its lease has expired. `None`: the record has no valid
/// address, or its address was lost or released.
fn recorded(record: &DHCPLease) -> Option<LeasedAddress> {
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
    Some(LeasedAddress { ip, mask: subnet.map(|subnet| subnet.netmask()), gateway, network })
}

/// Whether an address can belong to a single host. An agent makes further checks before it accepts
/// an address from a DHCP server.
fn is_host(ip: Ipv4Addr) -> bool {
    !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.is_broadcast())
}

/// Expiry of a record's lease. `None`: the lease never expires, or the record has no address.
pub fn expiry(record: &DHCPLease) -> Option<DateTime<FixedOffset>> {
    let status = record.status.as_ref().filter(|status| status.address.is_some())?;
    // A time that is not valid counts as past. An address whose expiry is unknown may belong to
    // another client.
    status.expires_at.as_ref().map(|at| rfc3339::parse(at).unwrap_or_default())
}

/// Whether the renewal of a record's lease is long overdue: less than an eighth of the lease time
/// is left before the expiry. `false` for a lease that never expires, or whose lease time is not
/// known.
pub fn is_overdue(record: &DHCPLease, now: DateTime<FixedOffset>) -> bool {
    let lasts = record.status.as_ref().and_then(|status| status.lease_seconds);
    let (Some(end), Some(lasts)) = (expiry(record), lasts) else { return false };
    (end - now).num_seconds() < lasts / 8
}

/// Record to create for a LoadBalancer. `Err`: an annotation that requests an identity is not
/// valid. `cluster`: UID of the Namespace kube-system. `form`: form of client identifiers on the
/// network.
pub fn record(
    lb: &LoadBalancer,
    cluster: &str,
    network: &str,
    form: ClientIdForm,
) -> Result<DHCPLease, AnnotationFault> {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    let (namespace, name) = (part(&lb.metadata.namespace), part(&lb.metadata.name));
    let asked = asked(lb)?;
    let identity =
        asked.identity(ClientIdentity::derive(cluster, network, &namespace, &name), form);
    let spec = DHCPLeaseSpec {
        network: network.to_owned(),
        mac_address: identity.mac.to_string(),
        client_id: identity.client_id.map(|id| id.to_string()).unwrap_or_default(),
        hostname: identity.hostname,
        requested_address: asked.address.map(|address| address.to_string()),
        broadcast: asked.broadcast,
        release_after: None,
    };
    let mut record = DHCPLease::new(lb.metadata.name.as_deref().unwrap_or_default(), spec);
    record.metadata.namespace.clone_from(&lb.metadata.namespace);
    record.metadata.finalizers = Some(vec![DHCP_FINALIZER.to_owned()]);
    Ok(record)
}

/// Whether a DHCP server would treat the clients of two records as one client: they are on the same
/// network, and have the same hardware address or the same client identifier.
pub fn is_one_client(one: &DHCPLeaseSpec, other: &DHCPLeaseSpec) -> bool {
    let same_id = !one.client_id.is_empty() && one.client_id == other.client_id;
    one.network == other.network && (one.mac_address == other.mac_address || same_id)
}

/// Reason why the record `new` is not created: a DHCP server would treat the clients of `new` and
/// of the record `other` (`namespace/name`) as one client. If `other` is in another namespace, the
/// text does not name it, because it may be another tenant's.
pub fn identity_taken(new: &DHCPLease, other: &str) -> NoLease {
    let DHCPLeaseSpec { network, mac_address, client_id, .. } = &new.spec;
    let namespace = other.split_once('/').map(|(namespace, _)| namespace);
    let whose = if namespace == new.metadata.namespace.as_deref() {
        format!("LoadBalancer {other}")
    } else {
        "another LoadBalancer".to_owned()
    };
    NoLease::IdentityTaken(format!(
        "{whose} leases its address on network {network} with the same hardware address {mac_address} or client identifier {client_id:?}: request another one by the annotation {KUBE_VIP_HWADDR} or {KUBE_VIP_HOSTNAME}"
    ))
}

/// Merge patch that plans the release of a record's address. `at`: time of the release. `None`: a
/// planned release is cancelled.
pub fn release_after(record: &DHCPLease, at: Option<DateTime<FixedOffset>>) -> Value {
    let at = at.map(rfc3339::to_millisecond);
    json!({
        "metadata": {"resourceVersion": record.metadata.resource_version},
        "spec": {"releaseAfter": at},
    })
}

#[cfg(test)]
mod tests;
