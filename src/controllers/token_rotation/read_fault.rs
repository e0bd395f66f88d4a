//! Reasons why a target, or its Rancher, cannot be read.

use crate::domain::credentials::rotation::UnknownReason;
use crate::domain::credentials::rotation::ready::UNREADABLE;
use crate::k8s::CallError;
use crate::rancher::RancherError;

/// Reason why a target, or its Rancher, could not be read.
pub(super) enum ReadFault {
    /// A call failed: the read is tried again.
    Call(CallError),
    /// The target is not known, for a reason that the condition Ready states.
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

/// Reason why a target cannot be read, or must not be written.
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
    /// Makes the reason for a target that cannot be read or written, while the credentials of the
    /// TokenRotation can be listed and revoked.
    pub(super) fn target_barred(why: String) -> Self {
        Self { reason: UnknownReason::TargetBarred, ..Self::barred(why) }
    }

    /// Makes the reason for a target that cannot be read. The list of credentials cannot be read
    /// either.
    pub(super) fn barred(why: String) -> Self {
        Self { why, reason: UnknownReason::Barred, ready: UNREADABLE, key_refused: false }
    }
}
