//! Reads a target, or returns the reason why it cannot be read.

use kube::ResourceExt as _;

use super::rancher::{self, RancherSession};
use super::{RotationContext, account};
use crate::api::TokenRotation;
use crate::domain::credentials::rotation::status::{self, ReadyReason};
use crate::domain::credentials::rotation::target_secret::{self, TargetRead};
use crate::domain::credentials::rotation::watched::WatchedCredentials;
use crate::domain::credentials::rotation::{TargetState, UnknownReason};
use crate::k8s::CallError;
use crate::k8s::credentials::ServerClock;

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

/// Names of the tokens that were made for the TokenRotation in Rancher.
pub(super) fn named(rotation: &TokenRotation, side: Option<&RancherSession>) -> Vec<String> {
    let prefix = status::plan(rotation).prefix;
    side.map(|side| side.issued.named(&prefix)).unwrap_or_default()
}

/// Reads the target that the spec names.
pub(super) async fn look(
    keeper: &RotationContext,
    rotation: &TokenRotation,
) -> Result<TargetSnapshot, CallError> {
    let namespace = rotation.namespace().unwrap_or_default();
    if let Some(server) = &rotation.spec.rancher {
        let mut look = rancher::look(keeper, rotation, server).await?;
        if let Some(blind) = &mut look.blind {
            blind.unknown = account::unknown(rotation, blind.unknown);
        }
        return Ok(look);
    }
    let Some(wants) = &rotation.spec.target.secret else { return Err(CallError::NotFound) };
    let rotated = rotation.spec.source.is_some();
    let (read, clock, blind) =
        match keeper.ctx.credentials.secret(&namespace, &wants.name, &wants.key).await {
            Ok((secret, clock)) => {
                (target_secret::read(wants, rotated, secret.as_ref()), clock, None)
            }
            Err(error) => match error.refusal() {
                Some(why) => {
                    let read = target_secret::read(wants, rotated, None);
                    (read, ServerClock::local(), Some(BlindReason::target(why.to_owned())))
                }
                None => return Err(error),
            },
        };
    Ok(TargetSnapshot { read, clock, blind, side: None })
}
