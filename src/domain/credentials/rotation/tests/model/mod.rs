//! Model test: two leaders, a consumer and a person who edits the target act in random orders. In
//! some runs, the user deletes the TokenRotation. In others, the issuer deletes each credential
//! that the target no longer names, as a Rancher does.
//!
//! Invariants after each step:
//!
//! * The credential in the target works, and so do the kept credential, and each credential that
//!   the target held within the overlap. Exceptions are a credential that ended by itself, a
//!   credential that a person revoked, and a replaced credential that counts as leaked. A kept
//!   credential may end before its overlap is over, if the credential in use ends first.
//! * The same holds during a deletion with `Keep`, and after it. But no overlap runs if the target
//!   was deleted, and while the target is unfit, credentials are revoked by time alone. A deletion
//!   with `Revoke` spares only a foreign credential in the target.
//! * A credential is made only after its name was recorded.
//! * A credential is published only after it was verified.
//! * No foreign credential is overwritten before it is due.
//!
//! At the end, after a time without disturbances, one credential works, and no other credential of
//! ours exists.
//!
//! At the completion of a deletion, no credential of ours is left unrevoked. With `Keep`, the
//! published credential and those in the target are left. If the deletion had to end at its
//! deadline, its report names every recorded credential that is left.

mod world;

use super::super::IssuerTraits;
use world::{Completion, Fault, Moment, Move, World};

const SEEDS: u64 = 2_000;
const STEPS: u64 = 160;

/// Kind of the random life of a TokenRotation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Life {
    /// The TokenRotation exists until the end. The issuer deletes no credential by itself.
    Usual,
    /// The issuer deletes each credential that the target no longer names.
    Pruned,
    /// The user deletes the TokenRotation.
    Deleted,
}

/// Form of a TokenRotation: the part of its plan that does not change.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    source: IssuerTraits,
    restarts: bool,
}

impl Form {
    /// Number of the form whose issuer deletes credentials: a token of a Rancher, in a cloud
    /// credential.
    const PRUNED: u64 = 8;

    fn of(life: Life, seed: u64) -> Self {
        let number = match life {
            Life::Usual => seed % Self::PRUNED,
            Life::Pruned => Self::PRUNED,
            Life::Deleted => seed % (Self::PRUNED + 1),
        };
        let is_pruned = number == Self::PRUNED;
        let prunes = is_pruned || number & 2 != 0;
        let is_apart = prunes && !is_pruned;
        let source = IssuerTraits { readable: number & 1 != 0, prunes, is_apart };
        Self { source, restarts: number & 4 != 0 }
    }
}

/// Intention of the user to delete the TokenRotation.
struct Removal {
    /// Whether the user waits until the first credential is published.
    waits_for_first: bool,
    /// Number of steps before the deletion.
    after: u64,
    /// Whether the deletion revokes the published credential.
    revokes: bool,
    /// State of the rotation for which the user waits after these steps.
    moment: Moment,
}

/// Pseudorandom numbers, the same in each run.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn step(&mut self) -> Move {
        let who = usize::try_from(self.below(2)).unwrap_or_default();
        match self.below(40) {
            0..=10 => Move::Look(who),
            11..=24 => Move::Act(who),
            25 | 26 => Move::Crash(who),
            27 => Move::FailNext(who),
            28 => Move::LoseNext(who),
            29 | 30 => Move::HangNext(who),
            31 => Move::Land,
            32 | 33 => Move::Pass(i64::try_from(self.below(90)).unwrap_or_default()),
            34 => Move::Pass(i64::try_from(self.below(1_500)).unwrap_or_default()),
            35 => Move::Foreign,
            36 => Move::PutBack(usize::try_from(self.below(8)).unwrap_or_default()),
            37 => [Move::Delete, Move::Spoil, Move::Mend, Move::RevokeByHand]
                [usize::try_from(self.below(4)).unwrap_or_default()],
            38 => Move::Ask,
            _ => Move::Leak,
        }
    }

    fn removal(&mut self) -> Removal {
        Removal {
            waits_for_first: self.below(2) == 0,
            after: self.below(STEPS),
            revokes: self.below(3) == 0,
            moment: match self.below(3) {
                0 => Moment::Any,
                1 => Moment::Publication,
                _ => Moment::Revocation,
            },
        }
    }
}

/// Plays one random life. Returns the world at its end, or the broken invariant with the steps that
/// led to it.
fn play(seed: u64, fault: Option<Fault>, life: Life) -> Result<World, String> {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1);
    let mut world = World::new(Form::of(life, seed), life, fault);
    let mut removal = (life == Life::Deleted).then(|| rng.removal());
    if removal.as_ref().is_some_and(|removal| removal.waits_for_first) {
        world.calm()?;
    }
    let mut steps = Vec::new();
    let mut go = |world: &mut World, step: Move| {
        steps.push(format!("{step:?}"));
        world.step(step).map_err(|why| format!("{why}\n{}", steps.join(" ")))
    };
    for number in 0..STEPS {
        let is_now = |removal: &mut Removal| removal.after <= number && world.is_at(removal.moment);
        if let Some(removal) = removal.take_if(is_now) {
            go(&mut world, Move::Remove(removal.revokes))?;
        }
        go(&mut world, rng.step())?;
    }
    if let Some(removal) = removal {
        go(&mut world, Move::Remove(removal.revokes))?;
    }
    world.calm().map_err(|why| format!("{why}\nafter {}", steps.join(" ")))?;
    Ok(world)
}

/// Number of credentials that were published in the lives with these seeds.
fn published(seeds: u64, life: Life) -> u64 {
    let count = |seed| match play(seed, None, life) {
        Ok(world) => world.published,
        Err(why) => panic!("seed {seed}: {why}"),
    };
    (0..seeds).map(count).sum()
}

#[test]
fn whatever_happens_what_the_target_holds_works() {
    let published = published(SEEDS, Life::Usual);
    assert!(published > SEEDS, "only {published} published: the random orders do not reach far");
}

#[test]
fn whatever_happens_what_an_issuer_deletes_is_not_in_use() {
    let published = published(SEEDS / 2, Life::Pruned);
    assert!(published > SEEDS / 2, "only {published} published");
}

#[test]
fn whatever_happens_a_deletion_leaves_what_the_spec_says_and_nothing_else() {
    let (seeds, mut in_time) = (2 * SEEDS, 0);
    for seed in 0..seeds {
        match play(seed, None, Life::Deleted) {
            Ok(world) => in_time += u64::from(world.completed == Some(Completion::InTime)),
            Err(why) => panic!("seed {seed}: {why}"),
        }
    }
    assert!(in_time > seeds / 2, "only {in_time} of {seeds} deletions end before their deadline");
}

/// Each part of the protocol is necessary: if it is left out, some order of steps breaks the
/// invariant that depends on this part.
#[test]
fn without_any_one_part_some_order_goes_wrong() {
    for fault in Fault::ALL {
        let broken = |seed| play(seed, Some(fault), fault.life()).err();
        let found = (0..SEEDS * 10).filter_map(broken).any(|why| why.contains(fault.breaks()));
        assert!(found, "{fault:?} is never missed");
    }
}
