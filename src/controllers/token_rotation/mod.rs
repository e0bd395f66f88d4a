//! TokenRotations: who must be looked at, and when.
//!
//! Owns the queue. What is recorded is looked at first; only if that says that something is to be
//! done, or somebody has touched what it rests on, the API server is asked. Invariants: few are
//! carried out at a time, and few are begun in a second, however many are due.

mod act;
mod census;
mod children;
mod leaving;
mod look;
mod probe;
mod rancher;
mod run;
mod tell;

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::core::PartialObjectMeta;
use kube_runtime::controller::{Action, Config, Controller};
use kube_runtime::reflector::store::Writer;
use kube_runtime::reflector::{ObjectRef, Store};
use kube_runtime::watcher::Event;
use tokio::sync::mpsc;

use super::Context;
use crate::api::{LABEL_ROTATION, READY, ROTATION_FINALIZER, TokenRotation};
use crate::domain::credentials::rotation::inventory::Census;
use crate::domain::credentials::rotation::status::UNREADABLE;
use crate::domain::credentials::rotation::{
    Act, Change, Hand, Held, Seconds, Seen, Target, decide, expiry, status,
};
use crate::domain::credentials::token;
use crate::domain::limits::backoff::backoff;
use crate::k8s::CallError;
use crate::k8s::credentials::Clock;
use crate::k8s::guard::Guard;

/// How many are carried out at a time.
const AT_ONCE: u16 = 4;
/// At least so long between two that are begun by themselves: 2,000 that are due take a quarter of an
/// hour.
const BETWEEN: Duration = Duration::from_millis(400);
/// The longest that one may be carried out in a row.
const PATIENCE: Duration = Duration::from_mins(2);
/// First and longest pause after a call that failed, per object.
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_secs(30);
/// How long at most nobody looks, so that a condition that depends on time is told.
const LOOK_AGAIN: Duration = Duration::from_hours(1);

type Name = ObjectRef<TokenRotation>;

/// A credential that only this process has. It is wiped from memory when it is dropped.
#[derive(Clone, Default)]
struct InHand {
    hand: Hand,
    token: Option<token::Token>,
}

struct Keeper {
    ctx: Context,
    store: Store<TokenRotation>,
    /// By the rotation's UID.
    hands: Mutex<HashMap<String, InHand>>,
    /// What is known of all cloud credentials, by the UID of the rotation that watches them.
    censuses: Mutex<HashMap<String, Census>>,
    /// Those whose Secrets somebody has touched.
    touched: Mutex<HashSet<Name>>,
    clock: Mutex<Option<Clock>>,
    /// When those that wait for their turn have it, and when the next one may be begun.
    turns: Mutex<(HashMap<Name, Instant>, Instant)>,
    failures: Mutex<HashMap<Name, u32>>,
    /// Probes of the tokens in use in Ranchers.
    probes: Mutex<HashMap<Name, probe::Probe>>,
    /// The version in which each was left, and until when nothing is to be done about that.
    resting: Mutex<HashMap<Name, (u64, Instant)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks after credentials until dropped.
pub(super) async fn run(ctx: Context) {
    let writer = Writer::<TokenRotation>::default();
    let store = writer.as_reader();
    let (wake, woken) = mpsc::unbounded_channel::<Name>();
    let keeper = Arc::new(Keeper {
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
    let control = Controller::for_stream(futures::stream::pending(), store.clone())
        .with_config(Config::default().concurrency(AT_ONCE))
        .reconcile_on(woken)
        .run(look_after, retry, keeper.clone())
        .for_each(|_| std::future::ready(()));
    let watch = watch(keeper.clone(), writer, wake.clone());
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
    // Where no namespace is named, nothing is watched and the others go on.
    tokio::join!(control, watch, secrets, tell::tell(&keeper));
}

async fn watch(
    keeper: Arc<Keeper>,
    mut writer: Writer<TokenRotation>,
    wake: mpsc::UnboundedSender<Name>,
) {
    let metrics = keeper.ctx.metrics.clone();
    let readable = |rotation: Guard<TokenRotation>| match rotation.0 {
        Ok(mut rotation) => {
            rotation.metadata.managed_fields = None;
            Some(rotation)
        }
        Err(misfit) => {
            metrics.unreadable.with_label_values(&["TokenRotation"]).inc();
            let rotation = misfit.metadata.name.as_deref().unwrap_or_default();
            tracing::warn!(rotation, error = misfit.error, "this TokenRotation cannot be read");
            None
        }
    };
    let on_event = |event: Event<Guard<TokenRotation>>| {
        let mut others = Vec::new();
        match event {
            Event::Init => writer.apply_watcher_event(&Event::Init),
            Event::InitApply(rotation) => {
                if let Some(rotation) = readable(rotation) {
                    writer.apply_watcher_event(&Event::InitApply(rotation));
                }
            }
            Event::InitDone => {
                writer.apply_watcher_event(&Event::InitDone);
                for rotation in keeper.store.state() {
                    let name = ObjectRef::from_obj(rotation.as_ref());
                    lock(&keeper.touched).insert(name.clone());
                    let _ = wake.send(name);
                }
            }
            Event::Apply(rotation) => {
                if let Some(rotation) = readable(rotation) {
                    let name = ObjectRef::from_obj(&rotation);
                    let before = keeper.store.get(&name);
                    let worked =
                        before.as_ref().is_some_and(|before| census::works(&keeper, before));
                    let is_new = before.is_none();
                    if is_new || worked != census::works(&keeper, &rotation) {
                        others = census::who_tells_of(&keeper, &rotation);
                    }
                    if !children::stands_alike(before.as_deref(), &rotation) {
                        others.extend(children::parent(&keeper, &rotation));
                    }
                    writer.apply_watcher_event(&Event::Apply(rotation));
                    let _ = wake.send(name);
                }
            }
            Event::Delete(rotation) => {
                if let Ok(rotation) = rotation.0 {
                    let uid = rotation.uid().unwrap_or_default();
                    lock(&keeper.hands).remove(&uid);
                    lock(&keeper.censuses).remove(&uid);
                    keeper.forget(&ObjectRef::from_obj(&rotation));
                    others = census::who_tells_of(&keeper, &rotation);
                    writer.apply_watcher_event(&Event::Delete(rotation));
                }
            }
        }
        for other in others {
            let name = ObjectRef::from_obj(other.as_ref());
            lock(&keeper.touched).insert(name.clone());
            let _ = wake.send(name);
        }
    };
    keeper.ctx.credentials.watch(on_event).await;
}

/// Whoever rests on a Secret that somebody has touched must be looked at.
async fn watch_secrets(
    keeper: Arc<Keeper>,
    namespace: &str,
    name: Option<&str>,
    wake: mpsc::UnboundedSender<Name>,
) {
    let touch = |secret: &PartialObjectMeta<Secret>| {
        let (name, made_for) = (secret.name_any(), secret.labels().get(LABEL_ROTATION).cloned());
        let rests_on = |rotation: &TokenRotation| {
            rotation.namespace().as_deref() == Some(namespace)
                && if let Some(uid) = &made_for {
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
            let name = ObjectRef::from_obj(rotation.as_ref());
            lock(&keeper.touched).insert(name.clone());
            let _ = wake.send(name);
        }
    };
    let on_event = |event: Event<PartialObjectMeta<Secret>>| match event {
        // What this process has bound a credential to is no news; that it is gone is.
        Event::Apply(secret) if secret.labels().contains_key(LABEL_ROTATION) => {}
        Event::Apply(secret) | Event::Delete(secret) => touch(&secret),
        // The first list is not news: all are looked at when a term begins. A later one may be.
        Event::Init | Event::InitApply(_) => {}
        Event::InitDone => {
            let of = |r: &TokenRotation| r.namespace().as_deref() == Some(namespace);
            for rotation in keeper.store.state_filter(of) {
                let name = ObjectRef::from_obj(rotation.as_ref());
                lock(&keeper.touched).insert(name.clone());
                let _ = wake.send(name);
            }
        }
    };
    keeper.ctx.credentials.watch_secrets(namespace, name, on_event).await;
}

impl Keeper {
    fn is_allowed(&self, namespace: &str) -> bool {
        self.ctx.credential_namespaces.contains_key(namespace)
    }

    /// For how long there is nothing to do, as far as the record says and nobody has touched anything.
    fn quiet(&self, rotation: &TokenRotation) -> Option<Duration> {
        // Nobody but a Rancher tells what is there, and what its time is.
        if rotation.spec.rancher.is_some() {
            return None;
        }
        let now = (*lock(&self.clock))?.now();
        let status = rotation.status.as_ref()?;
        let is_followed = status.observed_generation == rotation.metadata.generation;
        let plan = status::plan(rotation);
        let held =
            plan.source.is_none() || rotation.finalizers().iter().any(|f| f == ROTATION_FINALIZER);
        // What could not be read before can perhaps be read now: nobody tells when a right is given.
        let blind = status
            .conditions
            .iter()
            .any(|c| c.type_ == READY && c.reason.as_deref() == Some(UNREADABLE));
        if !is_followed || !held || plan.deleting.is_some() || blind {
            return None;
        }
        let record = status::record(Some(status));
        let current = record.current.as_ref()?;
        let (name, expires) = (current.name.clone(), current.expires);
        let says = token::Says { name, issued: None, expires };
        let held = Held { hash: current.hash.clone(), says, ..Held::default() };
        let target = Target::There {
            version: String::new(),
            holds: Some(held),
            beside: Vec::new(),
            kept: None,
        };
        let seen = Seen { now, target, ..Seen::default() };
        match decide(&plan, &record, &seen) {
            Act::Wait(until) => {
                let end = status.expires_at.as_deref().and_then(status::seconds);
                Some(pause(&[until, expiry::alarm(&plan, &record, end), end], now))
            }
            // Nothing is asked for those that only wait for their turn.
            Act::Write(Change::Named, next) if !next.is_asked() => {
                Some(self.turn(&ObjectRef::from_obj(rotation))).filter(|turn| !turn.is_zero())
            }
            _ => None,
        }
    }

    /// The rotation is left in this version, for so long.
    fn rests(&self, rotation: &TokenRotation, pause: Duration) {
        if let Some(version) = version(rotation) {
            let name = ObjectRef::from_obj(rotation);
            lock(&self.resting).insert(name, (version, Instant::now() + pause));
        }
    }

    /// Time for which a rotation is left that has not changed since it was: the echo of this process's
    /// own writes is no news.
    fn is_resting(&self, rotation: &TokenRotation) -> Option<Duration> {
        let (left, until) = *lock(&self.resting).get(&ObjectRef::from_obj(rotation))?;
        let is_known = version(rotation).is_some_and(|version| version <= left);
        let rest = until.saturating_duration_since(Instant::now());
        (is_known && !rest.is_zero()).then_some(rest)
    }

    /// For how long one that is due has to wait, so that many are not begun at once. Each is told its
    /// turn once, has it until it is begun, and is not looked at before it comes.
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

    fn forget(&self, name: &Name) {
        self.begun(name);
        lock(&self.failures).remove(name);
        lock(&self.touched).remove(name);
        lock(&self.probes).remove(name);
        lock(&self.resting).remove(name);
    }
}

/// Versions of one resource are numbers that grow (KEP-5504). `None`: this one is no number.
fn version(rotation: &TokenRotation) -> Option<u64> {
    rotation.metadata.resource_version.as_ref()?.parse().ok()
}

/// Until the first of these that is to come.
fn pause(times: &[Option<Seconds>], now: Seconds) -> Duration {
    let next = times.iter().flatten().filter(|at| **at > now).min();
    let left = next.and_then(|at| u64::try_from(at - now).ok()).map(Duration::from_secs);
    left.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN)
}

async fn look_after(
    rotation: Arc<TokenRotation>,
    keeper: Arc<Keeper>,
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
fn retry(rotation: Arc<TokenRotation>, error: &CallError, keeper: Arc<Keeper>) -> Action {
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
        tracing::warn!(namespace, rotation, %error, failures, "credential not looked after, trying again");
    }
    let jitter = f64::from(u8::try_from(hasher.finish() & 0xff).unwrap_or_default()) / 255.0;
    Action::requeue(backoff(failures, FIRST_RETRY, LAST_RETRY, jitter))
}
