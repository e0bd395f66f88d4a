//! Keeps three things of admission current: the Secret with the certificates, the certificate that
//! this replica serves, and the configurations by which the API server calls this operator.
//! Decisions are in [`crate::domain::admission::certificates`] and
//! [`crate::domain::admission::webhook_configuration`].
//!
//! Invariants:
//! * Every replica does this work. The API server refuses a write if another replica wrote the
//!   object first.
//! * A configuration is written only after a new read of the Secret, so that no replica replaces a
//!   newer bundle with an older one.
//! * The served certificate stays in memory, whatever happens to the Secret.

mod configurations;

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use super::certificates::{
    CertificateError, CertificateMaterial, ParsedCertificate, ServingIdentity,
};
use super::tls::InUse;
use crate::domain::admission::certificates::{
    CertificateStep, SETTLING, StepInput, adopt, plan, ready,
};
use crate::domain::admission::webhook_configuration::{AdmissionEndpoint, WebhookObject};
use crate::domain::limits::backoff::backoff;
use crate::k8s::CallError;
use crate::k8s::webhook_objects::{ObservedObject, VersionedSecret, WebhookObjects};
use crate::metrics::Metrics;
use configurations::Repairs;

/// Longest pause between two rounds. The pause is limited because the clock may be set forward
/// during the pause. After such a change, a step is due earlier than planned.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// First and longest pause after a failed call. Each further failure doubles the pause.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// Maximum number of consecutive rounds without a pause. A round that changes something is followed
/// by the next one at once. The first installation takes about three rounds, and a repair two or
/// three.
const MOST_STEPS: usize = 8;

/// Registers admission with the API server, and keeps the registration current.
pub struct Registrar {
    /// Access to the Secret and the configurations.
    pub webhook_objects: WebhookObjects,
    /// Holder of the certificate that TLS handshakes use.
    pub in_use: Arc<InUse>,
    /// Names by which the API server may call this replica.
    pub names: BTreeSet<String>,
    /// Service or URL at which the API server reaches the replicas.
    pub endpoint: AdmissionEndpoint,
    /// Namespace in the webhooks' names.
    pub namespace: String,
    /// ClusterRole that owns the webhook configurations. `None`: no owner is set.
    pub owner: Option<String>,
    /// Username of this operator; empty until it is known.
    pub username: watch::Receiver<String>,
    /// Set to true when admission can answer requests.
    pub ready: watch::Sender<bool>,
    /// Head start: this replica replaces a certificate this long before the replacement is due. The
    /// head start is random, so that not all replicas replace the certificate at once.
    pub early: Duration,
    /// The process's metrics.
    pub metrics: Metrics,
}

/// State of the registration: objects as last read from the API server, and the certificate that
/// this replica serves.
#[derive(Default)]
struct RegistrarState {
    /// Whether the Secret has been read.
    secret_observed: bool,
    secret: Option<VersionedSecret>,
    material: Option<CertificateMaterial>,
    /// Content to restore if the Secret is deleted. `None`: this replica has not served a
    /// certificate of the Secret yet.
    memory: Option<CertificateMaterial>,
    serving: Option<ServingIdentity>,
    /// Map from a configuration to its content as last read; `None` if the configuration is
    /// missing.
    parts: BTreeMap<WebhookObject, Option<Value>>,
    /// Owner of the configurations. `None`: it was not read yet, or there is none.
    owner: Option<OwnerReference>,
    owner_was_asked: bool,
    /// Authorities that every configuration trusts, each with the time at which this trust was
    /// first observed.
    trusted: Vec<(ParsedCertificate, Instant)>,
    repairs: Repairs,
    failures: u32,
}

/// Reason why a round ended early.
#[derive(Debug, thiserror::Error)]
enum RoundStop {
    #[error(transparent)]
    Failed(#[from] CallError),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// Change of an object, by this replica or by another client. So the round starts again.
    #[error("the state has changed")]
    Again,
}

impl Registrar {
    /// Keeps the registration current. Does not return.
    pub async fn run(mut self) {
        let mut observations = self.webhook_objects.watch();
        let mut state = RegistrarState::default();
        loop {
            let pause = self.rounds(&mut state).await;
            let username_changed = async {
                // If the sender was dropped, `username` does not change any more.
                if self.username.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                observed = observations.recv() => match observed {
                    Some(observed) => store_observed(&mut state, observed, &mut observations),
                    // Not expected, because the watches run as long as the process.
                    None => sleep(LONGEST_PAUSE).await,
                },
                () = username_changed => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Runs rounds until a round changes nothing or fails, `MOST_STEPS` at most. Returns the time
    /// until the next round is due.
    async fn rounds(&self, state: &mut RegistrarState) -> Duration {
        for _ in 0..MOST_STEPS {
            match self.round(state).await {
                Ok(pause) => {
                    state.failures = 0;
                    return pause.min(LONGEST_PAUSE);
                }
                Err(RoundStop::Again) => {}
                Err(RoundStop::Failed(error)) => {
                    tracing::warn!(%error, "cannot update admission's Secret or configurations, will try again");
                    return retry(state);
                }
                Err(RoundStop::Certificate(error)) => {
                    tracing::error!(%error, "cannot make a certificate for admission, will try again");
                    return retry(state);
                }
            }
        }
        retry(state)
    }

    async fn round(&self, state: &mut RegistrarState) -> Result<Duration, RoundStop> {
        if !state.secret_observed || state.parts.len() < WebhookObject::ALL.len() {
            return Ok(LONGEST_PAUSE);
        }
        Self::record_trust(state);
        let pause = self.certificates(state).await?;
        let adopting = self.adopt(state);
        let registering = self.register(state).await?;
        Ok(pause.min(adopting).min(registering))
    }

    /// Takes the next step for the certificates, if a step is due. `Ok`: no step is due now; the
    /// field is the time until the next check for a step. `Err` with [`RoundStop::Again`]: a step
    /// was taken, or another replica wrote the Secret first, so the round starts again.
    async fn certificates(&self, state: &mut RegistrarState) -> Result<Duration, RoundStop> {
        let now = now();
        let ours = state.serving.as_ref().filter(|ours| ours.not_after > now);
        let facts = state.material.as_ref().map(|m| m.facts(ours.map(|ours| &ours.authority)));
        let next = state.material.as_ref().and_then(CertificateMaterial::next);
        let trusted_for = next.as_ref().and_then(|next| trusted_for(state, next));
        let at = StepInput { now, early: self.early, names: &self.names, trusted_for };
        let step = plan(facts.as_ref(), at);
        let material = state.material.clone();
        let made = match (&step, material) {
            (CertificateStep::Wait(until), _) => return Ok(until.saturating_sub(now)),
            (CertificateStep::Start, _) => {
                // The configurations trust the authorities of certificates that other replicas
                // serve now. These authorities must stay trusted, so the new content of the Secret
                // includes them.
                for part in [WebhookObject::Validating, WebhookObject::Mutating] {
                    let stored = self.webhook_objects.read(part).await?;
                    state.parts.insert(part, stored);
                }
                let trusted = configurations::trusted(state);
                match state.memory.clone() {
                    Some(memory) => memory.trusting(now, &trusted),
                    None => CertificateMaterial::start(now, &self.names, &trusted)?,
                }
            }
            (_, None) => return Ok(LONGEST_PAUSE),
            (CertificateStep::Remember, Some(material)) => match ours {
                Some(ours) => material.remembering(&ours.authority),
                None => return Ok(LONGEST_PAUSE),
            },
            (CertificateStep::Renew(names), Some(material)) => material.renewed(now, names)?,
            (CertificateStep::Begin, Some(material)) => material.with_next_authority(now)?,
            (CertificateStep::Switch, Some(material)) => material.switched(now, &self.names)?,
            (CertificateStep::Forget, Some(material)) => material.forgetting(now),
        };
        match self.webhook_objects.write_secret(state.secret.as_ref(), made.data()).await {
            Ok(written) => {
                tracing::info!(step = step_name(&step), "wrote the Secret of admission");
                store_secret(state, Some(written));
            }
            Err(CallError::Conflict(_) | CallError::NotFound(_)) => {
                let stored = self.webhook_objects.secret().await?;
                store_secret(state, stored);
            }
            Err(error) => return Err(error.into()),
        }
        Err(RoundStop::Again)
    }

    /// Starts to serve the certificate in the Secret, if one of these holds:
    /// * No certificate is served now, or the served one has expired or is not trusted.
    /// * Every configuration has trusted the authority of the certificate in the Secret for
    ///   [`SETTLING`].
    ///
    /// Then sets `ready` to true if admission can answer. Also sets the metrics of the
    /// certificates' expiry. Returns the time after which the caller must call this method again.
    fn adopt(&self, state: &mut RegistrarState) -> Duration {
        let Some(material) = &state.material else { return LONGEST_PAUSE };
        let (ca, serving) = material.expiries();
        let gauges = &self.metrics.admission.certificate_expiry;
        for (which, expiry) in [("ca", Some(ca)), ("serving", serving)] {
            let expiry = expiry.and_then(|expiry| i64::try_from(expiry.as_secs()).ok());
            gauges.with_label_values(&[which]).set(expiry.unwrap_or(0));
        }
        let Some(stored) = material.identity() else { return LONGEST_PAUSE };
        let same = |ours: &ServingIdentity| ours.certified.cert == stored.certified.cert;
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
        // If `username` is not known yet, a later change of `username` starts another round.
        if *self.ready.borrow() || self.username.borrow().is_empty() {
            return LONGEST_PAUSE;
        }
        let trusted = state.serving.as_ref().and_then(|ours| trusted_for(state, &ours.authority));
        if ready(configurations::is_registered(state), trusted) {
            self.ready.send_replace(true);
            tracing::info!("admission is ready");
        }
        trusted.map_or(LONGEST_PAUSE, |trusted| SETTLING.saturating_sub(trusted))
    }

    /// Sets `state.trusted` to those of three authorities that every configuration trusts: the next
    /// authority, the signer of the certificate in the Secret, and the signer of the served
    /// certificate. An authority that was in `state.trusted` before keeps its time.
    fn record_trust(state: &mut RegistrarState) {
        let Some(material) = &state.material else { return };
        let stored = material.identity().map(|identity| identity.authority);
        let ours = state.serving.as_ref().map(|ours| ours.authority.clone());
        let mut trusted = Vec::new();
        for ca in material.next().into_iter().chain(stored).chain(ours) {
            if configurations::is_trusted(state, &ca) {
                let since = state.trusted.iter().find(|(known, _)| *known == ca);
                let since = since.map_or_else(Instant::now, |(_, since)| *since);
                trusted.push((ca, since));
            }
        }
        state.trusted = trusted;
    }
}

fn store_observed(
    state: &mut RegistrarState,
    observed: ObservedObject,
    more: &mut mpsc::UnboundedReceiver<ObservedObject>,
) {
    for seen in iter::once(observed).chain(iter::from_fn(|| more.try_recv().ok())) {
        match seen {
            ObservedObject::Secret(secret) => store_secret(state, secret),
            ObservedObject::Configuration(part, content) => {
                state.parts.insert(part, content);
            }
        }
    }
}

fn store_secret(state: &mut RegistrarState, secret: Option<VersionedSecret>) {
    if std::mem::replace(&mut state.secret_observed, true) && state.secret == secret {
        return;
    }
    // The installation creates the Secret without content, so there is nothing to read.
    let written = secret.as_ref().filter(|secret| !secret.data.is_empty());
    state.material = written.and_then(|secret| match CertificateMaterial::read(&secret.data) {
        Ok(material) => Some(material),
        Err(error) => {
            tracing::warn!(%error, "cannot read admission's Secret, will write a new one");
            None
        }
    });
    state.secret = secret;
}

fn trusted_for(state: &RegistrarState, ca: &ParsedCertificate) -> Option<Duration> {
    state.trusted.iter().find(|(known, _)| known == ca).map(|(_, since)| since.elapsed())
}

fn retry(state: &mut RegistrarState) -> Duration {
    state.failures = state.failures.saturating_add(1);
    backoff(state.failures - 1, RETRY.0, RETRY.1, jitter())
}

/// Random number from 0.0 to 1.0, for times that must differ between replicas.
pub fn jitter() -> f64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    let random = std::hash::RandomState::new().build_hasher().finish();
    f64::from(u32::try_from(random >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn step_name(step: &CertificateStep) -> &'static str {
    match step {
        CertificateStep::Start => "new authority and certificate",
        CertificateStep::Remember => "trust the authority of this replica's certificate",
        CertificateStep::Renew(_) => "new certificate",
        CertificateStep::Begin => "next authority",
        CertificateStep::Switch => "sign with the next authority",
        CertificateStep::Forget => "remove expired authorities",
        CertificateStep::Wait(_) => "wait",
    }
}

/// Reads the username of this operator from the API server, and sends it to `username`. Retries
/// without limit.
pub async fn find_username(webhook_objects: WebhookObjects, username: watch::Sender<String>) {
    let mut failures = 0;
    loop {
        match timeout(LONGEST_PAUSE, webhook_objects.user_name()).await {
            Ok(Ok(Some(name))) if !name.is_empty() => {
                tracing::info!(name, "read the username of this operator");
                drop(username.send_replace(name));
                return;
            }
            Ok(Err(error)) => tracing::warn!(%error, "cannot read the username of this operator"),
            Ok(Ok(_)) | Err(_) => {
                tracing::warn!("the API server has not returned the username of this operator");
            }
        }
        sleep(backoff(failures, RETRY.0, RETRY.1, jitter())).await;
        failures = failures.saturating_add(1);
    }
}
