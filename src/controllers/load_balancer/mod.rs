//! One LoadBalancer at a time: its address published, or the reason why it has none.
//!
//! Owns every write of a LoadBalancer, of its Service and of its EndpointSlices. Ledgers are the
//! business of [`super::ip_pool`]; here an address is published only after the ledger's answer,
//! a claim given back only when no Service asks for it any more, and a finalizer removed only
//! after the ledger has let go. What the host leases by DHCP is published as its record says.

mod act;
mod counts;
mod gather;
mod leasing;
mod report;
mod serve;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::ResourceExt;
use kube_runtime::Controller;
use kube_runtime::controller::{Action, Error as ControllerError};
use kube_runtime::reflector::ObjectRef;
use tokio::sync::{Semaphore, mpsc};

use super::ip_pool::{Handle, LedgerError};
use crate::api::{DHCPLease, LoadBalancer};
use crate::domain::limits::backoff::backoff;
use crate::domain::load_balancer::facts;
use crate::domain::load_balancer::status::{self, Finding};
use crate::domain::pools::allocator::Verdict;
use crate::domain::vm_backends::listeners;
use crate::k8s::CallError;
use crate::prober::Prober;

/// LoadBalancers written at the same time. Each takes a connection of its own; more of them
/// do not make an API server faster.
const WRITES_AT_ONCE: usize = 24;
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
        .run(reconcile, retry, ctx.clone())
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

/// Thousands of these wait for the ledger at the same time, so what comes after is boxed.
async fn reconcile(lb: Arc<LoadBalancer>, ctx: Arc<Context>) -> Result<Action, Error> {
    let _turn = ctx.shared.metrics.reconciling();
    ctx.shared.views.look(&lb);
    let mut again = None;
    if facts::is_leaving(&lb) {
        ctx.counts.settle(&lb);
        if listeners::is_vm(&lb) && !Box::pin(serve::withdraw(&lb, &ctx)).await? {
            return Ok(Action::await_change());
        }
        ctx.ledger.release(facts::owner(&lb)).await?;
        Box::pin(act::finalize(&lb, &ctx)).await?;
    } else {
        let found = gather::finding(lb.clone(), false, &ctx).await?;
        if let Some((lb, finding)) = found {
            let later = leasing::again(&finding);
            if listeners::is_vm(&lb) && status::may_serve(&lb) {
                again = Box::pin(serve_and_publish(lb.clone(), finding, &ctx)).await?;
            } else {
                Box::pin(act::publish(lb.clone(), finding, None, &ctx)).await?;
            }
            again = again.into_iter().chain(later).chain(leasing::ends_in(&lb, &ctx)).min();
        }
    }
    ctx.failures.clear(lb.uid().as_deref());
    Ok(again.map_or_else(Action::await_change, Action::requeue))
}

/// A vm load balancer: first what serves it, then what is said of that.
async fn serve_and_publish(
    lb: Arc<LoadBalancer>,
    finding: Finding,
    ctx: &Context,
) -> Result<Option<Duration>, Error> {
    let Some(mut report) = serve::serve(&lb, &finding, ctx).await? else {
        if matches!(finding, Finding::Pool(Verdict::Waiting(_)) | Finding::Host(Err(_))) {
            act::publish(lb, finding, None, ctx).await?;
            return Ok(None);
        }
        // VMs were not listed yet.
        return Ok(Some(VMS_WITHIN));
    };
    // What another owns carries no label to watch it by, and refusals end unseen.
    let again = match report.service {
        listeners::Service::Foreign(_) | listeners::Service::Refused(_) => Some(LAST_RETRY),
        listeners::Service::Held(left) => Some(left),
        _ => None,
    };
    let finding = match status::moves_from(&lb, &finding) {
        // That is not given up while it may be announced.
        Some(old) if serve::may_lead_here(&lb, old.ip, ctx) => {
            report.moving_from = Some(old.ip).filter(|_| report.ingress.is_empty());
            status::staying_at(old)
        }
        _ => finding,
    };
    act::publish(lb, finding, Some(&report), ctx).await?;
    Ok(again)
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
