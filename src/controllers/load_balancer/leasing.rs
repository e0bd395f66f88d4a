//! Leases addresses on the host. This module creates and maintains a DHCPLease, the record that the
//! agent of a network serves, and reads the record again before a new address is published.
//!
//! The record exists before the agent asks the DHCP server, and contains an address before the
//! address is published here. After the deletion of the LoadBalancer and its Service,
//! [`super::super::dhcp_lease`] handles the record.

use std::time::{Duration, Instant};

use chrono::Utc;
use kube::{Api, Resource, ResourceExt};

use super::{LbContext, ReconcileError};
use crate::api::{DHCPLease, LoadBalancer};
use crate::domain::LeasedAddress;
use crate::domain::dhcp_lease::{self, LeasingFacts, LeasingStep};
use crate::domain::load_balancer::facts;
use crate::domain::load_balancer::status::AddressOutcome;
use crate::domain::reason::{self, NoLease};
use crate::k8s::CallError;
use crate::k8s::calls::{ApiCall, ApiCalls as _};

/// Time from the start of a term in which a published address stays, even if the recorded expiry of
/// its lease has passed. The reason: while the API server was unavailable, agents could renew
/// leases but not record the renewals. When the API server is available again, an agent needs one
/// call for its Lease and one write to record its renewals.
const AGENTS_RETURN: Duration = Duration::from_secs(20);
/// Delay of the next reconcile of a LoadBalancer that requests the DHCP client identity of another
/// LoadBalancer.
const LOOKS_AGAIN: Duration = Duration::from_secs(5);
/// Time for which [`LbContext::made`] contains a created record. The view shows the record before
/// this time has passed.
const SEEN_WITHIN: Duration = Duration::from_secs(10);
/// Maximum number of attempts at one decision, if the record changes during each attempt. The
/// attempts are made here, not by the reconcile, because the reconcile reads the LoadBalancer
/// again, not the record.
const REPETITIONS: usize = 5;

/// Leases the LoadBalancer's address on the host: creates, adopts or keeps its DHCPLease. `None`: a
/// required object was not observed yet. The event of that object triggers the next reconcile.
pub(super) async fn allocate(
    lb: &LoadBalancer,
    ctx: &LbContext,
) -> Result<Option<AddressOutcome>, ReconcileError> {
    let views = &ctx.shared.views;
    let (Some(cluster), true) = (views.cluster_id(), views.leasing_synced_for(lb)) else {
        return Ok(None);
    };
    let name = facts::name(lb);
    let network = views.leasing_network(lb);
    if dhcp_lease::needs_service(lb) && !views.endpoints_synced() {
        return Ok(None);
    }
    let service = views.services.of(&name).next();
    let mut record = views.record(&name).map(|record| record.as_ref().clone());
    let mut fresh = false;
    for _ in 0..REPETITIONS {
        let where_ = record.as_ref().map_or(&network, |record| &record.spec.network);
        let fault = views.network_fault(&network);
        let seen = LeasingFacts {
            lb,
            network: &network,
            record: record.as_ref(),
            declared: views.declares(&network),
            fault: fault.as_deref(),
            serving: views.agent_serves(where_),
            service: service.as_ref(),
            early: !early(ctx).is_zero(),
            now: Utc::now().fixed_offset(),
        };
        let written = match dhcp_lease::step(&seen) {
            LeasingStep::Guest(why) => return Ok(Some(AddressOutcome::Guest(why))),
            LeasingStep::Wait(why) => return Ok(Some(AddressOutcome::Host(Err(why)))),
            LeasingStep::Take(lease) => {
                // A new address is published only from a record that was just read, because the
                // lease may have ended since the view was updated.
                if fresh || facts::leased(lb) == Some(lease.ip) {
                    return Ok(Some(AddressOutcome::Host(views.unless_in_the_way(lb, lease))));
                }
                None
            }
            LeasingStep::Create => {
                let form = views.client_id_form(&network);
                let new = match dhcp_lease::record(lb, &cluster, &network, form) {
                    Ok(new) => new,
                    Err(fault) => {
                        let why = NoLease::Annotation(fault.text());
                        return Ok(Some(AddressOutcome::Host(Err(why))));
                    }
                };
                match create(&new, ctx).await {
                    Ok(created) => Some(created),
                    Err(why) => return Ok(Some(AddressOutcome::Host(Err(why)))),
                }
            }
            LeasingStep::Adopt(patch) => {
                // The event of this write triggers the next reconcile, with the new annotations.
                let (namespace, name) = (lb.namespace().unwrap_or_default(), lb.name_any());
                let write = ctx.shared.writer.patch_lb(&namespace, &name, &patch);
                match Box::pin(write).await {
                    Ok(()) | Err(CallError::Conflict(_) | CallError::NotFound(_)) => {
                        return Ok(None);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            LeasingStep::Keep => {
                let Some(record) = &record else { return Ok(None) };
                let patch = dhcp_lease::release_after(record, None);
                Some(Box::pin(ctx.shared.writer.patch_record(record, &patch)).await)
            }
        };
        match written {
            Some(Ok(now)) => {
                record = Some(now);
                fresh = true;
                continue;
            }
            Some(Err(CallError::NotFound(_))) if record.is_none() => {
                let why = "the kind is not served: install its CustomResourceDefinition".to_owned();
                return Ok(Some(AddressOutcome::Host(Err(NoLease::Refused(why)))));
            }
            Some(Err(CallError::Conflict(_) | CallError::NotFound(_))) | None => {}
            Some(Err(error)) => match error.refusal() {
                Some(why) => {
                    let why = NoLease::Refused(why.to_owned());
                    return Ok(Some(AddressOutcome::Host(Err(why))));
                }
                None => return Err(error.into()),
            },
        }
        record = current(lb, ctx).await?;
        fresh = true;
    }
    let attempts = format!("{REPETITIONS} attempts to write DHCPLease {name}");
    Err(CallError::Conflict(ApiCall::new(attempts)).into())
}

/// Creates a record, if a DHCP server can distinguish its client from the clients of all other
/// records. Outer `Err`: the server cannot distinguish two of these clients. Inner `Err`: the
/// record could not be created. The client goes into `made` under a lock, before its record is
/// created. So of two creations at the same time, the second is checked against the first.
async fn create(new: &DHCPLease, ctx: &LbContext) -> Result<Result<DHCPLease, CallError>, NoLease> {
    let mut made = ctx.made.lock().await;
    let views = &ctx.shared.views;
    made.retain(|(at, _)| at.elapsed() < SEEN_WITHIN);
    let unseen = || {
        let same = |made: &&DHCPLease| {
            dhcp_lease::is_one_client(&made.spec, &new.spec)
                && record_name(made) != record_name(new)
        };
        made.iter().map(|(_, made)| made).find(same).map(record_name)
    };
    if let Some(other) = views.same_client(new).or_else(unseen) {
        return Err(dhcp_lease::identity_taken(new, &other));
    }
    made.push((Instant::now(), new.clone()));
    drop(made);
    Ok(Box::pin(ctx.shared.writer.create_record(new)).await)
}

/// Reads the record of the LoadBalancer from the API server. `None`: it does not exist.
async fn current(lb: &LoadBalancer, ctx: &LbContext) -> Result<Option<DHCPLease>, CallError> {
    let namespace = lb.namespace().unwrap_or_default();
    let api: Api<DHCPLease> = Api::namespaced(ctx.shared.client.clone(), &namespace);
    Box::pin(api.call_get_if_served(&lb.name_any())).await
}

fn record_name(record: &DHCPLease) -> String {
    format!("{}/{}", record.namespace().unwrap_or_default(), record.name_any())
}

/// Time until the LoadBalancer must be reconciled because the lease of its address expires. No
/// event reports the expiry. `None`: the host leases no address for the LoadBalancer, the lease
/// never expires, or its expiry was already handled.
pub(super) fn ends_in(lb: &LoadBalancer, ctx: &LbContext) -> Option<Duration> {
    if facts::wants_pool(lb) {
        return None;
    }
    let record = ctx.shared.views.record(&facts::name(lb)).filter(|r| !dhcp_lease::keeps(r))?;
    let left = (dhcp_lease::ends(&record)? - Utc::now().fixed_offset()).to_std();
    // If the lease has already expired, the expiry was handled, or it is handled when AGENTS_RETURN
    // is over.
    let left = left.or_else(|_| Some(early(ctx)).filter(|left| !left.is_zero()).ok_or(()));
    left.ok().map(|left| left + Duration::from_millis(10))
}

/// Time until a reconcile checks whether the obstacle to a leased address is gone. `None`: there is
/// no obstacle, or an event reports that the obstacle is gone.
pub(super) fn again(outcome: &AddressOutcome) -> Option<Duration> {
    match outcome {
        AddressOutcome::Host(Err(NoLease::TakingOver { .. })) => Some(dhcp_lease::TAKEOVER_AGAIN),
        AddressOutcome::Host(Err(NoLease::IdentityTaken(_))) => Some(LOOKS_AGAIN),
        _ => None,
    }
}

/// Remaining time of [`AGENTS_RETURN`]; zero after it.
fn early(ctx: &LbContext) -> Duration {
    AGENTS_RETURN.saturating_sub(ctx.shared.began.elapsed())
}

/// Reports the result of a lease after the status was written. `lease`: the published address, or
/// the reason why there is none. `before`: the address in the status before this write.
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
