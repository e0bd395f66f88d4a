//! Control planes that tests use one after the other.
//!
//! Starting a control plane and installing everything takes seconds of both processors. Restoring
//! one takes a tenth of a second: etcd holds again the objects from before the first test, UIDs
//! included, and the API server has caught up. So a test that needs no flags of its own takes a
//! control plane that another test has used, and cannot notice it. No two tests use one at the same
//! time.
//!
//! The control planes are in the network of the process. A test in a network of its own reaches one
//! through a forwarder that listens at the same address, on the loopback of that network.

mod caught_up;

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener as StdListener;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use kube::Client;
use kube::core::ApiResource;
use kube::discovery::{ApiGroup, Discovery, verbs};
use serde_json::Value;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::spawn_blocking;

use crate::kubevirt::install_kubevirt;
use crate::net::{Forward, is_elsewhere, of_the_process};
use crate::store::Snapshot;
use crate::wait::waited;
use crate::{Bed, Options, eventually, install};

/// Limit of control planes in use at the same time: at most eight, and no more than fit into
/// memory. One takes up to a gigabyte.
static PLACES: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(available_gigabytes().clamp(2, 8)));
/// Control planes that no test uses now, with the stage in which the last test found them.
static IDLE: Mutex<Vec<(Stage, Arc<Plane>)>> = Mutex::new(Vec::new());
/// Runtime that starts and restores them. Its threads are in the network of the process, and
/// outlive those of each test.
static KEEPER: LazyLock<Result<Runtime, String>> =
    LazyLock::new(|| of_the_process(2).map_err(|error| format!("{error:#}")));

/// Deadline for what an API server does at once, on a machine that may be busy.
const SOON: Duration = Duration::from_mins(2);
const CRDS: &str = "/registry/apiextensions.k8s.io/customresourcedefinitions/";

/// Objects that a control plane has when a test begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Objects of Kubernetes alone.
    Bare,
    /// Besides them the operator's and KubeVirt's kinds, and the operator's rights.
    Installed,
}

/// A control plane, and its stored objects in each stage.
struct Plane {
    bed: Bed,
    /// Client on the keeper's runtime.
    client: Client,
    bare: tokio::sync::Mutex<StageObjects>,
    installed: tokio::sync::Mutex<StageObjects>,
    /// Number of kinds that got another UID.
    renewed: AtomicU32,
}

/// Stored objects of a stage, and what the API server then shows.
struct StageObjects {
    /// All kinds that can be listed.
    kinds: Vec<ApiResource>,
    /// All kinds with their verbs and subresources, as discovery shows them.
    discovered: BTreeSet<String>,
    snapshot: Snapshot,
}

/// A control plane for one test. After the drop the next test may take it.
pub struct Shared {
    plane: Arc<Plane>,
    stage: Stage,
    forward: Option<Forward>,
    /// Whether the next test may take it.
    reusable: bool,
    _permit: SemaphorePermit<'static>,
}

impl Deref for Shared {
    type Target = Bed;

    fn deref(&self) -> &Bed {
        &self.plane.bed
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        drop(self.forward.take());
        if self.reusable {
            idle().push((self.stage, self.plane.clone()));
        }
    }
}

impl Shared {
    /// Takes a control plane with the operator's and KubeVirt's kinds and the operator's rights
    /// installed. Waits for a free place if necessary.
    pub async fn take() -> Result<Self> {
        Self::take_in(Stage::Installed).await
    }

    /// Takes a control plane on which nothing is installed. Waits for a free place if necessary.
    pub async fn take_bare() -> Result<Self> {
        Self::take_in(Stage::Bare).await
    }

    async fn take_in(stage: Stage) -> Result<Self> {
        let asked = Instant::now();
        let permit = PLACES.acquire().await?;
        let permitted = Instant::now();
        let keeper = KEEPER.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?;
        // A thread is in the network of the thread that starts it, so a thread of the keeper must
        // start these.
        let work = move || Handle::current().block_on(unused(stage));
        let plane = keeper.spawn(async move { spawn_blocking(work).await }).await???;
        plane.bed.begin().await?;
        let forward = if is_elsewhere()? {
            Some(Forward::of(StdListener::bind(plane.bed.address()?)?, keeper.handle())?)
        } else {
            None
        };
        waited("place for a control plane", permitted.duration_since(asked));
        waited("control plane", permitted.elapsed());
        Ok(Self { plane, stage, forward, reusable: true, _permit: permit })
    }

    /// Starts a control plane in the network of the calling test, for this test alone: its API
    /// server reaches webhooks there.
    pub async fn start_here() -> Result<Self> {
        let permit = PLACES.acquire().await?;
        let (plane, stage) = (Arc::new(Plane::start().await?), Stage::Installed);
        Ok(Self { plane, stage, forward: None, reusable: false, _permit: permit })
    }
}

/// Available memory in gigabytes, from `/proc/meminfo`; 0 if it cannot be read.
fn available_gigabytes() -> usize {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    kilobytes.unwrap_or(0) / 1_000_000
}

/// Restores a control plane that no test uses, or starts one.
async fn unused(stage: Stage) -> Result<Arc<Plane>> {
    while let Some(plane) = take_idle(stage) {
        match plane.restore(stage).await {
            Ok(()) => return Ok(plane),
            Err(error) => eprintln!("testbed: a control plane is replaced: {error:#}"),
        }
    }
    let plane = Plane::start().await?;
    if stage == Stage::Bare {
        plane.restore(stage).await?;
    }
    Ok(Arc::new(plane))
}

/// Takes the control plane that was used last, preferably one that was in this stage.
fn take_idle(stage: Stage) -> Option<Arc<Plane>> {
    let mut idle = idle();
    let at = idle.iter().rposition(|(last, _)| *last == stage).or(idle.len().checked_sub(1))?;
    Some(idle.remove(at).1)
}

fn idle() -> MutexGuard<'static, Vec<(Stage, Arc<Plane>)>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Plane {
    async fn start() -> Result<Self> {
        let bed = Bed::start(Options { record: true, ..Options::default() }).await?;
        let client = bed.admin();
        let bare = tokio::sync::Mutex::new(StageObjects::of(&bed, &client).await?);
        install(&bed).await?;
        install_kubevirt(&bed).await?;
        let installed = tokio::sync::Mutex::new(StageObjects::of(&bed, &client).await?);
        Ok(Self { bed, client, bare, installed, renewed: AtomicU32::new(1) })
    }

    /// Restores the objects of a stage, and waits until the API server has caught up.
    async fn restore(&self, stage: Stage) -> Result<()> {
        let mut objects = match stage {
            Stage::Bare => self.bare.lock().await,
            Stage::Installed => self.installed.lock().await,
        };
        self.restore_kinds(&mut objects).await?;
        let store = self.bed.store();
        let changed = store.restore(&mut objects.snapshot).await?;
        self.caught_up(stage, &objects.kinds, &changed).await?;
        // Removes the markers.
        store.restore(&mut objects.snapshot).await?;
        Ok(())
    }

    /// Restores the kinds, if a test has made or deleted one or changed a schema. A kind with
    /// another schema is deleted first and gets another UID: the API server then cannot serve it
    /// by the schema that the test left, and its absence and return can be seen. The conversion
    /// webhook is not part of the schema.
    async fn restore_kinds(&self, objects: &mut StageObjects) -> Result<()> {
        let StageObjects { snapshot, discovered: expected, .. } = objects;
        let store = self.bed.store();
        let now = store.values(CRDS).await?;
        let mut changed = Vec::new();
        for key in snapshot.keys(CRDS) {
            let is = now.get(key).map(|value| schema(value)).transpose()?;
            if is != snapshot.value(key).map(schema).transpose()? {
                changed.push(key.clone());
            }
        }
        let mut gone = Vec::new();
        for (key, value) in &now {
            if changed.contains(key) || snapshot.value(key).is_none() {
                gone.extend(places_served(value)?);
            }
        }
        if changed.is_empty() && gone.is_empty() {
            return Ok(());
        }
        let taken: Vec<_> = changed.into_iter().map(|key| (snapshot.take(&key), key)).collect();
        store.restore(snapshot).await?;
        self.are_served(&gone, false).await?;
        let mut back = Vec::new();
        for (value, key) in taken {
            let value = value.with_context(|| key.clone())?;
            back.extend(places_served(&value)?);
            snapshot.put(key, self.with_another_uid(&value)?);
        }
        store.restore(snapshot).await?;
        self.are_served(&back, true).await?;
        eventually(SOON, "kinds of the stage", async || {
            let found = discovered(&self.client).await.map_err(|e| e.to_string())?;
            let differing: Vec<_> = found.symmetric_difference(expected).collect();
            if differing.is_empty() { Ok(true) } else { Err(format!("{differing:?}")) }
        })
        .await
    }

    /// Waits until the API server serves these kinds, or none of them.
    async fn are_served(&self, paths: &[String], served: bool) -> Result<()> {
        for path in paths {
            eventually(SOON, &format!("{path}, served: {served}"), async || {
                let request = hyper::Request::get(path).body(Vec::new())?;
                match self.client.request_text(request).await {
                    Ok(_) => anyhow::Ok(served),
                    Err(kube::Error::Api(status)) if status.code == 404 => Ok(!served),
                    Err(error) => Err(error.into()),
                }
            })
            .await?;
        }
        Ok(())
    }

    fn with_another_uid(&self, crd: &[u8]) -> Result<Vec<u8>> {
        let mut crd: Value = serde_json::from_slice(crd)?;
        let number = self.renewed.fetch_add(1, Ordering::Relaxed);
        let uid = crd["metadata"]["uid"].as_str().context("a CRD without a UID")?;
        let (start, _) = uid.rsplit_once('-').context("a UID that is none")?;
        crd["metadata"]["uid"] = format!("{start}-{number:012}").into();
        Ok(serde_json::to_vec(&crd)?)
    }
}

impl StageObjects {
    /// Objects that the bed has now.
    async fn of(bed: &Bed, client: &Client) -> Result<Self> {
        let snapshot = bed.store().snapshot().await?;
        let discovery = Discovery::new(client.clone()).run_aggregated().await?;
        let kinds = discovery
            .groups()
            .flat_map(ApiGroup::resources_by_stability)
            .filter(|(_, capabilities)| capabilities.supports_operation(verbs::LIST))
            .map(|(kind, _)| kind)
            .collect();
        Ok(Self { kinds, discovered: discovered(client).await?, snapshot })
    }
}

/// Kinds with their verbs and subresources, as discovery shows them.
async fn discovered(client: &Client) -> Result<BTreeSet<String>> {
    let discovery = Discovery::new(client.clone()).run_aggregated().await?;
    let kinds = discovery.groups().flat_map(ApiGroup::resources_by_stability);
    Ok(kinds.map(|kind| format!("{kind:?}")).collect())
}

/// Specification of a stored CRD without its conversion webhook.
fn schema(crd: &[u8]) -> Result<Value> {
    let mut crd: Value = serde_json::from_slice(crd)?;
    let mut spec = crd["spec"].take();
    spec["conversion"].take();
    Ok(spec)
}

/// Paths of lists of a stored CRD's kind, in each version that it is served in.
fn places_served(crd: &[u8]) -> Result<Vec<String>> {
    let crd: Value = serde_json::from_slice(crd)?;
    let text = |value: &Value| value.as_str().map(str::to_owned).context("a CRD without a name");
    let spec = &crd["spec"];
    let (group, plural) = (text(&spec["group"])?, text(&spec["names"]["plural"])?);
    let versions = spec["versions"].as_array().into_iter().flatten();
    versions
        .filter(|version| version["served"] == true)
        .map(|version| Ok(format!("/apis/{group}/{}/{plural}?limit=1", text(&version["name"])?)))
        .collect()
}
