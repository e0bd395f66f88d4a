//! Condition Ready of a rotation: status, reason and message. The note of the Event about a failed
//! step is made here too.
//!
//! Invariant: the reason of Ready is Current only if the credential in the target works, as far as
//! that can be observed. For a rotation with children, the reason is Current only if each child is
//! Ready.

use super::super::timestamp::rfc3339;
use super::watched::WatchedCredentials;
use super::{ObservedState, RotationPlan, RotationState, RotationStep, TargetState, deletion};
use api::ConditionStatus::{self, False, True};
use api::{Condition, READY, Target, TokenRotation};

/// Reason of Ready if one of these cannot be read: the target, the Rancher, or the list of
/// credentials that were made for the target.
pub const UNREADABLE: &str = "TargetUnreadable";
/// Reason of Ready if the API key must not be sent to the Rancher's URL, or if tokens of the key's
/// user must not be put into the target.
pub const MINTER_REFUSED: &str = "MinterRefused";

/// Condition Ready of a TokenRotation. `None`: the condition was not written yet.
pub fn ready_condition(rotation: &TokenRotation) -> Option<&Condition> {
    rotation.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == READY)
}

/// Report of a target whose state is unknown, for the condition Ready.
#[derive(Clone, Copy, Debug)]
pub struct UnknownTargetReport<'a> {
    /// Reason of Ready.
    pub ready: &'static str,
    /// Text that says why the target's state is unknown.
    pub why: &'a str,
}

/// Observed facts on which the condition Ready depends, in addition to the target's state.
#[derive(Clone, Debug, Default)]
pub struct ReadyFacts<'a> {
    /// Message about another TokenRotation that has precedence for the same credential. `None`: no
    /// other TokenRotation has precedence.
    pub second: Option<String>,
    /// Report of the target. `None`: the target's state is known.
    pub unknown: Option<UnknownTargetReport<'a>>,
    /// Credentials in a target that is only watched.
    pub watched: Option<&'a WatchedCredentials>,
    /// Number of cloud credentials that the API key may read, but that were not read yet.
    pub unread: usize,
    /// Field 0: whether each child replaces its credential. Field 1: message about all cloud
    /// credentials. `None`: the TokenRotation makes no children, or they are not known.
    pub children: Option<(bool, String)>,
}

/// Condition Ready of a rotation, without times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyState {
    pub(super) status: ConditionStatus,
    pub(super) reason: String,
    pub(super) message: String,
}

impl ReadyState {
    pub(super) fn new(status: ConditionStatus, reason: &str, message: impl Into<String>) -> Self {
        Self { status, reason: reason.to_owned(), message: message.into() }
    }

    /// Condition of a rotation whose target holds a credential that works. The operator replaces
    /// the credential in time.
    pub fn current() -> Self {
        Self::new(True, "Current", "")
    }

    /// Condition of a rotation whose credential is kept valid by its Rancher, without an expiry.
    pub(super) fn kept_by_rancher() -> Self {
        let message = "Rancher itself keeps this token valid: the token has no expiry, and the \
                       operator does not replace it until it has one";
        Self::new(True, "KeptByRancher", message)
    }

    /// Condition of a TokenRotation in a namespace where the operator has no rights.
    pub fn not_allowed() -> Self {
        let message = "the operator has no rights in this namespace: add it to the chart's value \
                       credentials.namespaces";
        Self::new(False, "NamespaceNotAllowed", message)
    }

    /// Condition after `step` has failed. The step will be tried again. `why`: reason why it has
    /// failed.
    pub fn failed(step: RotationStep, why: String) -> Self {
        Self::new(False, &format!("{}Failed", step.word()), why)
    }

    /// Condition Ready of a rotation that has no step to carry out now. `None`: a step has failed,
    /// so Ready stays as it is until that step has succeeded or is not wanted any more. `wants`:
    /// the target in the spec.
    pub fn of(
        plan: &RotationPlan,
        state: &RotationState,
        seen: &ObservedState,
        wants: &Target,
        facts: ReadyFacts<'_>,
    ) -> Option<Self> {
        let ReadyFacts { second, unknown, watched, unread, children } = facts;
        if plan.deleting.is_some() {
            let revokes = if plan.revokes { "all credentials" } else { "old credentials" };
            let why = deletion::why_deletion_waits(state, unknown.map(|unknown| unknown.why));
            let suffix = why.map_or_else(String::new, |why| {
                let last = rfc3339(deletion::deadline(plan, state));
                format!(": {why}; the deletion continues without the revocation at {last}")
            });
            let message = format!("{revokes} are revoked first{suffix}");
            return Some(Self::new(False, "Deleting", message));
        }
        if let Some(why) = second {
            return Some(Self::new(False, "SecondRotation", why));
        }
        if let Some(UnknownTargetReport { ready, why }) = unknown {
            return Some(Self::new(False, ready, why));
        }
        let unrevoked = state.failed_revocations().join(", ");
        Some(match &seen.target {
            TargetState::Unfit(why) => {
                Self::new(False, "TargetUnfit", format!("spec.target: {why}"))
            }
            _ if plan.schedule.paused => {
                let message = "spec.schedule.paused is set: the operator makes, publishes and \
                               revokes no credential";
                Self::new(True, "Paused", message)
            }
            _ if plan.source.is_none() => Self::of_watched(wants, watched, unread, children),
            _ if state.has_failed() => return None,
            _ if state.is_stuck() => {
                let message = "too many old credentials are not revoked yet: the operator makes no \
                               new credential until one is revoked";
                Self::new(False, "NotRevoked", message)
            }
            _ => match lack(state, seen) {
                Some(why) => {
                    let message = format!("{why}, and the next one is not published yet");
                    Self::new(False, "NotPublished", message)
                }
                None if !unrevoked.is_empty() => {
                    let message = format!("the revocation of old credentials failed: {unrevoked}");
                    Self::failed(RotationStep::Revoke, message)
                }
                None if state.is_kept_alive() => Self::kept_by_rancher(),
                None => Self::current(),
            },
        })
    }

    /// Condition Ready of a rotation that only watches credentials, or that makes children.
    fn of_watched(
        wants: &Target,
        watched: Option<&WatchedCredentials>,
        unread: usize,
        children: Option<(bool, String)>,
    ) -> Self {
        let Some(watched) = watched.filter(|watched| !watched.listed.is_empty()) else {
            let why = if wants.secret.is_some() {
                "spec.target.secret: the Secret has no credential"
            } else if wants.cloud_credential.is_some() {
                "spec.target.cloudCredential: the cloud credential has no token"
            } else {
                "there is no cloud credential for Harvester that the API key's user may see"
            };
            return Self::new(False, "TargetMissing", why);
        };
        match children {
            Some((true, how)) => return Self::new(True, "Current", how),
            Some((false, how)) => return Self::new(False, "RenewedInPart", how),
            None => {}
        }
        let mut parts = Vec::new();
        if unread > 0 {
            parts.push(format!("{unread} cloud credentials were not read yet"));
        }
        if watched.unknown_count() > 0 {
            let unknown = watched.unknown_count();
            parts.push(format!("the expiry of {unknown} is unknown: see status.watched"));
        }
        if parts.is_empty() {
            return Self::new(True, "Watched", "the credential is only watched, not replaced");
        }
        Self::new(True, "WatchedInPart", parts.join("; "))
    }
}

/// Note of the Event about a step that has failed for the credential `name`. `why`: reason why it
/// has failed. Empty `name`: the step was to remove the old credential that the target keeps.
pub fn failure_note(name: &str, why: &str) -> String {
    if name.is_empty() {
        return format!("removal of the old credential from the target: {why}");
    }
    format!("credential {name}: {why}")
}

/// Reason why the target holds no credential that works, as far as that can be observed. `None`:
/// the target holds a credential that works.
fn lack(state: &RotationState, seen: &ObservedState) -> Option<String> {
    let Some(held) = seen.target.held() else {
        return Some("the target holds no credential".to_owned());
    };
    let end = state.current.as_ref().and_then(|current| current.expires);
    match end.filter(|end| *end <= seen.now) {
        Some(end) => Some(format!("the credential in the target expired at {}", rfc3339(end))),
        None if held.is_dead || state.is_current_gone(seen) => {
            Some("the credential in the target does not work any more".to_owned())
        }
        None => None,
    }
}
