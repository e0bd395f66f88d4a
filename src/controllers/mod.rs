//! Tasks of the leader, and two functions that every replica runs: [`second_opinion::answer`], and
//! [`ip_pool::keep_published`], which runs after a restore of etcd, before the process ends. The
//! decisions are in [`crate::domain`].
//!
//! Invariant: each task of the leader belongs to one term of leadership. In each term, pools and
//! LoadBalancers are read from consistent lists before the first address is allocated. When the
//! term ends, its tasks are dropped at once, without finishing their work.

pub mod dhcp_agent;
mod dhcp_lease;
mod failed_reconciles;
mod harvester_leftovers;
pub mod ip_pool;
mod kube_vip_import;
pub mod load_balancer;
pub mod second_opinion;
mod storage_version;
mod token_rotation;
mod topology;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::channel::mpsc::{UnboundedSender, unbounded};
use kube::Client;
use kube_runtime::reflector::ObjectRef;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::api::LoadBalancer;
use crate::domain::load_balancer::facts;
use crate::k8s::credentials::CredentialReader;
use crate::k8s::events::EventRecorder;
use crate::k8s::informer::split_key;
use crate::k8s::views::{ChangeEvent, Views};
use crate::k8s::write::ApiWriter;
use crate::metrics::Metrics;
use crate::prober::Prober;

/// Shared context of the controllers. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// Client for consistent reads from the API server.
    pub client: Client,
    /// Views of the cluster.
    pub views: Views,
    /// Writer. While this process does not lead, each write fails, except the writes that
    /// [`ApiWriter`] names.
    pub writer: ApiWriter,
    /// Recorder of Events.
    pub events: EventRecorder,
    /// Metrics of the process.
    pub metrics: Metrics,
    /// Time for which a leased address is kept after the deletion of its LoadBalancer: the grace.
    pub release_grace: Duration,
    /// Name and node of this replica, and its access to the Lease.
    pub replica: Arc<second_opinion::Replica>,
    /// Start of this replica's present term of leadership.
    pub began: Instant,
    /// Whether the option `--repair-crds` is set: if another form has replaced the operator's form
    /// of a CRD, the operator puts its own form back.
    pub repair_crds: bool,
    /// Settings for the Deployments of DHCP agents. `None`: the operator makes no such Deployment.
    pub agents: Option<Arc<dhcp_agent::AgentOptions>>,
    /// Reader of TokenRotations, and of the Secrets and ServiceAccounts with credentials.
    pub credentials: CredentialReader,
    /// Namespaces in which credentials may be read and written. The value is the set of names of
    /// the allowed Secrets. An empty set allows all Secrets of the namespace.
    pub credential_namespaces: Arc<BTreeMap<String, BTreeSet<String>>>,
}

/// Queues of the tasks of a term.
struct TermQueues {
    views: Views,
    load_balancers: UnboundedSender<ObjectRef<LoadBalancer>>,
    records: dhcp_lease::RecordQueue,
    ledger: ip_pool::LedgerHandle,
    prober: Prober,
    moved: mpsc::UnboundedSender<Box<str>>,
}

impl TermQueues {
    /// Puts a change into the queue of each task that handles such a change.
    fn send(&self, change: ChangeEvent) {
        match change {
            ChangeEvent::LoadBalancer(lb) => {
                self.records.enqueue(&lb.name, lb.namespace.as_deref());
                // The send fails only at the end of the term, when the receiver is dropped.
                let _ = self.load_balancers.unbounded_send(lb);
            }
            ChangeEvent::Gone(owner) => {
                let (namespace, name) = split_key(&owner.name);
                self.records.enqueue(name, Some(namespace));
                self.prober.remove(&owner.name);
                // While a Service requests the address, no other LoadBalancer may have the address.
                // When that Service is gone, the views send `ChangeEvent::Gone` once more.
                if !self.views.is_served(&owner) {
                    self.ledger.forget(owner);
                }
            }
            ChangeEvent::Moved(vm) => drop(self.moved.send(vm)),
            ChangeEvent::Pool(name, version) => self.ledger.pool_changed(name, Some(version)),
            ChangeEvent::Networks => self.ledger.networks_changed(),
            ChangeEvent::PoolGone(name) => self.ledger.pool_changed(name, None),
        }
    }
}

/// Runs all tasks of a term until dropped. Returns only with the error that ended the term.
pub async fn lead(ctx: Context) -> anyhow::Result<()> {
    let ctx = Context { began: Instant::now(), ..ctx };
    let views = ctx.views.clone();
    let (mut ledger, handle) = ip_pool::LedgerTask::new(ctx.clone());
    let flipped = views.clone();
    let (prober, scheduler) = Prober::new(ctx.metrics.clone(), move |lb| flipped.enqueue_lbs([lb]));
    let (records, record_controller) = dhcp_lease::controller(ctx.clone());
    let (load_balancers, woken) = unbounded();
    let (moved, vms) = mpsc::unbounded_channel();
    let queues = TermQueues {
        views: views.clone(),
        load_balancers,
        records,
        ledger: handle.clone(),
        prober: prober.clone(),
        moved,
    };
    // Subscribes before the views have listed their objects, so that no change after a list is
    // missed.
    let _subscription = views.subscribe(move |change| queues.send(change));
    views.synced().await;
    // Runs before any ledger is read. So a LoadBalancer that waits for an imported pool gets an
    // address at once. If it had an address before, it gets the same address again.
    let imported = kube_vip_import::first(&ctx).await;
    let import = kube_vip_import::rest(ctx.clone(), imported);
    let stored = storage_version::run(ctx.clone());
    Box::pin(ledger.load()).await?;
    views.enqueue_lbs(views.load_balancers.state().iter().map(|lb| facts::name(lb)));
    let annotated = topology::run(ctx.clone(), vms);
    let agents = dhcp_lease::agents(ctx.clone());
    let made = dhcp_agent::run(ctx.clone());
    let rotations = token_rotation::run(ctx.clone());
    let asked = second_opinion::ask(ctx.clone(), prober.clone());
    let harvester = harvester_leftovers::run(ctx.clone(), handle.clone());
    let (context, due) = load_balancer::LbContext::new(ctx, handle, prober);
    // The controller runs in a task of its own. Otherwise each wake-up of a reconcile would poll
    // all other futures of the `select!` below.
    let serving = load_balancer::run(Arc::new(context), woken, due);
    let serving = AbortOnDropHandle::new(tokio::spawn(serving));
    // Reports the VMs that exist when the term begins. The subscription reports later changes.
    let catch_up = async {
        views.wait_for_endpoints().await;
        tracing::info!("virtual machines listed");
        views.notify_of_all();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        result = ledger.run() => result,
        () = scheduler.run() => anyhow::bail!("the prober task exited"),
        () = import => anyhow::bail!("kube-vip import task exited"),
        () = record_controller => anyhow::bail!("DHCPLease controller exited"),
        () = agents => anyhow::bail!("DHCP agent monitor exited"),
        () = made => anyhow::bail!("DHCP agent controller exited"),
        () = rotations => anyhow::bail!("TokenRotation controller exited"),
        () = asked => anyhow::bail!("second opinion task exited"),
        () = harvester => anyhow::bail!("monitor of Harvester's CRDs exited"),
        () = stored => anyhow::bail!("storage migration task exited"),
        () = annotated => anyhow::bail!("topology task exited"),
        () = catch_up => anyhow::bail!("endpoint catch-up task exited"),
        ended = serving => anyhow::bail!("the LoadBalancer controller ended: {ended:?}"),
    }
}
