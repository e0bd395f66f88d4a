//! What this process sees of the cluster, kept warm on every replica by informers.
//!
//! Views may be behind the server. Nothing is allocated from them: they say what to look at.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Namespace;
use kube::core::{DeserializeGuard, ObjectMeta, PartialObjectMeta};
use kube::{Api, Client, Resource, ResourceExt};
use kube_runtime::reflector::{ObjectRef, Store, store::Writer};
use kube_runtime::watcher::Event;
use tokio::sync::{mpsc, watch};

use super::informer;
use crate::api::{ANNOTATION_NAMESPACE_PROJECT, IPPool, LABEL_CLUSTER, LoadBalancer};
use crate::domain::Owner;
use crate::metrics::Metrics;

/// Something in the cluster that a leader must look at.
#[derive(Clone, Debug)]
pub enum Signal {
    /// A LoadBalancer was made or changed, or the project of its namespace was.
    LoadBalancer(ObjectRef<LoadBalancer>),
    /// A LoadBalancer is gone.
    Gone(Owner),
    /// A pool was made or changed: its name and resourceVersion.
    Pool(String, String),
    /// A pool is gone.
    PoolGone(String),
}

/// The views, and the ear of whoever leads.
#[derive(Clone)]
pub struct Views {
    /// Every LoadBalancer that can be read, without what decisions do not need.
    pub load_balancers: Store<LoadBalancer>,
    projects: Arc<Mutex<HashMap<String, String>>>,
    /// Unbounded, and in effect bounded by the number of objects: the leader's loops take
    /// from it faster than an API server can report.
    leader: Arc<Mutex<Option<mpsc::UnboundedSender<Signal>>>>,
    synced: watch::Receiver<[bool; 3]>,
}

impl Views {
    /// Starts the informers. They run until the process ends.
    pub fn start(client: &Client, metrics: &Metrics) -> Self {
        let writer = Writer::<LoadBalancer>::default();
        let (synced_tx, synced) = watch::channel([false; 3]);
        let views = Self {
            load_balancers: writer.as_reader(),
            projects: Arc::default(),
            leader: Arc::default(),
            synced,
        };
        let synced_tx = Arc::new(synced_tx);
        tokio::spawn(watch_lbs(
            client.clone(),
            views.clone(),
            writer,
            synced_tx.clone(),
            metrics.clone(),
        ));
        tokio::spawn(watch_pools(
            client.clone(),
            views.clone(),
            synced_tx.clone(),
            metrics.clone(),
        ));
        tokio::spawn(watch_namespaces(client.clone(), views.clone(), synced_tx, metrics.clone()));
        views
    }

    /// Signals from now on go here. The one who listened before hears no more.
    pub fn listen(&self) -> mpsc::UnboundedReceiver<Signal> {
        let (sender, receiver) = mpsc::unbounded_channel();
        *lock(&self.leader) = Some(sender);
        receiver
    }

    /// Whether every informer has completed its first list.
    pub fn is_synced(&self) -> bool {
        self.synced.borrow().iter().all(|done| *done)
    }

    /// Waits for that.
    pub async fn synced(&self) {
        let mut synced = self.synced.clone();
        // The sender lives as long as the informers, which live as long as the process.
        let _ = synced.wait_for(|parts| parts.iter().all(|done| *done)).await;
    }

    /// The Rancher project of a namespace, as `cluster/project`, if it is in one.
    pub fn project_of(&self, namespace: &str) -> Option<String> {
        lock(&self.projects).get(namespace).cloned()
    }

    fn tell(&self, signal: Signal) {
        let mut leader = lock(&self.leader);
        if leader.as_ref().is_some_and(|l| l.send(signal).is_err()) {
            *leader = None;
        }
    }
}

async fn watch_lbs(
    client: Client,
    views: Views,
    mut writer: Writer<LoadBalancer>,
    synced: Arc<watch::Sender<[bool; 3]>>,
    metrics: Metrics,
) {
    // UIDs of a list under way.
    let mut listed: HashSet<String> = HashSet::new();
    let api = Api::<DeserializeGuard<LoadBalancer>>::all(client);
    informer::run(api, "LoadBalancer", &metrics, |event| match event {
        Event::Init => {
            listed.clear();
            writer.apply_watcher_event(&Event::Init);
        }
        Event::InitApply(lb) => {
            if let Some(lb) = readable(lb, &metrics) {
                metrics.saw(&lb);
                listed.insert(lb.uid().unwrap_or_default());
                writer.apply_watcher_event(&Event::InitApply(lb));
            }
        }
        Event::InitDone => {
            let before = views.load_balancers.state();
            writer.apply_watcher_event(&Event::InitDone);
            for lb in
                before.iter().filter(|lb| !listed.contains(lb.uid().as_deref().unwrap_or_default()))
            {
                views.tell(Signal::Gone(owner_of(lb.meta())));
            }
            listed = HashSet::new();
            for lb in views.load_balancers.state() {
                views.tell(Signal::LoadBalancer(ObjectRef::from_obj(lb.as_ref())));
            }
            synced.send_modify(|parts| parts[0] = true);
        }
        Event::Apply(lb) => {
            if let Some(lb) = readable(lb, &metrics) {
                metrics.saw(&lb);
                let key = ObjectRef::from_obj(&lb);
                writer.apply_watcher_event(&Event::Apply(lb));
                views.tell(Signal::LoadBalancer(key));
            }
        }
        Event::Delete(lb) => {
            let owner = owner_of(lb.meta());
            metrics.forget(&owner.uid);
            views.tell(Signal::Gone(owner));
            if let Ok(lb) = lb.0 {
                writer.apply_watcher_event(&Event::Delete(lb));
            }
        }
    })
    .await;
}

/// Drops what decisions do not need. An object that does not fit the type is skipped, so that
/// it costs nobody else anything.
fn readable(lb: DeserializeGuard<LoadBalancer>, metrics: &Metrics) -> Option<LoadBalancer> {
    match lb.0 {
        Ok(mut lb) => {
            lb.metadata.managed_fields = None;
            lb.metadata.owner_references = None;
            if let Some(annotations) = lb.metadata.annotations.as_mut() {
                annotations.retain(|key, _| key.contains("harvesterhci.io/"));
            }
            if let Some(labels) = lb.metadata.labels.as_mut() {
                labels.retain(|key, _| key == LABEL_CLUSTER);
            }
            lb.spec.listeners = Vec::new();
            lb.spec.backend_server_selector = None;
            lb.spec.health_check = None;
            lb.spec.description = None;
            Some(lb)
        }
        Err(invalid) => {
            metrics.unreadable.with_label_values(&["LoadBalancer"]).inc();
            tracing::warn!(
                lb = format!(
                    "{}/{}",
                    invalid.metadata.namespace.unwrap_or_default(),
                    invalid.metadata.name.unwrap_or_default()
                ),
                error = invalid.error,
                "this LoadBalancer cannot be read and is left alone"
            );
            None
        }
    }
}

async fn watch_pools(
    client: Client,
    views: Views,
    synced: Arc<watch::Sender<[bool; 3]>>,
    metrics: Metrics,
) {
    let mut known: HashSet<String> = HashSet::new();
    let mut listed: HashSet<String> = HashSet::new();
    // Metadata only: a ledger of thousands of entries is not sent again for every claim.
    let api = Api::<PartialObjectMeta<IPPool>>::all(client);
    let tell = |pool: &PartialObjectMeta<IPPool>| {
        views.tell(Signal::Pool(pool.name_any(), pool.resource_version().unwrap_or_default()));
    };
    informer::run(api, "IPPool", &metrics, |event| match event {
        Event::Init => listed.clear(),
        Event::InitApply(pool) => {
            listed.insert(pool.name_any());
            tell(&pool);
        }
        Event::InitDone => {
            for name in known.difference(&listed) {
                views.tell(Signal::PoolGone(name.clone()));
            }
            known = std::mem::take(&mut listed);
            synced.send_modify(|parts| parts[1] = true);
        }
        Event::Apply(pool) => {
            known.insert(pool.name_any());
            tell(&pool);
        }
        Event::Delete(pool) => {
            known.remove(&pool.name_any());
            views.tell(Signal::PoolGone(pool.name_any()));
        }
    })
    .await;
}

async fn watch_namespaces(
    client: Client,
    views: Views,
    synced: Arc<watch::Sender<[bool; 3]>>,
    metrics: Metrics,
) {
    let mut listed: HashMap<String, String> = HashMap::new();
    let api = Api::<PartialObjectMeta<Namespace>>::all(client);
    let project = |namespace: &PartialObjectMeta<Namespace>| {
        let id = namespace.annotations().get(ANNOTATION_NAMESPACE_PROJECT)?;
        Some(id.replacen(':', "/", 1))
    };
    informer::run(api, "Namespace", &metrics, |event| match event {
        Event::Init => listed.clear(),
        Event::InitApply(namespace) => {
            if let Some(project) = project(&namespace) {
                listed.insert(namespace.name_any(), project);
            }
        }
        Event::InitDone => {
            let new = std::mem::take(&mut listed);
            let old = std::mem::replace(&mut *lock(&views.projects), new.clone());
            for namespace in old.keys().chain(new.keys()) {
                if old.get(namespace) != new.get(namespace) {
                    views.tell_namespace(namespace);
                }
            }
            synced.send_modify(|parts| parts[2] = true);
        }
        Event::Apply(namespace) => {
            let name = namespace.name_any();
            let new = project(&namespace);
            let old = match new.clone() {
                Some(project) => lock(&views.projects).insert(name.clone(), project),
                None => lock(&views.projects).remove(&name),
            };
            if old != new {
                views.tell_namespace(&name);
            }
        }
        Event::Delete(namespace) => {
            lock(&views.projects).remove(&namespace.name_any());
        }
    })
    .await;
}

impl Views {
    /// A namespace moved to another project: its LoadBalancers may fit other pools.
    fn tell_namespace(&self, namespace: &str) {
        for lb in
            self.load_balancers.state_filter(|lb| lb.namespace().as_deref() == Some(namespace))
        {
            self.tell(Signal::LoadBalancer(ObjectRef::from_obj(lb.as_ref())));
        }
    }
}

fn owner_of(meta: &ObjectMeta) -> Owner {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    Owner { name: format!("{}/{}", part(&meta.namespace), part(&meta.name)), uid: part(&meta.uid) }
}

/// A panic while a view is held would have ended the process.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
