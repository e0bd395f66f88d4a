//! The steps of a rotation that are neither the issuer's nor the target's alone: restart of
//! workloads, and the revocation after a second look.

use kube::{Resource as _, ResourceExt as _};

use super::session::{RotationRun, StepFault};
use crate::api::ANNOTATION_HASH;
use crate::domain::credentials::rotation::{RecordChange, RotationAction, after_restart, decide};
use crate::k8s::CallError;

impl RotationRun<'_> {
    /// Restarts every workload of `spec.restartWorkloads`, so that it reads the target again.
    pub(super) async fn restart(&mut self) -> Result<(), StepFault> {
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
                Err(error) => return Err(error.into()),
            }
        }
        self.look_again().await.map_err(StepFault::Call)?;
        let next = after_restart(&self.plan, &self.record, self.clock.now());
        self.write(RecordChange::Restarted, next).await.map_err(StepFault::Call)
    }

    /// Reads the target again, and revokes the credential if that is still the next step.
    pub(super) async fn revoke_unless_used(&mut self, name: &str) -> Result<(), StepFault> {
        self.look_again().await.map_err(StepFault::Call)?;
        let next = decide(&self.plan, &self.record, &self.seen());
        if next != RotationAction::Revoke(name.to_owned()) {
            return Ok(());
        }
        self.revoke(name).await?;
        self.keeper.ctx.metrics.rotation.revoked.inc();
        let (namespace, rotation) = (self.namespace(), self.rotation.name_any());
        tracing::info!(namespace, rotation, credential = name, "credential revoked");
        self.say("Revoked", format!("credential {name} does not work any more"));
        Ok(())
    }
}
