//! A LoadBalancer that holds another claim than the one it publishes.

use super::super::facts;
use super::Finding;
use crate::Claim;
use crate::pools::allocator::Verdict;
use api::LoadBalancer;

/// The claim that it publishes, where it holds another by now.
pub fn moves_from(lb: &LoadBalancer, finding: &Finding) -> Option<Claim> {
    let Finding::Pool(Verdict::Held { claim, .. }) = finding else { return None };
    facts::published(lb).filter(|old| old != claim)
}

/// The finding for a LoadBalancer whose old address may still be announced: it publishes that until
/// its Service has moved.
pub fn staying_at(old: Claim) -> Finding {
    Finding::Pool(Verdict::Held { claim: old, subnet: None, network: None, instead: None })
}
