//! Writes a TokenRotation's status, and reports the changes in Events, metrics and log lines.

use std::time::Duration;

use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};

use super::rotation_run::{RANCHER_INTERVAL, RotationRun};
use super::{UnpublishedToken, pause};
use crate::domain::credentials::rotation::ready::{
    ReadyFacts, ReadyState, UnknownTargetReport, failure_note,
};
use crate::domain::credentials::rotation::status::{self, StatusObservations};
use crate::domain::credentials::rotation::{
    RotationState, RotationStep, StateChange, UnpublishedCredential, failed, idle,
};
use crate::domain::credentials::timestamp::Seconds;
use crate::domain::object_fields::merge_patch::merge_patch;
use crate::k8s::CallError;

/// Longest pause until the next reconcile, if the API server has refused to write a child. A later
/// write may succeed, for example because the operator has got a missing right, but no event
/// reports this.
const CHECK_RIGHTS_AFTER: Duration = Duration::from_secs(30);

/// Pause before the next reconcile while some cloud credentials were not read yet.
const READ_MORE_AFTER: Duration = Duration::from_secs(5);

impl RotationRun<'_> {
    /// Writes the status with the state `next`, if that status differs from the stored one.
    /// `ready`: the condition Ready; `None` leaves that condition as it is.
    pub(super) async fn write_status(
        &mut self,
        next: RotationState,
        ready: Option<&ReadyState>,
    ) -> Result<(), CallError> {
        let now = self.clock.now();
        let observed = StatusObservations {
            watched: self.unknown.is_none().then(|| self.read.watched.clone()),
            key: self.session.as_ref().and_then(|session| session.key.clone()),
            rancher_url: self.named_url(),
            refused: self.unknown.as_ref().is_some_and(|unknown| unknown.key_refused),
        };
        let status = status::status(&self.rotation, &next, &observed, ready, now);
        let old = self.rotation.status.clone().unwrap_or_default();
        let text = |status| serde_json::to_value(status).unwrap_or(Value::Null);
        if let Some(change) = merge_patch(&text(old), &text(status)) {
            let version = self.rotation.resource_version();
            let patch = json!({"metadata": {"resourceVersion": version}, "status": change});
            let (namespace, name) = (self.namespace(), self.rotation.name_any());
            let writer = &self.context.ctx.writer;
            self.rotation = writer.patch_rotation_status(&namespace, &name, &patch).await?;
            self.plan = self.current_plan();
        }
        self.state = next;
        Ok(())
    }

    /// Writes the state `next`, and reports `change`, which is the difference between `next` and
    /// the present state.
    pub(super) async fn record_change(
        &mut self,
        change: StateChange,
        next: RotationState,
    ) -> Result<(), CallError> {
        let ready = (change == StateChange::Published).then(ReadyState::current);
        let before = self.state.clone();
        self.write_status(next, ready.as_ref()).await?;
        let (namespace, rotation) = (self.namespace(), self.rotation.name_any());
        let metrics = &self.context.ctx.metrics.rotation;
        let current = self.state.current.clone().unwrap_or_default().name;
        match change {
            StateChange::Named => {
                let name = self.state.pending.clone().unwrap_or_default().name;
                tracing::debug!(namespace, rotation, credential = name, "credential is being made");
                self.keep_unpublished(Some(UnpublishedToken {
                    credential: UnpublishedCredential { name, ..UnpublishedCredential::default() },
                    text: None,
                }));
            }
            StateChange::Published => {
                self.keep_unpublished(None);
                metrics.published.inc();
                tracing::info!(namespace, rotation, credential = current, "credential published");
                self.emit_event(
                    "Published",
                    format!("credential {current} was written into the target"),
                );
            }
            StateChange::Adopted => {
                self.keep_unpublished(None);
                tracing::info!(namespace, rotation, credential = current, "credential adopted");
                if before.current.is_some() {
                    let note = "another party has put a credential into the target: the operator keeps it until its replacement is due";
                    self.emit_event("Adopted", note.to_owned());
                }
            }
            StateChange::Abandoned => {
                if self.state.pending.is_none() {
                    self.keep_unpublished(None);
                }
            }
            StateChange::Found => {
                tracing::warn!(
                    namespace,
                    rotation,
                    "found a credential that the status does not name"
                );
            }
            StateChange::Retimed => {
                let end = self.rotation.status.as_ref().and_then(|s| s.expires_at.clone());
                tracing::info!(
                    namespace,
                    rotation,
                    credential = current,
                    end,
                    "the expiry of the credential has changed"
                );
            }
            StateChange::Restarted
            | StateChange::Publishing
            | StateChange::Revoked
            | StateChange::Recovered => {}
        }
        Ok(())
    }

    pub(super) fn emit_event(&self, reason: &str, note: String) {
        self.context.ctx.events.normal(self.rotation.object_ref(&()), reason, note);
    }

    /// Records in the status that `step` has failed. Reports the failure in the log, in the metrics
    /// and by an Event. `name`: name of the credential; empty if the step was the removal of the
    /// old credential from the target. `why`: the reason of the failure.
    pub(super) async fn record_failure(
        &mut self,
        step: RotationStep,
        name: &str,
        why: &str,
    ) -> Result<(), CallError> {
        let (namespace, rotation) = (self.namespace(), self.rotation.name_any());
        tracing::warn!(
            namespace,
            rotation,
            credential = name,
            step = step.word(),
            why,
            "step failed"
        );
        self.context.ctx.metrics.rotation.failures.with_label_values(&[step.word()]).inc();
        let next = failed(&self.plan, &self.state, step, name, self.clock.now());
        if next.pending.is_none() {
            self.keep_unpublished(None);
        }
        // The reported text is cut to a readable length.
        let why: String = why.chars().take(400).collect();
        let reason = format!("{}Failed", step.word());
        let note = failure_note(name, &why);
        self.context.ctx.events.warning(self.rotation.object_ref(&()), &reason, note);
        self.write_status(next, Some(&ReadyState::failed(step, why))).await
    }

    /// Writes the condition Ready of a rotation that had no step to do at the time `decided`, or
    /// that waits for its turn. Returns the time until the next reconcile. `until`: time of the
    /// rotation's next step; `None` if no step is planned, or if the rotation waits for its turn.
    pub(super) async fn wait(
        &mut self,
        until: Option<Seconds>,
        decided: Seconds,
    ) -> Result<Duration, CallError> {
        let unknown = self.unknown.as_ref();
        let facts = ReadyFacts {
            second: self.second.clone(),
            unknown: unknown.map(|one| UnknownTargetReport { ready: one.ready, why: &one.why }),
            watched: Some(&self.read.watched),
            unread: self.session.as_ref().map_or(0, |session| session.unread),
            children: self.children_summary(),
        };
        let wants = &self.rotation.spec.target;
        let ready = ReadyState::of(&self.plan, &self.state, &self.observed(), wants, facts);
        self.write_status(self.state.clone(), ready.as_ref()).await?;
        let expires = self.rotation.status.as_ref().and_then(status::expiry);
        let next = idle::next_reconcile(&self.plan, &self.state, until, expires, decided);
        // The write of the status takes time, so `next` may have passed by now.
        let pause = pause(next, self.clock.now());
        // No event reports a change in a Rancher, so the pause until the next read is bounded.
        let most = match &self.session {
            Some(session) if session.unread > 0 => READ_MORE_AFTER,
            _ if self.children.as_ref().is_some_and(|all| !all.failures.is_empty()) => {
                CHECK_RIGHTS_AFTER
            }
            _ if self.rotation.spec.rancher.is_some() || self.plan.is_second => RANCHER_INTERVAL,
            _ => pause,
        };
        let pause = pause.min(most);
        self.context.set_resting(&self.rotation, pause);
        Ok(self.schedule_check().map_or(pause, |next| next.min(pause)))
    }
}
