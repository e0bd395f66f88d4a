//! Change of a LoadBalancer's claim: the ledger has a claim other than the published one, or
//! `spec.ipam` was changed to `dhcp`.

use std::net::IpAddr;

use super::super::facts;
use super::AddressOutcome;
use crate::Claim;
use crate::pools::allocator::ClaimResult;
use crate::vm_backends::listeners;
use crate::vm_backends::service::StoredService;
use api::LoadBalancer;

/// The claim that the status publishes, if the ledger has a different claim. `None`: the published
/// claim is the ledger's claim, or one of the two is missing.
pub fn moves_from(lb: &LoadBalancer, outcome: &AddressOutcome) -> Option<Claim> {
    let AddressOutcome::Pool(ClaimResult::Held { claim, .. }) = outcome else { return None };
    facts::published(lb).filter(|old| old != claim)
}

/// Whether the former address of a LoadBalancer, `address`, may still be announced. `own`: the
/// LoadBalancer's Service. `false` if there is none. `true` in these cases:
/// * the Service is announced at the address;
/// * the Service requests the address;
/// * the Service is not announced at any address yet. The LoadBalancer may have had an earlier
///   Service, and an announcer that has not seen the deletion of that Service may still announce
///   the address.
pub fn may_lead_to(address: IpAddr, own: Option<&StoredService>) -> bool {
    own.is_some_and(|stored| stored.ingress.is_empty() || stored.asks_for(address))
}

/// Outcome that keeps the claim `old` published. Callers use it as long as the LoadBalancer's
/// Service may still be announced at the address of `old`.
pub fn keep_old_address(old: Claim) -> AddressOutcome {
    AddressOutcome::Pool(ClaimResult::Held {
        claim: old,
        subnet: None,
        network: None,
        instead: None,
    })
}

/// Outcome that keeps the published claim of a vm LoadBalancer after `spec.ipam` was changed to
/// `dhcp`. The caller uses this outcome while a finalizer delays the deletion of the Service, which
/// asks for the claimed address. `None`: the status publishes no claim, or the LoadBalancer is of
/// type cluster. For type cluster, the leased address can be published at once, because a guest
/// announces it without a Service.
pub fn keep_while_served(lb: &LoadBalancer) -> Option<AddressOutcome> {
    facts::published(lb).filter(|_| listeners::is_vm(lb)).map(keep_old_address)
}
