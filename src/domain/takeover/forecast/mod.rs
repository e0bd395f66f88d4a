//! Forecast of what the operator does with stored pools and LoadBalancers when it starts.
//!
//! Invariant: the forecast has no rules of its own. The pools are read into the [`PoolAllocator`],
//! and each LoadBalancer asks for its address. Both are done in the same way as at the start of a
//! term.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::load_balancer::facts;
use crate::network::infrastructure::HeldBack;
use crate::pools::allocator::{
    ClaimResult, LedgerRepair, LoadBalancerIndex, PoolAllocator, PoolSeen,
};
use crate::pools::ranges;
use crate::{Claim, LbFacts};
use api::{LB_FINALIZER, LoadBalancer};

/// Text about a LoadBalancer that is being deleted, for a finding and for a preview.
pub const LEAVING: &str =
    "is being deleted: the operator releases its address and removes its finalizer";

/// Stored objects from which a forecast is made.
#[derive(Clone, Debug, Default)]
pub struct StoredObjects {
    /// Every IPPool.
    pub pools: Vec<PoolSeen>,
    /// Every LoadBalancer.
    pub load_balancers: Vec<LoadBalancer>,
    /// Facts of each LoadBalancer that asks for an address from a pool.
    pub facts: Vec<LbFacts>,
    /// Addresses and networks that the cluster itself uses. Pools do not give them out. Exception:
    /// pools on tagged VLANs give out addresses of the networks of pods and Services.
    pub held_back: HeldBack,
    /// Objects that cannot be parsed into their type: kind and name of each, and the reason.
    pub unreadable: Vec<(String, String)>,
}

/// Effect of the operator's start on the object of a [`ForecastFinding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// The address of a LoadBalancer changes or is lost.
    Changes,
    /// The operator leaves the object as it is. A person must decide what to do.
    Stays,
    /// The operator repairs the fault.
    Repairs,
}

/// Statement about one object: what the operator changes when it starts, or what it leaves for a
/// person to decide.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForecastFinding {
    /// Effect that the operator's start has on the object.
    pub effect: Effect,
    /// Kind and name of the object.
    pub object: String,
    /// Fault and consequence, as a sentence.
    pub text: String,
}

/// Expected result of the operator's start.
#[derive(Clone, Debug, Default)]
pub struct Forecast {
    /// Answer of the allocator for each LoadBalancer that asks for an address. The key is the
    /// LoadBalancer's `namespace/name`.
    pub results: BTreeMap<String, ClaimResult>,
    /// Pools and claims after the answers in `results`.
    pub allocator: PoolAllocator,
    /// Names of the pools that the allocator has marked as changed. Their status must be written.
    pub touched: BTreeSet<String>,
    /// Number of LoadBalancers that keep the address that they publish.
    pub keep: usize,
    /// Number of LoadBalancers that have no address and get one that meets their request.
    pub gain: usize,
    /// Number of LoadBalancers whose address is leased by DHCP. They need no pool.
    pub leased: usize,
    /// All findings, sorted by effect and object.
    pub findings: Vec<ForecastFinding>,
}

impl Forecast {
    /// Number of LoadBalancers whose address changes or is lost when the operator starts.
    pub fn changes(&self) -> usize {
        self.findings.iter().filter(|finding| finding.effect == Effect::Changes).count()
    }
}

/// Makes the forecast. Reads the stored pools into an allocator, and asks the allocator for the
/// address of each LoadBalancer in [`StoredObjects::facts`].
pub fn forecast(stored: &StoredObjects) -> Forecast {
    let mut forecast = Forecast::default();
    let mut allocator = PoolAllocator::default();
    allocator.set_infrastructure(stored.held_back.clone());
    let index = LoadBalancerIndex::new(stored.load_balancers.iter().filter_map(facts::lb_entry));
    for pool in &stored.pools {
        let object = || format!("IPPool {}", pool.name);
        let repairs = allocator.merge(pool, &index);
        for text in repairs.iter().filter_map(repaired) {
            forecast.add(Effect::Repairs, object(), text);
        }
        for text in reversed(pool) {
            forecast.add(Effect::Stays, object(), text);
        }
    }
    for facts in &stored.facts {
        allocator.adopt(facts);
    }
    allocator.take_moved();
    let mut asking: Vec<&LbFacts> = stored.facts.iter().collect();
    asking.sort_by_key(|facts| (facts.created, facts.owner.clone()));
    for facts in asking {
        let result = allocator.claim(facts);
        forecast.address(facts, &result);
        forecast.results.insert(facts.owner.name.clone(), result);
    }
    forecast.pools(&allocator);
    for (claim, owner) in allocator.orphans(&index) {
        let Claim { pool, ip } = claim;
        let text = format!(
            "{ip} is recorded for LoadBalancer {}, which does not have it: the operator releases \
             it",
            owner.name
        );
        forecast.add(Effect::Repairs, format!("IPPool {pool}"), text);
    }
    forecast.load_balancers(&stored.load_balancers);
    for (object, why) in &stored.unreadable {
        let text = format!("cannot be read, and is left as it is: {why}");
        forecast.add(Effect::Stays, object.clone(), text);
    }
    forecast.findings.sort();
    forecast.findings.dedup();
    forecast.touched = allocator.take_touched();
    forecast.allocator = allocator;
    forecast
}

/// Text about a repair of a ledger. `None`: the repair is [`LedgerRepair::Double`]. In this case,
/// the finding about the LoadBalancer that loses its address suffices.
fn repaired(repair: &LedgerRepair) -> Option<String> {
    Some(match repair {
        LedgerRepair::Restored(Claim { ip, .. }, owner) => format!(
            "LoadBalancer {} publishes {ip}, which the ledger lacks: the operator records it",
            owner.name
        ),
        LedgerRepair::Corrected(Claim { ip, .. }, owner) => format!(
            "LoadBalancer {} publishes {ip}, which the ledger has for another LoadBalancer: the \
             operator corrects the ledger",
            owner.name
        ),
        LedgerRepair::Double(..) => return None,
        LedgerRepair::Unreadable(key) => format!(
            "status.allocated has the key {key:?}, which is no address: the operator removes it"
        ),
    })
}

/// Texts about ranges whose start is above their end. Harvester's Go controller swaps start and
/// end (`pkg/ipam/allocator.go`, `MakeRange`), and the operator does the same with stored ranges.
fn reversed(pool: &PoolSeen) -> impl Iterator<Item = String> + '_ {
    let faults =
        pool.spec.ranges.iter().enumerate().filter_map(|(i, range)| ranges::reversed(i, range));
    faults.map(|fault| {
        format!(
            "{fault}. The operator uses the range as if the two were exchanged. The next change of \
             the pool must exchange them"
        )
    })
}

impl Forecast {
    fn add(&mut self, effect: Effect, object: String, text: String) {
        self.findings.push(ForecastFinding { effect, object, text });
    }

    fn address(&mut self, facts: &LbFacts, result: &ClaimResult) {
        let has = facts.published.as_ref().map(|claim| claim.ip);
        let (gets, why): (Option<IpAddr>, _) = match result {
            ClaimResult::Held { claim, instead, .. } => (Some(claim.ip), instead.as_ref()),
            ClaimResult::Waiting(wait) => (None, Some(wait)),
        };
        let why = why.map(|wait| format!(": {}", wait.message())).unwrap_or_default();
        let (effect, text) = match (has, gets) {
            (Some(has), Some(gets)) if has == gets && why.is_empty() => return self.keep += 1,
            (None, Some(_)) if why.is_empty() => return self.gain += 1,
            (Some(has), Some(gets)) if has == gets => {
                self.keep += 1;
                (Effect::Stays, format!("keeps {has}{why}"))
            }
            (Some(has), Some(gets)) => (
                Effect::Changes,
                format!("has {has}, which another LoadBalancer keeps, and gets {gets}{why}"),
            ),
            (Some(has), None) => (Effect::Changes, format!("loses {has}{why}")),
            (None, Some(gets)) => (Effect::Stays, format!("gets {gets}{why}")),
            (None, None) => (Effect::Stays, format!("has no address and gets none{why}")),
        };
        self.add(effect, format!("LoadBalancer {}", facts.owner.name), text);
    }

    fn pools(&mut self, allocator: &PoolAllocator) {
        for (name, pool) in allocator.pools() {
            if let Some(why) = pool.idle() {
                let holds = pool.ledger.claims().len();
                let text = format!(
                    "allocates no address: {why}. The {holds} addresses that it has allocated stay \
                     allocated"
                );
                self.add(Effect::Stays, format!("IPPool {name}"), text);
            }
        }
    }

    fn load_balancers(&mut self, all: &[LoadBalancer]) {
        for lb in all {
            let object = || format!("LoadBalancer {}", facts::name(lb));
            self.leased += usize::from(!facts::wants_pool(lb));
            let finalizers = lb.metadata.finalizers.as_deref().unwrap_or_default();
            if facts::is_leaving(lb) {
                self.add(Effect::Repairs, object(), LEAVING.to_owned());
            } else if !finalizers.iter().any(|finalizer| finalizer == LB_FINALIZER) {
                let text = format!("lacks the finalizer {LB_FINALIZER}: the operator adds it");
                self.add(Effect::Repairs, object(), text);
            }
        }
    }
}

#[cfg(test)]
mod tests;
