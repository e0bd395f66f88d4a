//! Runs the steps of a TokenRotation that are possible now.
//!
//! Invariants: the target is read before the record, and both before any step; after each write of
//! the record, the next step uses the object that the server returned; nothing is revoked before
//! the target was read once more.

use std::time::Duration;

use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};

use super::look::look;
use super::session::{
    AppliedChildren, BlindReason, LOOK_THERE, RotationRun, StepFault, TargetSnapshot,
};
use super::{CredentialIssuer, InHand, RotationContext, lock, pause};
use crate::api::{ROTATION_FINALIZER, TokenRotation};
use crate::domain::credentials::rotation::ready::{ReadyFacts, ReadyReason};
use crate::domain::credentials::rotation::status::{self, StatusObservations};
use crate::domain::credentials::rotation::{
    ObservedState, RecordChange, RotationAction, RotationRecord, RotationStep, TargetState,
    UnknownReason, UnpublishedCredential, decide, failed, rest,
};
use crate::domain::credentials::timestamp::Seconds;
use crate::k8s::CallError;

/// Maximum of steps in a row; more of them are a fault.
const MOST_STEPS: usize = 64;
/// Pause before an unfinished rotation is reconciled again.
const GO_ON: Duration = Duration::from_millis(500);

/// Pause before the next check whether a right has been granted.
const LOOK_AT_RIGHTS: Duration = Duration::from_secs(30);

/// Pause before the next look while some cloud credentials were not read yet.
const READ_ON: Duration = Duration::from_secs(5);

/// Runs steps until there is nothing to do. Returns the time until the next reconcile.
pub(super) async fn run(
    keeper: &RotationContext,
    seen: &TokenRotation,
) -> Result<Duration, CallError> {
    let (namespace, name) = (seen.namespace().unwrap_or_default(), seen.name_any());
    let credentials = &keeper.ctx.credentials;
    let allowed = keeper.is_allowed(&namespace);
    let TargetSnapshot { read, clock, blind, side } = if allowed {
        look(keeper, seen).await?
    } else {
        // Nothing is read without rights, so the time is the local clock's.
        TargetSnapshot::blind(BlindReason::barred(String::new()))
    };
    let Some(rotation) = credentials.rotation(&namespace, &name).await? else {
        return Ok(super::LOOK_AGAIN);
    };
    if rotation.uid() != seen.uid() {
        // Another object has the name by now: its event triggers a reconcile.
        return Ok(GO_ON);
    }
    let (plan, record) = (status::plan(&rotation), status::record(rotation.status.as_ref()));
    let mut run = RotationRun {
        keeper,
        rotation,
        plan,
        record,
        read,
        existing: Vec::new(),
        clock,
        blind,
        side,
        second: None,
        children: None,
    };
    if !allowed {
        return run.not_allowed().await;
    }
    if CredentialIssuer::of(seen) == CredentialIssuer::ServiceAccount {
        *lock(&keeper.clock) = Some(clock);
    }
    match run.list().await {
        Ok(existing) => run.existing = existing,
        Err(error) => {
            let why = error.refusal().map(str::to_owned).ok_or(error)?;
            let unlisted = UnknownReason::Unlisted;
            run.blind = Some(BlindReason { unknown: unlisted, ..BlindReason::barred(why) });
        }
    }
    run.find_first().await?;
    run.hold().await?;
    run.make_children().await?;
    for _ in 0..MOST_STEPS {
        if let Some(pause) = run.step().await? {
            return Ok(pause);
        }
    }
    tracing::warn!(namespace, rotation = name, "too many steps in a row: continuing later");
    Ok(GO_ON)
}

impl RotationRun<'_> {
    pub(super) fn namespace(&self) -> String {
        self.rotation.namespace().unwrap_or_default()
    }

    pub(super) fn uid(&self) -> String {
        self.rotation.uid().unwrap_or_default()
    }

    pub(super) fn in_hand(&self) -> Option<InHand> {
        lock(&self.keeper.hands).get(&self.uid()).cloned()
    }

    pub(super) fn take(&self, hand: Option<InHand>) {
        let mut hands = lock(&self.keeper.hands);
        match hand {
            Some(hand) => drop(hands.insert(self.uid(), hand)),
            None => drop(hands.remove(&self.uid())),
        }
    }

    pub(super) fn seen(&self) -> ObservedState {
        let target = match &self.blind {
            Some(_) => TargetState::Unknown,
            None => self.read.target.clone(),
        };
        let existing = Some(self.existing.clone());
        let hand = self.in_hand().map(|h| h.hand);
        let unknown = self.blind.as_ref().map(|blind| blind.unknown).unwrap_or_default();
        ObservedState { now: self.clock.now(), target, existing, hand, unknown }
    }

    pub(super) async fn look_again(&mut self) -> Result<(), CallError> {
        let TargetSnapshot { read, clock, blind, side } = look(self.keeper, &self.rotation).await?;
        (self.read, self.blind, self.side) = (read, blind, side);
        if self.blind.is_none() {
            self.clock = clock;
        }
        if CredentialIssuer::of(&self.rotation) == CredentialIssuer::Rancher {
            self.existing = self.list().await?;
        }
        Ok(())
    }

    /// Adds the finalizer before any credential is made, so that a deletion waits for the
    /// revocation.
    async fn hold(&mut self) -> Result<(), CallError> {
        let held = self.rotation.finalizers().iter().any(|f| f == ROTATION_FINALIZER);
        let is_idle = self.plan.source.is_none() || self.plan.is_second;
        if held || is_idle || self.plan.deleting.is_some() {
            return Ok(());
        }
        let mut finalizers = self.rotation.finalizers().to_vec();
        finalizers.push(ROTATION_FINALIZER.to_owned());
        self.patch_finalizers(&finalizers).await
    }

    /// Runs one step. Returns the pause if the next step is to wait.
    async fn step(&mut self) -> Result<Option<Duration>, CallError> {
        let pending = self.record.pending.clone().unwrap_or_default().name;
        let (step, name, done) = match decide(&self.plan, &self.record, &self.seen()) {
            RotationAction::Write(change, next) => {
                let turn = self.turn(change, &next);
                if turn.is_none() {
                    self.write(change, *next).await?;
                }
                return Ok(turn);
            }
            RotationAction::Mint(name) => (RotationStep::Mint, pending, self.mint(&name).await),
            RotationAction::Verify => (RotationStep::Verify, pending, self.verify().await),
            RotationAction::Publish { keep } => {
                (RotationStep::Publish, pending, self.publish(keep).await)
            }
            RotationAction::DropOld => {
                (RotationStep::Publish, String::new(), self.drop_previous().await)
            }
            RotationAction::Restart => {
                let current = self.record.current.clone().unwrap_or_default().name;
                (RotationStep::Restart, current, self.restart().await)
            }
            RotationAction::Revoke(name) => {
                let done = self.revoke_unless_used(&name).await;
                (RotationStep::Revoke, name, done)
            }
            RotationAction::Finish => {
                self.tell_what_is_left();
                self.finish().await?;
                return Ok(Some(super::LOOK_AGAIN));
            }
            RotationAction::Wait(until) => return self.rest(until).await.map(Some),
        };
        match done {
            Ok(()) => {}
            Err(StepFault::Call(error)) => return Err(error),
            Err(StepFault::Step(why)) => self.failed(step, &name, &why).await?,
        }
        Ok(None)
    }

    /// Time until a rotation that is due without a request may begin. `None`: it may begin.
    fn turn(&self, change: RecordChange, next: &RotationRecord) -> Option<Duration> {
        if change != RecordChange::Named || next.is_asked() {
            return None;
        }
        let name = kube_runtime::reflector::ObjectRef::from_obj(&self.rotation);
        let turn = self.keeper.turn(&name);
        if turn.is_zero() {
            self.keeper.begun(&name);
            return None;
        }
        // The reason why it is due may not be in the record.
        lock(&self.keeper.touched).insert(name);
        Some(turn)
    }

    /// Writes the status, if it differs from the stored one.
    pub(super) async fn record(
        &mut self,
        next: RotationRecord,
        standing: Option<&ReadyReason>,
    ) -> Result<(), CallError> {
        let now = self.clock.now();
        let beside = StatusObservations {
            watched: self.blind.is_none().then(|| self.read.watched.clone()),
            key: self.side.as_ref().and_then(|side| side.key.clone()),
            rancher_url: self.named_url(),
            refused: self.blind.as_ref().is_some_and(|blind| blind.refused),
        };
        let status = status::status(&self.rotation, &next, &beside, standing, now);
        let old = self.rotation.status.clone().unwrap_or_default();
        let text = |status| serde_json::to_value(status).unwrap_or(Value::Null);
        if let Some(change) = status::diff(&text(old), &text(status)) {
            let version = self.rotation.resource_version();
            let patch = json!({"metadata": {"resourceVersion": version}, "status": change});
            let (namespace, name) = (self.namespace(), self.rotation.name_any());
            let writer = &self.keeper.ctx.writer;
            self.rotation = writer.patch_rotation_status(&namespace, &name, &patch).await?;
            self.plan = self.planned();
        }
        self.record = next;
        Ok(())
    }

    pub(super) async fn write(
        &mut self,
        change: RecordChange,
        next: RotationRecord,
    ) -> Result<(), CallError> {
        let standing = (change == RecordChange::Published).then_some(ReadyReason::Current);
        let before = self.record.clone();
        self.record(next, standing.as_ref()).await?;
        let (namespace, rotation) = (self.namespace(), self.rotation.name_any());
        let metrics = &self.keeper.ctx.metrics.rotation;
        let current = self.record.current.clone().unwrap_or_default().name;
        match change {
            RecordChange::Named => {
                let name = self.record.pending.clone().unwrap_or_default().name;
                tracing::debug!(namespace, rotation, credential = name, "credential is being made");
                self.take(Some(InHand {
                    hand: UnpublishedCredential { name, ..UnpublishedCredential::default() },
                    token: None,
                }));
            }
            RecordChange::Published => {
                self.take(None);
                metrics.published.inc();
                tracing::info!(namespace, rotation, credential = current, "credential published");
                self.say("Published", format!("credential {current} is in the target"));
            }
            RecordChange::Adopted => {
                self.take(None);
                tracing::info!(namespace, rotation, credential = current, "credential adopted");
                if before.current.is_some() {
                    let note = "another party has put a credential into the target: it stays until it is due";
                    self.say("Adopted", note.to_owned());
                }
            }
            RecordChange::Abandoned => {
                if self.record.pending.is_none() {
                    self.take(None);
                }
            }
            RecordChange::Found => {
                tracing::warn!(namespace, rotation, "found a credential that is not in the record");
            }
            RecordChange::Retimed => {
                let end = self.rotation.status.as_ref().and_then(|s| s.expires_at.clone());
                tracing::info!(namespace, rotation, credential = current, end, "another end");
            }
            RecordChange::Restarted | RecordChange::Publishing | RecordChange::Revoked => {}
        }
        Ok(())
    }

    pub(super) fn say(&self, reason: &str, note: String) {
        self.keeper.ctx.events.normal(self.rotation.object_ref(&()), reason, note);
    }

    /// Records and reports a failed step.
    async fn failed(&mut self, step: RotationStep, name: &str, why: &str) -> Result<(), CallError> {
        let (namespace, rotation) = (self.namespace(), self.rotation.name_any());
        tracing::warn!(
            namespace,
            rotation,
            credential = name,
            step = step.word(),
            why,
            "step failed"
        );
        self.keeper.ctx.metrics.rotation.failures.with_label_values(&[step.word()]).inc();
        let next = failed(&self.plan, &self.record, step, name, self.clock.now());
        if next.pending.is_none() {
            self.take(None);
        }
        // The reported text has a readable length.
        let why: String = why.chars().take(400).collect();
        let reason = format!("{}Failed", step.word());
        let note = format!("credential {name}: {why}");
        self.keeper.ctx.events.warning(self.rotation.object_ref(&()), &reason, note);
        self.record(next, Some(&ReadyReason::Failed(step, why))).await
    }

    /// Records the condition Ready. Returns the time until the next reconcile.
    async fn rest(&mut self, until: Option<Seconds>) -> Result<Duration, CallError> {
        let facts = ReadyFacts {
            second: self.second.clone(),
            unknown: self.blind.as_ref().map(|b| (b.why.as_str(), (b.standing)(b.why.clone()))),
            watched: Some(&self.read.watched),
            unread: self.side.as_ref().map_or(0, |side| side.unread),
            children: self.children_stand(),
        };
        let wants = &self.rotation.spec.target;
        let ready = ReadyReason::of(&self.plan, &self.record, &self.read.target, wants, facts);
        self.record(self.record.clone(), ready.as_ref()).await?;
        let now = self.clock.now();
        let ends = self.rotation.status.as_ref().and_then(status::ends);
        let pause = pause(rest::next_look(&self.plan, &self.record, until, ends, now), now);
        // A change in a Rancher produces no event.
        let most = match &self.side {
            Some(side) if side.unread > 0 => READ_ON,
            _ if self.children.as_ref().is_some_and(AppliedChildren::is_hindered) => LOOK_AT_RIGHTS,
            _ if self.rotation.spec.rancher.is_some() || self.plan.is_second => LOOK_THERE,
            _ => pause,
        };
        let pause = pause.min(most);
        self.keeper.rests(&self.rotation, pause);
        Ok(self.arm().map_or(pause, |next| next.min(pause)))
    }
}
