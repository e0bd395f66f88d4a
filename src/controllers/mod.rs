//! Tasks of a leader, and its questions to the other replicas. The decisions are in
//! [`crate::domain`].
//!
//! Invariant: everything here except [`second_opinion::answer`] belongs to one term of leadership.
//! A term starts from a consistent list and is dropped, not wound down, when it ends; none of its
//! tasks continues.

pub mod dhcp_agent;
mod dhcp_lease;
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

use kube::Client;
use kube_runtime::reflector::ObjectRef;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::api::LoadBalancer;
use crate::k8s::credentials::CredentialReader;
use crate::k8s::events::EventRecorder;
use crate::k8s::views::{ChangeEvent, Views};
use crate::k8s::write::ApiWriter;
use crate::metrics::Metrics;
use crate::prober::Prober;

/// Shared context of the controllers. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// Client for consistent reads.
    pub client: Client,
    /// Views of the cluster.
    pub views: Views,
    /// Writer; it writes only while this process is leader.
    pub writer: ApiWriter,
    /// Recorder of Events.
    pub events: EventRecorder,
    /// Metrics of the process.
    pub metrics: Metrics,
    /// Time for which a leased address outlives its LoadBalancer.
    pub release_grace: Duration,
    /// Place of this process among the operator's replicas.
    pub replica: Arc<second_opinion::Replica>,
    /// Start of the term.
    pub began: Instant,
    /// Whether a CRD whose form has replaced the operator's is put back.
    pub repair_crds: bool,
    /// Settings for the Deployments of DHCP agents. `None`: the operator makes none.
    pub agents: Option<Arc<dhcp_agent::AgentOptions>>,
    /// Reader and writer of credentials.
    pub credentials: CredentialReader,
    /// Namespaces in which credentials may be read and written, each with the only Secrets allowed
    /// there; an empty set allows all.
    pub credential_namespaces: Arc<BTreeMap<String, BTreeSet<String>>>,
}

/// Leads until dropped. Returns only with the error that ended the term.
pub async fn lead(ctx: Context) -> anyhow::Result<()> {
    let ctx = Context { began: Instant::now(), ..ctx };
    // Subscribes before the lists, so that no change is missed between the two.
    let mut signals = ctx.views.listen();
    ctx.views.synced().await;
    let (wake, woken) = mpsc::unbounded_channel::<ObjectRef<LoadBalancer>>();
    // Before any ledger is read: a LoadBalancer that waits for an imported pool gets its address at
    // once, and its former one if it had one.
    let imported = kube_vip_import::first(&ctx).await;
    let import = kube_vip_import::rest(ctx.clone(), imported);
    let stored = storage_version::run(ctx.clone());
    let (ledger, handle) = Box::pin(ip_pool::LedgerTask::load(ctx.clone(), wake.clone())).await?;
    for lb in ctx.views.load_balancers.state() {
        let _ = wake.send(ObjectRef::from_obj(lb.as_ref()));
    }
    let (changed, mut flipped) = mpsc::unbounded_channel::<String>();
    let (prober, scheduler) = Prober::new(ctx.metrics.clone(), changed);
    let (report_move, moved) = mpsc::unbounded_channel();
    let views = ctx.views.clone();
    let late = ctx.views.clone();
    let annotated = topology::run(ctx.clone(), moved);
    let (records, keeper) = dhcp_lease::keeper(ctx.clone());
    let agents = dhcp_lease::agents(ctx.clone());
    let made = dhcp_agent::run(ctx.clone());
    let rotations = token_rotation::run(ctx.clone());
    let asked = second_opinion::ask(ctx.clone(), prober.clone());
    let harvester = harvester_leftovers::run(ctx.clone(), handle.clone());
    let (context, due) = load_balancer::LbContext::new(ctx, handle.clone(), prober.clone());
    // A separate task: its wake-ups would otherwise poll all the other tasks here.
    let serving = load_balancer::run(Arc::new(context), woken, due);
    let serving = AbortOnDropHandle::new(tokio::spawn(serving));
    let route = async {
        while let Some(signal) = signals.recv().await {
            match signal {
                ChangeEvent::LoadBalancer(lb) => {
                    records.look(&lb.name, lb.namespace.as_deref());
                    drop(wake.send(lb));
                }
                ChangeEvent::Gone(owner) => {
                    if let Some((namespace, name)) = owner.name.split_once('/') {
                        records.look(name, Some(namespace));
                    }
                    prober.remove(&owner.name);
                    // While a Service requests the address, no other LoadBalancer may have it. The
                    // end of that Service sends this signal again.
                    if !views.is_served(&owner) {
                        handle.forget(owner);
                    }
                }
                ChangeEvent::Moved(vm) => drop(report_move.send(vm)),
                ChangeEvent::Pool(name, version) => handle.pool_changed(name, Some(version)),
                ChangeEvent::Networks => handle.networks_changed(),
                ChangeEvent::PoolGone(name) => handle.pool_changed(name, None),
            }
        }
    };
    // Handles the VMs that exist when the term begins; later changes are signals.
    let catch_up = async {
        late.wait_for_endpoints().await;
        tracing::info!("virtual machines listed");
        late.tell_all();
        std::future::pending::<()>().await;
    };
    let verdicts = async {
        while let Some(lb) = flipped.recv().await {
            if let Some((namespace, name)) = lb.split_once('/') {
                let _ = wake.send(ObjectRef::new(name).within(namespace));
            }
        }
    };
    tokio::select! {
        result = ledger.run() => result,
        () = scheduler.run() => anyhow::bail!("the prober task exited"),
        () = import => anyhow::bail!("kube-vip import task exited"),
        () = keeper => anyhow::bail!("DHCPLease controller exited"),
        () = agents => anyhow::bail!("DHCP agent monitor exited"),
        () = made => anyhow::bail!("DHCP agent controller exited"),
        () = rotations => anyhow::bail!("TokenRotation controller exited"),
        () = asked => anyhow::bail!("second opinion task exited"),
        () = harvester => anyhow::bail!("monitor of Harvester's CRDs exited"),
        () = stored => anyhow::bail!("storage migration task exited"),
        () = annotated => anyhow::bail!("topology task exited"),
        () = catch_up => anyhow::bail!("endpoint catch-up task exited"),
        () = verdicts => anyhow::bail!("verdict task exited"),
        ended = serving => anyhow::bail!("the LoadBalancer controller ended: {ended:?}"),
        () = route => anyhow::bail!("signal task exited: another term began"),
    }
}
