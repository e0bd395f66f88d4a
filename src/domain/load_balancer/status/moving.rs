//! A LoadBalancer with another claim than the published one.

use super::super::facts;
use super::Finding;
use crate::Claim;
use crate::pools::allocator::Verdict;
use api::LoadBalancer;

/// The published claim, if the ledger's claim is another one by now.
pub fn moves_from(lb: &LoadBalancer, finding: &Finding) -> Option<Claim> {
    let Finding::Pool(Verdict::Held { claim, .. }) = finding else { return None };
    facts::published(lb).filter(|old| old != claim)
}

/// The finding for a LoadBalancer whose old address may still be announced: the old address stays
/// published until the Service has moved.
pub fn staying_at(old: Claim) -> Finding {
    Finding::Pool(Verdict::Held { claim: old, subnet: None, network: None, instead: None })
}
