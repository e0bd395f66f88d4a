//! Registers admission: writes the address of admission and the trusted authorities into the
//! configurations by which the API server calls admission. These are the two webhook
//! configurations, and `spec.conversion` of LoadBalancer's CRD.
//!
//! Invariants:
//! * Admission is registered only after it can answer.
//! * A change of a configuration by another client is corrected: the first one at once, further
//!   ones after ever longer pauses. So two clients that disagree do not write in a tight loop.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::Value;
use tokio::time::Instant;

use super::{LONGEST_PAUSE, Registrar, RegistrarState, RoundStop, store_secret};
use crate::domain::admission::webhook_configuration::{
    AdmissionEndpoint, CONFIGURATION, Registration, WebhookObject, bundles, has_content, is_ours,
    needs_conversion, patch,
};
use crate::domain::limits::backoff::backoff;
use crate::http::certificates::ParsedCertificate;
use crate::http::webhook;
use crate::k8s::CallError;

/// First pause and longest pause between two repairs of a configuration that another client keeps
/// changing.
const REPAIR: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// Longest time between two consecutive repairs of a configuration. After a longer time without a
/// repair, the count of consecutive repairs starts again at one.
const QUIET: Duration = Duration::from_mins(10);
/// Interval at which admission's Service is checked for ready endpoints.
const SERVICE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// State of the registration in the configurations: what this replica has written, repaired and
/// logged, and whether it has found admission's Service ready.
#[derive(Default)]
pub(super) struct Repairs {
    /// Map from a configuration to the desired content that this replica last wrote to the
    /// configuration, or last found in it.
    said: BTreeMap<WebhookObject, Value>,
    /// Map from a configuration to the number of its consecutive repairs, and the time of the last
    /// of these repairs.
    done: BTreeMap<WebhookObject, (u32, Instant)>,
    /// Configurations that are missing, and whose absence has been logged.
    missing: BTreeSet<WebhookObject>,
    /// Whether this replica has found a ready endpoint of admission's Service.
    reachable: bool,
    /// Whether the lack of a ready endpoint has been logged.
    logged: bool,
}

impl Registrar {
    /// Writes the configurations that differ from their desired content. Returns the pause until
    /// the next round. `Err` with [`RoundStop::Again`]: the configurations were written, or an
    /// object has changed, so the round starts again.
    pub(super) async fn register(&self, state: &mut RegistrarState) -> Result<Duration, RoundStop> {
        if !state.owner_was_asked {
            state.owner = self.find_owner().await?;
            state.owner_was_asked = true;
        }
        let Some(registration) = self.registration(state) else { return Ok(LONGEST_PAUSE) };
        let mut wrong = Vec::new();
        for part in WebhookObject::ALL {
            let Some(stored) = state.parts.get(&part).and_then(Option::as_ref) else {
                state.repairs.warn_once(part);
                continue;
            };
            state.repairs.missing.remove(&part);
            let Some(wanted) = registration.wanted(part, Some(stored)) else { continue };
            if has_content(stored, &wanted) {
                state.repairs.said.insert(part, wanted);
            } else {
                wrong.push((part, wanted));
            }
        }
        if wrong.is_empty() {
            return Ok(LONGEST_PAUSE);
        }
        if !self.is_reachable(state).await? {
            return Ok(SERVICE_CHECK_INTERVAL);
        }
        // Another replica may have stored a newer bundle in the Secret than this replica has read,
        // so the Secret is read again.
        let fresh = self.webhook_objects.secret().await?;
        if state.secret != fresh {
            store_secret(state, fresh);
            return Err(RoundStop::Again);
        }
        // The garbage collector would remove a configuration whose owner no longer exists, so the
        // owner is read again.
        let owner = self.find_owner().await?;
        if state.owner != owner {
            state.owner = owner;
            return Err(RoundStop::Again);
        }
        let mut pause = LONGEST_PAUSE;
        for (part, wanted) in wrong {
            let is_repair = state.repairs.said.get(&part) == Some(&wanted);
            if is_repair && let Some(wait) = state.repairs.wait(part) {
                pause = pause.min(wait);
                continue;
            }
            self.write(state, part, wanted, is_repair).await?;
        }
        // The round starts again, because the next step for the certificates may wait for these
        // writes.
        if pause == LONGEST_PAUSE { Err(RoundStop::Again) } else { Ok(pause) }
    }

    async fn write(
        &self,
        state: &mut RegistrarState,
        part: WebhookObject,
        wanted: Value,
        is_repair: bool,
    ) -> Result<(), RoundStop> {
        let Some(stored) = state.parts.get(&part).and_then(Option::as_ref) else { return Ok(()) };
        match self.webhook_objects.write(part, &patch(stored, &wanted)).await {
            Ok(written) => {
                if is_repair {
                    let times = state.repairs.count(part);
                    self.metrics.admission.repairs.with_label_values(&[part.kind()]).inc();
                    tracing::warn!(
                        object = part.kind(),
                        times,
                        "another client changed the registration of admission, and the operator \
                         corrected it. Does Harvester's own webhook still run?"
                    );
                } else {
                    tracing::info!(object = part.kind(), "admission registered");
                }
                state.repairs.said.insert(part, wanted);
                state.parts.insert(part, Some(written));
                Ok(())
            }
            Err(CallError::Conflict(_) | CallError::NotFound(_)) => {
                let now = self.webhook_objects.read(part).await?;
                state.parts.insert(part, now);
                Err(RoundStop::Again)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn registration(&self, state: &RegistrarState) -> Option<Registration> {
        let username = self.username.borrow().clone();
        let material = state.material.as_ref()?;
        if username.is_empty() || state.serving.is_none() {
            return None;
        }
        Some(Registration {
            namespace: self.namespace.clone(),
            endpoint: self.endpoint.clone(),
            username,
            bundle: STANDARD.encode(material.bundle()),
            paths: [webhook::VALIDATION, webhook::MUTATION, webhook::CONVERSION],
            owner: state.owner.clone(),
        })
    }

    async fn find_owner(&self) -> Result<Option<OwnerReference>, RoundStop> {
        let Some(name) = &self.owner else { return Ok(None) };
        Ok(self.webhook_objects.owner(name).await?)
    }

    /// Whether admission's Service has a ready endpoint, or had one at an earlier check. Always
    /// true if the API server reaches admission by a URL. If a Service without a ready endpoint
    /// were registered, the API server would refuse every write that admission checks.
    async fn is_reachable(&self, state: &mut RegistrarState) -> Result<bool, RoundStop> {
        let AdmissionEndpoint::Service(namespace, name) = &self.endpoint else { return Ok(true) };
        if !state.repairs.reachable {
            state.repairs.reachable = self.webhook_objects.is_served(namespace, name).await?;
            if !state.repairs.reachable && !std::mem::replace(&mut state.repairs.logged, true) {
                tracing::warn!(
                    service = format!("{namespace}/{name}"),
                    "admission is not registered yet: the Service has no ready endpoint"
                );
            }
        }
        Ok(state.repairs.reachable)
    }
}

impl Repairs {
    /// Logs that a webhook configuration is missing. A missing CRD is not logged. The same line is
    /// logged a second time only if the configuration has existed in between.
    fn warn_once(&mut self, part: WebhookObject) {
        if part != WebhookObject::Conversion && self.missing.insert(part) {
            let error = CallError::Missing(part.kind(), CONFIGURATION);
            tracing::warn!(%error, "a webhook configuration is missing, so the API server does not call admission");
        }
    }

    /// Time for which the next repair of the configuration `part` has to wait. `None`: the repair
    /// may be done now.
    fn wait(&self, part: WebhookObject) -> Option<Duration> {
        let (times, last) = self.done.get(&part)?;
        let pause = backoff(times.saturating_sub(1), REPAIR.0, REPAIR.1, 0.0);
        Some(pause.checked_sub(last.elapsed())?).filter(|wait| !wait.is_zero())
    }

    /// Counts a repair of the configuration `part`. Returns the number of its consecutive repairs.
    fn count(&mut self, part: WebhookObject) -> u32 {
        let done = self.done.entry(part).or_insert_with(|| (0, Instant::now()));
        if done.1.elapsed() > QUIET {
            done.0 = 0;
        }
        *done = (done.0 + 1, Instant::now());
        done.0
    }
}

/// Whether every existing configuration trusts the authority `ca`. `false` also if a configuration
/// has no bundle. A CRD without the version v1alpha1 calls no webhook and is left out.
pub(super) fn is_trusted(state: &RegistrarState, ca: &ParsedCertificate) -> bool {
    WebhookObject::ALL.iter().all(|part| {
        // A missing configuration calls no server, so it needs to trust no authority.
        let Some(stored) = state.parts.get(part).and_then(Option::as_ref) else { return true };
        if *part == WebhookObject::Conversion && !needs_conversion(stored) {
            return true;
        }
        let bundles = bundles(*part, stored);
        !bundles.is_empty() && bundles.into_iter().all(|bundle| ca.is_in(&decoded(bundle)))
    })
}

/// Whether at least one of the two webhook configurations calls this operator. Any replica may have
/// written that configuration.
pub(super) fn is_registered(state: &RegistrarState) -> bool {
    [WebhookObject::Validating, WebhookObject::Mutating]
        .iter()
        .any(|part| state.parts.get(part).and_then(Option::as_ref).is_some_and(is_ours))
}

/// Authorities that the two webhook configurations trust now, in PEM. A webhook configuration that
/// does not call this operator is left out, and so is the CRD's conversion.
pub(super) fn trusted(state: &RegistrarState) -> String {
    let ours =
        [WebhookObject::Validating, WebhookObject::Mutating].into_iter().filter_map(|part| {
            let stored = state.parts.get(&part)?.as_ref()?;
            is_ours(stored).then(|| bundles(part, stored))
        });
    let mut known: Vec<&str> = ours.flatten().collect();
    known.sort_unstable();
    known.dedup();
    known.iter().map(|bundle| String::from_utf8_lossy(&decoded(bundle)).into_owned()).collect()
}

fn decoded(bundle: &str) -> Vec<u8> {
    STANDARD.decode(bundle).unwrap_or_default()
}
