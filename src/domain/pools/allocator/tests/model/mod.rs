//! Tests of the allocator in a simulated cluster: LoadBalancers publish, pools are stored, edited,
//! wiped and deleted, and new leaders start.

mod checks;
mod late;
mod sequences;
mod steps;

use std::net::IpAddr;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use self::steps::{Step, step};
use super::*;
use crate::network::NetworkAttachment;
use crate::network::Segment;
use crate::pools::status::pool_status;

const POOLS: [(&str, &str); 3] = [("a", "10.0.0"), ("b", "10.0.1"), ("c", "10.0.2")];
/// Names of networks. Steps set the VLANs of the last two. Before, these VLANs are unknown.
const NETWORKS: [&str; 3] = ["", "ns/x", "ns/y"];
/// Number of LoadBalancers. The last two are of type vm, so nodes announce their addresses.
/// LoadBalancer 1 names a network.
const LBS: usize = 6;
const GUESTS: std::ops::Range<usize> = 0..4;
const ON_ITS_OWN: usize = 1;

/// VLANs of the last two networks; 0 is the nodes' own network. `None`: unknown.
type Vlans = Option<[u16; 2]>;

#[derive(Default)]
struct Cluster {
    allocator: PoolAllocator,
    confirmed: ConfirmedClaims,
    /// Pools as stored, with their status.
    pools: BTreeMap<String, PoolSeen>,
    lbs: BTreeMap<usize, LbFacts>,
    /// Last deleted LoadBalancer of each name, as a stale view shows it.
    gone: BTreeMap<usize, LbFacts>,
    born: usize,
    networks: Vlans,
    /// Claims that were held or published before the present step, each with its owner's UID.
    before: BTreeSet<(String, Claim)>,
    /// Addresses that two LoadBalancers had before the present step, with the names of the two.
    excused: BTreeSet<(IpAddr, BTreeSet<String>)>,
    /// Selectors of deleted pools. The addresses of a deleted pool are still announced on the
    /// pool's network.
    deleted_pools: BTreeMap<String, PoolSelector>,
    /// Names of the pools that were deleted before the present term began.
    forgotten: BTreeSet<String>,
    /// Published claims that their LoadBalancers may lose, each with the LoadBalancer's UID. The
    /// pool of the claim was deleted before the present term began. A ledger has the address for
    /// another owner on a segment where, as far as stored objects show, the address may be
    /// announced ([`Cluster::shown_segments`]).
    contested: BTreeSet<(String, Claim)>,
}

/// Whether the segments `a` and `b` of two addresses have a segment in common. `None`: all
/// segments.
fn meet(a: Option<&Vec<Segment>>, b: Option<&Vec<Segment>>) -> bool {
    let (Some(a), Some(b)) = (a, b) else { return true };
    a.iter().any(|a| b.iter().any(|b| a.meets(b)))
}

fn segment(network: &str, vlans: Vlans) -> Segment {
    let attachment = vlans.map(|[x, y]| {
        let vlan = if network == "ns/x" { x } else { y };
        let bridge = if vlan == 0 { "mgmt-br" } else { "br" };
        NetworkAttachment { bridge: bridge.into(), vlan }
    });
    Segment::of(network, attachment.as_ref(), vlans.is_some())
}

impl Cluster {
    fn world(&self) -> LoadBalancerIndex {
        LoadBalancerIndex::new(self.lbs.values().map(|facts| LoadBalancerEntry {
            owner: facts.owner.clone(),
            created: facts.created,
            published: facts.published.clone(),
            deleting: false,
        }))
    }

    fn merge(&mut self, pool: usize) {
        if let Some(seen) = self.pools.get(POOLS[pool].0) {
            self.allocator.merge(seen, &self.world());
        }
    }

    /// Facts of LoadBalancer `n`, with the networks as they are now. `None`: there is no
    /// LoadBalancer `n`.
    fn facts(&self, n: usize) -> Option<LbFacts> {
        Some(self.on_networks(n, self.lbs.get(&n)?))
    }

    fn on_networks(&self, n: usize, facts: &LbFacts) -> LbFacts {
        let segment = (n == ON_ITS_OWN).then(|| segment("ns/y", self.networks));
        LbFacts { segment, ..facts.clone() }
    }

    /// Observes all LoadBalancers, as the ledger task does after pools or networks change, and at
    /// the start of a term of leadership.
    fn observe(&mut self) {
        if self.allocator.take_moved() {
            let all: Vec<_> = (0..LBS).filter_map(|n| self.facts(n)).collect();
            for facts in &all {
                self.allocator.observe(facts);
            }
        }
    }

    /// Whether another LoadBalancer publishes the claim's address on a segment where LoadBalancer
    /// `n` announces it. Then one of the two may lose it.
    fn is_double(&self, n: usize, claim: &Claim) -> bool {
        let Some(facts) = self.facts(n) else { return false };
        let here = self.segments(&facts, claim);
        let others = (0..LBS).filter(|other| *other != n).filter_map(|other| self.facts(other));
        let mut published = others.filter_map(|facts| Some((facts.published.clone()?, facts)));
        published.any(|(other, facts)| {
            other.ip == claim.ip && meet(here.as_ref(), self.segments(&facts, &other).as_ref())
        })
    }

    /// UID and published claim of LoadBalancer `n`, if the LoadBalancer may lose the claim as
    /// `contested` says. `None`: the LoadBalancer publishes no claim, or keeps it.
    fn contested_claim(&self, n: usize) -> Option<(String, Claim)> {
        let facts = self.facts(n)?;
        let claim = facts.published.clone()?;
        let here = self.shown_segments(&facts, &claim);
        let holds = |pool: &AllocatorPool| {
            let there = (!pool.selector.is_global()).then(|| vec![pool.segment.clone()]);
            let holder = pool.ledger.owner_of(claim.ip);
            holder.is_some_and(|holder| holder.uid != facts.owner.uid)
                && meet(here.as_ref(), there.as_ref())
        };
        let pools = self.allocator.pools();
        let contested = !pools.contains_key(&claim.pool) && pools.values().any(holds);
        contested.then(|| (facts.owner.uid.clone(), claim))
    }

    /// Claims an address for LoadBalancer `n`, and checks the answer. `None`: there is no
    /// LoadBalancer `n`.
    fn ask(&mut self, n: usize) -> Option<ClaimResult> {
        self.observe();
        let facts = self.facts(n)?;
        let (peeked, before) = (self.allocator.peek(&facts, |_| false), self.snapshot());
        let result = self.allocator.claim(&facts);
        if let Some(peeked) = peeked {
            assert_eq!(peeked, result, "peek and claim differ");
            assert_eq!(self.snapshot(), before, "peek said that nothing changes");
        }
        let again = self.allocator.claim(&facts);
        assert_eq!(again, result, "claim is idempotent");
        let stays = |claim: &&Claim| {
            let key = (facts.owner.uid.clone(), (*claim).clone());
            !self.is_double(n, claim) && !self.contested.contains(&key)
        };
        if let Some(published) = facts.published.as_ref().filter(stays) {
            let ClaimResult::Held { claim, .. } = &result else {
                panic!("{facts:?} loses its address: {result:?}")
            };
            assert!(
                claim == published || Some(&claim.pool) == facts.named_pool.as_ref(),
                "{facts:?} changes its address to {claim:?}"
            );
        }
        Some(result)
    }

    fn publish(&mut self, n: usize) {
        let Some(result) = self.ask(n) else { return };
        let published = match result {
            ClaimResult::Held { claim, .. } => Some(claim),
            ClaimResult::Waiting(_) => None,
        };
        let facts = self.lbs.get_mut(&n).unwrap();
        facts.former = published.clone().or(facts.former.take());
        facts.published = published;
        self.ask(n);
    }

    /// Returns the successor of LoadBalancer `n`: the same name, and a new UID. `None`: there is no
    /// LoadBalancer `n`.
    fn made_again(&mut self, n: usize) -> Option<LbFacts> {
        let facts = self.lbs.get(&n)?;
        self.born += 1;
        let uid = format!("u{n}-{}", self.born);
        let owner = Owner { uid, ..facts.owner.clone() };
        Some(LbFacts { owner, published: None, ..facts.clone() })
    }

    /// Deletes a LoadBalancer, creates it again under the same name, and checks the answer to the
    /// request of the new LoadBalancer. `notified`: whether the allocator learns of the deletion
    /// before this request.
    fn restore(&mut self, n: usize, notified: bool) {
        let Some(restored) = self.made_again(n) else { return };
        let before = self.lbs.insert(n, restored).unwrap();
        self.gone.insert(n, before.clone());
        if notified {
            self.allocator.release(&before.owner);
        }
        let result = self.ask(n);
        // The new LoadBalancer gets the old address back, if no other LoadBalancer had the address
        // and the pool may give it out.
        let still = before.published.clone().filter(|claim| self.is_given_back(n, claim));
        if let (Some(claim), Some(result)) = (still, result) {
            let ClaimResult::Held { claim: now, .. } = &result else {
                panic!("{claim:?} is not given back: {result:?}")
            };
            assert_eq!(*now, claim, "another address than before");
        }
        // Releases the claims that the old UID may still have, as the sweep does.
        self.allocator.release(&before.owner);
    }

    fn carry_out(&mut self, step: &Step) {
        let pool_name = |p: Option<usize>| p.map(|p| POOLS[p].0.to_owned());
        match *step {
            Step::Create(n, pool) => {
                if !self.lbs.contains_key(&n) {
                    self.born += 1;
                    let uid = format!("u{n}-{}", self.born);
                    let owner = Owner { uid, ..owner(n) };
                    let guest = GUESTS.contains(&n);
                    let named_pool = pool_name(pool);
                    self.lbs.insert(n, LbFacts { owner, guest, named_pool, ..lb(n) });
                }
                self.ask(n);
            }
            Step::Delete(n) => {
                if let Some(facts) = self.lbs.remove(&n) {
                    self.allocator.release(&facts.owner);
                    assert!(self.allocator.claims_of(&facts.owner.uid).is_empty());
                    self.gone.insert(n, facts);
                }
            }
            Step::Refuse(n) => self.refuse(n),
            Step::AskLate(n) => self.ask_late(n),
            Step::Restore(n, notified) => self.restore(n, notified),
            Step::Switch(n, pool) => {
                if let Some(facts) = self.lbs.get_mut(&n) {
                    facts.named_pool = pool_name(pool);
                }
                self.ask(n);
            }
            Step::Ask(n) => drop(self.ask(n)),
            Step::Publish(n) => self.publish(n),
            Step::Edit(p, size, admits, deleting) => {
                let (name, net) = POOLS[p];
                let status = self.pools.remove(name).map(|pool| pool.status).unwrap_or_default();
                let pool =
                    for_namespace(seen(name, net, size), if admits { "ns" } else { "other" });
                let created = i64::try_from(p % 2).unwrap();
                self.pools.insert(name.into(), PoolSeen { created, deleting, status, ..pool });
                self.merge(p);
            }
            Step::Move(p, (whose, first, size), network, priority, global) => {
                let name = POOLS[p].0;
                let status = self.pools.remove(name).map(|pool| pool.status).unwrap_or_default();
                let net = POOLS[whose].1;
                let mut pool = seen(name, net, size);
                let range = &mut pool.spec.ranges[0];
                range.range_start = Some(format!("{net}.{first}"));
                range.range_end = Some(format!("{net}.{}", first + size - 1));
                let selector = pool.spec.selector.as_mut().unwrap();
                selector.priority = Some(priority);
                selector.network = Some(NETWORKS[network].into());
                let segment = segment(NETWORKS[network], self.networks);
                let created = i64::try_from(p % 2).unwrap();
                if global {
                    let any = || Some("*".to_owned());
                    selector.scope = Some(vec![api::Scope {
                        project: any(),
                        namespace: any(),
                        guest_cluster: any(),
                    }]);
                }
                self.pools.insert(name.into(), PoolSeen { created, segment, status, ..pool });
                self.merge(p);
            }
            Step::Networks(vlans) => {
                self.networks = vlans;
                for pool in self.pools.values_mut() {
                    let network = pool.spec.selector.as_ref().unwrap().network.clone();
                    pool.segment = segment(&network.unwrap_or_default(), vlans);
                }
                self.allocator.relocate(|network| segment(network, vlans));
            }
            Step::RemovePool(p) => self.remove_pool(POOLS[p].0),
            Step::Wipe(p, all) => {
                if let Some(pool) = self.pools.get_mut(POOLS[p].0) {
                    pool.status.allocated_owners.clear();
                    if all {
                        pool.status = api::IPPoolStatus::default();
                    }
                }
                self.merge(p);
            }
            Step::Restart(plain) => self.restart(plain),
        }
    }

    fn remove_pool(&mut self, name: &str) {
        if let Some(pool) = self.pools.remove(name) {
            let selector = PoolSelector::new(pool.spec.selector.as_ref());
            self.deleted_pools.insert(name.into(), selector);
            self.forgotten.remove(name);
        }
        self.allocator.remove_pool(name);
    }

    /// Begins a term with the stored objects. `plain`: the ledgers have no UIDs, as those of the Go
    /// controller.
    fn restart(&mut self, plain: bool) {
        if plain {
            self.pools.values_mut().for_each(|p| p.status.allocated_owners.clear());
        }
        self.allocator = PoolAllocator::default();
        self.forgotten = self.deleted_pools.keys().cloned().collect();
        (0..POOLS.len()).for_each(|p| self.merge(p));
        let all: Vec<_> = (0..LBS).filter_map(|n| self.facts(n)).collect();
        for facts in &all {
            self.allocator.adopt(facts);
        }
        self.contested = (0..LBS).filter_map(|n| self.contested_claim(n)).collect();
        (0..LBS).for_each(|n| drop(self.ask(n)));
    }

    /// Does the work that the ledger task does after each batch of requests.
    fn settle(&mut self) {
        self.observe();
        self.allocator.serve_waiters();
        self.check_waiters();
        for name in self.allocator.take_touched() {
            let pool = &self.allocator.pools()[&name];
            let status = pool_status(pool, &[], None, None, None, "2026-01-01T00:00:00Z");
            self.pools.get_mut(&name).unwrap().status = status;
        }
    }
}

/// Configuration of the simulation: the same 500 cases in each run, or as many random cases as the
/// environment variable `WORLDS` says.
#[expect(clippy::disallowed_methods, reason = "how many worlds is asked for from outside")]
fn worlds() -> ProptestConfig {
    let asked = std::env::var("WORLDS").ok().and_then(|worlds| worlds.parse().ok());
    let rng_seed = asked.map_or(RngSeed::Fixed(1), |_| RngSeed::Random);
    ProptestConfig {
        failure_persistence: None,
        rng_seed,
        ..ProptestConfig::with_cases(asked.unwrap_or(500))
    }
}

/// Plays the steps, and checks the allocator's rules after each step.
fn hold(steps: &[Step]) {
    let mut cluster = Cluster::default();
    for step in steps {
        cluster.play(step);
        cluster.check();
        cluster.check_networks();
    }
}

proptest! {
    #![proptest_config(worlds())]

    #[test]
    fn whatever_happens_no_owner_loses_shares_or_misses_an_address(
        steps in prop::collection::vec(step(), 0..50),
    ) {
        hold(&steps);
    }

    /// Waiters are served by age, in whatever order the requests came.
    #[test]
    fn the_order_of_arrival_does_not_matter(
        order in Just((0..LBS).collect::<Vec<_>>()).prop_shuffle(),
        named_pools in prop::collection::vec(prop::option::of(0..POOLS.len()), LBS),
        sizes in [0_usize..4, 0..4, 0..4],
    ) {
        let outcome = |order: &[usize]| {
            let mut allocator = PoolAllocator::default();
            for n in order {
                let named_pool = named_pools[*n].map(|p| POOLS[p].0.to_owned());
                // Each two LoadBalancers have the same age, so their names decide which of them is
                // first.
                allocator.claim(&LbFacts { created: i64::try_from(n / 2).unwrap(), named_pool, ..lb(*n) });
            }
            for ((name, net), size) in POOLS.iter().zip(&sizes) {
                allocator.merge(&seen(name, net, *size), &LoadBalancerIndex::default());
            }
            allocator.serve_waiters();
            (allocator.holders.clone(), allocator.waiters.clone())
        };
        prop_assert_eq!(outcome(&order), outcome(&(0..LBS).collect::<Vec<_>>()));
    }
}
