//! State of one reconcile of a TokenRotation: its object, and what was read for it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::RotationContext;
use crate::api::{ApiKey, TokenRotation};
use crate::domain::credentials::children::{ChildCandidate, ChildRotations};
use crate::domain::credentials::rotation::ready::ReadyReason;
use crate::domain::credentials::rotation::target_secret::TargetRead;
use crate::domain::credentials::rotation::watched::WatchedCredentials;
use crate::domain::credentials::rotation::{
    RotationPlan, RotationRecord, TargetState, UnknownReason,
};
use crate::k8s::CallError;
use crate::k8s::credentials::ServerClock;
use crate::rancher::{CloudCredentialView, IssuedTokens, RancherError, RancherIssuer};

/// Longest interval between two looks at a Rancher.
pub(super) const LOOK_THERE: Duration = Duration::from_mins(5);
/// Deadline for the test of a new credential at its server, also if the server does not answer. One
/// of the few workers is busy during the test.
pub(super) const TRIED_WITHIN: Duration = Duration::from_secs(10);

/// State of one reconcile of a TokenRotation.
pub(super) struct RotationRun<'a> {
    pub(super) keeper: &'a RotationContext,
    pub(super) rotation: TokenRotation,
    pub(super) plan: RotationPlan,
    pub(super) record: RotationRecord,
    pub(super) read: TargetRead,
    pub(super) existing: Vec<String>,
    pub(super) clock: ServerClock,
    pub(super) blind: Option<BlindReason>,
    /// State read from the Rancher, if the spec names one.
    pub(super) side: Option<RancherSession>,
    /// Message about another TokenRotation for the same credential, if one goes first.
    pub(super) second: Option<String>,
    /// Children of a TokenRotation for all cloud credentials.
    pub(super) children: Option<AppliedChildren>,
}

/// Content of a target, the clock of the read, and the reason if the target could not be read.
pub(super) struct TargetSnapshot {
    pub(super) read: TargetRead,
    pub(super) clock: ServerClock,
    pub(super) blind: Option<BlindReason>,
    pub(super) side: Option<RancherSession>,
}

impl TargetSnapshot {
    /// Makes the result of a read that failed for the given reason.
    pub(super) fn blind(why: BlindReason) -> Self {
        let read = TargetRead::elsewhere(TargetState::Unknown, WatchedCredentials::default());
        Self { read, clock: ServerClock::local(), blind: Some(why), side: None }
    }
}

/// Reason why a step was not done.
pub(super) enum StepFault {
    /// The reconcile ends, and begins again soon: nothing is recorded.
    Call(CallError),
    /// The step has failed: that is recorded, and the step is tried again ever later.
    Step(String),
}

impl From<CallError> for StepFault {
    fn from(error: CallError) -> Self {
        match error {
            CallError::NotLeader => Self::Call(error),
            error => Self::Step(error.to_string()),
        }
    }
}

impl From<RancherError> for StepFault {
    fn from(error: RancherError) -> Self {
        Self::Step(error.to_string())
    }
}

/// Reason why a target cannot be read, or may not be written.
#[derive(Clone)]
pub(super) struct BlindReason {
    pub(super) why: String,
    pub(super) unknown: UnknownReason,
    /// Standing that follows from the reason.
    pub(super) standing: fn(String) -> ReadyReason,
    /// Whether the Rancher rejects the API key.
    pub(super) refused: bool,
}

impl BlindReason {
    /// Reason that concerns the target alone: it cannot be read or written.
    pub(super) fn target(why: String) -> Self {
        Self {
            why,
            unknown: UnknownReason::TargetBarred,
            standing: ReadyReason::Unreadable,
            refused: false,
        }
    }

    /// Neither the target nor the list of credentials can be read.
    pub(super) fn barred(why: String) -> Self {
        Self {
            why,
            unknown: UnknownReason::Barred,
            standing: ReadyReason::Unreadable,
            refused: false,
        }
    }
}

/// State read from a Rancher.
pub(super) struct RancherSession {
    pub(super) issuer: RancherIssuer,
    pub(super) issued: IssuedTokens,
    pub(super) sight: Option<CloudCredentialView>,
    /// Name and times of the API key, if known.
    pub(super) key: Option<ApiKey>,
    /// URL of the Rancher.
    pub(super) url: String,
    /// Number of cloud credentials that were not read yet.
    pub(super) unread: usize,
    /// All cloud credentials, if the target is all of them.
    pub(super) listed: Vec<ChildCandidate>,
}

/// Children, and the reasons why some could not be made or changed, by their names.
pub(super) struct AppliedChildren {
    pub(super) children: ChildRotations,
    pub(super) in_the_way: BTreeMap<String, String>,
}

impl AppliedChildren {
    /// Whether a child could not be made or changed.
    pub(super) fn is_hindered(&self) -> bool {
        !self.in_the_way.is_empty()
    }
}
