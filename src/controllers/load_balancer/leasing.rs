//! Addresses that the host leases: the record by which an agent does, made and kept, and what it
//! says read once more before a new address is published.
//!
//! The record exists before anybody asks the DHCP server, and an address is in it before it is
//! published here. What becomes of it when its LoadBalancer goes is [`super::super::dhcp_lease`]'s:
//! there is no Service by then.

use std::time::{Duration, Instant};

use chrono::Utc;
use kube::{Api, Resource, ResourceExt};

use super::{Context, Error};
use crate::api::{DHCPLease, KUBE_VIP_HOSTNAME, KUBE_VIP_HWADDR, LoadBalancer};
use crate::domain::dhcp_lease::{self, Lease, Other, Pool, Seen, Step, World};
use crate::domain::load_balancer::facts;
use crate::domain::load_balancer::status::Finding;
use crate::domain::reason::{self, NoLease};
use crate::k8s::{CallError, call};

/// Time for which a term takes no published address for ended by the clock. While the API server was away,
/// no operator led and agents went on renewing: one needs a call about its Lease, then a write.
const AGENTS_RETURN: Duration = Duration::from_secs(20);
/// Period of the question whether another LoadBalancer is still the same client.
const LOOKS_AGAIN: Duration = Duration::from_secs(5);
/// Within this time the view has a record that was made.
const SEEN_WITHIN: Duration = Duration::from_secs(10);
/// How often a decision is repeated for a record that keeps changing under it.
const REPETITIONS: usize = 5;

/// Has the host lease the LoadBalancer's address: makes, adopts or keeps its DHCPLease. `None`: what must
/// be known for that is not known yet; seeing it leads here again.
pub(super) async fn allocate(lb: &LoadBalancer, ctx: &Context) -> Result<Option<Finding>, Error> {
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
        let seen = Seen {
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
            Step::Guest(why) => return Ok(Some(Finding::Guest(why))),
            Step::Wait(why) => return Ok(Some(Finding::Host(Err(why)))),
            Step::Take(lease) => {
                // A view may be older than the end of the address.
                if fresh || facts::leased(lb) == Some(lease.ip) {
                    return Ok(Some(Finding::Host(unless_in_the_way(lb, lease, ctx))));
                }
                None
            }
            Step::Create => {
                let form = views.client_id_form(&network);
                let new = match dhcp_lease::record(lb, &cluster, &network, form) {
                    Ok(new) => new,
                    Err(fault) => {
                        let why = NoLease::Annotation(fault.text());
                        return Ok(Some(Finding::Host(Err(why))));
                    }
                };
                match create(&new, ctx).await {
                    Ok(created) => Some(created),
                    Err(why) => return Ok(Some(Finding::Host(Err(why)))),
                }
            }
            Step::Adopt(patch) => {
                // It is seen, and looked at again, with what it says then.
                let (namespace, name) = (lb.namespace().unwrap_or_default(), lb.name_any());
                let write = ctx.shared.writer.patch_lb(&namespace, &name, &patch);
                match Box::pin(write).await {
                    Ok(_) | Err(CallError::Conflict | CallError::NotFound) => return Ok(None),
                    Err(error) => return Err(error.into()),
                }
            }
            Step::Keep => {
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
            Some(Err(CallError::NotFound)) if record.is_none() => {
                let why = "the kind is not served: install its CustomResourceDefinition".to_owned();
                return Ok(Some(Finding::Host(Err(NoLease::Refused(why)))));
            }
            Some(Err(CallError::Conflict | CallError::NotFound)) | None => {}
            Some(Err(error)) => match error.refusal() {
                Some(why) => {
                    let why = NoLease::Refused(why.to_owned());
                    return Ok(Some(Finding::Host(Err(why))));
                }
                None => return Err(error.into()),
            },
        }
        record = current(lb, ctx).await?;
        fresh = true;
    }
    Err(CallError::Conflict.into())
}

/// Creates a record, unless its holder would be the same client to a DHCP server as another's. Of two that are
/// made at the same time, the second sees the first.
async fn create(new: &DHCPLease, ctx: &Context) -> Result<Result<DHCPLease, CallError>, NoLease> {
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
        return Err(NoLease::IdentityTaken(format!(
            "LoadBalancer {other} leases on network {} with hardware address {} or client identifier {:?}: ask for another, by the annotation {KUBE_VIP_HWADDR} or {KUBE_VIP_HOSTNAME}",
            new.spec.network, new.spec.mac_address, new.spec.client_id
        )));
    }
    made.push((Instant::now(), new.clone()));
    drop(made);
    Ok(Box::pin(ctx.shared.writer.create_record(new)).await)
}

/// The record as the server has it.
async fn current(lb: &LoadBalancer, ctx: &Context) -> Result<Option<DHCPLease>, CallError> {
    let namespace = lb.namespace().unwrap_or_default();
    let api: Api<DHCPLease> = Api::namespaced(ctx.shared.client.clone(), &namespace);
    match Box::pin(call(api.get(&lb.name_any()))).await {
        Ok(record) => Ok(Some(record)),
        Err(CallError::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

fn unless_in_the_way(lb: &LoadBalancer, lease: Lease, ctx: &Context) -> Result<Lease, NoLease> {
    match dhcp_lease::obstacle(&lease, &world(lb, &lease, ctx)) {
        Some(why) => Err(NoLease::Unusable(why)),
        None => Ok(lease),
    }
}

/// Everything around an address, as far as is seen.
fn world(lb: &LoadBalancer, lease: &Lease, ctx: &Context) -> World {
    let views = &ctx.shared.views;
    let address = lease.ip.to_string();
    let age = |meta: &kube::core::ObjectMeta| {
        let created = meta.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
        (created, meta.namespace.clone(), meta.name.clone())
    };
    let mine = (age(lb.meta()), facts::name(lb));
    let older = |meta| age(meta) < mine.0;
    let pools = views.pools();
    let has_it = |other: &LoadBalancer| {
        let allocated = other.status.as_ref().and_then(|s| s.allocated_address.as_ref());
        allocated.and_then(|a| a.ip.as_ref()) == Some(&address) && facts::name(other) != mine.1
    };
    let published = views.load_balancers.state_filter(has_it);
    let mut others: Vec<Other> = published
        .iter()
        .map(|other| {
            let claim = facts::published(other);
            let pool = claim.as_ref().and_then(|c| pools.iter().find(|pool| pool.name == c.pool));
            let network = match (pool, views.record(&facts::name(other))) {
                (Some(pool), _) if pool.selector.is_global() => None,
                (Some(pool), _) => Some(pool.selector.network().to_owned()),
                (None, Some(record)) => Some(record.spec.network.clone()),
                (None, None) => Some(facts::requirement(other, &views.around(other)).network),
            };
            Other {
                segment: network.map(|network| views.segment(&network)),
                by_pool: claim.is_some(),
                publishes: true,
                older: older(other.meta()),
            }
        })
        .collect();
    let recorded = views.records.state_filter(|record| {
        let status = record.status.as_ref();
        status.and_then(|status| status.address.as_ref()) == Some(&address)
            && facts::name(lb) != record_name(record)
    });
    others.extend(recorded.iter().map(|record| Other {
        segment: Some(views.segment(&record.spec.network)),
        by_pool: false,
        publishes: false,
        older: older(record.meta()),
    }));
    World {
        segment: views.segment(&lease.network),
        pools: pools
            .into_iter()
            .map(|facts| Pool { segment: views.segment(facts.selector.network()), facts })
            .collect(),
        others,
        reserved: views.infrastructure.reservations(lease.ip.into()),
        range: views.network_range(&lease.network),
        published: facts::leased(lb) == Some(lease.ip),
    }
}

fn record_name(record: &DHCPLease) -> String {
    format!("{}/{}", record.namespace().unwrap_or_default(), record.name_any())
}

/// For how long the published address is good unless it is renewed. An agent that has fallen
/// silent ends it by the clock.
pub(super) fn ends_in(lb: &LoadBalancer, ctx: &Context) -> Option<Duration> {
    if facts::wants_pool(lb) {
        return None;
    }
    let record = ctx.shared.views.record(&facts::name(lb)).filter(|r| !dhcp_lease::keeps(r))?;
    let left = (dhcp_lease::ends(&record)? - Utc::now().fixed_offset()).to_std();
    // What is over was decided on.
    let left = left.or_else(|_| Some(early(ctx)).filter(|left| !left.is_zero()).ok_or(()));
    left.ok().map(|left| left + Duration::from_millis(10))
}

/// Time until an obstacle is looked at again, if its end is no event.
pub(super) fn again(finding: &Finding) -> Option<Duration> {
    match finding {
        Finding::Host(Err(NoLease::TakingOver { .. })) => Some(dhcp_lease::TAKEOVER_AGAIN),
        Finding::Host(Err(NoLease::IdentityTaken(_))) => Some(LOOKS_AGAIN),
        _ => None,
    }
}

/// Time for which the term stays young.
fn early(ctx: &Context) -> Duration {
    AGENTS_RETURN.saturating_sub(ctx.shared.began.elapsed())
}

/// After a write was accepted.
pub(super) fn published(
    lb: &LoadBalancer,
    lease: Result<&Lease, &NoLease>,
    before: Option<&str>,
    ctx: &Context,
) {
    let shared = &ctx.shared;
    let (object, name) = (lb.object_ref(&()), facts::name(lb));
    match lease {
        Ok(Lease { ip, network, .. }) => {
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
            tracing::info!(lb = name, reason = why.reason(), "no leased address");
            if before.is_some() {
                shared.metrics.leasing.changes.with_label_values(&["withdrawn"]).inc();
            }
            // Every address takes a moment.
            if !matches!(why, NoLease::Pending { .. } | NoLease::Returning) {
                shared.events.warning(object, why.reason(), why.message());
            }
        }
    }
}
