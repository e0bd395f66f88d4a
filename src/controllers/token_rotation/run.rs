//! Runs the steps of a TokenRotation that are possible now.
//!
//! Invariants: the target is read before the record, and both before any step; after each write of
//! the record, the next step uses the object that the server returned; nothing is revoked before
//! the target was read once more.

use std::time::Duration;

use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};

use super::look::{look, named};
use super::session::{AppliedChildren, BlindReason, LOOK_THERE, RotationRun, TargetSnapshot};
use super::{InHand, RotationContext, account, lock, pause};
use crate::api::{ROTATION_FINALIZER, TokenRotation};
use crate::domain::credentials::rotation::status::{self, ReadyReason, StatusObservations};
use crate::domain::credentials::rotation::{
    ObservedState, RecordChange, RotationAction, RotationRecord, RotationStep, TargetState,
    UnpublishedCredential, decide, expiry, failed, of_two,
};
use crate::domain::credentials::timestamp::{self, Seconds};
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
    let TargetSnapshot { read, clock, mut blind, side } = if allowed {
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
    let (mut existing, mut unlisted) = (Vec::new(), None);
    if account::of(seen).is_none() && seen.spec.rancher.is_some() {
        existing = named(&rotation, side.as_ref());
    } else if allowed {
        *lock(&keeper.clock) = Some(clock);
        match credentials.made_by(&namespace, &rotation.uid().unwrap_or_default()).await {
            Ok(made) => existing = made,
            Err(error) => unlisted = Some(error.refusal().map(str::to_owned).ok_or(error)?),
        }
    }
    let (plan, record) = (status::plan(&rotation), status::record(rotation.status.as_ref()));
    if plan.deleting.is_some() {
        blind = unlisted.take().map(BlindReason::barred).or(blind);
    }
    let (is_second, children) = (false, None);
    let mut run = RotationRun {
        keeper,
        rotation,
        plan,
        record,
        read,
        existing,
        clock,
        blind,
        side,
        is_second,
        children,
    };
    if !allowed {
        return run.not_allowed().await;
    }
    if let Some(why) = unlisted {
        // Nothing is decided without the list of existing credentials.
        run.record(run.record.clone(), Some(&ReadyReason::Unreadable(why))).await?;
        return Ok(LOOK_AT_RIGHTS);
    }
    if let Some(pause) = run.yields().await? {
        return Ok(pause);
    }
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
            None if self.is_second => of_two(&self.record, self.read.target.clone()),
            None => self.read.target.clone(),
        };
        let existing = Some(self.existing.clone());
        let hand = self.in_hand().map(|h| h.hand);
        let unknown = self.blind.as_ref().map(|blind| blind.unknown).unwrap_or_default();
        ObservedState { now: self.clock.now(), target, existing, hand, unknown }
    }

    pub(super) async fn look_again(&mut self) -> Result<(), CallError> {
        let TargetSnapshot { read, clock, blind, side } = look(self.keeper, &self.rotation).await?;
        if account::of(&self.rotation).is_none() && self.rotation.spec.rancher.is_some() {
            self.existing = named(&self.rotation, side.as_ref());
        }
        (self.read, self.blind, self.side) = (read, blind, side);
        if self.blind.is_none() {
            self.clock = clock;
        }
        Ok(())
    }

    /// Adds the finalizer before any credential is made, so that a deletion waits for the
    /// revocation.
    async fn hold(&mut self) -> Result<(), CallError> {
        let held = self.rotation.finalizers().iter().any(|f| f == ROTATION_FINALIZER);
        if held || self.plan.source.is_none() || self.plan.deleting.is_some() {
            return Ok(());
        }
        let mut finalizers = self.rotation.finalizers().to_vec();
        finalizers.push(ROTATION_FINALIZER.to_owned());
        self.patch_finalizers(&finalizers).await
    }

    /// Runs one step. Returns the pause if the next step is to wait.
    async fn step(&mut self) -> Result<Option<Duration>, CallError> {
        let act = decide(&self.plan, &self.record, &self.seen());
        match act {
            RotationAction::Write(change, next) => {
                if change == RecordChange::Named && !next.is_asked() {
                    let name = kube_runtime::reflector::ObjectRef::from_obj(&self.rotation);
                    let turn = self.keeper.turn(&name);
                    if !turn.is_zero() {
                        // The reason why it is due may not be in the record.
                        lock(&self.keeper.touched).insert(name);
                        return Ok(Some(turn));
                    }
                    self.keeper.begun(&name);
                }
                self.write(change, *next).await?;
            }
            RotationAction::Mint(name) if self.is_by_rancher() => self.mint_there(&name).await?,
            RotationAction::Mint(name) => match self.mint(&name).await {
                Ok(hand) => {
                    self.take(Some(hand));
                    self.existing.push(name);
                }
                Err(CallError::NotFound) => {
                    let why = self.no_account();
                    self.failed(RotationStep::Mint, &name, &why).await?;
                }
                Err(error) => self.fail(RotationStep::Mint, &name, error).await?,
            },
            RotationAction::Verify if self.is_by_rancher() => self.verify_there().await?,
            RotationAction::Verify => self.verify().await?,
            RotationAction::Publish { keep } => self.publish(keep).await?,
            RotationAction::Restart => self.restart().await?,
            RotationAction::DropOld => self.drop_old().await?,
            RotationAction::Revoke(name) => self.revoke(&name).await?,
            RotationAction::Finish => {
                self.tell_what_is_left();
                self.finish().await?;
                return Ok(Some(super::LOOK_AGAIN));
            }
            RotationAction::Wait(until) => return self.rest(until).await.map(Some),
        }
        Ok(None)
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

    /// Records and reports a failed step, unless leadership was lost.
    pub(super) async fn fail(
        &mut self,
        step: RotationStep,
        name: &str,
        error: CallError,
    ) -> Result<(), CallError> {
        if matches!(error, CallError::NotLeader) {
            return Err(error);
        }
        self.failed(step, name, &error.to_string()).await
    }

    pub(super) async fn failed(
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

    /// Records the standing. Returns the time until the next reconcile.
    async fn rest(&mut self, until: Option<Seconds>) -> Result<Duration, CallError> {
        let standing = self.standing();
        self.record(self.record.clone(), standing.as_ref()).await?;
        let now = self.clock.now();
        let end = self.rotation.status.as_ref().and_then(|status| status.expires_at.as_deref());
        let end = end.and_then(timestamp::parse_rfc3339);
        let pause = pause(&[until, expiry::alarm(&self.plan, &self.record, end), end], now);
        // A change in a Rancher produces no event.
        let most = match &self.side {
            Some(side) if side.unread > 0 => READ_ON,
            _ if self.children.as_ref().is_some_and(AppliedChildren::is_hindered) => LOOK_AT_RIGHTS,
            _ if self.rotation.spec.rancher.is_some() => LOOK_THERE,
            _ => pause,
        };
        let pause = pause.min(most);
        self.keeper.rests(&self.rotation, pause);
        Ok(self.arm().map_or(pause, |next| next.min(pause)))
    }

    /// Standing of the rotation. `None`: it does not change until the failed step has succeeded.
    fn standing(&self) -> Option<ReadyReason> {
        let watches = self.plan.source.is_none();
        Some(match &self.read.target {
            _ if self.plan.deleting.is_some() => ReadyReason::Leaving(self.keeps_waiting()),
            _ if let Some(blind) = &self.blind => (blind.standing)(blind.why.clone()),
            TargetState::Unfit(why) => ReadyReason::Unfit(why.clone()),
            _ if self.plan.schedule.paused => ReadyReason::Paused,
            _ if watches => self.watches(),
            _ if self.record.has_failed() => return None,
            _ if self.record.is_stuck() => ReadyReason::NotRevoked,
            _ if self.record.is_kept_alive() => ReadyReason::KeptByRancher,
            _ => ReadyReason::Current,
        })
    }
}
