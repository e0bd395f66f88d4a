//! One LoadBalancer at a time: its address published, or the reason why it has none.
//!
//! Owns every write of a LoadBalancer. Ledgers are the business of [`super::ip_pool`]; here an
//! address is published only after the ledger's answer, and a finalizer removed only after
//! the ledger has let go.

mod act;
mod gather;
mod report;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::ResourceExt;
use kube_runtime::Controller;
use kube_runtime::controller::{Action, Error as ControllerError};
use kube_runtime::reflector::ObjectRef;
use tokio::sync::{Semaphore, mpsc};

use super::ip_pool::{Handle, LedgerError};
use crate::api::LoadBalancer;
use crate::domain::facts;
use crate::domain::pacing::backoff;
use crate::k8s::CallError;

/// LoadBalancers written at the same time. Each takes a connection of its own; more of them
/// do not make an API server faster.
const WRITES_AT_ONCE: usize = 24;
/// First and longest delay after a failure, per object.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// What a reconcile works with.
pub struct Context {
    /// The process's.
    pub shared: super::Context,
    /// The way to the ledgers.
    pub ledger: Handle,
    writes: Semaphore,
    failures: report::Failures,
}

impl Context {
    /// For one term of leadership.
    pub fn new(shared: super::Context, ledger: Handle) -> Self {
        Self {
            shared,
            ledger,
            writes: Semaphore::new(WRITES_AT_ONCE),
            failures: report::Failures::default(),
        }
    }
}

/// Why a reconcile must be repeated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The ledger gave no answer.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The LoadBalancer could not be read or written.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// Reconciles what it is told of until dropped.
pub async fn run(ctx: Arc<Context>, woken: mpsc::UnboundedReceiver<ObjectRef<LoadBalancer>>) {
    let store = ctx.shared.views.load_balancers.clone();
    let woken = futures::stream::unfold(woken, |mut woken| async move {
        woken.recv().await.map(|lb| (lb, woken))
    });
    // All triggers come through one stream that cannot fail: no failing watch slows them.
    // Concurrency is bounded where it costs something, at the writes.
    Controller::for_stream(futures::stream::pending(), store)
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
        })
        .await;
}

/// Thousands of these wait for the ledger at the same time, so what comes after is boxed.
async fn reconcile(lb: Arc<LoadBalancer>, ctx: Arc<Context>) -> Result<Action, Error> {
    if facts::is_leaving(&lb) {
        ctx.ledger.release(facts::owner(&lb)).await?;
        Box::pin(act::finalize(&lb, &ctx)).await?;
    } else {
        let found = gather::finding(lb.clone(), false, &ctx).await?;
        if let Some((lb, finding)) = found {
            Box::pin(act::publish(lb, finding, &ctx)).await?;
        }
    }
    ctx.failures.clear(lb.uid().as_deref());
    Ok(Action::await_change())
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
