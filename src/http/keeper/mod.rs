//! Keeps admission reachable: the Secret with its certificates, the certificate in use, and the
//! configurations that lead the API server here. What is to be done is decided in
//! [`crate::domain::admission::certificates`] and [`crate::domain::admission::webhook_configuration`].
//!
//! Invariants: every replica does all of this, and each write is refused if somebody was faster.
//! A configuration is written only after the Secret was read anew, so that nobody puts an older
//! bundle over a newer one. What is served stays in memory, whatever becomes of the Secret.

mod registering;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use super::authority::{Identity, Material, Trusted, Unfit};
use super::tls::InUse;
use crate::domain::admission::certificates::{At, SETTLING, Step, adopt, plan, ready};
use crate::domain::admission::webhook_configuration::{Owner, Part, Place};
use crate::domain::limits::backoff::backoff;
use crate::k8s::CallError;
use crate::k8s::installation::{Installation, Look, Sealed};
use crate::metrics::Metrics;
use registering::Repairs;

/// Clocks are set while a process sleeps: nothing is left alone for longer.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// After a call that failed, doubling.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// Steps that follow each other at once. A start takes one, a repair two or three.
const MOST_STEPS: usize = 8;

/// What is kept, and how it is called.
pub struct Keeper {
    /// The way to the objects.
    pub installation: Installation,
    /// What handshakes are answered with.
    pub in_use: Arc<InUse>,
    /// What the API server may call this replica.
    pub names: BTreeSet<String>,
    /// Where the API server finds the replicas.
    pub place: Place,
    /// The namespace of the webhooks' names.
    pub namespace: String,
    /// The ClusterRole with which the webhook configurations go.
    pub owner: Option<String>,
    /// Who this operator is; empty until that is known.
    pub me: watch::Receiver<String>,
    /// Told once requests can be answered.
    pub ready: watch::Sender<bool>,
    /// Replacements are made so much earlier than they must be.
    pub early: Duration,
    /// The process's metrics.
    pub metrics: Metrics,
}

/// What was seen, and what is served.
#[derive(Default)]
struct State {
    /// Whether the Secret has been looked at.
    looked: bool,
    secret: Option<Sealed>,
    material: Option<Material>,
    /// What to put back, should the Secret go.
    memory: Option<Material>,
    serving: Option<Identity>,
    /// What each configuration was last seen to be.
    parts: BTreeMap<Part, Option<Value>>,
    /// With whom the configurations go, if that was asked already.
    owner: Option<Owner>,
    owner_was_asked: bool,
    /// Authorities that every configuration trusts, and since when that was seen.
    trusted: Vec<(Trusted, Instant)>,
    repairs: Repairs,
    failures: u32,
}

/// Why a round ended early.
enum Stop {
    Failed(CallError),
    Unfit(Unfit),
    /// Somebody else was faster; what there is now has been read.
    Again,
}

impl From<CallError> for Stop {
    fn from(error: CallError) -> Self {
        Self::Failed(error)
    }
}

impl From<Unfit> for Stop {
    fn from(error: Unfit) -> Self {
        Self::Unfit(error)
    }
}

impl Keeper {
    /// Keeps all of it until dropped.
    pub async fn run(mut self) {
        let mut looks = self.installation.watch();
        let mut state = State::default();
        loop {
            let pause = self.rounds(&mut state).await;
            let me_changed = async {
                // Once its sender is gone there is nothing more to hear.
                if self.me.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                look = looks.recv() => match look {
                    Some(look) => take(&mut state, look, &mut looks),
                    // The watches live as long as the process.
                    None => sleep(LONGEST_PAUSE).await,
                },
                () = me_changed => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Rounds until one changes nothing. Returns how long nothing is to be done.
    async fn rounds(&self, state: &mut State) -> Duration {
        for _ in 0..MOST_STEPS {
            match self.round(state).await {
                Ok(pause) => {
                    state.failures = 0;
                    return pause.min(LONGEST_PAUSE);
                }
                Err(Stop::Again) => {}
                Err(Stop::Failed(error)) => {
                    tracing::warn!(%error, "admission's Secret or configurations: will try again");
                    return retry(state);
                }
                Err(Stop::Unfit(error)) => {
                    tracing::error!(%error, "no certificate for admission: will try again");
                    return retry(state);
                }
            }
        }
        retry(state)
    }

    async fn round(&self, state: &mut State) -> Result<Duration, Stop> {
        if !state.looked || state.parts.len() < Part::ALL.len() {
            return Ok(LONGEST_PAUSE);
        }
        Self::note_trust(state);
        let pause = self.certificates(state).await?;
        let adopting = self.adopt(state);
        let registering = self.register(state).await?;
        Ok(pause.min(adopting).min(registering))
    }

    /// One step of the certificates' life, if one is due; then the round begins anew.
    async fn certificates(&self, state: &mut State) -> Result<Duration, Stop> {
        let now = now();
        let ours = state.serving.as_ref().filter(|ours| ours.not_after > now);
        let facts = state.material.as_ref().map(|m| m.facts(ours.map(|ours| &ours.authority)));
        let next = state.material.as_ref().and_then(Material::next);
        let trusted_for = next.as_ref().and_then(|next| trusted_for(state, next));
        let at = At { now, early: self.early, names: &self.names, trusted_for };
        let step = plan(facts.as_ref(), at);
        let material = state.material.clone();
        let made = match (&step, material) {
            (Step::Wait(until), _) => return Ok(until.saturating_sub(now)),
            (Step::Start, _) => {
                // What others serve is trusted now, and must be for as long as they do.
                for part in [Part::Validating, Part::Mutating] {
                    let stored = self.installation.read(part).await?;
                    state.parts.insert(part, stored);
                }
                let trusted = registering::trusted(state);
                match state.memory.clone() {
                    Some(memory) => memory.trusting(now, &trusted),
                    None => Material::start(now, &self.names, &trusted)?,
                }
            }
            (_, None) => return Ok(LONGEST_PAUSE),
            (Step::Remember, Some(material)) => match ours {
                Some(ours) => material.remembering(&ours.authority),
                None => return Ok(LONGEST_PAUSE),
            },
            (Step::Renew(names), Some(material)) => material.renewed(now, names)?,
            (Step::Begin, Some(material)) => material.begun(now)?,
            (Step::Switch, Some(material)) => material.switched(now, &self.names)?,
            (Step::Forget, Some(material)) => material.forgetting(now),
        };
        match self.installation.write_secret(state.secret.as_ref(), made.data()).await {
            Ok(written) => {
                tracing::info!(step = step_name(&step), "admission's certificates written");
                take_secret(state, Some(written));
            }
            Err(CallError::Conflict | CallError::NotFound) => {
                let stored = self.installation.secret().await?;
                take_secret(state, stored);
            }
            Err(error) => return Err(error.into()),
        }
        Err(Stop::Again)
    }

    /// Serves what is stored, as soon as that is no worse than what is served.
    fn adopt(&self, state: &mut State) -> Duration {
        let Some(material) = &state.material else { return LONGEST_PAUSE };
        let (ca, serving) = material.ends();
        let ends = &self.metrics.admission.certificate_end;
        for (which, end) in [("ca", Some(ca)), ("serving", serving)] {
            let end = end.and_then(|end| i64::try_from(end.as_secs()).ok());
            ends.with_label_values(&[which]).set(end.unwrap_or(0));
        }
        let Some(stored) = material.identity() else { return LONGEST_PAUSE };
        let same = |ours: &Identity| ours.certified.cert == stored.certified.cert;
        if !state.serving.as_ref().is_some_and(same) {
            let good = state.serving.as_ref().is_some_and(|ours| {
                ours.not_after > now() && trusted_for(state, &ours.authority).is_some()
            });
            let trusted = trusted_for(state, &stored.authority);
            if !adopt(good, trusted) {
                return SETTLING.saturating_sub(trusted.unwrap_or_default());
            }
            self.in_use.set(stored.certified.clone());
            tracing::info!("admission serves a new certificate");
            state.serving = Some(stored);
        }
        state.memory = Some(material.clone());
        // Who this is will be heard of.
        if *self.ready.borrow() || self.me.borrow().is_empty() {
            return LONGEST_PAUSE;
        }
        let trusted = state.serving.as_ref().and_then(|ours| trusted_for(state, &ours.authority));
        if ready(registering::is_registered(state), trusted) {
            self.ready.send_replace(true);
            tracing::info!("admission is ready");
        }
        trusted.map_or(LONGEST_PAUSE, |trusted| SETTLING.saturating_sub(trusted))
    }

    /// Notes since when which authority has been trusted everywhere.
    fn note_trust(state: &mut State) {
        let Some(material) = &state.material else { return };
        let stored = material.identity().map(|identity| identity.authority);
        let ours = state.serving.as_ref().map(|ours| ours.authority.clone());
        let mut trusted = Vec::new();
        for ca in material.next().into_iter().chain(stored).chain(ours) {
            if registering::is_trusted(state, &ca) {
                let since = state.trusted.iter().find(|(known, _)| *known == ca);
                let since = since.map_or_else(Instant::now, |(_, since)| *since);
                trusted.push((ca, since));
            }
        }
        state.trusted = trusted;
    }
}

fn take(state: &mut State, look: Look, more: &mut mpsc::UnboundedReceiver<Look>) {
    let mut look = Some(look);
    while let Some(seen) = look {
        match seen {
            Look::Secret(secret) => take_secret(state, secret),
            Look::Configuration(part, content) => {
                state.parts.insert(part, content);
            }
        }
        look = more.try_recv().ok();
    }
}

fn take_secret(state: &mut State, secret: Option<Sealed>) {
    if std::mem::replace(&mut state.looked, true) && state.secret == secret {
        return;
    }
    // The one that is installed is empty.
    let written = secret.as_ref().filter(|secret| !secret.data.is_empty());
    state.material = written.and_then(|secret| match Material::read(&secret.data) {
        Ok(material) => Some(material),
        Err(error) => {
            tracing::warn!(%error, "admission's Secret is unreadable, and will be written anew");
            None
        }
    });
    state.secret = secret;
}

fn trusted_for(state: &State, ca: &Trusted) -> Option<Duration> {
    state.trusted.iter().find(|(known, _)| known == ca).map(|(_, since)| since.elapsed())
}

fn retry(state: &mut State) -> Duration {
    state.failures = state.failures.saturating_add(1);
    backoff(state.failures - 1, RETRY.0, RETRY.1, jitter())
}

/// 0.0 to 1.0.
pub fn jitter() -> f64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    let random = std::hash::RandomState::new().build_hasher().finish();
    f64::from(u32::try_from(random >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn step_name(step: &Step) -> &'static str {
    match step {
        Step::Start => "start",
        Step::Remember => "remember",
        Step::Renew(_) => "renew",
        Step::Begin => "begin",
        Step::Switch => "switch",
        Step::Forget => "forget",
        Step::Wait(_) => "wait",
    }
}

/// Finds out who this operator is, however long that takes.
pub async fn find_me(installation: Installation, me: watch::Sender<String>) {
    let mut failures = 0;
    loop {
        match timeout(LONGEST_PAUSE, installation.me()).await {
            Ok(Ok(Some(name))) if !name.is_empty() => {
                tracing::info!(name, "known to the API server as");
                drop(me.send_replace(name));
                return;
            }
            Ok(Err(error)) => tracing::warn!(%error, "cannot ask who this operator is"),
            Ok(Ok(_)) | Err(_) => {
                tracing::warn!("the API server does not say who this operator is");
            }
        }
        sleep(backoff(failures, RETRY.0, RETRY.1, jitter())).await;
        failures = failures.saturating_add(1);
    }
}
