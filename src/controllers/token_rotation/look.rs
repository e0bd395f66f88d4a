//! Reads a target, or returns the reason why it cannot be read.

use kube::ResourceExt as _;

use super::session::{BlindReason, RancherSession, TargetSnapshot};
use super::{RotationContext, account, rancher};
use crate::api::TokenRotation;
use crate::domain::credentials::rotation::status;
use crate::domain::credentials::rotation::target_secret;
use crate::k8s::CallError;
use crate::k8s::credentials::ServerClock;

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
