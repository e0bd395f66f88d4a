//! Queue of TokenRotations: which ones must be reconciled, and when.
//!
//! The record is evaluated first. The API server is asked only if the record requires a step, or an
//! object that the rotation depends on has changed. Invariants: few rotations are reconciled at the
//! same time, and few begin per second, however many are due.

mod account;
mod act;
mod census;
mod children;
mod gauges;
mod issuer;
mod leaving;
mod look;
mod probe;
mod rancher;
mod run;
mod session;
mod target;
mod way;

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::Secret;
use kube::core::{ObjectMeta, PartialObjectMeta};
use kube::{Resource as _, ResourceExt as _};
use kube_runtime::controller::{Action, Config, Controller};
use kube_runtime::reflector::{ObjectRef, Store};
use tokio::sync::{Notify, mpsc};

use super::Context;
use crate::api::{LABEL_ROTATION, TokenRotation};
use crate::domain::credentials::rotation::inventory::CredentialInventory;
use crate::domain::credentials::rotation::{
    RecordChange, RotationAction, UnpublishedCredential, rest,
};
use crate::domain::credentials::timestamp::Seconds;
use crate::domain::credentials::token;
use crate::domain::limits::backoff::backoff;
use crate::k8s::CallError;
use crate::k8s::credentials::ServerClock;
use crate::k8s::informer::ObjectEvent;
use crate::k8s::store::{self, StoreWriter};
use issuer::CredentialIssuer;

/// Maximum of concurrent reconciles.
const AT_ONCE: u16 = 4;
/// Shortest time between two rotations that begin without a request: 2,000 that are due take a
/// quarter of an hour.
const BETWEEN: Duration = Duration::from_millis(400);
/// Deadline of one reconcile.
const PATIENCE: Duration = Duration::from_mins(2);
/// First and longest pause after a call that failed, per object.
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_secs(30);
/// Longest requeue interval, so that time-based conditions stay current.
const LOOK_AGAIN: Duration = Duration::from_hours(1);

type Name = ObjectRef<TokenRotation>;

/// Credential that only this process has. It is wiped from memory when it is dropped.
#[derive(Clone, Default)]
struct InHand {
    hand: UnpublishedCredential,
    token: Option<token::TokenText>,
}

struct RotationContext {
    ctx: Context,
    store: Store<TokenRotation>,
    /// Credentials in memory, by the rotation's UID.
    hands: Mutex<HashMap<String, InHand>>,
    /// Known state of all cloud credentials, by the UID of the rotation that watches them.
    censuses: Mutex<HashMap<String, CredentialInventory>>,
    /// TokenRotations that must be reconciled even if their record requires no step, for example
    /// because one of their Secrets has changed.
    touched: Mutex<HashSet<Name>>,
    clock: Mutex<Option<ServerClock>>,
    /// Time of each waiting rotation's turn, and the earliest time for the next turn.
    turns: Mutex<(HashMap<Name, Instant>, Instant)>,
    failures: Mutex<HashMap<Name, u32>>,
    /// Probes of the tokens in use in Ranchers.
    probes: Mutex<HashMap<Name, probe::TokenProbe>>,
    /// Version of each rotation after its reconcile, and the time until which it needs no other
    /// one.
    resting: Mutex<HashMap<Name, (u64, Instant)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reconciles TokenRotations until dropped.
pub(super) async fn run(ctx: Context) {
    let writer = StoreWriter::<TokenRotation>::default();
    let store = writer.reader();
    let (wake, woken) = mpsc::unbounded_channel::<Name>();
    let keeper = Arc::new(RotationContext {
        ctx: ctx.clone(),
        store: store.clone(),
        hands: Mutex::default(),
        censuses: Mutex::default(),
        touched: Mutex::default(),
        clock: Mutex::default(),
        turns: Mutex::new((HashMap::new(), Instant::now())),
        failures: Mutex::default(),
        probes: Mutex::default(),
        resting: Mutex::default(),
    });
    let woken = futures::stream::unfold(woken, |mut woken| async move {
        woken.recv().await.map(|name| (name, woken))
    });
    let listed = Notify::new();
    let control = async {
        // Rotations depend on each other: none is reconciled while some are not known.
        listed.notified().await;
        Controller::for_stream(futures::stream::pending(), store)
            .with_config(Config::default().concurrency(AT_ONCE))
            .reconcile_on(woken)
            .run(look_after, retry, keeper.clone())
            .for_each(|_| std::future::ready(()))
            .await;
    };
    let watch = watch(keeper.clone(), writer, wake.clone(), &listed);
    let namespaces = ctx.credential_namespaces.clone();
    let mut secrets: FuturesUnordered<_> = namespaces
        .iter()
        .flat_map(|(namespace, names)| {
            let each = |name| watch_secrets(keeper.clone(), namespace, name, wake.clone());
            let all = names.is_empty().then_some(None).into_iter();
            all.chain(names.iter().map(|name| Some(name.as_str()))).map(each).collect::<Vec<_>>()
        })
        .collect();
    let secrets = async { while secrets.next().await.is_some() {} };
    // Joined, so that the other tasks continue if no namespace is named and no Secret is watched.
    tokio::join!(control, watch, secrets, gauges::report(&keeper));
}

async fn watch(
    keeper: Arc<RotationContext>,
    mut writer: StoreWriter<TokenRotation>,
    wake: mpsc::UnboundedSender<Name>,
    listed: &Notify,
) {
    let touch = |rotations: Vec<Arc<TokenRotation>>| {
        for rotation in rotations {
            keeper.touch(&rotation, &wake);
        }
    };
    let known = || store::keys(&keeper.store);
    let on_event = |event: ObjectEvent<TokenRotation>| match event {
        ObjectEvent::Listed(mut rotation) => {
            rotation.metadata.managed_fields = None;
            writer.set(rotation);
        }
        ObjectEvent::Changed(mut rotation) => {
            rotation.metadata.managed_fields = None;
            let name = ObjectRef::from_obj(&rotation);
            let before = keeper.store.get(&name);
            let worked = before.as_ref().is_some_and(|before| census::works(&keeper, before));
            let mut others = Vec::new();
            if before.is_none() || worked != census::works(&keeper, &rotation) {
                others = census::who_tells_of(&keeper, &rotation);
            }
            if !children::stands_alike(before.as_deref(), &rotation) {
                others.extend(children::parent(&keeper, &rotation));
            }
            writer.set(rotation);
            let _ = wake.send(name);
            touch(others);
        }
        ObjectEvent::Gone(key, _) => {
            let name =
                key.split_once('/').map(|(namespace, name)| Name::new(name).within(namespace));
            if let Some(rotation) = name.and_then(|name| keeper.store.get(&name)) {
                let uid = rotation.uid().unwrap_or_default();
                lock(&keeper.hands).remove(&uid);
                lock(&keeper.censuses).remove(&uid);
                keeper.forget(&ObjectRef::from_obj(rotation.as_ref()));
                let others = census::who_tells_of(&keeper, &rotation);
                writer.remove(&key);
                touch(others);
            }
        }
        ObjectEvent::Complete => {
            listed.notify_one();
            touch(keeper.store.state());
        }
        ObjectEvent::Unreadable(_) | ObjectEvent::Refused(_) => {}
    };
    keeper.ctx.credentials.watch(known, on_event).await;
}

/// Enqueues the TokenRotations that depend on a Secret whenever the Secret changes.
async fn watch_secrets(
    keeper: Arc<RotationContext>,
    namespace: &str,
    name: Option<&str>,
    wake: mpsc::UnboundedSender<Name>,
) {
    let touch = |secret: &ObjectMeta| {
        let name = secret.name.clone().unwrap_or_default();
        let made_for = secret.labels.as_ref().and_then(|labels| labels.get(LABEL_ROTATION));
        let rests_on = |rotation: &TokenRotation| {
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
        for rotation in keeper.store.state_filter(rests_on) {
            keeper.touch(&rotation, &wake);
        }
    };
    let on_event = |event: ObjectEvent<PartialObjectMeta<Secret>>| match event {
        // Secrets to which credentials are bound matter only when they are deleted.
        ObjectEvent::Changed(secret) if secret.labels().contains_key(LABEL_ROTATION) => {}
        ObjectEvent::Changed(secret) => touch(secret.meta()),
        ObjectEvent::Gone(_, deleted) => deleted.iter().for_each(touch),
        // The first list needs no action: all rotations are reconciled when a term begins. A later
        // list may contain changes.
        ObjectEvent::Complete => {
            let of = |r: &TokenRotation| r.namespace().as_deref() == Some(namespace);
            for rotation in keeper.store.state_filter(of) {
                keeper.touch(&rotation, &wake);
            }
        }
        ObjectEvent::Listed(_) | ObjectEvent::Unreadable(_) | ObjectEvent::Refused(_) => {}
    };
    keeper.ctx.credentials.watch_secrets(namespace, name, on_event).await;
}

impl RotationContext {
    fn is_allowed(&self, namespace: &str) -> bool {
        self.ctx.credential_namespaces.contains_key(namespace)
    }

    /// Time for which the record requires no step. `None`: a reconcile is required.
    fn quiet(&self, rotation: &TokenRotation) -> Option<Duration> {
        let now = (*lock(&self.clock))?.now();
        let hand = lock(&self.hands).get(rotation.uid()?.as_str()).map(|hand| hand.hand.clone());
        match rest::unchanged(rotation, hand, now)? {
            RotationAction::Wait(next) => Some(pause(next, now)),
            // A rotation that only waits for its turn needs no call.
            RotationAction::Write(RecordChange::Named, next) if !next.is_asked() => {
                Some(self.turn(&ObjectRef::from_obj(rotation))).filter(|turn| !turn.is_zero())
            }
            _ => None,
        }
    }

    /// Records that the rotation needs no reconcile in this version for the time of the pause.
    fn rests(&self, rotation: &TokenRotation, pause: Duration) {
        if let Some(version) = version(rotation) {
            let name = ObjectRef::from_obj(rotation);
            lock(&self.resting).insert(name, (version, Instant::now() + pause));
        }
    }

    /// Remaining pause of a rotation that has not changed since its reconcile: events of this
    /// process's own writes trigger nothing.
    fn is_resting(&self, rotation: &TokenRotation) -> Option<Duration> {
        let (left, until) = *lock(&self.resting).get(&ObjectRef::from_obj(rotation))?;
        let is_known = version(rotation).is_some_and(|version| version <= left);
        let rest = until.saturating_duration_since(Instant::now());
        (is_known && !rest.is_zero()).then_some(rest)
    }

    /// Time until the turn of a rotation that is due, so that few begin at once. Each rotation gets
    /// its turn once, keeps it until it begins, and is not reconciled before.
    fn turn(&self, name: &Name) -> Duration {
        let mut turns = lock(&self.turns);
        let (turns, next) = &mut *turns;
        let now = Instant::now();
        let at = *turns.entry(name.clone()).or_insert_with(|| {
            let at = now.max(*next);
            *next = at + BETWEEN;
            at
        });
        at.saturating_duration_since(now)
    }

    fn begun(&self, name: &Name) {
        lock(&self.turns).0.remove(name);
    }

    /// Enqueues a rotation: an object that it depends on has changed.
    fn touch(&self, rotation: &TokenRotation, wake: &mpsc::UnboundedSender<Name>) {
        let name = ObjectRef::from_obj(rotation);
        lock(&self.touched).insert(name.clone());
        let _ = wake.send(name);
    }

    fn forget(&self, name: &Name) {
        self.begun(name);
        lock(&self.failures).remove(name);
        lock(&self.touched).remove(name);
        lock(&self.probes).remove(name);
        lock(&self.resting).remove(name);
    }
}

/// resourceVersion as a number: versions of one resource increase (KEP-5504). `None`: not a number.
fn version(rotation: &TokenRotation) -> Option<u64> {
    rotation.metadata.resource_version.as_ref()?.parse().ok()
}

/// Time until the next look, at most [`LOOK_AGAIN`].
fn pause(next: Option<Seconds>, now: Seconds) -> Duration {
    let left = next.and_then(|at| u64::try_from(at - now).ok()).map(Duration::from_secs);
    left.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN)
}

async fn look_after(
    rotation: Arc<TokenRotation>,
    keeper: Arc<RotationContext>,
) -> Result<Action, CallError> {
    let name = ObjectRef::from_obj(rotation.as_ref());
    let is_touched = lock(&keeper.touched).remove(&name);
    let pause = || keeper.is_resting(&rotation).or_else(|| keeper.quiet(&rotation));
    if !is_touched
        && let Some(pause) = pause()
        && let Some(next) = probe::probe(&keeper, &rotation).await
    {
        return Ok(Action::requeue(pause.min(next)));
    }
    let run = Box::pin(run::run(&keeper, &rotation));
    match tokio::time::timeout(PATIENCE, run).await.unwrap_or(Err(CallError::Timeout(PATIENCE))) {
        Ok(pause) => {
            lock(&keeper.failures).remove(&name);
            Ok(Action::requeue(pause))
        }
        Err(error) => {
            lock(&keeper.touched).insert(name);
            Err(error)
        }
    }
}

#[allow(clippy::needless_pass_by_value)] // The signature is the library's.
fn retry(rotation: Arc<TokenRotation>, error: &CallError, keeper: Arc<RotationContext>) -> Action {
    if matches!(error, CallError::NotLeader) {
        return Action::await_change();
    }
    let name = ObjectRef::from_obj(rotation.as_ref());
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    let failures = {
        let mut failures = lock(&keeper.failures);
        let count = failures.entry(name).or_default();
        *count = count.saturating_add(1);
        *count - 1
    };
    if !matches!(error, CallError::Conflict) {
        keeper.ctx.metrics.reconcile_errors.inc();
        let (namespace, rotation) = (rotation.namespace(), rotation.name_any());
        tracing::warn!(namespace, rotation, %error, failures, "TokenRotation not reconciled, trying again");
    }
    let jitter = f64::from(u8::try_from(hasher.finish() & 0xff).unwrap_or_default()) / 255.0;
    Action::requeue(backoff(failures, FIRST_RETRY, LAST_RETRY, jitter))
}
