//! State of one reconcile of a TokenRotation: the object itself, and what was read of its target
//! and of its Rancher.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::ResourceExt as _;

use super::read_fault::UnknownTarget;
use super::{RotationContext, UnpublishedToken, lock};
use crate::api::{ApiKey, TokenRotation};
use crate::domain::credentials::children::{ChildRotations, ListedCredential};
use crate::domain::credentials::rotation::target_secret::TargetRead;
use crate::domain::credentials::rotation::{
    ObservedState, RotationPlan, RotationState, TargetState,
};
use crate::k8s::CallError;
use crate::k8s::credentials::ServerClock;
use crate::rancher::{CloudCredentialView, IssuedTokens, RancherError, RancherIssuer};

/// Longest time between two reads of a TokenRotation's Rancher, because no event reports a change
/// there. Also the longest time between two reconciles of a TokenRotation that does nothing because
/// another one has precedence.
pub(super) const RANCHER_INTERVAL: Duration = Duration::from_mins(5);
/// Deadline for the test of a new credential at a server that may not answer. The deadline is
/// short, because a test that waits occupies one of the few places for concurrent reconciles.
pub(super) const TEST_DEADLINE: Duration = Duration::from_secs(10);

/// State of one reconcile of a TokenRotation.
pub(super) struct RotationRun<'a> {
    pub(super) context: &'a RotationContext,
    pub(super) rotation: TokenRotation,
    pub(super) plan: RotationPlan,
    pub(super) state: RotationState,
    pub(super) read: TargetRead,
    pub(super) existing: Vec<String>,
    pub(super) clock: ServerClock,
    /// Reason why the state of the target counts as unknown. `None`: the state is known.
    pub(super) unknown: Option<UnknownTarget>,
    /// State read from the Rancher. `None`: the spec names no Rancher, or the Rancher could not be
    /// read.
    pub(super) session: Option<RancherSession>,
    /// Message about another TokenRotation that has precedence for the same credential. `None`:
    /// there is no such TokenRotation.
    pub(super) second: Option<String>,
    /// Wanted children, and the failures of their writes in this reconcile. `None`: the target is a
    /// Secret or a single cloud credential, the list of all cloud credentials was not read, or the
    /// TokenRotation is being deleted.
    pub(super) children: Option<AppliedChildren>,
}

impl RotationRun<'_> {
    pub(super) fn namespace(&self) -> String {
        self.rotation.namespace().unwrap_or_default()
    }

    pub(super) fn uid(&self) -> String {
        self.rotation.uid().unwrap_or_default()
    }

    pub(super) fn unpublished(&self) -> Option<UnpublishedToken> {
        lock(&self.context.unpublished).get(&self.uid()).cloned()
    }

    pub(super) fn keep_unpublished(&self, token: Option<UnpublishedToken>) {
        let mut all = lock(&self.context.unpublished);
        match token {
            Some(token) => drop(all.insert(self.uid(), token)),
            None => drop(all.remove(&self.uid())),
        }
    }

    pub(super) fn observed(&self) -> ObservedState {
        let target = match &self.unknown {
            Some(_) => TargetState::Unknown,
            None => self.read.target.clone(),
        };
        let existing = Some(self.existing.clone());
        let unpublished = self.unpublished().map(|token| token.credential);
        let unknown = self.unknown.as_ref().map(|unknown| unknown.reason).unwrap_or_default();
        ObservedState { now: self.clock.now(), target, existing, unpublished, unknown }
    }
}

/// Reason why a step was not done.
pub(super) enum StepFault {
    /// A read that the step needs, or the write of its result, failed, or this replica no longer
    /// leads. The reconcile ends, and the status records no failure. If this replica still leads,
    /// the reconcile begins again soon.
    Call(CallError),
    /// The step has failed: the failure is recorded, and each further try comes after a longer
    /// pause.
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

/// State read from a Rancher.
pub(super) struct RancherSession {
    pub(super) issuer: RancherIssuer,
    pub(super) issued: IssuedTokens,
    pub(super) view: Option<CloudCredentialView>,
    /// Name and times of the API key, if known.
    pub(super) key: Option<ApiKey>,
    /// URL of the Rancher.
    pub(super) url: String,
    /// Number of cloud credentials that were not read yet.
    pub(super) unread: usize,
    /// Cloud credentials that Rancher lists. Empty unless the target is all cloud credentials.
    pub(super) listed: Vec<ListedCredential>,
}

/// Children of a TokenRotation. Each key of `failures` is the name of a child that could not be
/// made or changed, and the value is the reason.
pub(super) struct AppliedChildren {
    pub(super) children: ChildRotations,
    pub(super) failures: BTreeMap<String, String>,
}
