//! Reasons why a target, or its Rancher, cannot be read.

use crate::domain::credentials::rotation::UnknownReason;
use crate::domain::credentials::rotation::ready::UNREADABLE;
use crate::k8s::CallError;
use crate::rancher::RancherError;

/// Reason why a target, or its Rancher, could not be read.
pub(super) enum ReadFault {
    /// A call to this cluster's API server failed: the read is tried again.
    Call(CallError),
    /// The state of the target is not known. The condition Ready states the reason.
    Unknown(UnknownTarget),
}

impl From<CallError> for ReadFault {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

impl From<UnknownTarget> for ReadFault {
    fn from(reason: UnknownTarget) -> Self {
        Self::Unknown(reason)
    }
}

impl From<RancherError> for ReadFault {
    fn from(error: RancherError) -> Self {
        if matches!(error, RancherError::Unauthorized(_)) {
            let why = "spec.rancher.minter: the API key is not accepted: it is expired, deleted, disabled or for one cluster only";
            return UnknownTarget { key_refused: true, ..UnknownTarget::barred(why.to_owned()) }
                .into();
        }
        let reason = if error.may_pass() { UnknownReason::Silent } else { UnknownReason::Barred };
        UnknownTarget { reason, ..UnknownTarget::barred(format!("Rancher: {error}")) }.into()
    }
}

/// Reason why the state of a target counts as unknown: the target cannot be read, the target must
/// not be written, or the list of the credentials made for it cannot be read.
#[derive(Clone)]
pub(super) struct UnknownTarget {
    pub(super) why: String,
    pub(super) reason: UnknownReason,
    /// Reason of the condition Ready while the target is unknown.
    pub(super) ready: &'static str,
    /// Whether the Rancher rejects the API key.
    pub(super) key_refused: bool,
}

impl UnknownTarget {
    /// Makes the value for a target that cannot be read or written
    /// ([`UnknownReason::TargetBarred`]). The issuer can still list and revoke the credentials of
    /// the TokenRotation.
    pub(super) fn target_barred(why: String) -> Self {
        Self { reason: UnknownReason::TargetBarred, ..Self::barred(why) }
    }

    /// Makes the value for a Rancher that cannot be used, or for a namespace in which the operator
    /// has no rights ([`UnknownReason::Barred`]).
    pub(super) fn barred(why: String) -> Self {
        Self { why, reason: UnknownReason::Barred, ready: UNREADABLE, key_refused: false }
    }
}
