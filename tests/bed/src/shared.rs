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

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener as StdListener;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, ClusterResourceScope, NamespaceResourceScope, Resource};
use kube::discovery::{ApiGroup, Discovery, verbs};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
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
/// Control planes that no test uses now.
static IDLE: Mutex<Vec<Arc<Plane>>> = Mutex::new(Vec::new());
/// Runtime that starts and restores them. Its threads are in the network of the process, and
/// outlive those of each test.
static KEEPER: LazyLock<Result<Runtime, String>> =
    LazyLock::new(|| of_the_process(2).map_err(|error| format!("{error:#}")));

const SOON: Duration = Duration::from_secs(20);
const CRDS: &str = "/registry/apiextensions.k8s.io/customresourcedefinitions/";
const WEBHOOKS: [&str; 2] =
    ["/registry/validatingwebhookconfigurations/", "/registry/mutatingwebhookconfigurations/"];
const RIGHTS: [&str; 4] = [
    "/registry/roles/",
    "/registry/rolebindings/",
    "/registry/clusterroles/",
    "/registry/clusterrolebindings/",
];
const MARKER: &str = "testbed-marker";

/// A control plane, and its stored objects before the first test.
struct Plane {
    bed: Bed,
    /// Client on the keeper's runtime.
    client: Client,
    /// All kinds that can be listed.
    kinds: Vec<ApiResource>,
    /// All kinds with their verbs and subresources, as discovery shows them before the first test.
    discovered: BTreeSet<String>,
    snapshot: tokio::sync::Mutex<Snapshot>,
    /// Number of kinds that got another UID.
    renewed: AtomicU32,
}

/// A control plane for one test, with the operator's and KubeVirt's kinds and the operator's rights
/// installed. After the drop the next test may take it.
pub struct Shared {
    plane: Arc<Plane>,
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
            idle().push(self.plane.clone());
        }
    }
}

impl Shared {
    /// Takes a control plane in its initial state, and waits for a free place if necessary.
    pub async fn take() -> Result<Self> {
        let asked = Instant::now();
        let permit = PLACES.acquire().await?;
        let permitted = Instant::now();
        let keeper = KEEPER.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?;
        // A thread is in the network of the thread that starts it, so a thread of the keeper must
        // start these.
        let work = || Handle::current().block_on(unused());
        let plane = keeper.spawn(async move { spawn_blocking(work).await }).await???;
        plane.bed.begin().await?;
        let forward = if is_elsewhere()? {
            Some(Forward::of(StdListener::bind(plane.bed.address()?)?, keeper.handle())?)
        } else {
            None
        };
        waited("place for a control plane", permitted.duration_since(asked));
        waited("control plane", permitted.elapsed());
        Ok(Self { plane, forward, reusable: true, _permit: permit })
    }

    /// Starts a control plane in the network of the calling test, for this test alone: its API
    /// server reaches webhooks there.
    pub async fn start_here() -> Result<Self> {
        let permit = PLACES.acquire().await?;
        let plane = Arc::new(Plane::start().await?);
        Ok(Self { plane, forward: None, reusable: false, _permit: permit })
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
async fn unused() -> Result<Arc<Plane>> {
    while let Some(plane) = take_idle() {
        match plane.restore().await {
            Ok(()) => return Ok(plane),
            Err(error) => eprintln!("testbed: a control plane is replaced: {error:#}"),
        }
    }
    Ok(Arc::new(Plane::start().await?))
}

fn take_idle() -> Option<Arc<Plane>> {
    idle().pop()
}

fn idle() -> MutexGuard<'static, Vec<Arc<Plane>>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Plane {
    async fn start() -> Result<Self> {
        let bed = Bed::start(Options { load: true, record: true, ..Options::default() }).await?;
        install(&bed).await?;
        install_kubevirt(&bed).await?;
        let client = bed.admin();
        let discovery = Discovery::new(client.clone()).run_aggregated().await?;
        let kinds = discovery
            .groups()
            .flat_map(ApiGroup::resources_by_stability)
            .filter(|(_, capabilities)| capabilities.supports_operation(verbs::LIST))
            .map(|(kind, _)| kind)
            .collect();
        let snapshot = tokio::sync::Mutex::new(bed.store().snapshot().await?);
        let discovered = discovered(&client).await?;
        Ok(Self { bed, client, kinds, discovered, snapshot, renewed: AtomicU32::new(1) })
    }

    /// Restores the objects from before the first test, and waits until the API server has caught
    /// up.
    async fn restore(&self) -> Result<()> {
        let mut snapshot = self.snapshot.lock().await;
        self.restore_kinds(&mut snapshot).await?;
        let store = self.bed.store();
        let changed = store.restore(&mut snapshot).await?;
        self.caught_up(&changed).await?;
        // Removes the markers.
        store.restore(&mut snapshot).await?;
        Ok(())
    }

    /// Restores the kinds, if a test has made or deleted one or changed a schema. A kind with
    /// another schema is deleted first and gets another UID: the API server then cannot serve it
    /// by the schema that the test left, and its absence and return can be seen. The conversion
    /// webhook is not part of the schema.
    async fn restore_kinds(&self, snapshot: &mut Snapshot) -> Result<()> {
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
        eventually(SOON, "kinds from before the first test", async || {
            let found = discovered(&self.client).await.map_err(|e| e.to_string())?;
            let differing: Vec<_> = found.symmetric_difference(&self.discovered).collect();
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

    /// Waits until the API server's caches are as new as the store. A list without a version is.
    /// Rights and webhooks cannot be asked for their version: once a marker that was written last
    /// has its effect, everything that was written before it has.
    async fn caught_up(&self, changed: &BTreeSet<String>) -> Result<()> {
        let is_changed = |prefix: &str| changed.iter().any(|key| key.starts_with(prefix));
        for kind in
            self.kinds.iter().filter(|kind| places(kind).iter().any(|place| is_changed(place)))
        {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), kind);
            api.list_metadata(&ListParams::default().limit(1)).await?;
        }
        if RIGHTS.into_iter().any(is_changed) {
            self.rights_known().await?;
        }
        let webhooks = WEBHOOKS.into_iter().any(is_changed);
        if webhooks {
            self.webhooks_known().await?;
        }
        if webhooks || is_changed(CRDS) {
            self.conversion_known().await?;
        }
        Ok(())
    }

    async fn rights_known(&self) -> Result<()> {
        let rule = json!([{"apiGroups": [MARKER], "resources": ["markers"], "verbs": ["get"]}]);
        let subject = |user: &str| json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]);
        let granted =
            |kind| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": MARKER});
        let (here, everywhere) = ("testbed-here", "testbed-everywhere");
        self.mark::<ClusterRole>(json!({"rules": rule})).await?;
        self.mark_in::<Role>(json!({"rules": rule})).await?;
        let to = json!({"subjects": subject(everywhere), "roleRef": granted("ClusterRole")});
        self.mark::<ClusterRoleBinding>(to).await?;
        let to = json!({"subjects": subject(here), "roleRef": granted("Role")});
        self.mark_in::<RoleBinding>(to).await?;
        for user in [here, everywhere] {
            let review: SubjectAccessReview = serde_json::from_value(json!({
                "metadata": {}, "spec": {"user": user, "resourceAttributes": {
                    "namespace": "default", "group": MARKER, "resource": "markers", "verb": "get",
                }},
            }))?;
            let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
            eventually(SOON, "marker's right", async || {
                let answer = api.create(&PostParams::default(), &review).await?;
                anyhow::Ok(answer.status.is_some_and(|status| status.allowed))
            })
            .await?;
        }
        Ok(())
    }

    async fn webhooks_known(&self) -> Result<()> {
        let (validating, mutating) = ("validating.testbed.local", "mutating.testbed.local");
        self.mark::<ValidatingWebhookConfiguration>(webhook(validating)).await?;
        self.mark::<MutatingWebhookConfiguration>(webhook(mutating)).await?;
        for name in [validating, mutating] {
            let map: ConfigMap = serde_json::from_value(json!({
                "metadata": {"name": MARKER, "labels": {MARKER: name}},
            }))?;
            let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), "default");
            let dry = PostParams { dry_run: true, ..PostParams::default() };
            eventually(SOON, "marker's refusal", async || match api.create(&dry, &map).await {
                Err(kube::Error::Api(status)) => status.message.contains(name),
                _ => false,
            })
            .await?;
        }
        Ok(())
    }

    /// Waits until the server calls the missing Service for conversions, as at the beginning.
    async fn conversion_known(&self) -> Result<()> {
        let kind = ApiResource {
            group: "loadbalancer.harvesterhci.io".to_owned(),
            version: "v1alpha1".to_owned(),
            api_version: "loadbalancer.harvesterhci.io/v1alpha1".to_owned(),
            kind: "LoadBalancer".to_owned(),
            plural: "loadbalancers".to_owned(),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), "default", &kind);
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": kind.api_version, "kind": kind.kind,
            "metadata": {"name": MARKER},
            "spec": {"ipam": "pool", "workloadType": "cluster"},
        }))?;
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        eventually(SOON, "conversion webhook without a Service", async || {
            match api.create(&dry, &object).await {
                Err(kube::Error::Api(status)) if status.message.contains("not found") => Ok(true),
                Err(error) => Err(error.to_string()),
                Ok(_) => Err("a LoadBalancer that needs no conversion".to_owned()),
            }
        })
        .await
    }

    async fn mark<K>(&self, fields: Value) -> Result<()>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope>,
        K: Clone + std::fmt::Debug + DeserializeOwned,
    {
        apply(&Api::<K>::all(self.client.clone()), fields).await
    }

    async fn mark_in<K>(&self, fields: Value) -> Result<()>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + std::fmt::Debug + DeserializeOwned,
    {
        apply(&Api::<K>::namespaced(self.client.clone(), "default"), fields).await
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

/// Prefixes of the keys of a kind's objects: kinds of the API server itself are stored by their
/// plural (nodes as `minions`), others by group and plural.
fn places(kind: &ApiResource) -> [String; 2] {
    let own = if kind.plural == "nodes" { "minions" } else { &kind.plural };
    [format!("/registry/{own}/"), format!("/registry/{}/{}/", kind.group, kind.plural)]
}

/// A webhook that cannot be reached, and so refuses each ConfigMap with the marker as its label.
fn webhook(name: &str) -> Value {
    json!({"webhooks": [{
        "name": name,
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
            "resources": ["configmaps"],
        }],
        "objectSelector": {"matchLabels": {MARKER: name}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
    }]})
}

async fn apply<K>(api: &Api<K>, fields: Value) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let mut object = fields;
    object["apiVersion"] = K::api_version(&()).into();
    object["kind"] = K::kind(&()).into();
    object["metadata"] = json!({"name": MARKER});
    let params = PatchParams::apply(MARKER).force();
    api.patch(MARKER, &params, &Patch::Apply(&object)).await.context("put a marker")?;
    Ok(())
}
