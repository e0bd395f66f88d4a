//! Leases addresses on the host: creates and maintains DHCPLeases. A DHCPLease is the record that
//! the agent of a network serves. [`super::super::dhcp_lease`] deletes the records.
//!
//! Invariants:
//!
//! * The record exists before the agent asks the DHCP server.
//! * A new address is published only if the API server's last answer contains the record with this
//!   address. The view is not enough.
//! * If the view has no record, a published address is withdrawn only after a read of the record
//!   from the API server. If this read fails, the reconcile fails, and the address stays.
//!
//! Events of the record trigger reconciles of its LoadBalancer. If the view lacks the record, for
//! example because the operator has no right to list DHCPLeases, the LoadBalancer is reconciled
//! again after [`UNSEEN_AGAIN`].

use std::time::{Duration, Instant};

use chrono::Utc;
use kube::{Api, Resource, ResourceExt};

use super::{Allocation, LbContext, ReconcileError};
use crate::api::{DHCPLease, LoadBalancer};
use crate::controllers::failed_reconciles::LONGEST_DELAY;
use crate::domain::LeasedAddress;
use crate::domain::dhcp_lease::{self, LeasingFacts, LeasingStep};
use crate::domain::load_balancer::facts;
use crate::domain::load_balancer::status::AddressOutcome;
use crate::domain::reason::{self, NoLease};
use crate::k8s::CallError;
use crate::k8s::calls::ApiCalls as _;
use crate::k8s::informer::key;

/// Period at the start of each term. During this period, a published address stays even if the
/// recorded expiry of its lease has passed: while the API server was unavailable, agents may have
/// renewed leases without recording the renewals. When the API server is available again, an agent
/// needs one call for its Lease and one write to record these renewals.
const AGENTS_RETURN: Duration = Duration::from_secs(20);
/// Delay of the next reconcile in two cases: another LoadBalancer has the requested DHCP client
/// identity, or the leased address must not be published.
const LOOKS_AGAIN: Duration = Duration::from_secs(5);
/// Delay of the next reconcile of a LoadBalancer whose DHCPLease is not in the view. No event
/// reports a change or the expiry of such a lease.
const UNSEEN_AGAIN: Duration = Duration::from_secs(10);
/// Time for which [`LbContext::made`] contains a DHCPLease after its creation. The view shows the
/// DHCPLease before this time has passed.
const SEEN_WITHIN: Duration = Duration::from_secs(10);
/// Maximum number of attempts to decide and make one change of a DHCPLease, if another client
/// changes the DHCPLease during each attempt. The attempts are made here, because a repeated
/// reconcile would read only the LoadBalancer again.
const REPETITIONS: usize = 5;

/// Leases the LoadBalancer's address on the host: creates or keeps its DHCPLease. If the announcer
/// leases the address, decides whether to take the lease over.
pub(super) async fn allocate(
    lb: &LoadBalancer,
    ctx: &LbContext,
) -> Result<Allocation, ReconcileError> {
    let views = &ctx.shared.views;
    let (Some(cluster), true) = (views.cluster_id(), views.leasing_synced_for(lb)) else {
        return Ok(Allocation::Unobserved);
    };
    if dhcp_lease::needs_service(lb) && !views.endpoints_synced() {
        return Ok(Allocation::Unobserved);
    }
    let host = |lease| Ok(Allocation::Done(AddressOutcome::Host(lease)));
    let name = facts::name(lb);
    let network = views.leasing_network(lb);
    let mut record = views.record(&name).map(|record| record.as_ref().clone());
    let mut fresh = false;
    if record.is_none() && facts::leased(lb).is_some() {
        // The view also lacks the record if the operator has no right to list DHCPLeases.
        (record, fresh) = (current(lb, ctx).await?, true);
    }
    for _ in 0..REPETITIONS {
        let written = match decide(lb, &network, record.as_ref(), ctx) {
            LeasingStep::Guest(why) => return Ok(Allocation::Done(AddressOutcome::Guest(why))),
            LeasingStep::Wait(why) => return host(Err(why)),
            LeasingStep::Adopt(patch) => return Ok(Allocation::Adopt(patch)),
            LeasingStep::Take(lease) if fresh || facts::leased(lb) == Some(lease.ip) => {
                return host(views.unless_in_the_way(lb, lease));
            }
            // A new address is published only from a record that was just read, because the lease
            // may have ended since the view was updated.
            LeasingStep::Take(lease) => match views.unless_in_the_way(lb, lease) {
                // A published address is withdrawn only for a record that was just read.
                Err(why) if facts::leased(lb).is_none() => return host(Err(why)),
                _ => None,
            },
            LeasingStep::Create => match create(lb, &cluster, &network, ctx).await {
                Ok(created) => Some(created),
                Err(why) => return host(Err(why)),
            },
            LeasingStep::Keep => {
                let Some(record) = &record else { return Ok(Allocation::Unobserved) };
                let patch = dhcp_lease::release_after(record, None);
                Some(Box::pin(ctx.shared.writer.patch_record(record, &patch)).await)
            }
        };
        record = match written {
            Some(Ok(now)) => Some(now),
            Some(Err(error)) => match refusal(error, record.is_none())? {
                Some(why) => return host(Err(why)),
                None => current(lb, ctx).await?,
            },
            None => current(lb, ctx).await?,
        };
        fresh = true;
    }
    let attempts = format!("{REPETITIONS} attempts to write DHCPLease {name}");
    Err(CallError::Conflict(attempts).into())
}

/// Decides the next step of the LoadBalancer's lease, from the views and from `record`, the
/// LoadBalancer's DHCPLease.
fn decide(
    lb: &LoadBalancer,
    network: &str,
    record: Option<&DHCPLease>,
    ctx: &LbContext,
) -> LeasingStep {
    let views = &ctx.shared.views;
    let fault = views.network_fault(network);
    let service = views.services.of(&facts::name(lb)).next();
    dhcp_lease::step(&LeasingFacts {
        lb,
        network,
        record,
        declared: views.declares(network),
        fault: fault.as_deref(),
        serving: views.agent_serves(record.map_or(network, |record| &record.spec.network)),
        service: service.as_ref(),
        early: !early(ctx).is_zero(),
        now: Utc::now().fixed_offset(),
    })
}

/// Reason why the API server refused to create or change a DHCPLease. `None`: the DHCPLease must be
/// read again, because it exists already, has changed or is gone. `Err`: a retry may succeed.
/// `creating`: whether the failed write was the creation.
fn refusal(error: CallError, creating: bool) -> Result<Option<NoLease>, CallError> {
    match error {
        CallError::NotFound(_) if creating => Ok(Some(NoLease::Refused(
            "the cluster does not serve this kind: install its CustomResourceDefinition".to_owned(),
        ))),
        CallError::Conflict(_) | CallError::NotFound(_) => Ok(None),
        error => match error.refusal() {
            Some(why) => Ok(Some(NoLease::Refused(why.to_owned()))),
            None => Err(error),
        },
    }
}

/// Creates the LoadBalancer's DHCPLease. Outer `Err`: nothing is created, because an annotation of
/// the LoadBalancer is not valid, or because a DHCP server would treat the clients of the new and
/// of another DHCPLease as one client. Inner `Err`: the API call for the creation failed.
///
/// The DHCPLease is added to [`LbContext::made`], under a lock, before it is created. So of two
/// creations at the same time, the second is checked against the first.
async fn create(
    lb: &LoadBalancer,
    cluster: &str,
    network: &str,
    ctx: &LbContext,
) -> Result<Result<DHCPLease, CallError>, NoLease> {
    let form = ctx.shared.views.client_id_form(network);
    let new = dhcp_lease::record(lb, cluster, network, form)
        .map_err(|fault| NoLease::Annotation(fault.text()))?;
    let mut made = ctx.made.lock().await;
    let views = &ctx.shared.views;
    made.retain(|(at, _)| at.elapsed() < SEEN_WITHIN);
    let unseen = || {
        let same = |made: &&DHCPLease| {
            dhcp_lease::is_one_client(&made.spec, &new.spec) && key(made.meta()) != key(new.meta())
        };
        made.iter().map(|(_, made)| made).find(same).map(|made| key(made.meta()))
    };
    if let Some(other) = views.same_client(&new).or_else(unseen) {
        return Err(dhcp_lease::identity_taken(&new, &other));
    }
    made.push((Instant::now(), new.clone()));
    drop(made);
    Ok(Box::pin(ctx.shared.writer.create_record(&new)).await)
}

/// Reads the LoadBalancer's DHCPLease from the API server. `None`: it does not exist.
async fn current(lb: &LoadBalancer, ctx: &LbContext) -> Result<Option<DHCPLease>, CallError> {
    let namespace = lb.namespace().unwrap_or_default();
    let api: Api<DHCPLease> = Api::namespaced(ctx.shared.client.clone(), &namespace);
    Box::pin(api.call_get_if_served(&lb.name_any())).await
}

/// Moment at which the LoadBalancer must be reconciled because the lease of its address expires. No
/// event reports the expiry. If the lease has expired already, the moment is the end of
/// [`AGENTS_RETURN`]. Precondition: the call comes before [`allocate`], so that an expiry during
/// the reconcile is not missed. `None` in these cases:
///
/// * The host leases no address for the LoadBalancer.
/// * The view lacks the record of the lease. [`again`] handles this case.
/// * The lease never expires, or the address stays published after the expiry.
/// * The lease has expired already, and [`AGENTS_RETURN`] is over.
pub(super) fn ends_at(lb: &LoadBalancer, ctx: &LbContext) -> Option<Instant> {
    if facts::wants_pool(lb) {
        return None;
    }
    let record = ctx.shared.views.record(&facts::name(lb)).filter(|r| !dhcp_lease::keeps(r))?;
    let left = (dhcp_lease::expiry(&record)? - Utc::now().fixed_offset()).to_std();
    // If the lease has already expired, this reconcile handles the expiry, or the reconcile when
    // AGENTS_RETURN is over.
    let left = left.ok().or_else(|| Some(early(ctx)).filter(|left| !left.is_zero()))?;
    Instant::now().checked_add(left + Duration::from_millis(10))
}

/// Time after which the LoadBalancer must be reconciled again, even without an event. `None` in
/// these cases:
///
/// * The host does not lease the LoadBalancer's address.
/// * The host has leased the address, or waits for it, and an event will report the next change.
/// * An obstacle in `outcome` prevents the lease, and an event will report the end of this
///   obstacle.
///
/// `is_unseen` returns whether the view lacks the LoadBalancer's DHCPLease.
pub(super) fn again(
    outcome: &AddressOutcome,
    is_unseen: impl FnOnce() -> bool,
) -> Option<Duration> {
    let AddressOutcome::Host(lease) = outcome else { return None };
    match lease {
        Err(NoLease::TakingOver { .. }) => Some(dhcp_lease::TAKEOVER_AGAIN),
        // No event reports the end of these obstacles, for example that a pool now excludes the
        // address, or that the other user is gone.
        Err(NoLease::IdentityTaken(_) | NoLease::Unusable(_)) => Some(LOOKS_AGAIN),
        // No event reports that the API server would accept the DHCPLease, for example because a
        // ResourceQuota has room again.
        Err(NoLease::Refused(_)) => Some(LONGEST_DELAY),
        // The end of these obstacles does not depend on the DHCPLease.
        Err(NoLease::NoAgent { .. } | NoLease::NetworkFault { .. } | NoLease::Annotation(_)) => {
            None
        }
        _ => is_unseen().then_some(UNSEEN_AGAIN),
    }
}

/// Remaining time of [`AGENTS_RETURN`]; zero after it.
fn early(ctx: &LbContext) -> Duration {
    AGENTS_RETURN.saturating_sub(ctx.shared.began.elapsed())
}

/// Reports the change of a leased address after the LoadBalancer's status was written. `lease`: the
/// published address, or the reason why there is none. `before`: the address in the status before
/// this write.
pub(super) fn published(
    lb: &LoadBalancer,
    lease: Result<&LeasedAddress, &NoLease>,
    before: Option<&str>,
    ctx: &LbContext,
) {
    let shared = &ctx.shared;
    let (object, name) = (lb.object_ref(&()), facts::name(lb));
    match lease {
        Ok(LeasedAddress { ip, network, .. }) => {
            shared.metrics.addressed(&lb.uid().unwrap_or_default());
            let ip = ip.to_string();
            match before {
                Some(before) if before == ip => {}
                Some(before) => {
                    tracing::warn!(lb = name, before, ip, network, "leased address changed");
                    let note = format!(
                        "the DHCP server of network {network} gave {ip} instead of {before}"
                    );
                    shared.events.warning(object, "AddressChanged", note);
                    shared.metrics.leasing.changes.with_label_values(&["moved"]).inc();
                }
                None => {
                    tracing::info!(lb = name, ip, network, "leased address published");
                    let note = format!("{ip} from the DHCP server of network {network}");
                    shared.events.normal(object, reason::LEASED, note);
                    shared.metrics.leasing.changes.with_label_values(&["published"]).inc();
                }
            }
        }
        Err(why) => {
            tracing::info!(
                lb = name,
                reason = why.reason(),
                "the LoadBalancer has no leased address"
            );
            if before.is_some() {
                shared.metrics.leasing.changes.with_label_values(&["withdrawn"]).inc();
            }
            // For a short time before an address is published, these states are normal, so they get
            // no Event.
            if !matches!(why, NoLease::Pending { .. } | NoLease::Returning) {
                shared.events.warning(object, why.reason(), why.message());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_lease_is_looked_at_again_if_no_event_reports_its_change() {
        let (ip, network) = (Ipv4Addr::new(10, 7, 0, 20), "ns/lan".to_owned());
        let lease = LeasedAddress { ip, mask: None, gateway: None, network: network.clone() };
        let pending = NoLease::Pending { network: network.clone(), said: None };
        let no_agent = NoLease::NoAgent { network, declared: true };
        let taken = NoLease::IdentityTaken("other".to_owned());
        let unusable = NoLease::Unusable("in a pool".to_owned());
        let refused = NoLease::Refused("exceeded quota".to_owned());
        for (lease, unseen, seen) in [
            (Ok(lease), Some(UNSEEN_AGAIN), None),
            (Err(pending), Some(UNSEEN_AGAIN), None),
            (Err(no_agent), None, None),
            (Err(taken), Some(LOOKS_AGAIN), Some(LOOKS_AGAIN)),
            (Err(unusable), Some(LOOKS_AGAIN), Some(LOOKS_AGAIN)),
            (Err(refused), Some(LONGEST_DELAY), Some(LONGEST_DELAY)),
        ] {
            let outcome = AddressOutcome::Host(lease);
            assert_eq!(again(&outcome, || true), unseen, "{outcome:?}");
            assert_eq!(again(&outcome, || false), seen, "{outcome:?}");
        }
        assert_eq!(again(&AddressOutcome::Guest(None), || true), None);
    }
}
