//! Watch events of a LoadBalancer that this process writes itself.
//!
//! Records the versions whose watch events trigger no reconcile. Invariants:
//! * A version that another client wrote triggers a reconcile. If this process is writing the
//!   LoadBalancer, the reconcile may wait until this write ends.
//! * A version that this process wrote triggers a reconcile if a decision has since begun from an
//!   older version.
//!
//! So the last decision is never made from a stale version.

use std::collections::HashMap;

use super::{Views, lock};
use crate::api::LoadBalancer;
use crate::domain::load_balancer::facts;

/// State of each LoadBalancer's writes, by `namespace/name`.
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct OwnWrites(HashMap<String, WriteEcho>);

#[cfg_attr(test, derive(Clone))]
enum WriteEcho {
    /// A write is under way. The field is the version in the last event since the write began,
    /// because the event of a write may arrive before the answer.
    Writing(Option<String>),
    /// A write has ended with this version, and nothing remains to be done. `observed`: whether the
    /// event of that version has arrived.
    Wrote { version: String, observed: bool },
}

impl OwnWrites {
    /// Registers the start of a write. If another write is under way, keeps the event that has
    /// arrived during that write.
    fn begin(&mut self, name: &str) {
        if !matches!(self.0.get(name), Some(WriteEcho::Writing(_))) {
            self.0.insert(name.to_owned(), WriteEcho::Writing(None));
        }
    }

    /// Records a watch event. Returns whether the event must trigger a reconcile now.
    pub(super) fn observe(&mut self, name: &str, version: &str) -> bool {
        match self.0.get_mut(name) {
            Some(WriteEcho::Writing(observed)) => {
                *observed = Some(version.to_owned());
                false
            }
            Some(WriteEcho::Wrote { version: wrote, observed }) => {
                *observed |= wrote == version;
                wrote != version
            }
            None => true,
        }
    }

    /// Records that a decision begins from this version. If this process has written another
    /// version, the event of the written version must trigger a reconcile, because the decision
    /// does not include that version. Returns whether that event has already arrived, so that the
    /// caller must trigger the reconcile now.
    fn begin_decision(&mut self, name: &str, version: &str) -> bool {
        let observed = match self.0.get(name) {
            None => return false,
            Some(WriteEcho::Wrote { version: wrote, .. }) if wrote == version => return false,
            Some(WriteEcho::Wrote { observed, .. }) => *observed,
            Some(WriteEcho::Writing(observed)) => {
                observed.as_ref().is_some_and(|observed| observed != version)
            }
        };
        self.0.remove(name);
        observed
    }

    /// Records the end of a write. `wrote` is the version that was written, if nothing remains to
    /// be done. Returns whether an event that arrived during the write must trigger a reconcile.
    fn end(&mut self, name: &str, wrote: Option<String>) -> bool {
        let Some(WriteEcho::Writing(observed)) = self.0.get_mut(name) else { return false };
        let observed = observed.take();
        self.0.remove(name);
        let is_echo = observed == wrote;
        if let Some(version) = wrote {
            self.0.insert(name.to_owned(), WriteEcho::Wrote { version, observed: is_echo });
        }
        observed.is_some() && !is_echo
    }

    /// Forgets a LoadBalancer that is gone.
    pub(super) fn forget(&mut self, name: &str) {
        self.0.remove(name);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// A write of a LoadBalancer that is under way. Until this object is dropped, watch events of the
/// LoadBalancer trigger no reconcile.
pub struct OwnWrite<'a> {
    views: &'a Views,
    lb: String,
    wrote: Option<String>,
}

impl OwnWrite<'_> {
    /// Marks the write final: the watch event of this resourceVersion triggers no reconcile,
    /// because nothing remains to be done.
    pub fn mark_final(mut self, version: String) {
        self.wrote = Some(version);
    }
}

impl Drop for OwnWrite<'_> {
    fn drop(&mut self) {
        if lock(&self.views.index.echoes).end(&self.lb, self.wrote.take()) {
            self.views.enqueue_lbs([&self.lb]);
        }
    }
}

impl Views {
    /// Registers the start of a write of a LoadBalancer, by `namespace/name`.
    pub fn writing(&self, lb: String) -> OwnWrite<'_> {
        lock(&self.index.echoes).begin(&lb);
        OwnWrite { views: self, lb, wrote: None }
    }

    /// Records that a decision about the LoadBalancer begins from this object, which may be older
    /// than the version that this process has written.
    pub fn begin_decision(&self, lb: &LoadBalancer) {
        let name = facts::name(lb);
        let version = lb.metadata.resource_version.as_deref().unwrap_or_default();
        if lock(&self.index.echoes).begin_decision(&name, version) {
            self.enqueue_lbs([name]);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LB: &str = "default/web";

    fn wrote(version: &str) -> String {
        version.to_owned()
    }

    #[test]
    fn an_echo_wakes_no_reconcile_before_the_answer_or_after_it() {
        let mut echoes = OwnWrites::default();
        assert!(echoes.observe(LB, "6"), "it is not being written");
        echoes.begin(LB);
        assert!(!echoes.observe(LB, "7"));
        assert!(!echoes.end(LB, Some(wrote("7"))));
        echoes.begin(LB);
        assert!(!echoes.end(LB, Some(wrote("8"))));
        assert!(!echoes.observe(LB, "8"));
        assert!(echoes.observe(LB, "9"), "another client's");
    }

    #[test]
    fn a_foreign_write_in_between_wakes_a_reconcile() {
        let mut echoes = OwnWrites::default();
        echoes.begin(LB);
        assert!(!echoes.observe(LB, "7") && !echoes.observe(LB, "8"));
        assert!(echoes.end(LB, Some(wrote("7"))));
        assert!(echoes.observe(LB, "9"));
    }

    /// `None` stands for a refused write, a write whose answer was lost, and a write after which
    /// something remains to be done.
    #[test]
    fn without_a_version_everything_heard_is_looked_at() {
        let mut echoes = OwnWrites::default();
        echoes.begin(LB);
        assert!(!echoes.end(LB, None), "nothing was observed");
        assert!(echoes.observe(LB, "7"));
        echoes.begin(LB);
        assert!(!echoes.observe(LB, "8"));
        assert!(echoes.end(LB, None));
        assert!(echoes.observe(LB, "8"), "it is not expected");
    }

    /// Counts of VMs are written in parallel to the write of a decision. One of the two writes is
    /// refused. An event during the writes is handled when the first of the two writes ends.
    #[test]
    fn of_two_writes_at_once_nothing_heard_is_lost() {
        let mut echoes = OwnWrites::default();
        echoes.begin(LB);
        assert!(!echoes.observe(LB, "7"), "another client's");
        echoes.begin(LB);
        assert!(echoes.end(LB, None));
        assert!(!echoes.end(LB, None) && echoes.observe(LB, "8"));
        echoes.begin(LB);
        echoes.begin(LB);
        assert!(!echoes.end(LB, Some(wrote("9"))));
        assert!(!echoes.end(LB, None), "refused");
        assert!(!echoes.observe(LB, "9"));
    }

    /// A decision begins from a version that is older than a write, before or after the event of
    /// that write arrives.
    #[test]
    fn an_echo_wakes_a_reconcile_if_an_older_version_was_read() {
        let mut echoes = OwnWrites::default();
        let write = |echoes: &mut OwnWrites| {
            echoes.begin(LB);
            assert!(!echoes.end(LB, Some(wrote("7"))));
        };
        write(&mut echoes);
        assert!(!echoes.begin_decision(LB, "6"), "the word of it is to come");
        assert!(echoes.observe(LB, "7"));

        write(&mut echoes);
        assert!(!echoes.observe(LB, "7"));
        assert!(
            echoes.begin_decision(LB, "6"),
            "taken before the word came, and looked at after it"
        );
        assert!(!echoes.begin_decision(LB, "7"), "once is enough");

        write(&mut echoes);
        assert!(!echoes.begin_decision(LB, "7") && !echoes.observe(LB, "7"), "it was known");
    }

    #[test]
    fn of_one_that_is_gone_nothing_is_left() {
        let mut echoes = OwnWrites::default();
        echoes.begin(LB);
        echoes.observe(LB, "7");
        echoes.forget(LB);
        assert!(!echoes.end(LB, Some(wrote("7"))));
        assert!(echoes.observe(LB, "7"), "one made again under the name");
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// A write by another client.
        Foreign,
        /// A change of another object that the decision depends on.
        Nudge,
        /// The watch delivers the next version.
        Observe,
        /// The queue takes the object from the view for a reconcile.
        Take,
        /// The decision begins.
        Decide,
        /// The decision ends without a write.
        Leave,
        /// The decision ends with a write.
        Send,
        /// The server accepts or refuses the write.
        Arrive,
        /// The answer arrives. `true`: nothing remains to be done. `Lose`: the answer is lost.
        Answer(bool),
        Lose,
    }

    /// State of the single reconcile.
    #[derive(Clone, Copy, Debug)]
    enum At {
        Idle,
        Took(u32),
        Looked(u32),
        /// A write was sent that was decided from this version. `Done`: the server has accepted or
        /// refused that write. Its second field is the new version, if the write was accepted.
        Sent(u32),
        Done(u32, Option<u32>),
    }

    #[derive(Clone)]
    struct World {
        echoes: OwnWrites,
        stored: u32,
        observed: u32,
        woken: bool,
        at: At,
        /// The version that the last decision began from, or that a final write produced.
        settled: u32,
    }

    impl World {
        /// Makes a step. Steps that are impossible now are skipped.
        fn step(&mut self, step: Step) {
            match (step, self.at) {
                (Step::Foreign, _) => self.stored += 1,
                (Step::Nudge, _) => self.woken = true,
                (Step::Observe, _) if self.observed < self.stored => {
                    self.observed += 1;
                    self.woken |= self.echoes.observe(LB, &self.observed.to_string());
                }
                (Step::Take, At::Idle) if self.woken => {
                    self.woken = false;
                    self.at = At::Took(self.observed);
                }
                (Step::Decide, At::Took(base)) => {
                    self.woken |= self.echoes.begin_decision(LB, &base.to_string());
                    self.at = At::Looked(base);
                }
                (Step::Leave, At::Looked(base)) => self.settle(base),
                (Step::Send, At::Looked(base)) => {
                    self.echoes.begin(LB);
                    self.at = At::Sent(base);
                }
                (Step::Arrive, At::Sent(base)) => {
                    let is_taken = base == self.stored;
                    self.stored += u32::from(is_taken);
                    self.at = At::Done(base, is_taken.then_some(self.stored));
                }
                (Step::Answer(is_final), At::Done(base, wrote)) => {
                    let all = wrote.filter(|_| is_final);
                    self.woken |= self.echoes.end(LB, all.map(|version| version.to_string()));
                    // A refused write is repeated.
                    self.woken |= wrote.is_none();
                    self.settle(all.unwrap_or(base));
                }
                (Step::Lose, At::Done(base, _)) => {
                    self.echoes.end(LB, None);
                    self.woken = true;
                    self.settle(base);
                }
                _ => {}
            }
        }

        fn settle(&mut self, version: u32) {
            self.settled = version;
            self.at = At::Idle;
        }
    }

    /// Steps that complete every write, event and reconcile under way.
    const ENDING: [Step; 6] =
        [Step::Observe, Step::Take, Step::Decide, Step::Leave, Step::Arrive, Step::Answer(true)];

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(512)
        })]

        #[test]
        fn whatever_the_order_the_newest_version_is_decided_from_last(
            steps in prop::collection::vec(
                prop_oneof![
                    1 => Just(Step::Foreign),
                    2 => Just(Step::Nudge),
                    3 => Just(Step::Observe),
                    3 => Just(Step::Take),
                    3 => Just(Step::Decide),
                    1 => Just(Step::Leave),
                    2 => Just(Step::Send),
                    2 => Just(Step::Arrive),
                    2 => any::<bool>().prop_map(Step::Answer),
                    1 => Just(Step::Lose),
                ],
                0..40,
            ),
        ) {
            let (echoes, at) = (OwnWrites::default(), At::Idle);
            let mut world = World { echoes, stored: 1, observed: 0, woken: false, at, settled: 0 };
            for step in steps {
                world.step(step);
                // No new change from here on.
                let mut end = world.clone();
                for step in ENDING.into_iter().cycle().take(40 * ENDING.len()) {
                    end.step(step);
                }
                prop_assert_eq!(end.settled, end.stored);
                prop_assert!(!end.woken, "a reconcile is triggered for ever");
            }
        }
    }
}
