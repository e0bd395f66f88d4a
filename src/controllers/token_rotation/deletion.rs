//! Deletion of a TokenRotation: its finalizer, and the report of credentials that were not revoked.

use std::time::Duration;

use kube::{Resource as _, ResourceExt as _};
use serde_json::json;

use super::LONGEST_PAUSE;
use super::rotation_run::RotationRun;
use crate::api::ROTATION_FINALIZER;
use crate::domain::credentials::rotation::ready::ReadyState;
use crate::domain::credentials::rotation::{left_behind, why_deletion_waits};
use crate::domain::object_fields::finalizers::{with_finalizer, without_finalizers};
use crate::k8s::CallError;

impl RotationRun<'_> {
    /// Reports the credentials that a deletion does not revoke.
    pub(super) fn report_left_behind(&self) {
        let left = left_behind(&self.plan, &self.state).join(", ");
        if left.is_empty() {
            return;
        }
        let unknown = self.unknown.as_ref().map(|unknown| unknown.why.as_str());
        let why = why_deletion_waits(&self.state, unknown).unwrap_or_default();
        let (namespace, rotation) = (self.namespace(), self.rotation.name_any());
        tracing::warn!(
            namespace,
            rotation,
            left,
            why,
            "the TokenRotation is removed, and these credentials are not revoked"
        );
        let left: String = left.chars().take(400).collect();
        let note = format!("these credentials were not revoked: {left}: {why}");
        self.context.ctx.events.warning(
            self.rotation.object_ref(&()),
            "CredentialsNotRevoked",
            note,
        );
    }

    /// Adds the finalizer before any credential is made, so that a deletion waits for the
    /// revocation.
    pub(super) async fn add_finalizer(&mut self) -> Result<(), CallError> {
        let is_idle = self.plan.source.is_none() || self.plan.is_second;
        if is_idle || self.plan.deleting.is_some() {
            return Ok(());
        }
        match with_finalizer(self.rotation.finalizers(), ROTATION_FINALIZER) {
            None => Ok(()),
            Some(all) => self.patch_finalizers(&all).await,
        }
    }

    /// Removes the finalizer of the TokenRotation, and the unpublished credential from memory.
    pub(super) async fn remove_finalizer(&mut self) -> Result<(), CallError> {
        self.keep_unpublished(None);
        let rest = without_finalizers(self.rotation.finalizers(), &[ROTATION_FINALIZER]);
        let Some(rest) = rest else { return Ok(()) };
        match self.patch_finalizers(&rest).await {
            Err(CallError::NotFound(_)) => Ok(()),
            other => other,
        }
    }

    async fn patch_finalizers(&mut self, finalizers: &[String]) -> Result<(), CallError> {
        let version = self.rotation.resource_version();
        let patch = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
        let (namespace, name) = (self.namespace(), self.rotation.name_any());
        let writer = &self.context.ctx.writer;
        self.rotation = writer.patch_rotation_meta(&namespace, &name, &patch).await?;
        Ok(())
    }

    /// Handles a TokenRotation in whose namespace the operator has no rights. If the TokenRotation
    /// is being deleted, reports the credentials that are not revoked, and removes the finalizer.
    /// Otherwise reports the missing rights in the condition Ready. Returns the time until the next
    /// reconcile.
    pub(super) async fn report_missing_rights(&mut self) -> Result<Duration, CallError> {
        if self.plan.deleting.is_some() {
            self.report_left_behind();
            self.remove_finalizer().await?;
        } else {
            self.write_status(self.state.clone(), Some(&ReadyState::not_allowed())).await?;
        }
        Ok(LONGEST_PAUSE)
    }
}
