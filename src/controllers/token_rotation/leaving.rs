//! Deletion of a TokenRotation: the report of credentials that were not revoked, and the finalizer.

use std::time::Duration;

use kube::{Resource as _, ResourceExt as _};
use serde_json::json;

use super::LOOK_AGAIN;
use super::session::{BlindReason, RotationRun};
use crate::api::ROTATION_FINALIZER;
use crate::domain::credentials::rotation::ready::ReadyReason;
use crate::domain::credentials::rotation::{left_behind, obstacle};
use crate::k8s::CallError;

impl RotationRun<'_> {
    /// Reports the credentials that a deletion does not revoke.
    pub(super) fn tell_what_is_left(&self) {
        let left = left_behind(&self.plan, &self.record).join(", ");
        if left.is_empty() {
            return;
        }
        let unknown = self.blind.as_ref().map(|blind| blind.why.as_str());
        let why = obstacle(&self.record, unknown).unwrap_or_default();
        let (namespace, rotation) = (self.namespace(), self.rotation.name_any());
        tracing::warn!(namespace, rotation, left, why, "not revoked before the deletion");
        let left: String = left.chars().take(400).collect();
        let note = format!("not revoked: {left}: {why}");
        self.keeper.ctx.events.warning(self.rotation.object_ref(&()), "LeftBehind", note);
    }

    /// Removes the finalizer, and the credential in memory.
    pub(super) async fn finish(&mut self) -> Result<(), CallError> {
        self.take(None);
        let finalizers = self.rotation.finalizers().to_vec();
        let rest: Vec<String> =
            finalizers.iter().filter(|f| *f != ROTATION_FINALIZER).cloned().collect();
        if rest.len() == finalizers.len() {
            return Ok(());
        }
        match self.patch_finalizers(&rest).await {
            Err(CallError::NotFound) => Ok(()),
            other => other,
        }
    }

    pub(super) async fn patch_finalizers(
        &mut self,
        finalizers: &[String],
    ) -> Result<(), CallError> {
        let version = self.rotation.resource_version();
        let patch = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
        let (namespace, name) = (self.namespace(), self.rotation.name_any());
        let writer = &self.keeper.ctx.writer;
        self.rotation = writer.patch_rotation_meta(&namespace, &name, &patch).await?;
        Ok(())
    }

    /// Reports missing rights in the namespace; for a deleted TokenRotation, also removes the
    /// finalizer.
    pub(super) async fn not_allowed(&mut self) -> Result<Duration, CallError> {
        if self.plan.deleting.is_some() {
            let why = "the operator has no rights in this namespace";
            self.blind = Some(BlindReason::barred(why.to_owned()));
            self.tell_what_is_left();
            self.finish().await?;
        } else {
            self.record(self.record.clone(), Some(&ReadyReason::NotAllowed)).await?;
        }
        Ok(LOOK_AGAIN)
    }
}
