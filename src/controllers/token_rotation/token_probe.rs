//! Probes of the token in use in a Rancher, once a minute between two reconciles. So a token that
//! was revoked by hand is replaced about a minute later, although no event reports the revocation.
//!
//! Invariants: a probe is one call. The call uses the API key and not the token, so that only the
//! token's users change the token's time of last use. A probe decides nothing. A difference only
//! triggers a reconcile.

use std::time::{Duration, Instant};

use kube_runtime::reflector::ObjectRef;

use super::rancher_session::access;
use super::read_fault::ReadFault;
use super::rotation_run::{RANCHER_INTERVAL, RotationRun};
use super::{RotationContext, lock};
use crate::api::TokenRotation;
use crate::domain::credentials::rotation::{IssuerReport, TargetState};

/// Pause between two probes.
const PROBE_INTERVAL: Duration = Duration::from_mins(1);
/// Deadline of a probe. The deadline is short, because a probe runs in a reconcile, and few
/// reconciles run at the same time.
const PROBE_DEADLINE: Duration = Duration::from_secs(5);

/// Last observed state of a token in use (`report`), and the time of the next probe (`at`).
pub(super) struct TokenProbe {
    report: IssuerReport,
    at: Instant,
    /// Whether the last probe found a state of the token other than `report`.
    differs: bool,
}

impl RotationRun<'_> {
    /// Schedules the next probe of the token in use. Returns the time until that probe. `None`: no
    /// probe is scheduled, because the issuer has reported no state of a valid token, or because
    /// this TokenRotation does not replace the token.
    pub(super) fn schedule_probe(&self) -> Option<Duration> {
        let name = ObjectRef::from_obj(&self.rotation);
        let mut probes = lock(&self.context.probes);
        let before = probes.remove(&name);
        let is_used = self.unknown.is_none()
            && self.session.is_some()
            && self.plan.source.is_some()
            && !self.plan.is_second
            && self.plan.deleting.is_none();
        let TargetState::There { holds: Some(held), .. } = &self.read.target else { return None };
        // A token that has expired or was revoked is replaced without a probe.
        let now = self.clock.now();
        let lives = |report: &IssuerReport| report.expires.is_none_or(|end| end > now);
        let report = held.report.clone().filter(|report| is_used && lives(report))?;
        // If the last probe found a difference, but the reconcile after that probe found none, the
        // API key's user is not permitted to see the token.
        let is_hidden = before.is_some_and(|probe| probe.differs && probe.report == report);
        let pause = if is_hidden { RANCHER_INTERVAL } else { PROBE_INTERVAL };
        probes.insert(name, TokenProbe { report, at: Instant::now() + pause, differs: false });
        Some(pause)
    }
}

/// Probes the token in use, if a probe is due. Returns the time until the next probe, or
/// `Duration::MAX` if no probe is scheduled. `None`: the state of the token has changed, so a
/// reconcile is required.
pub(super) async fn probe_if_due(
    context: &RotationContext,
    rotation: &TokenRotation,
) -> Option<Duration> {
    let name = ObjectRef::from_obj(rotation);
    let report = {
        let mut probes = lock(&context.probes);
        let Some(probe) = probes.get_mut(&name) else { return Some(Duration::MAX) };
        let left = probe.at.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return Some(left);
        }
        probe.at = Instant::now() + PROBE_INTERVAL;
        probe.report.clone()
    };
    let server = rotation.spec.rancher.as_ref()?;
    let asked = async {
        match access(context, rotation, server).await {
            Ok(access) => access.issuer.differs(&report).await,
            Err(ReadFault::Unknown(_)) => true,
            Err(ReadFault::Call(_)) => false,
        }
    };
    if !tokio::time::timeout(PROBE_DEADLINE, asked).await.unwrap_or(false) {
        return Some(PROBE_INTERVAL);
    }
    if let Some(probe) = lock(&context.probes).get_mut(&name) {
        probe.differs = true;
    }
    None
}
