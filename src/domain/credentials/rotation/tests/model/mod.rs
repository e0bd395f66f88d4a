//! Model test: two leaders, a consumer and a person who edits the target act in random orders.
//!
//! Invariants after each step:
//!
//! * The credential in the target works, and so does each credential that the target held within
//!   the overlap. Exceptions are a credential that ended by itself, a credential that a person
//!   revoked, and a replaced credential that counts as leaked.
//! * A credential is made only after its name was recorded.
//! * A credential is published only after it was verified.
//! * No foreign credential is overwritten before it is due.
//!
//! At the end, after a time without disturbances, one credential works, and no other credential of
//! ours exists.

mod world;

use world::{Fault, Move, World};

const SEEDS: u64 = 2_000;
const STEPS: usize = 160;

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
}

fn play(seed: u64, fault: Option<Fault>, form: u64) -> Result<u64, String> {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1);
    let mut world = World::new(form & 1 != 0, form & 2 != 0, form & 4 != 0, fault);
    let mut steps = Vec::new();
    for _ in 0..STEPS {
        let step = rng.step();
        steps.push(format!("{step:?}"));
        world.step(step).map_err(|why| format!("{why}\n{}", steps.join(" ")))?;
    }
    world.calm().map_err(|why| format!("{why}\nafter {}", steps.join(" ")))?;
    Ok(world.published)
}

#[test]
fn whatever_happens_what_the_target_holds_works() {
    let mut published = 0;
    for seed in 0..SEEDS {
        match play(seed, None, seed % 8) {
            Ok(count) => published += count,
            Err(why) => panic!("seed {seed}: {why}"),
        }
    }
    assert!(published > SEEDS, "only {published} published: the random orders do not reach far");
}

/// Each part of the protocol is necessary: if it is left out, some order of steps breaks an
/// invariant.
#[test]
fn without_any_one_part_some_order_goes_wrong() {
    for fault in Fault::ALL {
        let found = (0..SEEDS * 10).find_map(|seed| play(seed, Some(fault), seed % 8).err());
        assert!(found.is_some(), "{fault:?} is never missed");
    }
}
