//! Takeover of kube-vip's lease by the host, with the same address. Steps:
//!
//! 1. The operator writes the identity of kube-vip's client on the LoadBalancer.
//! 2. The operator deletes the Service. Then kube-vip stops its client, which sends a DHCPRELEASE
//!    (`deleteService` in kube-vip's pkg/services/services.go).
//! 3. The host asks for the same address, as the same client.
//!
//! Step 1 needs the Service, because the identity is read from the Service. If step 3 came before
//! step 2, kube-vip would release an address that the host has leased.
//!
//! A takeover is possible only for a VM load balancer. The Service of a guest load balancer is not
//! in this cluster. The LoadBalancer's annotation must also choose the host to lease the address.

use std::time::Duration;

use chrono::TimeDelta;

use super::requested_identity::adopted;
use super::{LeasingFacts, LeasingParty, LeasingStep, asked, choice, is_guests};
use crate::load_balancer::facts;
use crate::object_fields::rfc3339;
use crate::reason::{NoLease, TAKEOVER};
use crate::vm_backends::listeners;
use api::{Condition, LoadBalancer};

/// Time that kube-vip gets to send its DHCPRELEASE, counted from the last update of the condition
/// that reports the takeover. The operator requests the deletion of the Service before it writes
/// this condition.
const GIVES_BACK: TimeDelta = TimeDelta::seconds(3);
/// Interval between two checks whether a takeover can continue.
pub const AGAIN: Duration = Duration::from_secs(1);

/// Whether the host may take over the lease of the LoadBalancer's announcer. `true`: the
/// LoadBalancer is a VM load balancer, and its annotation chooses the host.
pub fn is_possible(lb: &LoadBalancer) -> bool {
    listeners::is_vm(lb) && choice(lb) == Ok(Some(LeasingParty::Host))
}

/// Whether the next step for a LoadBalancer depends on its Service. `true`: a takeover is possible
/// ([`is_possible`]), and either the announcer still leases the address or the takeover has begun.
pub fn needs_service(lb: &LoadBalancer) -> bool {
    is_possible(lb) && (is_guests(lb) || noted(lb).is_some())
}

/// Condition `Ready` of the LoadBalancer, if this condition says that a takeover has begun. `None`:
/// no takeover has begun.
fn noted(lb: &LoadBalancer) -> Option<&Condition> {
    facts::ready(lb).filter(|ready| ready.reason.as_deref() == Some(TAKEOVER))
}

/// Next step for a LoadBalancer whose address is leased by its announcer.
pub(super) fn begin(seen: &LeasingFacts<'_>) -> LeasingStep {
    let LeasingFacts { lb, network, declared, fault, serving, service, .. } = *seen;
    if !is_possible(lb) {
        return LeasingStep::Guest(None);
    }
    if !(declared && serving) {
        return LeasingStep::Guest(Some(format!(
            "the announcer leases the address until the host leases on network {network} and its agent is active"
        )));
    }
    if let Some(fault) = fault {
        return LeasingStep::Guest(Some(format!(
            "the announcer leases the address until the fault of network {network} is corrected: {fault}"
        )));
    }
    let adopted = service.map_or_else(|| asked(lb).map(|_| None), |service| adopted(lb, service));
    match adopted {
        Ok(Some(patch)) => LeasingStep::Adopt(patch),
        Ok(None) => LeasingStep::Wait(NoLease::TakingOver { network: network.to_owned() }),
        Err(fault) => LeasingStep::Guest(Some(format!(
            "the announcer leases the address, and the host cannot take it over: {}",
            fault.text()
        ))),
    }
}

/// Reason why the host does not lease the address yet during a takeover. `None`: no takeover has
/// begun, or the Service is gone and kube-vip had enough time ([`GIVES_BACK`]) to release the
/// address at its DHCP server.
pub(super) fn waits(seen: &LeasingFacts<'_>) -> Option<NoLease> {
    let LeasingFacts { lb, network, service, now, .. } = *seen;
    let since = noted(lb)?.last_update_time.as_deref().and_then(rfc3339::parse);
    let given_back = since.is_none_or(|since| since + GIVES_BACK <= now);
    let gone = service.is_none() && given_back;
    (!gone).then(|| NoLease::TakingOver { network: network.to_owned() })
}

#[cfg(test)]
mod tests;
