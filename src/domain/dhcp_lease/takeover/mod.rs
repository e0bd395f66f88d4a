//! The host takes over what kube-vip leases so far, with the same address.
//!
//! Only for a LoadBalancer of VMs, whose Service is here, and only where its annotation asks for it. Whose
//! lease it is, is written on the LoadBalancer first; then the Service goes, at which kube-vip gives the address
//! back (`deleteService` in pkg/services/services.go stops its client, which sends a RELEASE); only then the
//! host asks for the same address as the same client. In another order the server would hear from kube-vip that
//! the address is free that the host has.

use std::time::Duration;

use chrono::TimeDelta;

use super::requested_identity::adopted;
use super::{Choice, Seen, Step, asked, choice, is_guests, time};
use crate::reason::{NoLease, TAKEOVER};
use crate::vm_backends::listeners;
use api::{Condition, LoadBalancer, READY};

/// Time after the end of a Service for which kube-vip may still be about to give the address back.
const GIVES_BACK: TimeDelta = TimeDelta::seconds(3);
/// Period at which a takeover is looked at.
pub const AGAIN: Duration = Duration::from_secs(1);

/// Whether the host would take over what an announcer leases.
pub fn is_possible(lb: &LoadBalancer) -> bool {
    listeners::is_vm(lb) && choice(lb) == Ok(Some(Choice::Host))
}

/// Whether a step depends on the LoadBalancer's Service.
pub fn needs_service(lb: &LoadBalancer) -> bool {
    is_possible(lb) && (is_guests(lb) || noted(lb).is_some())
}

/// The condition that says that the host takes over.
fn noted(lb: &LoadBalancer) -> Option<&Condition> {
    let mut conditions = lb.status.iter().flat_map(|status| &status.conditions);
    let ready = conditions.find(|condition| condition.type_ == READY);
    ready.filter(|ready| ready.reason.as_deref() == Some(TAKEOVER))
}

/// Next step for a LoadBalancer whose announcer leases.
pub(super) fn begin(seen: &Seen<'_>) -> Step {
    let Seen { lb, network, declared, fault, serving, service, .. } = *seen;
    if !is_possible(lb) {
        return Step::Guest(None);
    }
    if !(declared && serving) {
        return Step::Guest(Some(format!(
            "the announcer leases the address until the host leases on network {network} and its agent is there"
        )));
    }
    if let Some(fault) = fault {
        return Step::Guest(Some(format!(
            "the announcer leases the address until network {network} is put right: {fault}"
        )));
    }
    let adopted = service.map_or_else(|| asked(lb).map(|_| None), |service| adopted(lb, service));
    match adopted {
        Ok(Some(patch)) => Step::Adopt(patch),
        Ok(None) => Step::Wait(NoLease::TakingOver { network: network.to_owned() }),
        Err(fault) => Step::Guest(Some(format!(
            "the announcer leases the address, and the host cannot take it over: {}",
            fault.text()
        ))),
    }
}

/// Why the host does not lease yet, if it takes over.
pub(super) fn waits(seen: &Seen<'_>) -> Option<NoLease> {
    let Seen { lb, network, service, now, .. } = *seen;
    let since = noted(lb)?.last_update_time.as_deref().and_then(time);
    let given_back = since.is_none_or(|since| since + GIVES_BACK <= now);
    let gone = service.is_none() && given_back;
    (!gone).then(|| NoLease::TakingOver { network: network.to_owned() })
}

#[cfg(test)]
mod tests;
