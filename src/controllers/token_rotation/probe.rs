//! Probes of the token in use in a Rancher, once a minute between two looks. A token that was
//! revoked by hand is so replaced at once, although no event reports the revocation.
//!
//! Invariants: a probe is one call, made with the API key, so that the token's time of last use
//! stays that of its users. A probe decides nothing: a difference only triggers a reconcile.

use std::time::{Duration, Instant};

use kube_runtime::reflector::ObjectRef;

use super::look::LookFault;
use super::session::{LOOK_THERE, RotationRun};
use super::way::way;
use super::{RotationContext, lock};
use crate::api::TokenRotation;
use crate::domain::credentials::rotation::{CredentialTerm, TargetState};

/// Pause between two probes.
const EVERY: Duration = Duration::from_mins(1);
/// Deadline of a probe. One of the few workers is busy during the probe.
const PATIENCE: Duration = Duration::from_secs(5);

/// Last observed state of a token, and the time of the next probe.
pub(super) struct TokenProbe {
    term: CredentialTerm,
    at: Instant,
    /// Whether the last probe found another state.
    differs: bool,
}

impl RotationRun<'_> {
    /// Schedules the next probe of the token in use, if its issuer knows it. Returns the time until
    /// then.
    pub(super) fn arm(&self) -> Option<Duration> {
        let name = ObjectRef::from_obj(&self.rotation);
        let mut probes = lock(&self.keeper.probes);
        let before = probes.remove(&name);
        let is_used = self.blind.is_none()
            && self.side.is_some()
            && self.plan.source.is_some()
            && !self.plan.is_second
            && self.plan.deleting.is_none();
        let TargetState::There { holds: Some(held), .. } = &self.read.target else { return None };
        // A token that has expired or was revoked is due without a probe.
        let now = self.clock.now();
        let lives = |term: &CredentialTerm| term.expires.is_none_or(|end| end > now);
        let term = held.term.clone().filter(|term| is_used && lives(term))?;
        // The probe found a difference and the look found none: the API key's user may not see it.
        let is_hidden = before.is_some_and(|probe| probe.differs && probe.term == term);
        let pause = if is_hidden { LOOK_THERE } else { EVERY };
        probes.insert(name, TokenProbe { term, at: Instant::now() + pause, differs: false });
        Some(pause)
    }
}

/// Probes the token in use, if that is due. Returns the time until the next probe. `None`: the
/// state of the token has changed.
pub(super) async fn probe(keeper: &RotationContext, rotation: &TokenRotation) -> Option<Duration> {
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
            Ok(way) => way.issuer.differs(&term).await,
            Err(LookFault::Blind(_)) => true,
            Err(LookFault::Call(_)) => false,
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
