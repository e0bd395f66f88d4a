//! Target of a TokenRotation: a Secret of this cluster, a cloud credential of a Rancher, or all
//! cloud credentials of an API key's user.
//!
//! Invariants: a write has no effect if the target has changed since the decision to write. The
//! target is read again after each write.

use kube::ResourceExt as _;

use super::read_fault::{ReadFault, UnknownTarget};
use super::rotation_run::{RancherSession, RotationRun, StepFault};
use super::{CredentialIssuer, RotationContext, UnpublishedToken, inventory};
use crate::api::{SecretTarget, Target, TokenRotation};
use crate::domain::credentials::kubeconfig::ServerEndpoint;
use crate::domain::credentials::rotation::TargetState;
use crate::domain::credentials::rotation::target_secret::{self, TargetRead};
use crate::k8s::CallError;
use crate::k8s::credentials::ServerClock;
use crate::k8s::write::SecretKeyRef;
use crate::rancher::{RancherError, ReplacementToken, TokenRights};

/// Reads the target that the spec names. Sets `clock` to the time of the credentials' issuer, if
/// the answer contains that time.
pub(super) async fn read(
    context: &RotationContext,
    rotation: &TokenRotation,
    session: Option<&mut RancherSession>,
    clock: &mut ServerClock,
) -> Result<TargetRead, ReadFault> {
    match (&rotation.spec.target, session) {
        (Target { secret: Some(wants), .. }, session) => {
            let namespace = rotation.namespace().unwrap_or_default();
            let read = context.ctx.credentials.secret(&namespace, &wants.name, &wants.key).await;
            let (secret, heard) = read.map_err(|error| match error.refusal() {
                Some(why) => {
                    UnknownTarget::target_barred(format!("spec.target.secret: {why}")).into()
                }
                None => ReadFault::Call(error),
            })?;
            let rotated = rotation.spec.source.is_some();
            let mut read = target_secret::read(wants, rotated, secret.as_ref());
            match session {
                None => *clock = heard,
                Some(session) => {
                    let token = read.token(wants, secret.as_ref());
                    session.add_rancher_facts(rotation, &mut read, token, clock.now()).await?;
                }
            }
            Ok(read)
        }
        (Target { cloud_credential: Some(wants), .. }, Some(session)) => {
            let view = match session.issuer.read_target(&wants.name, &session.issued).await {
                Err(error @ (RancherError::Forbidden(..) | RancherError::NotFound(..))) => {
                    return Err(UnknownTarget::target_barred(format!("Rancher: {error}")).into());
                }
                other => other?,
            };
            if let Some(now) = view.now
                && CredentialIssuer::of(rotation) == CredentialIssuer::Rancher
            {
                *clock = ServerClock::from_answer(now);
            }
            session.cloud_credential_read(rotation, &wants.name, view, clock.now())
        }
        // All cloud credentials that the API key's user may see. This TokenRotation only watches
        // them.
        (_, Some(session)) => {
            let watched = inventory::update(context, rotation, session, clock.now()).await?;
            let nothing = TargetState::There {
                version: String::new(),
                holds: None,
                other_tokens: Vec::new(),
                kept: None,
            };
            Ok(TargetRead::of(nothing, watched))
        }
        // The CRD requires `spec.rancher` for these targets.
        (_, None) => Err(ReadFault::Call(CallError::NotFound("spec.rancher".to_owned()))),
    }
}

impl RotationRun<'_> {
    /// Whether the target is a cloud credential. If so, Rancher's node driver uses the published
    /// credential, which must have certain rights.
    pub(super) fn is_for_cloud_credential(&self) -> bool {
        self.rotation.spec.target.cloud_credential.is_some()
    }

    /// Rights that Rancher's node driver needs and a new token lacks, in words. `None`: no right is
    /// missing, or the rights are unknown, which is logged. `rights`: the rights of the token.
    pub(super) fn missing_rights(&self, rights: TokenRights) -> Option<String> {
        match rights {
            TokenRights::Enough => None,
            TokenRights::Lacking(why) => Some(why),
            TokenRights::Unknown(why) => {
                let (namespace, rotation) = (self.namespace(), self.rotation.name_any());
                let said = "the rights of the new token are unknown: it is published nevertheless";
                tracing::info!(namespace, rotation, why, "{said}");
                None
            }
        }
    }

    /// Endpoint of this cluster's API server, for the kubeconfig in the cloud credential. The
    /// endpoint has the address that the spec requests. `None`: the target is not a cloud
    /// credential, or the spec requests no address, so the kubeconfig keeps its present address.
    pub(super) fn own_server(&self) -> Option<ServerEndpoint> {
        let wants = self.rotation.spec.target.cloud_credential.as_ref()?;
        let server = wants.server.as_ref()?.trim_end_matches('/').to_owned();
        let authority = self.context.ctx.credentials.own_way().authority;
        Some(ServerEndpoint { server, authority, server_name: None, insecure: false })
    }

    /// Writes the unpublished credential into the target, and reads the target again. If another
    /// party has changed the target since the decision, nothing is written, and the result is `Ok`.
    /// `keep`: whether a cloud credential keeps the old credential beside the new one.
    pub(super) async fn publish(&mut self, keep: bool) -> Result<(), StepFault> {
        let Some(UnpublishedToken { credential, text: Some(token) }) = self.unpublished() else {
            self.keep_unpublished(None);
            return Ok(());
        };
        match &self.rotation.spec.target {
            Target { secret: Some(wants), .. } => {
                let value = self.read.value_with(wants, &token);
                let value = value.map_err(|fault| StepFault::Step(fault.to_string()))?;
                let publishing = self.state.pending.as_ref().and_then(|p| p.publishing.as_ref());
                let version = publishing.map_or("", |publishing| publishing.replaces.as_str());
                let (namespace, SecretTarget { name, key, .. }) = (&self.namespace(), wants);
                let at = SecretKeyRef { namespace, name, key, version };
                match self.context.ctx.writer.write_target(at, &value).await {
                    // Another party has changed the target: the next read shows the change.
                    Ok(()) | Err(CallError::Conflict(_) | CallError::NotFound(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Target { cloud_credential: Some(wants), .. } => {
                let (session, to) = (self.session()?, self.own_server());
                if let Some(view) = &session.view {
                    self.context.ctx.writer.check_leadership()?;
                    let expires = credential.made.and_then(|made| made.expires);
                    let new = ReplacementToken { token: &token, expires, keep, to: to.as_ref() };
                    written(session.issuer.publish(&wants.name, view, &new).await)?;
                }
            }
            _ => {}
        }
        self.read_again().await.map_err(StepFault::Call)
    }

    /// Removes the kept old credential from a cloud credential. Other kinds of targets keep no old
    /// credential.
    pub(super) async fn drop_kept(&mut self) -> Result<(), StepFault> {
        if let Some(wants) = &self.rotation.spec.target.cloud_credential {
            let session = self.session()?;
            if let Some(view) = &session.view {
                self.context.ctx.writer.check_leadership()?;
                written(session.issuer.drop_old(&wants.name, view).await)?;
            }
        }
        self.read_again().await.map_err(StepFault::Call)
    }
}

fn written(answer: Result<(), RancherError>) -> Result<(), StepFault> {
    match answer {
        Ok(()) | Err(RancherError::Conflict(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
