//! The steps that reach beyond the record: make and publish a credential, restart workloads,
//! revoke.
//!
//! Invariants: a new credential stays in memory until it is published or abandoned; a write of the
//! target names the version that it replaces, and the target is read again afterwards.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource as _, ResourceExt as _};

use super::session::RotationRun;
use super::{InHand, account};
use crate::api::ANNOTATION_HASH;
use crate::domain::credentials::rotation::{
    MintedCredential, RecordChange, RotationAction, RotationStep, TargetState,
    UnpublishedCredential, after_restart, decide,
};
use crate::domain::credentials::token::TokenText;
use crate::k8s::CallError;
use crate::k8s::write::SecretKeyRef;

/// Reads of an account's Secret until it contains the token, and the pause between two reads.
const LOOKS: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

impl RotationRun<'_> {
    /// Makes a credential with this name, or reads it again where that is possible.
    pub(super) async fn mint(&self, name: &str) -> Result<InHand, CallError> {
        let account = account::of(&self.rotation).ok_or(CallError::NotFound)?;
        let account = account.service_account_name.clone();
        let stored = self.plan.source.is_some_and(|source| source.readable);
        let (namespace, uid) = (self.namespace(), self.uid());
        let (writer, credentials) = (&self.keeper.ctx.writer, &self.keeper.ctx.credentials);
        let filled_for = Some(account.as_str()).filter(|_| stored);
        if stored {
            credentials.check_right_to_sign(&namespace, &account).await?;
        }
        // A TokenRotation owned by the account is deleted with it; so are the objects that its
        // tokens are bound to.
        let owns = |owner: &&OwnerReference| {
            (owner.api_version.as_str(), owner.kind.as_str(), &owner.name)
                == ("v1", "ServiceAccount", &account)
        };
        let owner = self.rotation.owner_references().iter().find(owns);
        let bond = match writer.create_bond((&namespace, name), &uid, filled_for, owner).await {
            Err(CallError::Conflict) => credentials.bond(&namespace, name, &uid).await?,
            other => other?,
        };
        let token = if stored {
            self.stored(name).await?
        } else {
            let (who, until) = ((namespace.as_str(), account.as_str()), self.plan.lifetime);
            writer.request_token(who, until, (name, &bond)).await?
        };
        let says = token.says();
        let made = MintedCredential {
            hash: token.hash(),
            issued: says.issued.unwrap_or(self.clock.now()),
            expires: says.expires,
        };
        let hand =
            UnpublishedCredential { name: name.to_owned(), made: Some(made), verified: false };
        Ok(InHand { hand, token: Some(token) })
    }

    /// Reads the token that the cluster writes into a new Secret of an account, after a moment.
    async fn stored(&self, name: &str) -> Result<TokenText, CallError> {
        for _ in 0..LOOKS {
            let namespace = self.namespace();
            let read = self.keeper.ctx.credentials.secret(&namespace, name, "token").await?;
            let token = read.0.and_then(|secret| secret.value);
            if let Some(token) = token.filter(|token| !token.reveal().is_empty()) {
                return Ok(token);
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        Err(CallError::Timeout(BETWEEN_LOOKS * LOOKS))
    }

    pub(super) async fn publish(&mut self, keep: bool) -> Result<(), CallError> {
        let Some(wants) = self.rotation.spec.target.secret.clone() else {
            return self.publish_there(keep).await;
        };
        let pending = self.record.pending.clone().unwrap_or_default();
        let Some(InHand { token: Some(token), .. }) = self.in_hand() else {
            self.take(None);
            return Ok(());
        };
        let value = match self.read.with(&wants, &token, keep) {
            Ok(value) => value,
            Err(why) => return self.failed(RotationStep::Publish, &pending.name, &why).await,
        };
        let version = pending.publishing.unwrap_or_default().replaces;
        self.write_target(&pending.name, &version, &value).await
    }

    pub(super) async fn drop_old(&mut self) -> Result<(), CallError> {
        let Some(wants) = self.rotation.spec.target.secret.clone() else {
            return self.drop_there().await;
        };
        let Ok(Some(value)) = self.read.without_previous(&wants) else { return Ok(()) };
        let TargetState::There { version, .. } = self.read.target.clone() else { return Ok(()) };
        self.write_target("", &version, &value).await
    }

    /// Writes the target once, and reads it again. The write is refused if the version has changed.
    async fn write_target(
        &mut self,
        name: &str,
        version: &str,
        value: &TokenText,
    ) -> Result<(), CallError> {
        let wants = self.rotation.spec.target.secret.clone().unwrap_or_default();
        let namespace = self.namespace();
        let at =
            SecretKeyRef { namespace: &namespace, name: &wants.name, key: &wants.key, version };
        match self.keeper.ctx.writer.write_target(at, value).await {
            Ok(()) | Err(CallError::Conflict | CallError::NotFound) => self.look_again().await,
            Err(error) => self.fail(RotationStep::Publish, name, error).await,
        }
    }

    /// Restarts every workload of `spec.restartWorkloads`, so that it reads the target again.
    pub(super) async fn restart(&mut self) -> Result<(), CallError> {
        let current = self.record.current.clone().unwrap_or_default();
        let part = self.plan.prefix.rsplit('-').next().unwrap_or_default();
        let key = format!("{ANNOTATION_HASH}-{part}");
        let workloads = self.rotation.spec.restart_workloads.clone().unwrap_or_default();
        for workload in &workloads {
            let (namespace, text) = (self.namespace(), (key.as_str(), current.hash.as_str()));
            match self.keeper.ctx.writer.restart(&namespace, workload, text).await {
                Ok(()) => {}
                Err(CallError::NotFound) => {
                    let note = format!("there is no {:?} {}", workload.kind, workload.name);
                    let events = &self.keeper.ctx.events;
                    events.warning(self.rotation.object_ref(&()), "WorkloadMissing", note);
                }
                Err(error) => return self.fail(RotationStep::Restart, &current.name, error).await,
            }
        }
        self.look_again().await?;
        let next = after_restart(&self.plan, &self.record, self.clock.now());
        self.write(RecordChange::Restarted, next).await
    }

    /// Reads the target again, and revokes the credential if that is still the next step.
    pub(super) async fn revoke(&mut self, name: &str) -> Result<(), CallError> {
        self.look_again().await?;
        if decide(&self.plan, &self.record, &self.seen()) != RotationAction::Revoke(name.to_owned())
        {
            return Ok(());
        }
        let namespace = self.namespace();
        let revoked = if account::of(&self.rotation).is_none() {
            self.keeper.ctx.writer.check_leadership()?;
            match self.revoke_there(name).await {
                Ok(()) => Ok(()),
                Err(why) => return self.failed(RotationStep::Revoke, name, &why).await,
            }
        } else {
            self.keeper.ctx.writer.delete_bond(&namespace, name).await
        };
        match revoked {
            Ok(()) => {
                self.existing.retain(|other| other != name);
                self.keeper.ctx.metrics.rotation.revoked.inc();
                let rotation = self.rotation.name_any();
                tracing::info!(namespace, rotation, credential = name, "credential revoked");
                self.say("Revoked", format!("credential {name} does not work any more"));
                Ok(())
            }
            Err(error) => self.fail(RotationStep::Revoke, name, error).await,
        }
    }
}
