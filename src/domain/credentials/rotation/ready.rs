//! Reason and message of the condition Ready, for a rotation that has no step to carry out now.
//!
//! Invariant: such a rotation is Current only if the credential in its target works, as far as that
//! can be observed.

use super::super::timestamp::rfc3339;
use super::watched::WatchedCredentials;
use super::{ObservedState, RotationPlan, RotationState, RotationStep, TargetState, deletion};
use api::ConditionStatus::{self, False, True};
use api::{Condition, READY, Target, TokenRotation};

/// Reason of Ready if one of these cannot be read: the target, or the list of credentials that were
/// made for the target.
pub const UNREADABLE: &str = "TargetUnreadable";

/// Condition Ready of a TokenRotation. `None`: the TokenRotation was not reconciled yet.
pub fn ready_condition(rotation: &TokenRotation) -> Option<&Condition> {
    rotation.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == READY)
}

/// Observed facts on which the condition Ready depends, in addition to the target's state.
#[derive(Clone, Debug, Default)]
pub struct ReadyFacts<'a> {
    /// Message about another TokenRotation that has precedence for the same credential. `None`: no
    /// other TokenRotation has precedence.
    pub second: Option<String>,
    /// Field 0: text that says why the target's state is unknown. Field 1: reason of Ready in this
    /// case. `None`: the target's state is known.
    pub unknown: Option<(&'a str, ReadyReason)>,
    /// Credentials in a target that is only watched.
    pub watched: Option<&'a WatchedCredentials>,
    /// Number of cloud credentials that the API key may read, but that were not read yet.
    pub unread: usize,
    /// Field 0: whether each child replaces its credential. Field 1: message about all cloud
    /// credentials. `None`: the TokenRotation makes no children.
    pub children: Option<(bool, String)>,
}

/// Reason of the condition Ready, with the details for the condition's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadyReason {
    /// The target holds a credential that works, and the operator replaces it in time.
    Current,
    /// The target holds a credential that its Rancher keeps valid without an expiry.
    KeptByRancher,
    /// The target holds a credential that is only watched.
    Watched,
    /// The spec pauses the rotation.
    Paused,
    /// The operator has no rights in the TokenRotation's namespace.
    NotAllowed,
    /// The target cannot be read. The text says why.
    Unreadable(String),
    /// The API key must not be used for this target or server. The text says why.
    MinterRefused(String),
    /// The target cannot be used: the user or another part that the spec names is missing, or a
    /// write would do harm. The text says why.
    Unfit(String),
    /// The credentials exist and are only watched. Some were not read yet, or their expiry is not
    /// known. The text says how many.
    WatchedInPart(String),
    /// All cloud credentials of the API key's user are replaced, each by its own TokenRotation. The
    /// text counts them.
    Renewed(String),
    /// Credentials that TokenRotations of their own should replace, but do not: cloud credentials
    /// of the API key's user, or the API key itself. The text names the first few of them.
    RenewedInPart(String),
    /// Another TokenRotation has precedence for the same credential. The text names that
    /// TokenRotation.
    Second(String),
    /// No credential exists that could be watched. The text says where a credential is missing.
    Missing(String),
    /// A step has failed, and will be tried again. The text says why the step has failed.
    Failed(RotationStep, String),
    /// Too many old credentials could not be revoked, so no new credential is made.
    NotRevoked,
    /// The target holds no credential that works, and the next credential is not published yet. The
    /// text says why no credential works.
    NotPublished(String),
    /// The TokenRotation is being deleted. The text, if any, says why the deletion does not
    /// continue.
    Deleting(Option<String>),
}

impl ReadyReason {
    /// Reason of Ready for a rotation that has no step to carry out now. `None`: a step has failed,
    /// so Ready stays as it is until that step has succeeded. `wants`: the target in the spec.
    pub fn of(
        plan: &RotationPlan,
        state: &RotationState,
        seen: &ObservedState,
        wants: &Target,
        facts: ReadyFacts<'_>,
    ) -> Option<Self> {
        let ReadyFacts { second, unknown, watched, unread, children } = facts;
        if plan.deleting.is_some() {
            let why = deletion::why_deletion_waits(state, unknown.map(|(why, _)| why));
            return Some(Self::Deleting(why.map(str::to_owned)));
        }
        if let Some(why) = second {
            return Some(Self::Second(why));
        }
        if let Some((_, reason)) = unknown {
            return Some(reason);
        }
        Some(match &seen.target {
            TargetState::Unfit(why) => Self::Unfit(why.clone()),
            _ if plan.schedule.paused => Self::Paused,
            _ if plan.source.is_none() => Self::of_watched(wants, watched, unread, children),
            _ if state.has_failed() => return None,
            _ if state.is_stuck() => Self::NotRevoked,
            _ => match lack(state, seen) {
                Some(why) => Self::NotPublished(why),
                None if state.is_kept_alive() => Self::KeptByRancher,
                None => Self::Current,
            },
        })
    }

    /// Reason of Ready for a rotation that only watches credentials, or that makes children.
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
            return Self::Missing(why.to_owned());
        };
        match children {
            Some((true, how)) => return Self::Renewed(how),
            Some((false, how)) => return Self::RenewedInPart(how),
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
        if parts.is_empty() { Self::Watched } else { Self::WatchedInPart(parts.join("; ")) }
    }

    /// Status, reason and message of the condition Ready.
    pub(super) fn condition(
        &self,
        plan: &RotationPlan,
        state: &RotationState,
    ) -> (ConditionStatus, String, String) {
        let (status, reason, message) = match self {
            Self::Current => (True, "Current", String::new()),
            Self::KeptByRancher => {
                let message = "Rancher itself keeps this token valid: the token has no expiry, and the operator does not replace it until it has one";
                (True, "KeptByRancher", message.to_owned())
            }
            Self::Watched => {
                (True, "Watched", "the credential is only watched, not replaced".to_owned())
            }
            Self::Paused => {
                let message = "spec.schedule.paused is set: the operator makes, publishes and revokes no credential";
                (True, "Paused", message.to_owned())
            }
            Self::NotAllowed => {
                let message = "the operator has no rights in this namespace: add it to the chart's value credentials.namespaces";
                (False, "NamespaceNotAllowed", message.to_owned())
            }
            Self::Unreadable(why) => (False, UNREADABLE, why.clone()),
            Self::MinterRefused(why) => (False, "MinterRefused", why.clone()),
            Self::Unfit(why) => (False, "TargetUnfit", format!("spec.target: {why}")),
            Self::WatchedInPart(why) => (True, "WatchedInPart", why.clone()),
            Self::Renewed(how) => (True, "Current", how.clone()),
            Self::RenewedInPart(how) => (False, "RenewedInPart", how.clone()),
            Self::Second(why) => (False, "SecondRotation", why.clone()),
            Self::Missing(why) => (False, "TargetMissing", why.clone()),
            Self::Failed(step, why) => {
                return (False, format!("{}Failed", step.word()), why.clone());
            }
            Self::NotRevoked => {
                let message = "too many old credentials are not revoked yet: the operator makes no new credential until one is revoked";
                (False, "NotRevoked", message.to_owned())
            }
            Self::NotPublished(why) => {
                (False, "NotPublished", format!("{why}, and the next one is not published yet"))
            }
            Self::Deleting(why) => {
                let revokes = if plan.revokes { "all credentials" } else { "old credentials" };
                let waits = why.as_ref().map_or_else(String::new, |why| {
                    let last = rfc3339(deletion::deadline(plan, state));
                    format!(": {why}; the deletion continues without the revocation at {last}")
                });
                (False, "Deleting", format!("{revokes} are revoked first{waits}"))
            }
        };
        (status, reason.to_owned(), message)
    }
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
