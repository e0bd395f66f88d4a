//! Reports the result of a reconcile in Events, logs and metrics.

use kube::{Resource, ResourceExt};

use super::{LbContext, ServingOutcome, leasing};
use crate::api::{ConditionStatus, LoadBalancer};
use crate::domain::load_balancer::facts;
use crate::domain::load_balancer::status::{self, AddressOutcome};
use crate::domain::pools::allocator::ClaimResult;
use crate::domain::reason;
use crate::domain::vm_backends::backend_address::AddressFault;
use crate::domain::vm_backends::readiness::{self, ServingStatus};

/// Largest number of refused addresses that are logged at one write. The condition Ready names at
/// most as many.
const MOST_LOGGED: usize = 5;

/// Reports a published status. `lb`: the LoadBalancer as it was before the write of that status.
pub(super) fn report(lb: &LoadBalancer, served: &ServingOutcome, ctx: &LbContext) {
    let shared = &ctx.shared;
    let ServingOutcome { outcome, report, .. } = served;
    if let Some(report) = report {
        report_service(lb, report, ctx);
        log_refused(lb, served);
    }
    let before = facts::allocated_ip(lb);
    match outcome {
        AddressOutcome::Guest(why) => {
            shared.metrics.addressed(&lb.uid().unwrap_or_default());
            if let Some(why) = why.clone().filter(|_| before.is_none()) {
                shared.events.normal(lb.object_ref(&()), reason::DHCP, why);
            }
        }
        AddressOutcome::Host(lease) => leasing::published(lb, lease.as_ref(), before, ctx),
        AddressOutcome::Pool(ClaimResult::Held { claim, instead, .. }) => {
            shared.metrics.addressed(&lb.uid().unwrap_or_default());
            let ip = claim.ip.to_string();
            if before != Some(&ip) {
                tracing::info!(lb = facts::name(lb), pool = claim.pool, ip, "address published");
                let note = format!("{ip} from IPPool {}", claim.pool);
                shared.events.normal(lb.object_ref(&()), reason::ALLOCATED, note);
            }
            if let Some(wait) = instead {
                shared.events.warning(lb.object_ref(&()), wait.reason(), wait.message());
            }
        }
        AddressOutcome::Pool(ClaimResult::Waiting(wait)) => {
            tracing::info!(
                lb = facts::name(lb),
                reason = wait.reason(),
                "the LoadBalancer has no address"
            );
            shared.events.warning(lb.object_ref(&()), wait.reason(), wait.message());
        }
    }
}

/// Reports the reason of a vm load balancer's condition Ready, if the reason has changed.
/// Exceptions: a missing announcement, and the beginning or the end of a doubt about the prober.
/// `lb`: the LoadBalancer as it was before the write of its status.
fn report_service(lb: &LoadBalancer, report: &ServingStatus, ctx: &LbContext) {
    let asked = facts::allocated_ip(lb).unwrap_or_default();
    let (status, why, message) = readiness::ready(report, asked);
    let before = facts::ready(lb).and_then(|c| c.reason.as_deref());
    // A missing announcement is not reported, because the announcer announces an address some time
    // after the Service was written. A doubt about the prober can concern every load balancer, so
    // it is reported by one Event on the Lease, and not here.
    let has_event = why == reason::PROBER_DOUBTED
        || (why == reason::ANNOUNCED && before == Some(reason::PROBER_DOUBTED));
    if why == reason::NOT_ANNOUNCED || before == Some(why) || has_event {
        return;
    }
    tracing::info!(lb = facts::name(lb), reason = why, message, "served");
    if status == ConditionStatus::True && why == reason::ANNOUNCED {
        ctx.shared.events.normal(lb.object_ref(&()), why, message);
    } else {
        ctx.shared.events.warning(lb.object_ref(&()), why, message);
    }
}

/// Logs the VMs that were refused as backends because they report an address of the cluster itself.
/// Each log line names the object that has the address, such as a node or a Service. The condition
/// and the Event do not name the object, because it may be another tenant's. Logs nothing if the
/// write of the status did not change the condition Ready. `lb`: the LoadBalancer as it was before
/// the write.
fn log_refused(lb: &LoadBalancer, served: &ServingOutcome) {
    let ServingOutcome { outcome, report, .. } = served;
    let (_, ready) = status::address_and_ready(lb, outcome, report.as_ref());
    let before = facts::ready(lb);
    let is_news = before.is_none_or(|c| (&c.reason, &c.message) != (&ready.reason, &ready.message));
    if ready.reason.as_deref() != Some(reason::BACKEND_ADDRESS_REFUSED) || !is_news {
        return;
    }
    let backends = report.iter().filter_map(|report| report.backends.as_ref());
    for (vm, address, fault) in backends.flat_map(|found| &found.refused).take(MOST_LOGGED) {
        if let AddressFault::Reserved(object) = fault {
            tracing::info!(
                lb = facts::name(lb),
                %vm,
                %address,
                %object,
                "the VM reports an address of the cluster, which is refused"
            );
        }
    }
}
