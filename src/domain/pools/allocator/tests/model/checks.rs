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
        }
        self.excused = shared;
        self.before = taken_new;
    }

    /// Checks that no address is announced for two LoadBalancers on one segment, as
    /// `check_networks` checks it for ledgers. A claim that is not published counts as announced
    /// where it will be after its publication. `taken`: claims in use, each with the UID of its
    /// LoadBalancer. Exception: both LoadBalancers had the address before the step.
    fn check_announced(
        &mut self,
        taken: &BTreeSet<(String, Claim)>,
        shared: &mut BTreeSet<(IpAddr, BTreeSet<String>)>,
    ) {
        self.announce();
        let places: Vec<_> =
            taken.iter().map(|(uid, claim)| (uid, claim, self.segments(uid, claim))).collect();
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

    /// Whether the LoadBalancer, or an earlier one of its name, held or published the claim before
    /// the step.
    fn had(&self, uid: &str, claim: &Claim) -> bool {
        self.before.iter().any(|(holder, held)| name(holder) == name(uid) && held == claim)
    }

    /// Segments where a claim is announced, or will be announced after it is published. If the pool
    /// of a published claim is gone, the result is the last known segments. `None`: all segments.
    fn segments(&self, uid: &str, claim: &Claim) -> Option<Vec<Segment>> {
        let n = (0..LBS).find(|n| self.lbs.get(n).is_some_and(|lb| lb.owner.uid == uid)).unwrap();
        let place = self.place(&self.facts(n).unwrap(), claim);
        place.unwrap_or_else(|| self.announced[&n].clone()).1
    }

    /// Records where published addresses are announced.
    pub(super) fn announce(&mut self) {
        for n in 0..LBS {
            let Some((facts, claim)) =
                self.facts(n).and_then(|f| f.published.clone().map(|claim| (f, claim)))
            else {
                self.announced.remove(&n);
                continue;
            };
            // If the pool was deleted, the address is still announced on the same segments as
            // before.
            let before = self.announced.get(&n).filter(|(ip, _)| *ip == claim.ip).cloned();
            let place = self.place(&facts, &claim).or(before).unwrap_or((claim.ip, None));
            self.announced.insert(n, place);
        }
    }

    /// Address of the claim, and the segments where it would be announced. `None`: the claim's pool
    /// does not exist.
    pub(super) fn place(&self, facts: &LbFacts, claim: &Claim) -> Option<Place> {
        let pool = self.allocator.pools().get(&claim.pool)?;
        let mut segments = facts.announced_at(&pool.segment);
        segments.push(pool.segment.clone());
        Some((claim.ip, (!pool.selector.is_global()).then_some(segments)))
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
        (
            ledgers,
            allocator.holders.clone(),
            allocator.waiters.clone(),
            allocator.ages.clone(),
            allocator.touched.clone(),
        )
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
        assert_eq!(self.allocator.waiters.len(), self.allocator.ages.len());
        for (facts, wait) in self.allocator.waiting() {
            let n = usize::try_from(facts.created).unwrap();
            let facts = &self.facts(n).unwrap();
            assert!(self.lbs.values().any(|lb| lb.owner == facts.owner), "{facts:?} is gone");
            // An address must not be given to the waiter if another LoadBalancer has the address on
            // a segment where the waiter's address would be announced.
            let serves = |name: &str| {
                let pool = &self.allocator.pools()[name];
                let fitness = self.allocator.fitness(facts, name, pool);
                let mut ledger = pool.ledger.clone();
                pool.idle().is_none()
                    && (facts.named_pool.is_none() || pool.mismatch(name, facts).is_none())
                    && ledger.claim_where(&facts.owner, None, fitness).is_ok()
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
