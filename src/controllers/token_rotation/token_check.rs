//! Checks of the token in use in a Rancher, between two reconciles. A check runs once a minute, or
//! every five minutes if the API key's user is not permitted to see the token. So a token that was
//! revoked by hand is usually replaced about a minute later, although no event reports the
//! revocation.
//!
//! Invariants:
//!
//! * A check makes at most one call to the Rancher. The call uses the API key and not the token, so
//!   that only the token's users change the token's time of last use.
//! * A check decides nothing. A difference only triggers a reconcile.

use std::time::{Duration, Instant};

use kube_runtime::reflector::ObjectRef;

use super::rancher_session::access;
use super::read_fault::ReadFault;
use super::rotation_run::{RANCHER_INTERVAL, RotationRun};
use super::{RotationContext, lock};
use crate::api::TokenRotation;
use crate::domain::credentials::rotation::IssuerReport;

/// Pause between two checks.
const CHECK_INTERVAL: Duration = Duration::from_mins(1);
/// Deadline of a check. The deadline is short, because a check that waits occupies one of the few
/// places for concurrent reconciles.
const CHECK_DEADLINE: Duration = Duration::from_secs(5);

/// Last observed state of a token in use (`report`), and the time of the next check (`at`).
pub(super) struct TokenCheck {
    report: IssuerReport,
    at: Instant,
    /// Whether the last check required a reconcile: the state of the token was not `report`, or the
    /// Rancher could not be called with the API key.
    differs: bool,
}

impl RotationRun<'_> {
    /// Schedules the next check of the token in use. Returns the time until that check. `None`: no
    /// check is scheduled, for one of these reasons:
    ///
    /// * The target or the Rancher could not be read.
    /// * The target has no token, or the issuer reports nothing about the token.
    /// * The token has expired.
    /// * This TokenRotation does not replace the token, or is being deleted.
    pub(super) fn schedule_check(&self) -> Option<Duration> {
        let name = ObjectRef::from_obj(&self.rotation);
        let mut checks = lock(&self.context.checks);
        let before = checks.remove(&name);
        let is_used = self.unknown.is_none()
            && self.session.is_some()
            && self.plan.source.is_some()
            && !self.plan.is_second
            && self.plan.deleting.is_none();
        let held = self.read.target.held()?;
        // A token that has expired or was revoked is replaced without a check.
        let now = self.clock.now();
        let lives = |report: &IssuerReport| report.expires.is_none_or(|end| end > now);
        let report = held.report.clone().filter(|report| is_used && lives(report))?;
        // If the last check found a difference, but the reconcile after that check found none, the
        // API key's user is not permitted to see the token.
        let is_hidden = before.is_some_and(|check| check.differs && check.report == report);
        let pause = if is_hidden { RANCHER_INTERVAL } else { CHECK_INTERVAL };
        checks.insert(name, TokenCheck { report, at: Instant::now() + pause, differs: false });
        Some(pause)
    }
}

/// Checks the token in use, if a check is due. Returns the time until the next check, or
/// `Duration::MAX` if no check is scheduled. `None`: a reconcile is required, for one of these
/// reasons:
///
/// * The state of the token has changed, or Rancher does not show the token to the API key any
///   more.
/// * The Rancher does not accept the API key.
/// * The spec and its Secrets give no access to the Rancher.
///
/// If the Rancher does not answer, no reconcile is required.
pub(super) async fn check_if_due(
    context: &RotationContext,
    rotation: &TokenRotation,
) -> Option<Duration> {
    let name = ObjectRef::from_obj(rotation);
    let report = {
        let mut checks = lock(&context.checks);
        let Some(check) = checks.get_mut(&name) else { return Some(Duration::MAX) };
        let left = check.at.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return Some(left);
        }
        check.at = Instant::now() + CHECK_INTERVAL;
        check.report.clone()
    };
    let server = rotation.spec.rancher.as_ref()?;
    let asked = async {
        match access(context, rotation, server).await {
            Ok(access) => access.issuer.differs(&report).await,
            Err(ReadFault::Unknown(_)) => true,
            Err(ReadFault::Call(_)) => false,
        }
    };
    if !tokio::time::timeout(CHECK_DEADLINE, asked).await.unwrap_or(false) {
        return Some(CHECK_INTERVAL);
    }
    if let Some(check) = lock(&context.checks).get_mut(&name) {
        check.differs = true;
    }
    None
}
