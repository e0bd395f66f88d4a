//! Admission through a real API server: its start, its certificates, its end, and other traffic to
//! its port.

mod garbage;
pub(crate) mod hostile_requests;
mod lb_rows;
mod load_balancers;
mod outage;
mod pool_rows;
mod pool_rules;
mod pools;
mod registration;
mod rotation;
pub(crate) mod said;
mod soak;
mod tenants;
pub(crate) mod wire;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use harvester_guest_operator::api::IPPool;
use harvester_guest_operator::http::certificates::{CertificateMaterial, Data};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use testbed::{Balancer, Operator, Stalls, Start, eventually};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};

use self::soak::LongRun;
use crate::support::{BareWrites, Cluster, SOON, pool};

const NAMESPACE: &str = "harvester-system";
const SECRET: &str = "harvester-guest-operator-admission";
const CONFIGURATION: &str = "harvester-load-balancer-webhook";

/// Options with which the API server calls the operator itself.
pub(crate) fn itself() -> Start {
    Start { admission: Some("https://127.0.0.1:0".to_owned()), ..Start::default() }
}

fn through(balancer: &Balancer) -> Start {
    let url = format!("https://{}", balancer.address());
    Start { admission: Some(url), ..Start::default() }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn names() -> BTreeSet<String> {
    let ours = ["127.0.0.1", SECRET, "harvester-guest-operator-admission.harvester-system"];
    let long = "harvester-guest-operator-admission.harvester-system.svc";
    ours.into_iter().chain([long]).map(str::to_owned).collect()
}

impl Cluster {
    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn stored(&self) -> Result<Data> {
        let secret = self.secrets().get(SECRET).await?;
        Ok(secret.data.unwrap_or_default().into_iter().map(|(key, text)| (key, text.0)).collect())
    }

    pub(crate) async fn material(&self) -> Result<CertificateMaterial> {
        Ok(CertificateMaterial::read(&self.stored().await?)?)
    }

    /// Writes content into the Secret, in place of its content.
    async fn store(&self, data: Data) -> Result<()> {
        let data = data.into_iter().map(|(key, text)| (key, ByteString(text))).collect();
        let mut secret = Secret { data: Some(data), ..Secret::default() };
        secret.metadata.name = Some(SECRET.to_owned());
        match self.secrets().replace(SECRET, &PostParams::default(), &secret).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {
                self.secrets().create(&PostParams::default(), &secret).await?;
            }
            other => drop(other?),
        }
        Ok(())
    }

    /// CA bundles of both configurations, as text.
    async fn bundles(&self) -> Result<Vec<String>> {
        let validating: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let text = |bundle: Option<ByteString>| {
            String::from_utf8_lossy(&bundle.unwrap_or_default().0).into_owned()
        };
        let mut bundles = Vec::new();
        for webhook in validating.get(CONFIGURATION).await?.webhooks.unwrap_or_default() {
            bundles.push(text(webhook.client_config.ca_bundle));
        }
        for webhook in mutating.get(CONFIGURATION).await?.webhooks.unwrap_or_default() {
            bundles.push(text(webhook.client_config.ca_bundle));
        }
        Ok(bundles)
    }

    /// Waits until both configurations have the Secret's bundle, and the API server calls
    /// admission.
    pub(crate) async fn registered(&self) -> Result<()> {
        eventually(SOON, "registration", async || {
            let wanted = self.material().await?.bundle();
            let bundles = self.bundles().await?;
            anyhow::Ok(bundles.len() == 2 && bundles.iter().all(|bundle| *bundle == wanted))
        })
        .await?;
        let probe = Probe::new(&self.client)?;
        eventually(SOON, "answer of admission", async || probe.once().await.map(|()| true)).await
    }

    /// Applies the installation once more.
    async fn reinstalled(&self) -> Result<()> {
        self.bed.apply_file(testbed::repository().join("config/rbac")).await.map(drop)
    }

    /// Patches a configuration.
    async fn patch_validating(&self, patch: serde_json::Value) -> Result<()> {
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        api.patch(CONFIGURATION, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }
}

/// Number of the API server's requests that an operator has answered.
async fn answered(operator: &Operator) -> Result<f64> {
    operator.metric("hgo_admission_requests_total", &["call=\"validation\""]).await
}

/// A request that passes through admission and changes nothing.
pub(crate) struct Probe {
    pools: Api<IPPool>,
    pool: IPPool,
}

impl Probe {
    pub(crate) fn new(client: &Client) -> Result<Self> {
        let spec = json!({
            "ranges": [{"subnet": "10.77.0.0/24", "gateway": "10.77.0.1"}],
            "selector": {"scope": [{"project": "*", "namespace": "*", "guestCluster": "*"}]},
        });
        Ok(Self { pools: Api::all(client.clone()), pool: pool("probe", &spec)? })
    }

    pub(crate) async fn once(&self) -> Result<(), kube::Error> {
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        self.pools.create(&dry, &self.pool).await.map(drop)
    }
}

/// Concurrent requests: a machine that cannot keep up sends fewer. A rate of 200 a second needs two
/// at 10 ms each. A machine that answers ten a second, because several of these tests and others
/// share its cores, needs 0.8 s for one of eight, far below the API server's timeout. With 32 it
/// needed 3 s on average.
const AT_ONCE: usize = 8;
/// Least number of calls of a test.
const ENOUGH: u64 = 1_000;
/// Calls that begin within [`SOON`] at least, however slow the machine is.
const PROGRESS: u64 = 100;
/// Shortest stall of the machine within a call, or shortest bare write meanwhile, that explains a
/// timeout of the API server, which waits 5 s (`timeoutSeconds`).
const STANDSTILL: Duration = Duration::from_secs(1);

/// A refused call.
struct Failed {
    error: String,
    /// Time since the load began.
    at: Duration,
    took: Duration,
    stood_still: Duration,
    /// Time of the longest bare write meanwhile.
    bare: Duration,
}

impl Failed {
    /// Whether the API server's timeout is due to a machine that stalls or is slow, which excuses it
    /// in a short run. A long run excuses nothing.
    fn is_excused(&self, is_long: bool) -> bool {
        let is_late = ["deadline exceeded", "Client.Timeout", "handshake timeout"]
            .iter()
            .any(|text| self.error.contains(text));
        !is_long && is_late && self.stood_still.max(self.bare) >= STANDSTILL
    }
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { error, at, took, stood_still, bare } = self;
        write!(
            f,
            "at {at:.1?}, after {took:.1?}, of which the machine stood still {stood_still:.1?}, \
             beside a bare write of {bare:.1?}: {error}"
        )
    }
}

/// Requests at a steady rate, whatever their results. A machine that cannot keep up sends fewer:
/// the report has both rates.
pub(crate) struct Load {
    sent: Arc<AtomicU64>,
    rate: u32,
    long: Option<LongRun>,
    began: Instant,
    stop: tokio::sync::oneshot::Sender<()>,
    done: tokio::task::JoinHandle<Vec<Failed>>,
}

impl Load {
    /// Starts to send so many requests per second. In a long run, every core is busy meanwhile.
    pub(crate) fn start(client: &Client, rate: u32) -> Result<Self> {
        let long = LongRun::begin()?;
        let probe = Arc::new(Probe::new(client)?);
        let sent = Arc::new(AtomicU64::new(0));
        let (stop, mut stopped) = tokio::sync::oneshot::channel();
        let count = sent.clone();
        let stalls = Arc::new(Stalls::watch()?);
        let bare = BareWrites::start(client);
        let room = Arc::new(Semaphore::new(AT_ONCE));
        let start = std::time::Instant::now();
        let done = tokio::spawn(async move {
            let mut calls = tokio::task::JoinSet::new();
            let mut next = Instant::now();
            loop {
                tokio::select! {
                    _ = &mut stopped => break,
                    () = sleep_until(next) => {}
                }
                // Missed requests are made up for, as fast as places are free.
                next += Duration::from_secs(1) / rate;
                let Ok(place) = room.clone().acquire_owned().await else { break };
                count.fetch_add(1, Ordering::Relaxed);
                let (probe, stalls) = (probe.clone(), stalls.clone());
                calls.spawn(async move {
                    let began = std::time::Instant::now();
                    let answer = probe.once().await;
                    drop(place);
                    answer.err().map(|error| {
                        let ended = std::time::Instant::now();
                        Failed {
                            error: error.to_string(),
                            at: began.duration_since(start),
                            took: ended.duration_since(began),
                            stood_still: stalls.between(began, ended),
                            bare: Duration::ZERO,
                        }
                    })
                });
            }
            let mut failed: Vec<Failed> = calls.join_all().await.into_iter().flatten().collect();
            // Not before: a bare write may end after the call that it delays.
            for call in &mut failed {
                let began = start + call.at;
                call.bare = bare.longest(began, began + call.took);
            }
            failed
        });
        Ok(Self { sent, rate, long, began: Instant::now(), stop, done })
    }

    /// Number of requests: those of a long run, or so many.
    pub(crate) fn calls(&self, least: u64) -> u64 {
        self.long.as_ref().map_or(least, |run| run.calls)
    }

    /// Whether a long run has requests left to send.
    pub(crate) fn goes_on(&self) -> bool {
        self.sent.load(Ordering::Relaxed) < self.calls(0)
    }

    /// Stops after enough requests, and returns a report. A failed request is an error, unless the
    /// run is a short one and the request is a timeout of the API server while the machine stalls or
    /// is slow.
    async fn end(self) -> Result<Sent> {
        self.end_after(ENOUGH).await
    }

    /// Stops after so many requests, or after those of a long run.
    pub(crate) async fn end_after(self, least: u64) -> Result<Sent> {
        let calls = self.calls(least);
        let count = || self.sent.load(Ordering::Relaxed);
        while count() < calls {
            let next = calls.min(count() + PROGRESS);
            eventually(SOON, "calls", async || count() >= next).await?;
        }
        let _ = self.stop.send(());
        let failed = self.done.await?;
        let sent = count();
        let rate = f64::from(u32::try_from(sent)?) / self.began.elapsed().as_secs_f64();
        let is_long = self.long.is_some();
        let (excused, failed): (Vec<_>, Vec<_>) =
            failed.into_iter().partition(|call| call.is_excused(is_long));
        let all: Vec<String> = failed.iter().map(ToString::to_string).collect();
        ensure!(all.is_empty(), "{} of {sent} failed:\n{}", all.len(), all.join("\n"));
        let excused = u64::try_from(excused.len())?;
        ensure!(excused <= sent / 10, "{excused} of {sent} failed: the machine is too slow");
        Ok(Sent { calls: sent, rate, wanted: self.rate, excused })
    }
}

/// Requests of a load that has ended.
pub(crate) struct Sent {
    calls: u64,
    rate: f64,
    wanted: u32,
    excused: u64,
}

impl Sent {
    /// Number of the calls that did not fail.
    fn passed(&self) -> u64 {
        self.calls - self.excused
    }
}

impl std::fmt::Display for Sent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { calls, rate, wanted, excused } = self;
        write!(
            f,
            "{calls} calls at {rate:.0} a second, of {wanted} wanted: \
             {excused} failed while the machine stalled or was slow, no other failed"
        )
    }
}

#[test]
fn a_timeout_on_a_slow_machine_is_excused_in_a_short_run_alone() {
    let failed = |error: &str, stood_still, bare| {
        let (at, took) = (Duration::ZERO, Duration::from_secs(5));
        Failed { error: error.to_owned(), at, took, stood_still, bare }
    };
    let (late, brief) = ("context deadline exceeded", STANDSTILL / 2);
    for (stood_still, bare) in [(STANDSTILL, brief), (brief, STANDSTILL)] {
        let late = failed(late, stood_still, bare);
        assert!(late.is_excused(false) && !late.is_excused(true));
        assert!(!failed("connection refused", stood_still, bare).is_excused(false));
    }
    assert!(!failed(late, brief, brief).is_excused(false));
}
