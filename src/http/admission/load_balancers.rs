//! Looks up the facts that the admission rules of LoadBalancers need.
//!
//! Facts come from the watches' views, except two pools: the pool that the object names, and the
//! pool of its present address. Each of them is read from the API server if the view does not
//! contain it yet.
//!
//! Only these requests cause a scan of all LoadBalancers in the view:
//! * A guest reports a leased address.
//! * A new or changed object names a pool.
//! * The network of an object changes, and the object has an address from a pool.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::{AdmissionStage, RuleSources};
use crate::api::LoadBalancer;
use crate::domain::admission::load_balancer::{
    self, CandidatePool, FactRequests, LbRuleFacts, NamedPool,
};
use crate::domain::admission::{AdmissionAnswer, AdmissionRequest};
use crate::domain::load_balancer::facts::{self, LbSurroundings};
use crate::domain::network::Segment;
use crate::domain::pools::conflict::{PoolFacts, network_mismatch};
use crate::domain::pools::ranges::PoolRanges;
use crate::domain::reason::NoAddressReason;
use crate::k8s::CallError;

/// Answers a review of a LoadBalancer. `deadline`: time for the reads of pools from the API server.
/// `Err`: a read failed, or was not done in this time.
pub async fn decide(
    at: &RuleSources,
    stage: AdmissionStage,
    request: &AdmissionRequest<'_>,
    deadline: Duration,
) -> Result<AdmissionAnswer, CallError> {
    let late = |_| CallError::Timeout { call: "read of an IPPool".to_owned(), within: deadline };
    let known = match load_balancer::asks(request) {
        Some(asks) => timeout(deadline, gather(at, stage, &asks)).await.map_err(late)??,
        // The rules need no fact that must be looked up. Only the project of the request's
        // namespace is set.
        None => LbRuleFacts {
            around: LbSurroundings {
                project: at.views.project_of(request.namespace),
                ..LbSurroundings::default()
            },
            ..LbRuleFacts::default()
        },
    };
    Ok(match stage {
        AdmissionStage::Mutation => load_balancer::mutate(request, &known),
        AdmissionStage::Validation => load_balancer::validate(request, &known),
    })
}

async fn gather(
    at: &RuleSources,
    stage: AdmissionStage,
    asks: &FactRequests,
) -> Result<LbRuleFacts, CallError> {
    let views = &at.views;
    let mut known = LbRuleFacts {
        around: views.around(&asks.lb),
        taken_by: asks.address.and_then(|address| taken_by(at, address, &asks.lb)),
        ..LbRuleFacts::default()
    };
    if stage == AdmissionStage::Validation {
        known.removal = views.removal_of(&asks.lb);
        if let Some(pool) = &asks.pool {
            known.named = named(at, pool, &asks.lb).await?;
        }
        if let Some(pool) = &asks.claimed {
            known.claimed = named(at, pool, &asks.lb).await?;
        }
        // If the view is empty, perhaps no pool has been read yet. So the pools count as unknown.
        known.pools = Some(views.pools())
            .filter(|pools| asks.pools && views.is_synced() && !pools.is_empty())
            .map(|pools| pools.iter().map(|pool| pool.selector.clone()).collect());
    }
    Ok(known)
}

/// Reason why the LoadBalancer's network does not fit the pool's network. `None`: the networks fit.
/// The ledger task uses the same rule.
fn mismatch(at: &RuleSources, pool: &PoolFacts, lb: &LoadBalancer) -> Option<NoAddressReason> {
    let segment = |network: &str| at.views.segment(network);
    let facts = facts::facts(lb, &at.views.around(lb), segment, false);
    network_mismatch(&pool.name, &pool.selector, &segment(pool.selector.network()), &facts)
}

/// Describes the present use of `address`, which the guest of `lb` reports as leased. `None`: the
/// address has no use that counts. These uses count on every segment:
/// * A node has the address.
/// * Another LoadBalancer has the address from a global pool.
/// * The address is a gateway of a global pool.
/// * Another LoadBalancer has the address, and its pool or its record is not in the views.
///
/// These uses count on the segment of `lb`, or if one of the two segments is not known:
/// * Another LoadBalancer has the address from a pool.
/// * The host leases the address for another LoadBalancer.
/// * The address is a gateway of a pool.
///
/// An address that another guest reports does not count, because such a report could block other
/// tenants. The text does not name the other LoadBalancer, because a tenant could use the text to
/// find the LoadBalancers of others.
fn taken_by(at: &RuleSources, address: IpAddr, lb: &LoadBalancer) -> Option<String> {
    let views = &at.views;
    if views.is_node_address(address) {
        return Some("a node's own address".to_owned());
    }
    let network = facts::requirement(lb, &views.around(lb)).network;
    let here = match network.as_str() {
        // The LoadBalancer's network is unknown, so it may be on any segment.
        "" => Segment::Unlisted,
        network => views.segment(network),
    };
    let pools: Vec<Arc<PoolFacts>> = views.pools();
    let serves_here = |pool: &PoolFacts| {
        pool.selector.is_global() || views.segment(pool.selector.network()).meets(&here)
    };
    let own = facts::name(lb);
    let holds = |other: &LoadBalancer| {
        let claimed = facts::published(other).filter(|claim| claim.ip == address);
        let by_pool = claimed.is_some_and(|claim| {
            let pool = pools.iter().find(|pool| pool.name == claim.pool);
            pool.is_none_or(|pool| serves_here(pool))
        });
        let leased = || facts::leased(other).is_some_and(|leased| address == leased);
        let record = || views.record(&facts::name(other));
        by_pool || leased() && record().is_none_or(|r| views.segment(&r.spec.network).meets(&here))
    };
    let held = views.load_balancers.find(|other| holds(other) && facts::name(other) != own);
    if held.is_some() {
        return Some("in use".to_owned());
    }
    let is_gateway = |pool: &&Arc<PoolFacts>| {
        let mut gateways = pool.ranges.iter().flat_map(PoolRanges::gateways);
        gateways.any(|gateway| gateway == address) && serves_here(pool)
    };
    pools.iter().any(|pool| is_gateway(&pool)).then(|| "a gateway".to_owned())
}

/// Reads the pool with this name from the view. If the view does not contain the pool, the pool may
/// be new, so the pool is read from the API server.
async fn named(at: &RuleSources, name: &str, lb: &LoadBalancer) -> Result<NamedPool, CallError> {
    let seen = at.views.pools().into_iter().find(|pool| pool.name == name);
    if let Some(pool) = seen {
        return Ok(NamedPool::There(pool_seen(at, &pool, lb)));
    }
    Ok(match at.reader.pool(name).await? {
        Some(pool) => NamedPool::There(pool_seen(at, &pool, lb)),
        None => NamedPool::Missing,
    })
}

fn pool_seen(at: &RuleSources, pool: &PoolFacts, lb: &LoadBalancer) -> CandidatePool {
    let store = &at.views.load_balancers;
    let taken = || {
        // The name of the pool is compared first, because it is slow to parse the addresses of ten
        // thousand LoadBalancers.
        let here = |lb: &LoadBalancer| {
            let status = lb.status.as_ref();
            let claim = status.and_then(|status| status.allocated_address.as_ref());
            claim.is_some_and(|claim| claim.ip_pool.as_ref() == Some(&pool.name))
                && facts::published(lb).is_some()
        };
        i64::try_from(store.state_filter(here).len()).unwrap_or(i64::MAX)
    };
    let idle = match &pool.ranges {
        _ if pool.deleting => Some("it is being deleted"),
        None => Some("a range is invalid, see the pool's condition"),
        Some(_) => None,
    };
    let total = pool.ranges.as_ref().map_or(0, PoolRanges::total);
    CandidatePool {
        selector: pool.selector.clone(),
        idle: idle.map(str::to_owned),
        // If there are fewer LoadBalancers than addresses, the pool cannot be full, so nothing is
        // counted.
        full: i64::try_from(store.len()).is_ok_and(|all| all >= total) && taken() >= total,
        mismatch: mismatch(at, pool, lb),
    }
}
