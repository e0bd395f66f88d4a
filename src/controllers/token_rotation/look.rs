//! Look at a TokenRotation's target and at its Rancher, or the reason why they cannot be read.

use super::session::{BlindReason, TargetSnapshot};
use super::{RotationContext, rancher, target};
use crate::api::TokenRotation;
use crate::domain::credentials::rotation::target_secret::TargetRead;
use crate::domain::credentials::rotation::watched::WatchedCredentials;
use crate::domain::credentials::rotation::{TargetState, UnknownReason};
use crate::k8s::CallError;
use crate::k8s::credentials::ServerClock;
use crate::rancher::RancherError;

/// Reason why a look has no result.
pub(super) enum LookFault {
    /// The look is tried again.
    Call(CallError),
    /// The target is not known, for a reason that Ready states.
    Blind(BlindReason),
}

impl From<CallError> for LookFault {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

impl From<BlindReason> for LookFault {
    fn from(reason: BlindReason) -> Self {
        Self::Blind(reason)
    }
}

impl From<RancherError> for LookFault {
    fn from(error: RancherError) -> Self {
        if error == RancherError::Unauthorized {
            let why = "spec.rancher.minter: the API key is not accepted: it is expired, deleted, disabled or for one cluster only";
            return BlindReason { refused: true, ..BlindReason::barred(why.to_owned()) }.into();
        }
        let unknown =
            if error.may_be_done() { UnknownReason::Silent } else { UnknownReason::Barred };
        BlindReason { unknown, ..BlindReason::barred(format!("Rancher: {error}")) }.into()
    }
}

/// Reads the target that the spec names, and its Rancher, if it has one.
pub(super) async fn look(
    keeper: &RotationContext,
    rotation: &TokenRotation,
) -> Result<TargetSnapshot, CallError> {
    let (mut clock, mut side) = (ServerClock::local(), None);
    let read = async {
        if let Some(server) = &rotation.spec.rancher {
            side = Some(rancher::open(keeper, rotation, server, &mut clock).await?);
        }
        target::read(keeper, rotation, side.as_mut(), &mut clock).await
    };
    let (read, blind) = match read.await {
        Ok(read) => (read, None),
        Err(LookFault::Call(error)) => return Err(error),
        Err(LookFault::Blind(reason)) => {
            let unknown = TargetState::Unknown;
            (TargetRead::elsewhere(unknown, WatchedCredentials::default()), Some(reason))
        }
    };
    Ok(TargetSnapshot { read, clock, blind, side })
}
