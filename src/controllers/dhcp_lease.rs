//! Deletes DHCPLeases that no LoadBalancer uses, and reports the state of the DHCP agents.
//!
//! Only this module deletes DHCPLeases. It handles three cases:
//!
//! * The LoadBalancer is gone. Its record gets a release time, and is deleted after that time.
//! * The LoadBalancer exists, but neither uses the record nor publishes the record's address. The
//!   record is deleted at once.
//! * The deletion of the record was requested, but its network has no active agent that could
//!   release the address and remove the finalizer. This module removes the finalizer: at once if
//!   the record has no address, otherwise after the lease has expired. A lease that never expires
//!   waits for an agent.
//!
//! Invariant: before each of these writes, the LoadBalancer is read from the API server, because a
//! view may not yet contain a LoadBalancer that was created again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use futures::StreamExt;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use kube::{Resource, ResourceExt};
use kube_runtime::controller::{Action, Controller, Error as ControllerError};
use kube_runtime::reflector::ObjectRef;

use super::Context;
use super::failed_reconciles::FailedReconciles;
use crate::api::{DHCPLease, LoadBalancer};
use crate::domain::dhcp_lease::{self, RetentionStep};
use crate::k8s::CallError;
use crate::k8s::informer;
use crate::k8s::read::ApiReader;
use crate::k8s::views::Views;

/// Delay before a DHCPLease is reconciled again after its first failed reconcile. Each further
/// failure in a row doubles the delay.
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// Interval between two checks whether the DHCP agents are active. The stop of an agent causes no
/// event, so only a check can notice the stop.
const AGENTS_EVERY: Duration = Duration::from_secs(1);

/// Handle that enqueues DHCPLeases to be reconciled.
pub(super) struct RecordQueue {
    views: Views,
    wake: UnboundedSender<ObjectRef<DHCPLease>>,
}

impl RecordQueue {
    /// Enqueues the DHCPLease of the LoadBalancer `namespace/name`. Does nothing if the
    /// LoadBalancer has no DHCPLease.
    pub(super) fn enqueue(&self, name: &str, namespace: Option<&str>) {
        let record = ObjectRef::new(name).within(namespace.unwrap_or_default());
        if self.views.records.get(&record).is_some() {
            let _ = self.wake.unbounded_send(record);
        }
    }
}

struct DhcpLeaseContext {
    ctx: Context,
    failures: FailedReconciles<ObjectRef<DHCPLease>>,
}

/// Makes the queue of DHCPLeases, and the future that reconciles them until it is dropped.
pub(super) fn controller(ctx: Context) -> (RecordQueue, impl Future<Output = ()>) {
    let (wake, woken) = unbounded();
    let records = RecordQueue { views: ctx.views.clone(), wake: wake.clone() };
    let run = async move {
        let store = ctx.views.records.clone();
        for record in store.state() {
            let _ = wake.unbounded_send(ObjectRef::from_obj(record.as_ref()));
        }
        let failures = FailedReconciles::new("dhcp_lease", FIRST_RETRY, &ctx.metrics);
        let context = Arc::new(DhcpLeaseContext { ctx, failures });
        Controller::for_stream(futures::stream::pending(), store)
            .reconcile_on(woken)
            .run(reconcile, retry, context.clone())
            .for_each(async |result| {
                if let Err(ControllerError::ObjectNotFound(name)) = result {
                    context.failures.forget_missing(&name);
                }
            })
            .await;
    };
    (records, run)
}

async fn reconcile(
    record: Arc<DHCPLease>,
    context: Arc<DhcpLeaseContext>,
) -> Result<Action, CallError> {
    let views = &context.ctx.views;
    let lb = views.load_balancers.get(&crate::k8s::views::lb_of(&record));
    if !lb.as_ref().map_or(views.leasing_synced(), |lb| views.leasing_synced_for(lb)) {
        return Ok(Action::requeue(AGENTS_EVERY));
    }
    let done = match decide(&record, lb.as_deref(), &context.ctx) {
        RetentionStep::Nothing => None,
        RetentionStep::Later(pause) => Some(pause + Duration::from_millis(10)),
        seen => {
            // The LoadBalancer as the API server has it now.
            let (namespace, name) = (record.namespace().unwrap_or_default(), record.name_any());
            let reader = ApiReader::new(context.ctx.client.clone());
            let lb = Box::pin(reader.load_balancer(&namespace, &name)).await?;
            match decide(&record, lb.as_ref(), &context.ctx) {
                RetentionStep::Nothing => None,
                RetentionStep::Later(pause) => Some(pause),
                now if std::mem::discriminant(&now) == std::mem::discriminant(&seen) => {
                    Box::pin(carry_out(&record, now, &context.ctx)).await?;
                    None
                }
                _ => Some(FIRST_RETRY),
            }
        }
    };
    context.failures.forget(&ObjectRef::from_obj(record.as_ref()));
    // `done` is the time until the record's next step, for example until its lease expires. `None`:
    // the next step waits for an event of the record or its LoadBalancer, or for the network's
    // agent. When the agent becomes active, [`agents`] enqueues the record.
    Ok(done.map_or_else(Action::await_change, Action::requeue))
}

fn decide(record: &DHCPLease, lb: Option<&LoadBalancer>, ctx: &Context) -> RetentionStep {
    let network = lb.map(|lb| ctx.views.leasing_network(lb));
    let agent = ctx.views.agent_serves(&record.spec.network);
    dhcp_lease::retention_step(
        record,
        lb,
        &network.unwrap_or_default(),
        agent,
        ctx.release_grace,
        Utc::now().fixed_offset(),
    )
}

async fn carry_out(
    record: &DHCPLease,
    what: RetentionStep,
    ctx: &Context,
) -> Result<(), CallError> {
    let key = informer::key(record.meta());
    let done = match what {
        RetentionStep::Nothing | RetentionStep::Later(_) => return Ok(()),
        RetentionStep::Leave(at) => {
            tracing::info!(record = key, %at, "leased address stays reserved for its LoadBalancer until the time `at`");
            let patch = dhcp_lease::release_after(record, Some(at));
            ctx.writer.patch_record(record, &patch).await.map(drop)
        }
        RetentionStep::Delete => {
            tracing::info!(record = key, "deleting the record: its agent releases the address");
            ctx.writer.delete_record(record).await
        }
        RetentionStep::Forget => {
            let Some(patch) = dhcp_lease::without_finalizer(record) else { return Ok(()) };
            let forgotten = ctx.writer.patch_record(record, &patch).await.map(drop);
            if forgotten.is_ok() {
                tracing::warn!(
                    record = key,
                    "removed the record of an expired lease, because its network has no DHCP agent"
                );
                let note = format!(
                    "the leased address was not released: network {} has no DHCP agent",
                    record.spec.network
                );
                ctx.events.warning(record.object_ref(&()), "RecordRemoved", note);
            }
            forgotten
        }
    };
    match done {
        // The record does not exist, so the step is done. A conflict is returned as an error, so
        // that the step is tried again. The watch may have shown the conflicting change before the
        // write, and then no further event triggers a reconcile.
        Err(CallError::NotFound(_)) => Ok(()),
        other => other,
    }
}

#[allow(clippy::needless_pass_by_value)] // The signature is the library's.
fn retry(record: Arc<DHCPLease>, error: &CallError, context: Arc<DhcpLeaseContext>) -> Action {
    if matches!(error, CallError::NotLeader) {
        return Action::await_change();
    }
    let (failures, again) = context.failures.count(&record, error.kind());
    let record = informer::key(record.meta());
    tracing::warn!(record, %error, failures, "cannot reconcile the record, trying again");
    again
}

/// Checks each second which networks have an active DHCP agent, and sets the metrics of DHCPLeases
/// and of agents, until the returned future is dropped. Enqueues the following objects at the first
/// check of a network, and each time its agent becomes active or inactive:
///
/// * the DHCPLeases of the network, and their LoadBalancers
/// * the LoadBalancers that wait for a lease on the network
pub(super) async fn agents(ctx: Context) {
    // The drop of `_series`, at the end of the term, removes the series of these metrics.
    let _series = LeasingSeries(&ctx);
    // Networks, and whether the agent of each was active at the last check.
    let mut known: BTreeMap<String, bool> = BTreeMap::new();
    let mut tick = tokio::time::interval(AGENTS_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if !ctx.views.leasing_synced() {
            continue;
        }
        let leasing = &ctx.metrics.leasing;
        let networks = count(&ctx);
        known.retain(|network, _| {
            let stays = networks.contains_key(network);
            if !stays {
                let _ = leasing.agents.remove_label_values(&[network]);
                let _ = leasing.overdue.remove_label_values(&[network]);
            }
            stays
        });
        for (network, overdue) in &networks {
            let serves = ctx.views.agent_serves(network);
            leasing.agents.with_label_values(&[network]).set(serves.into());
            leasing.overdue.with_label_values(&[network]).set(*overdue);
            let before = known.insert(network.clone(), serves);
            if before != Some(serves) {
                ctx.views.enqueue_lbs_leasing_on(network);
                if !serves {
                    tracing::warn!(network, "this network has no active DHCP agent");
                } else if before.is_some() {
                    tracing::info!(network, "this network has an active DHCP agent again");
                }
            }
        }
    }
}

/// Counts the DHCPLeases by state, for the metrics. Returns a map from a network to the number of
/// its leases that have less than an eighth of their time left. The map contains the networks of
/// all DHCPLeases, and the declared networks on which a LoadBalancer waits for an address.
fn count(ctx: &Context) -> BTreeMap<String, i64> {
    let mut networks: BTreeMap<String, i64> = BTreeMap::new();
    let mut states: BTreeMap<String, i64> = BTreeMap::new();
    let now = Utc::now().fixed_offset();
    for record in ctx.views.records.state() {
        *networks.entry(record.spec.network.clone()).or_default() +=
            i64::from(dhcp_lease::is_overdue(&record, now));
        let state = record.status.as_ref().and_then(|status| status.state);
        let state = state.map_or_else(|| "New".to_owned(), |state| format!("{state:?}"));
        *states.entry(state).or_default() += 1;
    }
    for network in ctx.views.leasing_networks() {
        networks.entry(network).or_default();
    }
    ctx.metrics.leasing.records.reset();
    for (state, count) in &states {
        ctx.metrics.leasing.records.with_label_values(&[state]).set(*count);
    }
    networks
}

struct LeasingSeries<'a>(&'a Context);

impl Drop for LeasingSeries<'_> {
    fn drop(&mut self) {
        self.0.metrics.leasing.records.reset();
        self.0.metrics.leasing.agents.reset();
        self.0.metrics.leasing.overdue.reset();
    }
}
