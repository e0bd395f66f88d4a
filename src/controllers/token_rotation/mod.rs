//! Reconciles TokenRotations, and decides which of them must be reconciled, and when.
//!
//! The recorded state, in the status of a rotation, is evaluated first. The rotation and its target
//! are read from their servers only if this state requires a step, or if an object that the
//! rotation depends on has changed. Exception: a rotation with a Rancher is also read every five
//! minutes, because a Rancher reports no change.
//!
//! Invariants:
//!
//! * At most [`MOST_CONCURRENT`] rotations are reconciled at the same time.
//! * Rotations begin to replace their credentials at least [`TURN_INTERVAL`] apart, however many
//!   are due. A replacement that an annotation requests begins at once.

mod children;
mod deletion;
mod gauges;
mod inventory;
mod issuer;
mod rancher_session;
mod rancher_tokens;
mod read_fault;
mod related;
mod rotation_run;
mod service_account;
mod snapshot;
mod status_writer;
mod steps;
mod target;
mod token_check;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::Secret;
use kube::core::{ObjectMeta, PartialObjectMeta};
use kube::{Resource as _, ResourceExt as _};
use kube_runtime::controller::{Action, Config, Controller};
use kube_runtime::reflector::{ObjectRef, Store};
use tokio::sync::Notify;

use super::Context;
use super::failed_reconciles::FailedReconciles;
use crate::api::{LABEL_ROTATION, TokenRotation};
use crate::domain::credentials::rotation::inventory::CredentialInventory;
use crate::domain::credentials::rotation::{
    RotationAction, StateChange, UnpublishedCredential, idle,
};
use crate::domain::credentials::secret_text::SecretText;
use crate::domain::credentials::timestamp::Seconds;
use crate::domain::object_fields::resource_version::is_newer;
use crate::k8s::CallError;
use crate::k8s::credentials::ServerClock;
use crate::k8s::informer::{ObjectEvent, split_key};
use crate::k8s::store::{self, StoreWriter};
use crate::locks::lock;
use issuer::CredentialIssuer;

/// Maximum number of concurrent reconciles of TokenRotations.
const MOST_CONCURRENT: u16 = 4;
/// Shortest time between the moments at which two rotations begin to replace their credential. So
/// 2,000 rotations that are due at once begin within a quarter of an hour. A replacement that an
/// annotation requests begins at once.
const TURN_INTERVAL: Duration = Duration::from_millis(400);
/// Deadline of one reconcile of a TokenRotation.
const RECONCILE_DEADLINE: Duration = Duration::from_mins(2);
/// Pause before a TokenRotation is reconciled again after its first failed reconcile. Each further
/// failure in a row doubles the pause.
const FIRST_RETRY: Duration = Duration::from_millis(200);
/// Longest pause between two reconciles of a TokenRotation. Some conditions change with time alone,
/// without an event.
const LONGEST_PAUSE: Duration = Duration::from_hours(1);

type Name = ObjectRef<TokenRotation>;

/// New credential that is not published yet. `text`: the credential itself, which is wiped from
/// memory when it is dropped. `None` as `text`: the credential has a name, but is not made yet.
#[derive(Clone, Default)]
struct UnpublishedToken {
    credential: UnpublishedCredential,
    text: Option<SecretText>,
}

struct RotationContext {
    ctx: Context,
    store: Store<TokenRotation>,
    /// Queue of the TokenRotations to reconcile.
    queue: UnboundedSender<Name>,
    /// Unpublished credential of each rotation, by the rotation's UID.
    unpublished: Mutex<HashMap<String, UnpublishedToken>>,
    /// Known state of all cloud credentials. The key is the UID of the rotation whose target is all
    /// cloud credentials.
    inventories: Mutex<HashMap<String, CredentialInventory>>,
    /// TokenRotations whose next reconcile must not be skipped, for example because one of their
    /// Secrets has changed.
    touched: Mutex<HashSet<Name>>,
    clock: Mutex<Option<ServerClock>>,
    /// Field 0: time at which each waiting rotation may begin to replace its credential. Field 1:
    /// earliest time for the next rotation that is added to field 0.
    turns: Mutex<(HashMap<Name, Instant>, Instant)>,
    failures: FailedReconciles<Name>,
    /// Token checks, by the rotation's name. Each check asks a Rancher about the token in use.
    checks: Mutex<HashMap<Name, token_check::TokenCheck>>,
    /// Pause of each rotation after its last reconcile, by the rotation's name. Field 0 of a value:
    /// resourceVersion of the rotation when the pause was recorded. Field 1: end of the pause.
    resting: Mutex<HashMap<Name, (String, Instant)>>,
}

/// Reconciles TokenRotations until dropped.
pub(super) async fn run(ctx: Context) {
    let writer = StoreWriter::<TokenRotation>::default();
    let store = writer.reader();
    let (queue, queued) = unbounded::<Name>();
    let context = Arc::new(RotationContext {
        ctx: ctx.clone(),
        store: store.clone(),
        queue,
        unpublished: Mutex::default(),
        inventories: Mutex::default(),
        touched: Mutex::default(),
        clock: Mutex::default(),
        turns: Mutex::new((HashMap::new(), Instant::now())),
        failures: FailedReconciles::new("token_rotation", FIRST_RETRY, &ctx.metrics),
        checks: Mutex::default(),
        resting: Mutex::default(),
    });
    let listed = Notify::new();
    let control = async {
        // Rotations depend on each other, so none is reconciled before the list of rotations is
        // complete.
        listed.notified().await;
        Controller::for_stream(futures::stream::pending(), store)
            .with_config(Config::default().concurrency(MOST_CONCURRENT))
            .reconcile_on(queued)
            .run(reconcile, retry, context.clone())
            .for_each(|_| std::future::ready(()))
            .await;
    };
    let watch = watch(&context, writer, &listed);
    let namespaces = ctx.credential_namespaces.clone();
    let mut secrets: FuturesUnordered<_> = namespaces
        .iter()
        .flat_map(|(namespace, names)| {
            let each = |name| watch_secrets(&context, namespace, name);
            let all = names.is_empty().then_some(None).into_iter();
            all.chain(names.iter().map(|name| Some(name.as_str()))).map(each).collect::<Vec<_>>()
        })
        .collect();
    let secrets = async { while secrets.next().await.is_some() {} };
    // `join!` lets the other tasks continue when `secrets` ends. `secrets` ends at once if no
    // namespace for credentials is configured, because no Secret is watched then.
    tokio::join!(control, watch, secrets, gauges::report(&context));
}

async fn watch(context: &RotationContext, mut writer: StoreWriter<TokenRotation>, listed: &Notify) {
    let known = || store::keys(&context.store);
    let on_event = |event: ObjectEvent<TokenRotation>| match event {
        ObjectEvent::Listed(mut rotation) => {
            rotation.metadata.managed_fields = None;
            writer.set(rotation);
        }
        ObjectEvent::Changed(mut rotation) => {
            rotation.metadata.managed_fields = None;
            let name = ObjectRef::from_obj(&rotation);
            let before = context.store.get(&name);
            let replaces = |rotation| related::replaces_its_credential(context, rotation);
            let worked = before.as_deref().is_some_and(replaces);
            let mut others = Vec::new();
            if before.is_none() || worked != replaces(&rotation) {
                others = related::dependents(context, &rotation);
            }
            if !related::is_ready_alike(before.as_deref(), &rotation) {
                others.extend(related::parent(context, &rotation));
            }
            writer.set(rotation);
            let _ = context.queue.unbounded_send(name);
            context.touch(others);
        }
        ObjectEvent::Gone(key, _) => {
            let (namespace, name) = split_key(&key);
            if let Some(rotation) = context.store.get(&Name::new(name).within(namespace)) {
                let uid = rotation.uid().unwrap_or_default();
                lock(&context.unpublished).remove(&uid);
                lock(&context.inventories).remove(&uid);
                context.forget(&ObjectRef::from_obj(rotation.as_ref()));
                let others = related::dependents(context, &rotation);
                writer.remove(&key);
                context.touch(others);
            }
        }
        ObjectEvent::Complete => {
            listed.notify_one();
            context.touch(context.store.state());
        }
        ObjectEvent::Unreadable(_) | ObjectEvent::Refused(_) => {}
    };
    context.ctx.credentials.watch(known, on_event).await;
}

/// Watches the Secrets of a namespace, or only the Secret `name`. Enqueues the TokenRotations that
/// depend on a changed Secret.
async fn watch_secrets(context: &RotationContext, namespace: &str, name: Option<&str>) {
    let dependents = |secret: &ObjectMeta| {
        let name = secret.name.clone().unwrap_or_default();
        let made_for = secret.labels.as_ref().and_then(|labels| labels.get(LABEL_ROTATION));
        let depends = |rotation: &TokenRotation| {
            rotation.namespace().as_deref() == Some(namespace)
                && if let Some(uid) = made_for {
                    rotation.metadata.uid.as_ref() == Some(uid)
                } else {
                    let spec = &rotation.spec;
                    let there = spec.rancher.as_ref();
                    let key = there.map(|there| &there.minter.secret_name);
                    let authority = there.and_then(|t| t.certificate_authority_secret.as_ref());
                    let target = spec.target.secret.as_ref().map(|secret| &secret.name);
                    [key, authority.map(|secret| &secret.name), target].contains(&Some(&name))
                }
        };
        context.store.state_filter(depends)
    };
    let on_event = |event: ObjectEvent<PartialObjectMeta<Secret>>| match event {
        // The label marks a bound Secret. Only its deletion matters.
        ObjectEvent::Changed(secret) if secret.labels().contains_key(LABEL_ROTATION) => {}
        ObjectEvent::Changed(secret) => context.touch(dependents(secret.meta())),
        ObjectEvent::Gone(_, Some(secret)) => context.touch(dependents(&secret)),
        // After a new list, any Secret may have changed.
        ObjectEvent::Complete => {
            let of = |r: &TokenRotation| r.namespace().as_deref() == Some(namespace);
            context.touch(context.store.state_filter(of));
        }
        ObjectEvent::Gone(_, None)
        | ObjectEvent::Listed(_)
        | ObjectEvent::Unreadable(_)
        | ObjectEvent::Refused(_) => {}
    };
    context.ctx.credentials.watch_secrets(namespace, name, on_event).await;
}

impl RotationContext {
    /// Enqueues TokenRotations. Their next reconcile is not skipped, even if their status requires
    /// no step.
    fn touch(&self, rotations: Vec<Arc<TokenRotation>>) {
        for rotation in rotations {
            let name = ObjectRef::from_obj(rotation.as_ref());
            lock(&self.touched).insert(name.clone());
            // The send fails only at the end of the term, when the receiver is dropped.
            let _ = self.queue.unbounded_send(name);
        }
    }

    fn is_allowed(&self, namespace: &str) -> bool {
        self.ctx.credential_namespaces.contains_key(namespace)
    }

    /// Time for which the TokenRotation needs no reconcile, as its status and the clock show.
    /// `None`: reconcile now.
    fn idle_time(&self, rotation: &TokenRotation) -> Option<Duration> {
        let now = (*lock(&self.clock))?.now();
        let uid = rotation.uid()?;
        let unpublished = lock(&self.unpublished).get(&uid).map(|token| token.credential.clone());
        match idle::step_if_unchanged(rotation, unpublished, now)? {
            RotationAction::Wait(next) => Some(pause(next, now)),
            // The rotation only waits for its turn to begin, so nothing is read or written until
            // then.
            RotationAction::Write(StateChange::Named, next) if !next.is_asked() => {
                Some(self.time_until_turn(&ObjectRef::from_obj(rotation)))
                    .filter(|turn| !turn.is_zero())
            }
            _ => None,
        }
    }

    /// Records that `rotation`, in its present version, needs no reconcile for the time `pause`.
    fn set_resting(&self, rotation: &TokenRotation, pause: Duration) {
        let version = rotation.resource_version().unwrap_or_default();
        let name = ObjectRef::from_obj(rotation);
        lock(&self.resting).insert(name, (version, Instant::now() + pause));
    }

    /// Remaining time of the pause that [`Self::set_resting`] recorded. `None`: no pause was
    /// recorded, the pause is over, or the rotation is newer than the recorded version.
    ///
    /// Rotations with a Rancher need this pause, because [`Self::idle_time`] is always `None` for
    /// them. Without the pause, each write of the status by this process would cause another read
    /// of the Rancher.
    fn resting_time(&self, rotation: &TokenRotation) -> Option<Duration> {
        let version = rotation.metadata.resource_version.as_deref().unwrap_or_default();
        let resting = lock(&self.resting);
        let (left, until) = resting.get(&ObjectRef::from_obj(rotation))?;
        let rest = until.saturating_duration_since(Instant::now());
        (!is_newer(version, left) && !rest.is_zero()).then_some(rest)
    }

    /// Time until a due rotation may begin to replace its credential. Two rotations begin at least
    /// [`TURN_INTERVAL`] apart. The first call for a rotation assigns its turn. The rotation keeps
    /// that turn until [`Self::end_turn`].
    fn time_until_turn(&self, name: &Name) -> Duration {
        let mut turns = lock(&self.turns);
        let (turns, next) = &mut *turns;
        let now = Instant::now();
        let at = *turns.entry(name.clone()).or_insert_with(|| {
            let at = now.max(*next);
            *next = at + TURN_INTERVAL;
            at
        });
        at.saturating_duration_since(now)
    }

    fn end_turn(&self, name: &Name) {
        lock(&self.turns).0.remove(name);
    }

    fn forget(&self, name: &Name) {
        self.end_turn(name);
        self.failures.forget(name);
        lock(&self.touched).remove(name);
        lock(&self.checks).remove(name);
        lock(&self.resting).remove(name);
    }
}

/// Pause from `now` until `next`, but at most [`LONGEST_PAUSE`]. `next`: time of the next
/// reconcile. If `next` has passed, there is no pause. If `next` is `None`, the pause is
/// [`LONGEST_PAUSE`].
fn pause(next: Option<Seconds>, now: Seconds) -> Duration {
    next.map_or(LONGEST_PAUSE, |at| Duration::from_secs(u64::try_from(at - now).unwrap_or(0)))
        .min(LONGEST_PAUSE)
}

async fn reconcile(
    rotation: Arc<TokenRotation>,
    context: Arc<RotationContext>,
) -> Result<Action, CallError> {
    let name = ObjectRef::from_obj(rotation.as_ref());
    let is_touched = lock(&context.touched).remove(&name);
    let pause = || context.resting_time(&rotation).or_else(|| context.idle_time(&rotation));
    if !is_touched
        && let Some(pause) = pause()
        && let Some(next) = token_check::check_if_due(&context, &rotation).await
    {
        return Ok(Action::requeue(pause.min(next)));
    }
    let run = Box::pin(steps::run_steps(&context, &rotation));
    let late = |_| {
        let call = format!("reconcile of {name}");
        Err(CallError::Timeout { call, within: RECONCILE_DEADLINE })
    };
    match tokio::time::timeout(RECONCILE_DEADLINE, run).await.unwrap_or_else(late) {
        Ok(pause) => {
            context.failures.forget(&name);
            Ok(Action::requeue(pause))
        }
        Err(error) => {
            lock(&context.touched).insert(name);
            Err(error)
        }
    }
}

#[allow(clippy::needless_pass_by_value)] // The signature is the library's.
fn retry(rotation: Arc<TokenRotation>, error: &CallError, context: Arc<RotationContext>) -> Action {
    if matches!(error, CallError::NotLeader) {
        return Action::await_change();
    }
    if matches!(error, CallError::Conflict(_)) {
        return context.failures.try_again(&rotation).1;
    }
    let (failures, again) = context.failures.count(&rotation, error.kind());
    let (namespace, rotation) = (rotation.namespace(), rotation.name_any());
    tracing::warn!(namespace, rotation, %error, failures, "cannot reconcile the TokenRotation, trying again");
    again
}
