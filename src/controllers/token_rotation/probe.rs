//! The token in use in a Rancher, asked for once a minute between two looks: one that was revoked by hand
//! is replaced at once, and no event says that it was.
//!
//! Invariants: a probe is one call, made with the API key: when a token was last used stays the time of
//! those who use it. It decides nothing: what is not as it was is looked at.

use std::time::{Duration, Instant};

use kube_runtime::reflector::ObjectRef;

use super::rancher::way;
use super::run::{LOOK_THERE, Run};
use super::{Keeper, lock};
use crate::api::TokenRotation;
use crate::domain::credentials::rotation::{Target, Term};

/// Pause between two probes.
const EVERY: Duration = Duration::from_mins(1);
/// Deadline of a probe. One of the few workers does nothing else meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);

/// State in which a token was seen, and the time of the next probe.
pub(super) struct Probe {
    term: Term,
    at: Instant,
    /// The last probe found another state.
    differs: bool,
}

impl Run<'_> {
    /// Sees to it that the token in use is asked for again, if its issuer knows it, and says when.
    pub(super) fn arm(&self) -> Option<Duration> {
        let name = ObjectRef::from_obj(&self.rotation);
        let mut probes = lock(&self.keeper.probes);
        let before = probes.remove(&name);
        let is_used = self.blind.is_none()
            && self.side.is_some()
            && self.plan.source.is_some()
            && self.plan.deleting.is_none();
        let Target::There { holds: Some(held), .. } = &self.read.target else { return None };
        // What has ended by itself or was revoked is known to be due.
        let now = self.clock.now();
        let lives = |term: &Term| term.expires.is_none_or(|end| end > now);
        let term = held.term.clone().filter(|term| is_used && lives(term))?;
        // The look has found it as it was all the same: the API key's user may not see it.
        let is_hidden = before.is_some_and(|probe| probe.differs && probe.term == term);
        let pause = if is_hidden { LOOK_THERE } else { EVERY };
        probes.insert(name, Probe { term, at: Instant::now() + pause, differs: false });
        Some(pause)
    }
}

/// Asks for the token in use, if it is time, and says when it is next. `None`: it is not as it was.
pub(super) async fn probe(keeper: &Keeper, rotation: &TokenRotation) -> Option<Duration> {
    let name = ObjectRef::from_obj(rotation);
    let term = {
        let mut probes = lock(&keeper.probes);
        let Some(probe) = probes.get_mut(&name) else { return Some(Duration::MAX) };
        let left = probe.at.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return Some(left);
        }
        probe.at = Instant::now() + EVERY;
        probe.term.clone()
    };
    let server = rotation.spec.rancher.as_ref()?;
    let asked = async {
        match way(keeper, rotation, server).await {
            Ok(Ok(way)) => way.issuer.differs(&term).await,
            Ok(Err(_)) => true,
            Err(_) => false,
        }
    };
    if !tokio::time::timeout(PATIENCE, asked).await.unwrap_or(false) {
        return Some(EVERY);
    }
    if let Some(probe) = lock(&keeper.probes).get_mut(&name) {
        probe.differs = true;
    }
    None
}
