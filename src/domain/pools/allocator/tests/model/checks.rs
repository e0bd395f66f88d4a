//! Invariants of the simulated cluster, checked after each step.

use super::*;

/// The common part of the UIDs of a LoadBalancer and of its successors under the same name.
fn name(uid: &str) -> String {
    uid.split('-').next().unwrap_or(uid).to_owned()
}

/// LoadBalancer that the step is about. `None`: the step is about pools, networks, a new leader, or
/// a deleted LoadBalancer.
fn asks(step: &Step) -> Option<usize> {
    match *step {
        Step::Create(n, _)
        | Step::Restore(n, _)
        | Step::Switch(n, _)
        | Step::Delete(n)
        | Step::Refuse(n)
        | Step::Ask(n)
        | Step::Publish(n) => Some(n),
        _ => None,
    }
}

impl Cluster {
    /// Plays a step, and then the work that the ledger task does after it. Then checks that each
    /// confirmed answer equals the answer of the allocator.
    pub(super) fn play(&mut self, step: &Step) {
        if let Some(n) = asks(step) {
            self.confirmed.forget(&owner(n));
        }
        self.carry_out(step);
        self.settle();
        // A ledger records the claim again, so the LoadBalancer keeps it.
        let allocator = &self.allocator;
        self.contested.retain(|(uid, claim)| !allocator.claims_of(uid).contains(claim));
        match step {
            Step::AskLate(_) => {}
            Step::Restart(_) => self.confirmed = ConfirmedClaims::default(),
            _ if asks(step).is_none() => self.confirmed.recheck(&self.allocator),
            _ => {}
        }
        for n in 0..LBS {
            let Some(facts) = self.facts(n) else { continue };
            let facts = LbFacts { fresh: false, ..facts };
            let now = self.allocator.peek(&facts, |_| false);
            if let Some(answer) = self.confirmed.answer(&facts) {
                assert_eq!(Some(answer), now, "{facts:?} after {step:?}");
            } else if let Some(answer) = now {
                self.confirmed.confirm(facts, answer);
            }
        }
    }

    /// Checks that the allocator has tried again every waiter whose answer may change. The check
    /// tries all waiters again, and each answer must stay the same.
    pub(super) fn check_waiters(&self) {
        let mut allocator = self.allocator.clone();
        allocator.waiter_changes.everything();
        let missed = allocator.serve_waiters();
        assert!(missed.is_empty(), "{missed:?} were not tried again");
    }

    /// Checks that each address of a network has at most one LoadBalancer. Two are allowed if both
    /// held the address before their pools were found to be on one network.
    pub(super) fn check_networks(&mut self) {
        let mut shared = BTreeSet::new();
        let pools: Vec<_> = self.allocator.pools().iter().collect();
        for (place, (a, x)) in pools.iter().enumerate() {
            for (b, y) in &pools[place + 1..] {
                if !x.contender(a).meets(&y.contender(b)) {
                    continue;
                }
                for (ip, mine) in x.ledger.claims() {
                    let Some(theirs) = y.ledger.owner_of(*ip).filter(|o| *o != mine) else {
                        continue;
                    };
                    let both = BTreeSet::from([name(&mine.uid), name(&theirs.uid)]);
                    let had = [(a, mine), (b, theirs)].into_iter().all(|(pool, owner)| {
                        let claim = Claim { pool: (*pool).clone(), ip: *ip };
                        let had = |(holder, held): &(String, Claim)| {
                            name(holder) == name(&owner.uid) && *held == claim
                        };
                        self.before.iter().any(had)
                    });
                    let old = self.excused.contains(&(*ip, both.clone()));
                    assert!(had || old, "{ip} of {a} and {b} was given to {both:?}");
                    shared.insert((*ip, both));
                }
            }
        }
        if !shared.is_empty() {
            assert!(self.allocator.shared() > 0, "{shared:?} is not reported");
        }
        let taken_new = self.in_use();
        self.check_announced(&taken_new, &mut shared);
        for (uid, claim) in taken_new.difference(&self.before) {
            let stands_back =
                self.allocator.pools().get(&claim.pool).is_some_and(|pool| pool.conflict.is_some());
            // A LoadBalancer that was created again inherits the claims of its name.
            let name = uid.split('-').next();
            let inherited =
                |(before, had): &(String, Claim)| before.split('-').next() == name && had == claim;
            let stands_back = stands_back && !self.before.iter().any(inherited);
            assert!(!stands_back, "{claim:?} of a pool that stands back was given to {uid}");
            let published_on = self.published_of_deleted_pool(claim.ip, uid);
            assert!(
                self.had(uid, claim) || published_on.is_none(),
                "{claim:?} was given to {uid}, and {published_on:?} of a deleted pool is published"
            );
        }
        self.excused = shared;
        self.before = taken_new;
    }

    /// Checks that no address is announced for two LoadBalancers on one segment, as
    /// `check_networks` checks it for ledgers. A claim that is not published counts as announced
    /// where it will be after its publication. `taken`: claims in use, each with the UID of its
    /// LoadBalancer. Exception: both LoadBalancers had the address before the step.
    fn check_announced(
        &self,
        taken: &BTreeSet<(String, Claim)>,
        shared: &mut BTreeSet<(IpAddr, BTreeSet<String>)>,
    ) {
        let segments = |uid: &String, claim: &Claim| self.segments(&self.facts_of(uid), claim);
        let places: Vec<_> =
            taken.iter().map(|(uid, claim)| (uid, claim, segments(uid, claim))).collect();
        for (index, (mine, claim, here)) in places.iter().enumerate() {
            for (theirs, other, there) in &places[index + 1..] {
                let both = BTreeSet::from([name(mine), name(theirs)]);
                if claim.ip != other.ip || both.len() < 2 || !meet(here.as_ref(), there.as_ref()) {
                    continue;
                }
                let had = self.had(mine, claim) && self.had(theirs, other);
                let old = self.excused.contains(&(claim.ip, both.clone()));
                assert!(
                    old || had,
                    "{claim:?} of {mine} is announced where {other:?} of {theirs} is"
                );
                shared.insert((claim.ip, both));
            }
        }
    }

    /// Claim with this address that a LoadBalancer of another name than that of `uid` publishes,
    /// although the pool of the claim was deleted.
    fn published_of_deleted_pool(&self, ip: IpAddr, uid: &str) -> Option<&Claim> {
        let others = self.lbs.values().filter(|facts| name(&facts.owner.uid) != name(uid));
        let mut published = others.filter_map(|facts| facts.published.as_ref());
        published.find(|other| other.ip == ip && !self.pools.contains_key(&other.pool))
    }

    /// Whether the LoadBalancer, or an earlier one of its name, held or published the claim before
    /// the step.
    fn had(&self, uid: &str, claim: &Claim) -> bool {
        self.before.iter().any(|(holder, held)| name(holder) == name(uid) && held == claim)
    }

    /// Facts of the LoadBalancer that has this UID now, or whose name had it.
    fn facts_of(&self, uid: &str) -> LbFacts {
        let mut all = (0..LBS).filter_map(|n| self.facts(n));
        all.find(|facts| name(&facts.owner.uid) == name(uid)).unwrap()
    }

    /// Segments where a claim is announced, or will be announced after it is published. `None`: all
    /// segments.
    pub(super) fn segments(&self, facts: &LbFacts, claim: &Claim) -> Option<Vec<Segment>> {
        let Some(pool) = self.allocator.pools().get(&claim.pool) else {
            return Some(self.segments_after_deletion(facts, &self.deleted_pools[&claim.pool]));
        };
        let mut segments = facts.announced_at(&pool.segment);
        segments.push(pool.segment.clone());
        (!pool.selector.is_global()).then_some(segments)
    }

    /// Segments where an address of the deleted pool is announced. An address of a global pool may
    /// be announced anywhere. A guest that names a network announces its address there only.
    fn segments_after_deletion(&self, facts: &LbFacts, pool: &PoolSelector) -> Vec<Segment> {
        let here = if pool.is_global() {
            Segment::Unlisted
        } else {
            segment(pool.network(), self.networks)
        };
        let mut segments = facts.announced_at(&here);
        segments.extend((!facts.guest).then_some(here));
        segments
    }

    /// Segments where the claim is announced, as far as stored objects and the memory of the
    /// present leader show. `None`: it may be any segment, because the pool was deleted before the
    /// present term began, and the LoadBalancer is not a guest that names a network.
    pub(super) fn shown_segments(&self, facts: &LbFacts, claim: &Claim) -> Option<Vec<Segment>> {
        let is_forgotten =
            !self.pools.contains_key(&claim.pool) && self.forgotten.contains(&claim.pool);
        let is_hidden = is_forgotten && (!facts.guest || facts.segment.is_none());
        if is_hidden { None } else { self.segments(facts, claim) }
    }

    /// Whether LoadBalancer `n`, which was created again, must get the claim of its predecessor:
    /// the pool may give out the address, and no LoadBalancer of another name has it where it would
    /// be announced for LoadBalancer `n`.
    pub(super) fn is_given_back(&self, n: usize, claim: &Claim) -> bool {
        let Some(facts) = self.facts(n) else { return false };
        let Some(pool) = self.allocator.pools().get(&claim.pool) else { return false };
        let serves = match &facts.named_pool {
            Some(named) => {
                *named == claim.pool && pool.selector.may_be_named_by(&facts.requirement)
            }
            None => pool.selector.fit(&facts.requirement).is_some(),
        };
        serves
            && pool.idle().is_none()
            && pool.ledger.ranges().find(claim.ip).is_some()
            && pool.mismatch(&claim.pool, &facts).is_none()
            && !self.is_in_use(&facts, claim)
    }

    /// Whether a LoadBalancer with another name has the claim's address on a segment where it would
    /// be announced for the LoadBalancer of `facts`, or has the address from a deleted pool.
    fn is_in_use(&self, facts: &LbFacts, claim: &Claim) -> bool {
        let here = self.segments(facts, claim);
        let reserved = self.allocator.reserved.at(claim.ip);
        let reserved = reserved.map(|other| (other.owner.uid.clone(), other.claim.clone()));
        let mut all = self.in_use().into_iter().chain(reserved);
        all.any(|(uid, other)| {
            let there = || self.segments(&self.facts_of(&uid), &other);
            name(&uid) != name(&facts.owner.uid)
                && other.ip == claim.ip
                && (!self.pools.contains_key(&other.pool) || meet(here.as_ref(), there().as_ref()))
        })
    }

    /// Claims that are held or published, with the UID of the LoadBalancer.
    pub(super) fn in_use(&self) -> BTreeSet<(String, Claim)> {
        let held = self
            .allocator
            .holders
            .iter()
            .flat_map(|(uid, claims)| claims.iter().map(|claim| (uid.clone(), claim.clone())));
        let published = self
            .lbs
            .values()
            .filter_map(|facts| Some((facts.owner.uid.clone(), facts.published.clone()?)));
        held.chain(published).collect()
    }

    pub(super) fn snapshot(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        let ledgers: Vec<_> = self
            .allocator
            .pools()
            .values()
            .map(|p| (p.ledger.claims().clone(), p.ledger.cursor()))
            .collect();
        let allocator = &self.allocator;
        (ledgers, allocator.holders.clone(), allocator.waiters.clone(), allocator.touched.clone())
    }

    pub(super) fn check(&self) {
        let mut recorded: BTreeSet<(String, Claim)> = BTreeSet::new();
        for (name, pool) in self.allocator.pools() {
            pool.ledger.self_check();
            for (ip, owner) in pool.ledger.claims() {
                let claim = Claim { pool: name.clone(), ip: *ip };
                assert!(recorded.insert((owner.uid.clone(), claim)));
            }
        }
        let held = self.allocator.holders.iter().flat_map(|(uid, claims)| {
            assert!(!claims.is_empty() && claims.len() <= POOLS.len());
            claims.iter().map(|claim| (uid.clone(), claim.clone()))
        });
        assert_eq!(held.collect::<BTreeSet<_>>(), recorded, "the index and the ledgers differ");
        let published: Vec<&Claim> =
            self.lbs.values().filter_map(|facts| facts.published.as_ref()).collect();
        assert!(published.iter().all(|c| published.iter().filter(|d| d == &c).count() == 1));
        assert!(self.allocator.orphans(&self.world()).is_empty());
        for (facts, wait) in self.allocator.waiting() {
            let n = usize::try_from(facts.created).unwrap();
            let facts = &self.facts(n).unwrap();
            assert!(self.lbs.values().any(|lb| lb.owner == facts.owner), "{facts:?} is gone");
            // An address must not be given to the waiter if another LoadBalancer has the address on
            // a segment where the waiter's address would be announced.
            let serves = |name: &str| {
                let mut pool = self.allocator.pools()[name].clone();
                pool.idle().is_none()
                    && (facts.named_pool.is_none() || pool.mismatch(name, facts).is_none())
                    && self.allocator.claim_in(name, &mut pool, facts).is_ok()
            };
            let in_vain = match (&facts.named_pool, wait) {
                (_, NoAddressReason::PoolGone { pool }) => {
                    self.allocator.pools().contains_key(pool)
                }
                (Some(named), _) => self.allocator.pools().get(named).is_some_and(|pool| {
                    pool.selector.may_be_named_by(&facts.requirement) && serves(named)
                }),
                (None, _) => self.allocator.candidates(&facts.requirement).into_iter().any(serves),
            };
            assert!(!in_vain, "{facts:?} waits in vain: {wait:?}");
        }
    }
}
