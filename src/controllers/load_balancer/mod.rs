//! One LoadBalancer at a time: its address published, or the reason why it has none.
//!
//! A reconcile observes, allocates an address, serves, publishes and reports, in this order. When the
//! object was changed meanwhile, all of it begins again from the current one.
//!
//! Owns every write of a LoadBalancer, of its Service and of its EndpointSlices. Ledgers are the
//! business of [`super::ip_pool`]; here an address is published only after the ledger's answer,
//! a claim given back only when no Service asks for it any more, and a finalizer removed only
//! after the ledger has let go. What the host leases by DHCP is published as its record says.

mod address;
mod counts;
mod leasing;
mod publish;
mod report;
mod serve;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::{Api, ResourceExt};
use kube_runtime::Controller;
use kube_runtime::controller::{Action, Error as ControllerError};
use kube_runtime::reflector::ObjectRef;
use tokio::sync::{Semaphore, mpsc};

use super::ip_pool::{Handle, LedgerError};
use crate::api::{DHCPLease, LoadBalancer};
use crate::domain::limits::backoff::backoff;
use crate::domain::load_balancer::facts;
use crate::domain::load_balancer::status::Finding;
use crate::domain::vm_backends::listeners::{self, Report};
use crate::k8s::{CallError, call};
use crate::prober::Prober;

/// LoadBalancers written at the same time. Each takes a connection of its own; more of them
/// do not make an API server faster.
const WRITES_AT_ONCE: usize = 24;
/// LoadBalancers without an address that are written besides: they do not wait for thousands that a
/// new term brings up to date.
const FIRST_WRITES_AT_ONCE: usize = 8;
/// Passes of one reconcile over an object that keeps changing under it.
const REPETITIONS: usize = 5;
/// First and longest delay after a failure, per object.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(30);
/// VMs that cannot be listed for so long are worth a word: perhaps there is no KubeVirt.
pub(super) const VMS_WITHIN: Duration = Duration::from_secs(10);

/// What a reconcile works with.
pub struct Context {
    /// The process's.
    pub shared: super::Context,
    /// The way to the ledgers.
    pub ledger: Handle,
    prober: Prober,
    writes: Semaphore,
    first_writes: Semaphore,
    began: Instant,
    failures: report::Failures,
    counts: counts::Counts,
    /// Records that were made a moment ago, and when.
    made: tokio::sync::Mutex<Vec<(Instant, DHCPLease)>>,
}

impl Context {
    /// For one term of leadership, and what [`run`] takes beside it.
    pub fn new(shared: super::Context, ledger: Handle, prober: Prober) -> (Self, Due) {
        let (counts, due) = counts::Counts::new();
        let context = Self {
            shared,
            ledger,
            prober,
            began: Instant::now(),
            writes: Semaphore::new(WRITES_AT_ONCE),
            first_writes: Semaphore::new(FIRST_WRITES_AT_ONCE),
            failures: report::Failures::default(),
            counts,
            made: tokio::sync::Mutex::default(),
        };
        (context, Due(due))
    }

    /// Whether VMs should have been listed by now.
    fn vms_overdue(&self) -> bool {
        self.began.elapsed() >= VMS_WITHIN
    }
}

/// When counts of VMs are to be written.
pub struct Due(counts::Due);

/// Why a reconcile must be repeated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The ledger gave no answer.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// An object could not be read or written.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The LoadBalancer is not what was decided on any more, or was not seen as a whole.
    #[error("the LoadBalancer has changed meanwhile")]
    Outdated,
    /// The API server refuses what must be done.
    #[error("refused: {0}")]
    Refused(String),
}

/// Reconciles what it is told of until dropped.
pub async fn run(
    ctx: Arc<Context>,
    woken: mpsc::UnboundedReceiver<ObjectRef<LoadBalancer>>,
    Due(due): Due,
) {
    let store = ctx.shared.views.load_balancers.clone();
    let woken = futures::stream::unfold(woken, |mut woken| async move {
        woken.recv().await.map(|lb| (lb, woken))
    });
    // All triggers come through one stream that cannot fail: no failing watch slows them.
    // Concurrency is bounded where it costs something, at the writes.
    let reconciles = Controller::for_stream(futures::stream::pending(), store)
        .reconcile_on(woken)
        .run(reconcile_until_settled, retry, ctx.clone())
        .for_each(|result| async {
            match result {
                // Gone while its turn came.
                Ok(_)
                | Err(ControllerError::ObjectNotFound(_) | ControllerError::ReconcilerFailed(..)) =>
                    {}
                Err(error) => tracing::warn!(%error, "reconcile not run"),
            }
        });
    tokio::select! {
        () = reconciles => {}
        () = counts::run(due, &ctx) => {}
    }
}

/// A LoadBalancer that is decided on.
struct Observed {
    lb: Arc<LoadBalancer>,
    /// Whether entries are missing that a write of it must carry.
    partial: bool,
}

/// Address of a LoadBalancer, and what serves it.
struct Served {
    finding: Finding,
    /// State of the Service of a vm load balancer.
    report: Option<Report>,
    /// Time until the Service is looked at again, if its change is no event.
    again: Option<Duration>,
}

/// Reconciles what was seen; after a conflict, the object as the API server has it.
async fn reconcile_until_settled(
    seen: Arc<LoadBalancer>,
    ctx: Arc<Context>,
) -> Result<Action, Error> {
    let _turn = ctx.shared.metrics.reconciling();
    let mut observed = observe(seen.clone(), &ctx);
    for _ in 0..REPETITIONS {
        let again = match reconcile(observed, &ctx).await {
            Ok(again) => again,
            Err(Error::Outdated) => match observe_again(&seen, &ctx).await? {
                Some(now) => {
                    observed = now;
                    continue;
                }
                None => give_back(&seen, &ctx).await?,
            },
            Err(error) => return Err(error),
        };
        ctx.failures.clear(seen.uid().as_deref());
        return Ok(again.map_or_else(Action::await_change, Action::requeue));
    }
    Err(CallError::Conflict.into())
}

/// All that a LoadBalancer needs, once. Returns the time until it is due again though nothing changes.
///
/// Thousands of these wait for the ledger at the same time, so what comes after is boxed.
async fn reconcile(observed: Observed, ctx: &Context) -> Result<Option<Duration>, Error> {
    if facts::is_leaving(&observed.lb) {
        withdraw(observed, ctx).await?;
        return Ok(None);
    }
    let Some((observed, finding)) = address::allocate(observed, ctx).await? else {
        return Ok(None);
    };
    let lb = &observed.lb;
    let leased = leasing::again(&finding);
    let again = match Box::pin(serve::serve(lb, finding, ctx)).await? {
        Some(served) => {
            if Box::pin(publish::publish(&observed, &served, ctx)).await? {
                report::report(lb, &served, ctx);
            }
            served.again
        }
        None => Some(VMS_WITHIN),
    };
    Ok([again, leased, leasing::ends_in(lb, ctx)].into_iter().flatten().min())
}

/// Undoes all of it, in the reverse order. The end of a Service that is still there leads here again.
async fn withdraw(observed: Observed, ctx: &Context) -> Result<(), Error> {
    let lb = &observed.lb;
    ctx.counts.settle(lb);
    if listeners::is_vm(lb) && !Box::pin(serve::withdraw(lb, ctx)).await? {
        return Ok(());
    }
    ctx.ledger.release(facts::owner(lb)).await?;
    Box::pin(publish::finalize(&observed, ctx)).await
}

fn observe(lb: Arc<LoadBalancer>, ctx: &Context) -> Observed {
    ctx.shared.views.look(&lb);
    let partial = ctx.shared.views.is_partial(&lb);
    Observed { lb, partial }
}

/// Reads the object from the API server. `None`: it is gone, or another one has its name.
async fn observe_again(lb: &LoadBalancer, ctx: &Context) -> Result<Option<Observed>, CallError> {
    let api: Api<LoadBalancer> =
        Api::namespaced(ctx.shared.client.clone(), &lb.namespace().unwrap_or_default());
    match Box::pin(call(api.get(&lb.name_any()))).await {
        Ok(now) if now.uid() == lb.uid() => {
            Ok(Some(Observed { lb: Arc::new(now), partial: false }))
        }
        Ok(_) | Err(CallError::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Releases the address of a LoadBalancer that was deleted between claim and publication. Nothing else
/// does when the event of its end came before the claim.
async fn give_back(lb: &LoadBalancer, ctx: &Context) -> Result<Option<Duration>, Error> {
    let owner = facts::owner(lb);
    // The end of its Service is an event, and gives it back.
    if !ctx.shared.views.is_served(&owner) {
        ctx.ledger.release(owner).await?;
    }
    Ok(None)
}

#[allow(clippy::needless_pass_by_value)] // The signature is the library's.
fn retry(lb: Arc<LoadBalancer>, error: &Error, ctx: Arc<Context>) -> Action {
    if matches!(error, Error::Call(CallError::NotLeader) | Error::Ledger(LedgerError::Closed)) {
        return Action::await_change();
    }
    let failures = ctx.failures.count(lb.uid().as_deref());
    ctx.shared.metrics.reconcile_errors.inc();
    tracing::warn!(lb = facts::name(&lb), %error, failures, "reconcile failed, trying again");
    Action::requeue(backoff(failures, FIRST_RETRY, LAST_RETRY, report::jitter(&lb, failures)))
}
