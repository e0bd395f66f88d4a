//! Runs as many steps of a TokenRotation as are possible now.
//!
//! Invariants:
//!
//! * The target is read before the recorded state, and both before any step.
//! * After each write of the state, the next step uses the object that the server returned.
//! * The target is read again before each revocation.

use std::time::Duration;

use kube::{Resource as _, ResourceExt as _};
use kube_runtime::reflector::ObjectRef;

use super::read_fault::UnknownTarget;
use super::rotation_run::{RotationRun, StepFault};
use super::snapshot::TargetSnapshot;
use super::{CredentialIssuer, RotationContext, lock, snapshot};
use crate::api::{ANNOTATION_HASH, TokenRotation};
use crate::domain::credentials::rotation::{
    RotationAction, RotationState, RotationStep, StateChange, UnknownReason, after_restart, decide,
    status,
};
use crate::k8s::CallError;

/// Maximum number of steps of one reconcile. A reconcile that needs more shows a fault in the
/// operator.
const MOST_STEPS: usize = 64;
/// Pause until the next reconcile, if this reconcile has ended early: after [`MOST_STEPS`] steps,
/// or because another TokenRotation has the name by now.
const CONTINUE_AFTER: Duration = Duration::from_millis(500);

/// Runs steps of the TokenRotation `seen` until no further step is possible now. Returns the time
/// until the next reconcile.
pub(super) async fn run_steps(
    context: &RotationContext,
    seen: &TokenRotation,
) -> Result<Duration, CallError> {
    let (namespace, name) = (seen.namespace().unwrap_or_default(), seen.name_any());
    let credentials = &context.ctx.credentials;
    let allowed = context.is_allowed(&namespace);
    let TargetSnapshot { read, clock, unknown, session } = if allowed {
        snapshot::read(context, seen).await?
    } else {
        TargetSnapshot::without_rights()
    };
    let Some(rotation) = credentials.rotation(&namespace, &name).await? else {
        return Ok(super::LONGEST_PAUSE);
    };
    if rotation.uid() != seen.uid() {
        // Another TokenRotation has the name by now. The event of its creation triggers a
        // reconcile.
        return Ok(CONTINUE_AFTER);
    }
    let (plan, state) = (status::plan(&rotation), status::state(rotation.status.as_ref()));
    let mut run = RotationRun {
        context,
        rotation,
        plan,
        state,
        read,
        existing: Vec::new(),
        clock,
        unknown,
        session,
        second: None,
        children: None,
    };
    if !allowed {
        return run.report_missing_rights().await;
    }
    if CredentialIssuer::of(seen) == CredentialIssuer::ServiceAccount {
        *lock(&context.clock) = Some(clock);
    }
    match run.list_credentials().await {
        Ok(existing) => run.existing = existing,
        Err(error) => {
            let why = error.refusal().map(str::to_owned).ok_or(error)?;
            let unlisted = UnknownReason::Unlisted;
            run.unknown = Some(UnknownTarget { reason: unlisted, ..UnknownTarget::barred(why) });
        }
    }
    run.find_first_rival().await?;
    run.add_finalizer().await?;
    run.apply_children().await?;
    for _ in 0..MOST_STEPS {
        if let Some(pause) = run.step().await? {
            return Ok(pause);
        }
    }
    tracing::warn!(namespace, rotation = name, "too many steps in a row: continuing later");
    Ok(CONTINUE_AFTER)
}

impl RotationRun<'_> {
    /// Runs one step. Returns the pause until the next reconcile. `None`: the next step can run at
    /// once.
    async fn step(&mut self) -> Result<Option<Duration>, CallError> {
        let pending = self.state.pending.clone().unwrap_or_default().name;
        let seen = self.observed();
        let (step, name, done) = match decide(&self.plan, &self.state, &seen) {
            RotationAction::Write(change, next) => {
                if let Some(turn) = self.time_until_turn(change, &next) {
                    return Ok(Some(self.wait(None, seen.now).await?.min(turn)));
                }
                self.record_change(change, *next).await?;
                return Ok(None);
            }
            RotationAction::Mint(name) => (RotationStep::Mint, pending, self.mint(&name).await),
            RotationAction::Verify => (RotationStep::Verify, pending, self.verify().await),
            RotationAction::Publish { keep } => {
                (RotationStep::Publish, pending, self.publish(keep).await)
            }
            RotationAction::DropOld => {
                (RotationStep::Publish, String::new(), self.drop_kept().await)
            }
            RotationAction::Restart => {
                let current = self.state.current.clone().unwrap_or_default().name;
                (RotationStep::Restart, current, self.restart_workloads().await)
            }
            RotationAction::Revoke(name) => {
                let done = self.revoke_unless_used(&name).await;
                (RotationStep::Revoke, name, done)
            }
            RotationAction::Finish => {
                self.report_left_behind();
                self.remove_finalizer().await?;
                return Ok(Some(super::LONGEST_PAUSE));
            }
            RotationAction::Wait(until) => return self.wait(until, seen.now).await.map(Some),
        };
        match done {
            Ok(()) => {}
            Err(StepFault::Call(error)) => return Err(error),
            Err(StepFault::Step(why)) => self.record_failure(step, &name, &why).await?,
        }
        Ok(None)
    }

    /// Time until this rotation may begin to replace its credential. `None` in these cases:
    ///
    /// * `change` does not begin a replacement. Only [`StateChange::Named`] does.
    /// * An annotation requested the replacement.
    /// * The rotation's turn has come.
    fn time_until_turn(&self, change: StateChange, next: &RotationState) -> Option<Duration> {
        if change != StateChange::Named || next.is_asked() {
            return None;
        }
        let name = ObjectRef::from_obj(&self.rotation);
        let turn = self.context.time_until_turn(&name);
        if turn.is_zero() {
            self.context.end_turn(&name);
            return None;
        }
        // The next reconcile must not be skipped, even if the status requires no step then, because
        // the rotation's turn has come by then.
        lock(&self.context.touched).insert(name);
        Some(turn)
    }

    /// Restarts every workload of `spec.restartWorkloads`, so that its pods read the target again.
    pub(super) async fn restart_workloads(&mut self) -> Result<(), StepFault> {
        let current = self.state.current.clone().unwrap_or_default();
        let part = self.plan.prefix.rsplit('-').next().unwrap_or_default();
        let key = format!("{ANNOTATION_HASH}-{part}");
        let workloads = self.rotation.spec.restart_workloads.clone().unwrap_or_default();
        for workload in &workloads {
            let (namespace, text) = (self.namespace(), (key.as_str(), current.hash.as_str()));
            match self.context.ctx.writer.restart(&namespace, workload, text).await {
                Ok(()) => {}
                Err(CallError::NotFound(_)) => {
                    let note = format!(
                        "spec.restartWorkloads: there is no {:?} {}",
                        workload.kind, workload.name
                    );
                    let events = &self.context.ctx.events;
                    events.warning(self.rotation.object_ref(&()), "WorkloadMissing", note);
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.read_again().await.map_err(StepFault::Call)?;
        let next = after_restart(&self.plan, &self.state, self.clock.now());
        self.record_change(StateChange::Restarted, next).await.map_err(StepFault::Call)
    }

    /// Reads the target again. Revokes the credential `name` only if its revocation is still the
    /// next step after this read.
    pub(super) async fn revoke_unless_used(&mut self, name: &str) -> Result<(), StepFault> {
        self.read_again().await.map_err(StepFault::Call)?;
        let next = decide(&self.plan, &self.state, &self.observed());
        if next != RotationAction::Revoke(name.to_owned()) {
            return Ok(());
        }
        self.revoke(name).await?;
        self.context.ctx.metrics.rotation.revoked.inc();
        let (namespace, rotation) = (self.namespace(), self.rotation.name_any());
        tracing::info!(namespace, rotation, credential = name, "credential revoked");
        self.emit_event("Revoked", format!("credential {name} does not work any more"));
        Ok(())
    }
}
