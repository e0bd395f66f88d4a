//! Simulation of replicas over years: they start, stop, and learn late of every change. Every
//! certificate that a replica serves must always be valid, and trusted by every API server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::super::*;

const SECOND: Duration = Duration::from_secs(1);
/// Delay until an API server learns of a change of a configuration.
const LAG: Duration = SECOND;
const CONFIGURATIONS: usize = 2;

type Id = u32;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Secret {
    ca: Id,
    next: Option<Id>,
    /// Authority that signed the serving certificate, and the certificate's end of validity.
    serving: (Id, Duration),
    previous: Vec<Id>,
}

impl Secret {
    fn bundle(&self) -> Vec<Id> {
        [self.ca].into_iter().chain(self.next).chain(self.previous.iter().copied()).collect()
    }
}

#[derive(Clone, Debug, Default)]
struct Replica {
    secret: Option<(u64, Option<Secret>)>,
    bundles: [Option<(u64, Vec<Id>)>; CONFIGURATIONS],
    in_use: Option<(Id, Duration)>,
    memory: Option<Secret>,
    trusted: BTreeMap<Id, Duration>,
    early: Duration,
    /// Whether calls come to this replica.
    ready: bool,
}

#[derive(Debug)]
struct World {
    now: Duration,
    ends: Vec<Duration>,
    version: u64,
    secret: Option<Secret>,
    /// Version of each webhook configuration, and the authorities that the configuration trusts.
    bundles: [(u64, Vec<Id>); CONFIGURATIONS],
    replaced: Vec<(usize, Vec<Id>, Duration)>,
    replicas: Vec<Replica>,
    switches: usize,
}

impl World {
    fn new() -> Self {
        Self {
            now: DAY * 20_000,
            ends: Vec::new(),
            version: 0,
            secret: None,
            bundles: [(0, Vec::new()), (0, Vec::new())],
            replaced: Vec::new(),
            replicas: Vec::new(),
            switches: 0,
        }
    }

    fn authority(&mut self) -> Id {
        self.ends.push(self.now + AUTHORITY_LIFE);
        Id::try_from(self.ends.len() - 1).unwrap()
    }

    fn end(&self, id: Id) -> Duration {
        self.ends[usize::try_from(id).unwrap()]
    }

    fn made(&mut self, step: &CertificateStep, seen: Option<&Secret>, replica: &Replica) -> Secret {
        let now = self.now;
        let Some(mut secret) = seen.cloned() else {
            if let Some(mut memory) = replica.memory.clone() {
                for id in replica.bundles.iter().flatten().flat_map(|(_, bundle)| bundle) {
                    if self.end(*id) > now && !memory.bundle().contains(id) {
                        memory.previous.push(*id);
                    }
                }
                return memory;
            }
            let ca = self.authority();
            // `once` reads the configurations again before this step. The authorities that these
            // configurations trust become the previous authorities of the new Secret.
            let mut previous: Vec<Id> =
                replica.bundles.iter().flatten().flat_map(|(_, bundle)| bundle.clone()).collect();
            previous.retain(|id| self.end(*id) > now);
            previous.dedup();
            let serving = (ca, serving_end(now, self.end(ca)));
            return Secret { ca, next: None, serving, previous };
        };
        match step {
            CertificateStep::Remember => secret.previous.insert(0, replica.in_use.unwrap().0),
            CertificateStep::Renew(_) => {
                secret.serving = (secret.ca, serving_end(now, self.end(secret.ca)));
            }
            CertificateStep::Begin => secret.next = Some(self.authority()),
            CertificateStep::Switch => {
                self.switches += 1;
                secret.previous.insert(0, secret.ca);
                secret.ca = secret.next.take().unwrap();
                secret.serving = (secret.ca, serving_end(now, self.end(secret.ca)));
            }
            CertificateStep::Forget => secret.previous.retain(|id| self.end(*id) > now),
            CertificateStep::Start | CertificateStep::Wait(_) => unreachable!(),
        }
        secret
    }

    /// Repeats the steps of `Registrar::round` for the replica with the index `which`.
    fn round(&mut self, which: usize) {
        for _ in 0..8 {
            let mut replica = self.replicas[which].clone();
            let again = self.once(&mut replica);
            self.replicas[which] = replica;
            if !again {
                return;
            }
        }
    }

    fn once(&mut self, replica: &mut Replica) -> bool {
        let now = self.now;
        let Some((version, seen)) = replica.secret.clone() else { return false };
        if replica.bundles.iter().any(Option::is_none) {
            return false;
        }
        let trusts = |id: Id| replica.bundles.iter().flatten().all(|(_, b)| b.contains(&id));
        let known: Vec<Id> = seen
            .iter()
            .flat_map(|s| s.next.into_iter().chain([s.serving.0]))
            .chain(replica.in_use.map(|(id, _)| id))
            .filter(|id| trusts(*id))
            .collect();
        let before = std::mem::take(&mut replica.trusted);
        replica.trusted =
            known.iter().map(|id| (*id, before.get(id).copied().unwrap_or(now))).collect();
        let trusted_for = |id: Id| replica.trusted.get(&id).map(|since| now.saturating_sub(*since));

        let ours = replica.in_use.filter(|(id, end)| *end.min(&self.end(*id)) > now);
        let names = BTreeSet::from(["a".to_owned()]);
        let facts = seen.as_ref().map(|s| CertificateSecret {
            ca: StoredAuthority { not_after: self.end(s.ca), signs: true },
            next: s.next.map(|id| StoredAuthority { not_after: self.end(id), signs: true }),
            serving: Some(StoredCertificate {
                not_after: s.serving.1,
                names: names.clone(),
                fits: s.serving.0 == s.ca,
            }),
            previous: s.previous.iter().map(|id| self.end(*id)).collect(),
            knows_ours: ours.is_none_or(|(id, _)| s.bundle().contains(&id)),
        });
        let next = seen.as_ref().and_then(|s| s.next);
        let at = StepInput {
            now,
            early: replica.early,
            names: &names,
            trusted_for: next.and_then(trusted_for),
        };
        let step = plan(facts.as_ref(), at);
        if !matches!(step, CertificateStep::Wait(_)) {
            if version == self.version {
                if seen.is_none() {
                    replica.bundles = self.bundles.clone().map(Some);
                }
                let made = self.made(&step, seen.as_ref(), replica);
                self.secret = Some(made);
                self.version += 1;
            }
            replica.secret = Some((self.version, self.secret.clone()));
            return true;
        }
        let Some(seen) = seen else { return false };
        if replica.in_use != Some(seen.serving) {
            let good = ours.is_some_and(|(id, _)| trusted_for(id).is_some());
            if adopt(good, trusted_for(seen.serving.0)) {
                replica.in_use = Some(seen.serving);
            }
        }
        if replica.in_use == Some(seen.serving) {
            replica.memory = Some(seen.clone());
        }
        let Some((in_use, _)) = replica.in_use else { return false };
        let registered = replica.bundles.iter().flatten().any(|(_, bundle)| !bundle.is_empty());
        replica.ready |= ready(registered, trusted_for(in_use));
        let wanted = seen.bundle();
        let wrong = |(_, have): &(u64, Vec<Id>)| *have != wanted;
        if !replica.bundles.iter().flatten().any(wrong) {
            return false;
        }
        if version != self.version {
            replica.secret = Some((self.version, self.secret.clone()));
            return true;
        }
        for part in 0..CONFIGURATIONS {
            let (seen_version, have) = replica.bundles[part].clone().unwrap();
            if have == wanted {
                continue;
            }
            if seen_version == self.bundles[part].0 {
                let old =
                    std::mem::replace(&mut self.bundles[part], (seen_version + 1, wanted.clone()));
                self.replaced.push((part, old.1, now));
            }
            replica.bundles[part] = Some(self.bundles[part].clone());
        }
        true
    }

    fn hear(&mut self, which: usize, what: u8) {
        let (secret, bundles) = ((self.version, self.secret.clone()), self.bundles.clone());
        let replica = &mut self.replicas[which];
        if what & 1 != 0 {
            replica.secret = Some(secret);
        }
        for (part, bundle) in bundles.into_iter().enumerate() {
            if what & (2 << part) != 0 {
                replica.bundles[part] = Some(bundle);
            }
        }
    }

    /// Checks the served certificates. `Err`: a certificate has expired, or an API server does not
    /// trust it. An API server may use the present content of a configuration, or content that was
    /// replaced less than [`LAG`] ago.
    fn check(&self) -> Result<(), TestCaseError> {
        for (number, replica) in self.replicas.iter().enumerate() {
            let Some((ca, end)) = replica.in_use.filter(|_| replica.ready) else { continue };
            prop_assert!(end > self.now && self.end(ca) > self.now, "{number} serves what expired");
            let recent = self
                .replaced
                .iter()
                .filter(|(_, _, at)| *at + LAG > self.now)
                .map(|(_, bundle, _)| bundle);
            let current = self.bundles.iter().map(|(_, bundle)| bundle);
            for bundle in current.chain(recent) {
                // An empty bundle means that the configuration is not registered yet, so no calls
                // come.
                prop_assert!(
                    bundle.is_empty() || bundle.contains(&ca),
                    "{number} serves {ca}, trusted is {bundle:?}"
                );
            }
        }
        Ok(())
    }

    fn start(&mut self, early: u64) {
        if self.replicas.len() < 3 {
            let early = Duration::from_mins(early);
            self.replicas.push(Replica { early, ..Replica::default() });
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Start(u64),
    Stop(usize),
    Hear(usize, u8),
    Round(usize),
    /// The Secret is deleted, or becomes unreadable.
    Lose,
    Short(u64),
    Long(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        1 => (0_u64..360).prop_map(Event::Start),
        1 => (0_usize..3).prop_map(Event::Stop),
        8 => ((0_usize..3), (0_u8..8)).prop_map(|(r, what)| Event::Hear(r, what)),
        10 => (0_usize..3).prop_map(Event::Round),
        1 => Just(Event::Lose),
        6 => (0_u64..5_000).prop_map(Event::Short),
        1 => (1_u64..60).prop_map(Event::Long),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_is_served_is_trusted_at_every_moment(
        events in proptest::collection::vec(event(), 20..200),
    ) {
        let mut world = World::new();
        world.start(0);
        for event in events {
            let count = world.replicas.len();
            match event {
                Event::Start(early) => world.start(early),
                // One replica always runs, to act on the Secret.
                Event::Stop(which) if count > 1 => drop(world.replicas.remove(which % count)),
                Event::Stop(_) => {}
                Event::Hear(which, what) => world.hear(which % count, what),
                Event::Round(which) => world.round(which % count),
                Event::Lose => {
                    // The Secret is lost only if a replica remembers its content. Otherwise the
                    // next start would be like a first start, where failed calls are unavoidable.
                    if world.secret.is_some() && world.replicas.iter().any(|r| r.memory.is_some()) {
                        world.secret = None;
                        world.version += 1;
                    }
                }
                Event::Short(ms) => world.now += Duration::from_millis(ms),
                Event::Long(days) => {
                    // Days pass while every replica runs. Each replica learns of every change, and
                    // takes its steps.
                    for _ in 0..days {
                        world.now += DAY;
                        for _ in 0..3 {
                            for which in 0..count {
                                world.hear(which, 7);
                                world.round(which);
                                world.check()?;
                            }
                            world.now += Duration::from_mins(11);
                        }
                    }
                }
            }
            world.check()?;
        }
    }
}

/// Checks that authorities change in the model over the years. Otherwise
/// `what_is_served_is_trusted_at_every_moment` would not test a change of authorities.
#[test]
fn authorities_change_over_the_years() {
    let mut world = World::new();
    world.start(0);
    world.start(60);
    for _ in 0..3 * 365 {
        world.now += DAY;
        for _ in 0..3 {
            for which in 0..2 {
                world.hear(which, 7);
                world.round(which);
                world.check().unwrap();
            }
            world.now += Duration::from_mins(11);
        }
    }
    assert!(world.switches >= 4, "{}", world.switches);
    assert!(world.secret.unwrap().bundle().len() <= 3);
}
