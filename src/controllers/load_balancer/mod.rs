//! Reconciles LoadBalancers: publishes the address of each, or the reason why it has no address.
//!
//! A reconcile takes these steps, in this order: it observes the objects, allocates an address,
//! writes the Service and the EndpointSlices of a vm load balancer, publishes the address, and
//! reports the change. A write conflicts if the LoadBalancer, its Service or one of its
//! EndpointSlices has changed meanwhile. The reconcile then begins again with the current objects.
//!
//! Invariants:
//!
//! * Only this module writes LoadBalancers, their Services and their EndpointSlices. Two
//!   exceptions: [`super::storage_version`] rewrites LoadBalancers without a change, and
//!   [`crate::k8s::other_controller`] writes a condition while the Go controller holds the Lease.
//! * An address of a pool is published only after the ledger has answered.
//! * An address that the host leases by DHCP is published from its DHCPLease.
//! * A claim is released only when no Service requests its address any more.
//! * The finalizer is removed only after the ledger has released the claim.

mod address;
mod counts;
mod leasing;
mod publish;
mod report;
mod serve;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::channel::mpsc::UnboundedReceiver;
use kube::ResourceExt;
use kube_runtime::Controller;
use kube_runtime::controller::{Action, Error as ControllerError};
use kube_runtime::reflector::ObjectRef;
use serde_json::Value;

use super::failed_reconciles::{FailedReconciles, LONGEST_DELAY};
use super::ip_pool::{LedgerError, LedgerHandle};
use crate::api::{DHCPLease, LoadBalancer};
use crate::domain::limits::reconcile_pace::ReconcilePace;
use crate::domain::load_balancer::status::AddressOutcome;
use crate::domain::load_balancer::{bounds, facts};
use crate::domain::vm_backends::readiness::ServingStatus;
use crate::k8s::CallError;
use crate::k8s::read::ApiReader;
use crate::k8s::trimmed::LbTrimming;
use crate::locks::lock;
use crate::prober::Prober;
use crate::turns::{CallerTurn, Turns};

/// Maximum number of concurrent writes of LoadBalancers that have an address, of Services and of
/// EndpointSlices. A new term can begin with thousands of such writes. The maximum is small, so
/// that these writes do not delay a LoadBalancer that waits for its address.
const WRITES_AT_ONCE: usize = 8;
/// Maximum number of concurrent writes in addition to [`WRITES_AT_ONCE`]. The additional writes are
/// reserved for LoadBalancers without an address and for deleted LoadBalancers, because a guest
/// waits for these writes. More would not help: each write uses a connection of its own, and more
/// connections do not make an API server faster.
const AWAITED_WRITES_AT_ONCE: usize = 24;
/// Maximum number of large LoadBalancers ([`LbTrimming::large`]) that are served, published or
/// finalized at the same time. A greater number would not finish them earlier, but would leave the
/// API server no free core. The API server would then deliver the events of all LoadBalancers late.
const LARGE_AT_ONCE: usize = 2;
/// Maximum number of LoadBalancers that are held whole in memory at the same time. If a view has
/// only a part of a LoadBalancer, a reconcile may read the whole LoadBalancer. The whole
/// LoadBalancer has at most 1.5 MiB, the limit of etcd.
const WHOLE_AT_ONCE: usize = 8;
/// Maximum number of passes of one reconcile, if the LoadBalancer, its Service or one of its
/// EndpointSlices changes during each pass.
const REPETITIONS: usize = 5;
/// Delay before a LoadBalancer is reconciled again after its first failed reconcile. Each further
/// failure in a row doubles the delay.
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// Largest number of reconciles of one LoadBalancer that may run without delay. A LoadBalancer has
/// the full number again after a pause of this number times [`RECONCILE_EVERY`]. From its creation
/// to its announcement, a LoadBalancer needs fewer reconciles.
const RECONCILES_AT_ONCE: u32 = 20;
/// Minimum interval between the reconciles of a LoadBalancer that changes all the time. The
/// interval applies when [`RECONCILES_AT_ONCE`] reconciles have run without delay. A reconcile,
/// with its writes of EndpointSlices and Service, is delayed by at most this time.
const RECONCILE_EVERY: Duration = Duration::from_secs(1);
/// Time from the start of a term until the operator reports that the list of VMs is missing. The
/// list is normally there before this time. A missing list may mean that KubeVirt is not installed.
pub(super) const VMS_WITHIN: Duration = Duration::from_secs(10);

/// Context of the reconciles of all LoadBalancers in one term.
pub struct LbContext {
    /// Context of all controllers of the process.
    pub shared: super::Context,
    /// Handle of the ledger task.
    pub ledger: LedgerHandle,
    prober: Prober,
    /// Turns of namespaces for the writes, so that a tenant with many LoadBalancers does not delay
    /// another tenant.
    writes: Turns<String>,
    awaited_writes: Turns<String>,
    large: Turns<String>,
    whole: Turns<String>,
    /// Whether the API server drops `status.endpoints`, according to the writes of this term.
    drops_counts: AtomicBool,
    counts: counts::DelayedCounts,
    began: Instant,
    pace: Mutex<ReconcilePace>,
    failures: FailedReconciles<ObjectRef<LoadBalancer>>,
    /// DHCPLeases whose creation began recently, each with the time of that beginning.
    made: tokio::sync::Mutex<Vec<(Instant, DHCPLease)>>,
}

impl LbContext {
    /// Makes the context of this replica's new term of leadership, and the queue of delayed counts.
    /// [`run`] takes both.
    pub fn new(
        shared: super::Context,
        ledger: LedgerHandle,
        prober: Prober,
    ) -> (Self, counts::DueCounts) {
        let (counts, due) = counts::DelayedCounts::new();
        let failures = FailedReconciles::new("load_balancer", FIRST_RETRY, &shared.metrics);
        let context = Self {
            shared,
            ledger,
            prober,
            began: Instant::now(),
            pace: Mutex::new(ReconcilePace::new(RECONCILES_AT_ONCE, RECONCILE_EVERY)),
            writes: Turns::new(WRITES_AT_ONCE),
            awaited_writes: Turns::new(AWAITED_WRITES_AT_ONCE),
            large: Turns::new(LARGE_AT_ONCE),
            whole: Turns::new(WHOLE_AT_ONCE),
            drops_counts: AtomicBool::new(false),
            counts,
            failures,
            made: tokio::sync::Mutex::default(),
        };
        (context, due)
    }

    /// Whether [`VMS_WITHIN`] has passed since the start of the term, so that VMs should be listed.
    fn vms_overdue(&self) -> bool {
        self.began.elapsed() >= VMS_WITHIN
    }

    /// Time until the list of VMs is reported as missing, but at least a second. `None`: the term
    /// has lasted for twice [`VMS_WITHIN`], so the report was made before.
    fn vms_due_in(&self) -> Option<Duration> {
        let elapsed = self.began.elapsed();
        let left = VMS_WITHIN.saturating_sub(elapsed).max(Duration::from_secs(1));
        (elapsed < 2 * VMS_WITHIN).then_some(left)
    }
}

/// Reason why a reconcile must be repeated.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The ledger task did not carry out the request.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// An object could not be read or written.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The LoadBalancer must be read from the API server, for one of these reasons:
    ///
    /// * The LoadBalancer, its Service or one of its EndpointSlices has changed since the decision.
    /// * The view has only a part of the LoadBalancer.
    /// * The decision must not be made from a view.
    #[error("the LoadBalancer, its Service or an EndpointSlice has changed meanwhile")]
    Outdated,
    /// A necessary write is not possible: the API server refuses it, or the object has another
    /// owner.
    #[error("a write was refused: {0}")]
    Refused(String),
}

impl ReconcileError {
    /// Kind of the error, as the value of the metric's label `error`.
    fn kind(&self) -> &'static str {
        match self {
            Self::Call(error) => error.kind(),
            Self::Outdated | Self::Ledger(LedgerError::Stale) => "conflict",
            Self::Refused(_) => "refused",
            Self::Ledger(LedgerError::NotWritten(_) | LedgerError::Closed) => "ledger",
        }
    }
}

/// Reconciles each LoadBalancer received on `woken`, and writes the counts that are due, until
/// dropped.
pub async fn run(
    ctx: Arc<LbContext>,
    woken: UnboundedReceiver<ObjectRef<LoadBalancer>>,
    due: counts::DueCounts,
) {
    let store = ctx.shared.views.load_balancers.clone();
    // All triggers come through one stream that cannot fail, so a failing watch does not delay the
    // reconciles. Concurrency is bounded only at the writes, where it has a cost.
    let reconciles = Controller::for_stream(futures::stream::pending(), store)
        .reconcile_on(woken)
        .run(reconcile_until_settled, retry, ctx.clone())
        .for_each(|result| async {
            match result {
                Ok(_) | Err(ControllerError::ReconcilerFailed(..)) => {}
                // The LoadBalancer was deleted while it was queued.
                Err(ControllerError::ObjectNotFound(name)) => {
                    let namespace = name.namespace.as_deref().unwrap_or_default();
                    ctx.counts.discard(&format!("{namespace}/{}", name.name));
                    ctx.failures.forget_missing(&name);
                }
                Err(error) => {
                    tracing::warn!(kind = "LoadBalancer", %error, "cannot run a reconcile");
                }
            }
        });
    tokio::select! {
        () = reconciles => {}
        () = counts::run(due, &ctx) => {}
    }
}

/// LoadBalancer as observed by a reconcile.
struct ObservedLb {
    lb: Arc<LoadBalancer>,
    /// Whether `lb` lacks some finalizers or conditions. A write of either list must contain all
    /// entries.
    partial: bool,
    /// Whether the stored object was large ([`LbTrimming::large`]) when a view last observed it.
    large: bool,
    /// Whether the object was read from the API server for this decision.
    fresh: bool,
    /// Turn to have a whole object in memory: one of [`WHOLE_AT_ONCE`]. `None`: the whole object
    /// was not read from the API server.
    place: Option<CallerTurn<String>>,
}

/// Result of the allocation of an address.
enum Allocation {
    /// The address, or the reason why there is none.
    Done(AddressOutcome),
    /// Patch of annotations that must be written to the LoadBalancer first, so that the lease of
    /// kube-vip is taken over. The event of the write triggers the next reconcile.
    Adopt(Value),
    /// A required object, or a required list, was not observed yet. The event of that object, or
    /// the end of that list, triggers the next reconcile.
    Unobserved,
}

/// Address of a LoadBalancer, and the state of its Service and VMs.
struct ServingOutcome {
    outcome: AddressOutcome,
    /// State of the Service and VMs of a vm load balancer. `None` for three kinds of LoadBalancers:
    ///
    /// * Guest load balancers.
    /// * LoadBalancers whose finalizer or published address is not stored yet.
    /// * LoadBalancers without an address, if no former Service of theirs is left.
    report: Option<ServingStatus>,
    /// Time after which the state of the Service requires a reconcile, even without an event.
    /// `None`: an event will report the next change of the Service.
    again: Option<Duration>,
}

/// Reconciles the LoadBalancer `seen`. If the view is not enough, or after a conflict, reads the
/// LoadBalancer from the API server and reconciles it again, in at most [`REPETITIONS`] passes.
///
/// The reconcile of a LoadBalancer that changes all the time is delayed ([`RECONCILE_EVERY`]), so
/// that its tenant does not delay other tenants.
async fn reconcile_until_settled(
    seen: Arc<LoadBalancer>,
    ctx: Arc<LbContext>,
) -> Result<Action, ReconcileError> {
    let now = ctx.began.elapsed();
    let uid = seen.metadata.uid.as_deref().unwrap_or_default();
    if let Err(later) = lock(&ctx.pace).take(uid, now) {
        return Ok(Action::requeue(later.saturating_sub(now)));
    }
    let _turn = ctx.shared.metrics.reconciling();
    let mut observed = observe(seen.clone(), &ctx);
    for _ in 0..REPETITIONS {
        let needs_whole = observed.partial || observed.place.is_some();
        let large = observed.large;
        let again = match reconcile(observed, &ctx).await {
            Ok(again) => again,
            Err(ReconcileError::Outdated) => match observe_again(&seen, needs_whole, &ctx).await? {
                Some(now) => {
                    observed = ObservedLb { large, ..now };
                    continue;
                }
                None => give_back(&seen, &ctx).await?,
            },
            Err(error) => return Err(error),
        };
        ctx.failures.forget(&ObjectRef::from_obj(seen.as_ref()));
        return Ok(again.map_or_else(Action::await_change, Action::requeue));
    }
    let attempts =
        format!("{REPETITIONS} attempts to reconcile LoadBalancer {}", facts::name(&seen));
    Err(CallError::Conflict(attempts).into())
}

/// Runs one pass of a reconcile. Returns the time after which the LoadBalancer must be reconciled
/// again, even without an event. `None`: only an event triggers the next reconcile.
///
/// Thousands of these futures wait for the ledger at the same time. The later steps are boxed, so
/// that each future is small.
async fn reconcile(
    observed: ObservedLb,
    ctx: &LbContext,
) -> Result<Option<Duration>, ReconcileError> {
    if facts::is_leaving(&observed.lb) {
        return withdraw(observed, ctx).await;
    }
    let ends_at = leasing::ends_at(&observed.lb, ctx);
    let outcome = match address::allocate(&observed, ctx).await? {
        Allocation::Done(outcome) => outcome,
        Allocation::Adopt(patch) => {
            Box::pin(publish::annotate(&observed.lb, &patch, ctx)).await?;
            return Ok(None);
        }
        Allocation::Unobserved => return Ok(ctx.vms_due_in()),
    };
    let lb = &observed.lb;
    let _turn = large_turn(&observed, ctx).await;
    let is_unseen = || ctx.shared.views.record(&facts::name(lb)).is_none();
    let leased = leasing::again(&outcome, is_unseen);
    let again = match Box::pin(serve::serve(lb, outcome, ctx)).await? {
        Some(served) => {
            if Box::pin(publish::publish(&observed, &served, ctx)).await? {
                report::report(lb, &served, ctx);
            }
            served.again
        }
        None => Some(VMS_WITHIN),
    };
    let ends_in = ends_at.map(|at| at.saturating_duration_since(Instant::now()));
    Ok([again, leased, ends_in].into_iter().flatten().min())
}

/// Completes the deletion of a LoadBalancer: removes its Service, its claim and the operator's
/// finalizer, in this order. If a finalizer of the Service delays the deletion of the Service, the
/// claim stays, and the result is the time until the next reconcile. Otherwise, the result is
/// `None`. The deletion event of the Service triggers a reconcile earlier, unless a user has
/// removed the operator's label from the Service.
async fn withdraw(
    observed: ObservedLb,
    ctx: &LbContext,
) -> Result<Option<Duration>, ReconcileError> {
    let lb = &observed.lb;
    ctx.counts.discard(&facts::name(lb));
    let owner = facts::owner(lb);
    if serve::may_be_served(lb, ctx) && !Box::pin(serve::withdraw(lb, ctx)).await? {
        return Ok(Some(LONGEST_DELAY));
    }
    ctx.ledger.release(owner).await?;
    let _turn = large_turn(&observed, ctx).await;
    Box::pin(publish::finalize(&observed, ctx)).await?;
    Ok(None)
}

/// Waits for one of [`LARGE_AT_ONCE`] turns. `None`: the LoadBalancer is not large.
async fn large_turn(observed: &ObservedLb, ctx: &LbContext) -> Option<CallerTurn<String>> {
    let namespace = observed.lb.namespace().filter(|_| observed.large)?;
    Some(ctx.large.take(namespace).await)
}

fn observe(lb: Arc<LoadBalancer>, ctx: &LbContext) -> ObservedLb {
    let LbTrimming { partial, large } = ctx.shared.views.trimming(&lb);
    ObservedLb { lb, partial, large, fresh: false, place: None }
}

/// Reads the object from the API server. If `needs_whole` is true, returns the whole object,
/// otherwise the part that a view has. `None`: the object is gone, or another object has its name
/// now.
async fn observe_again(
    lb: &LoadBalancer,
    needs_whole: bool,
    ctx: &LbContext,
) -> Result<Option<ObservedLb>, CallError> {
    let namespace = lb.namespace().unwrap_or_default();
    let reader = ApiReader::new(ctx.shared.client.clone());
    let place = if needs_whole { Some(ctx.whole.take(namespace.clone()).await) } else { None };
    let now = reader.load_balancer(&namespace, &lb.name_any()).await?;
    Ok(now.filter(|now| now.uid() == lb.uid()).map(|mut now| {
        let partial = !needs_whole && bounds::trim(&mut now);
        ObservedLb { lb: Arc::new(now), partial, large: false, fresh: true, place }
    }))
}

/// Releases the claim and removes the waiting counts of a LoadBalancer that was deleted during its
/// reconcile. The deletion event is not enough: it may have been handled before the claim was made,
/// and it triggers no reconcile.
async fn give_back(lb: &LoadBalancer, ctx: &LbContext) -> Result<Option<Duration>, ReconcileError> {
    ctx.counts.discard(&facts::name(lb));
    let owner = facts::owner(lb);
    // If there is a Service, its deletion event releases the address.
    if !ctx.shared.views.is_served(&owner) {
        ctx.ledger.release(owner).await?;
    }
    Ok(None)
}

#[allow(clippy::needless_pass_by_value)] // The signature is the library's.
fn retry(lb: Arc<LoadBalancer>, error: &ReconcileError, ctx: Arc<LbContext>) -> Action {
    if matches!(
        error,
        ReconcileError::Call(CallError::NotLeader) | ReconcileError::Ledger(LedgerError::Closed)
    ) {
        return Action::await_change();
    }
    let (failures, again) = ctx.failures.count(&lb, error.kind());
    tracing::warn!(lb = facts::name(&lb), %error, failures, "reconcile failed, trying again");
    again
}
