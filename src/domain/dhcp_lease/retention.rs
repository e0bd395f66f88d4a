//! Retention of a record while no LoadBalancer uses it.

use std::time::Duration;

use chrono::{DateTime, FixedOffset};
use serde_json::Value;

use super::{LeasingFacts, LeasingStep, expiry, has_moved, is_anothers, step};
use crate::load_balancer::facts;
use crate::object_fields::finalizers::removal_patch;
use crate::object_fields::rfc3339;
use api::{DHCP_FINALIZER, DHCPLease, LoadBalancer};

/// Next action on a record: keep it, or release its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetentionStep {
    /// Do nothing, in these cases:
    ///
    /// * The LoadBalancer uses the record, or still publishes the record's address.
    /// * The LoadBalancer is being deleted.
    /// * The record is being deleted, and waits for its agent or for a finalizer of other software.
    Nothing,
    /// Decide again after this time has passed.
    Later(Duration),
    /// Set `spec.releaseAfter` to this time. If no LoadBalancer uses the record at this time, the
    /// record is deleted.
    Leave(DateTime<FixedOffset>),
    /// Delete the record. Then its agent gives the address back.
    Delete,
    /// Remove the finalizer of a record that is being deleted, although no agent has given the
    /// record's address back. This action is possible only if both of these hold:
    ///
    /// * The agent of the record's network is not active.
    /// * The record has no address, or its lease has expired by the wall clock.
    Forget,
}

/// Decides the next action on a record. `lb`: the LoadBalancer with the record's name. `network`:
/// the network of `lb`, or empty if there is no `lb`. `agent`: whether the agent of the record's
/// network is active. `grace`: time for which the address is kept after the deletion of its
/// LoadBalancer.
pub fn retention_step(
    record: &DHCPLease,
    lb: Option<&LoadBalancer>,
    network: &str,
    agent: bool,
    grace: Duration,
    now: DateTime<FixedOffset>,
) -> RetentionStep {
    if record.metadata.deletion_timestamp.is_some() {
        return match expiry(record) {
            _ if agent || without_finalizer(record).is_none() => RetentionStep::Nothing,
            Some(end) if end > now => later(end, now),
            // A lease that never expires can be given back only by an agent.
            None if has_address(record) => RetentionStep::Nothing,
            _ => RetentionStep::Forget,
        };
    }
    match lb {
        // The LoadBalancer is being deleted. Its Service and its finalizer are removed first.
        Some(lb) if facts::is_leaving(lb) => return RetentionStep::Nothing,
        Some(lb) if wants(record, lb, network, now) => return RetentionStep::Nothing,
        // `spec.ipam` was changed to `pool`. The former Service ends first.
        Some(lb) if is_published(record, lb) => return RetentionStep::Nothing,
        // The LoadBalancer exists and does not use the record. So a LoadBalancer that is created
        // later will not use it either.
        Some(_) => return RetentionStep::Delete,
        None => {}
    }
    match record.spec.release_after.as_deref().map(rfc3339::parse) {
        None => RetentionStep::Leave(now + grace),
        Some(Some(at)) if at > now => later(at, now),
        Some(_) => RetentionStep::Delete,
    }
}

/// Whether a LoadBalancer that is not being deleted has its address from this record, or will get
/// it from this record.
fn wants(record: &DHCPLease, lb: &LoadBalancer, network: &str, now: DateTime<FixedOffset>) -> bool {
    let moved = has_moved(record, lb, network) || is_anothers(record, lb);
    let record = Some(record);
    let (declared, fault, serving, service, early) = (true, None, true, None, false);
    let seen = LeasingFacts { lb, network, record, declared, fault, serving, service, early, now };
    !facts::wants_pool(lb) && !moved && !matches!(step(&seen), LeasingStep::Guest(_))
}

/// Whether the LoadBalancer's status still has the address of this record. `true` in these cases:
///
/// * `status.allocatedAddress` has this address and names no pool.
/// * `status.allocatedAddress` does not have this address, but `status.address` still has it. This
///   happens if a finalizer delays the end of the former Service.
fn is_published(record: &DHCPLease, lb: &LoadBalancer) -> bool {
    let leased = record.status.as_ref().and_then(|status| status.address.as_ref());
    let (Some(leased), Some(status)) = (leased, &lb.status) else { return false };
    let allocated = status.allocated_address.as_ref().and_then(|address| address.ip.as_ref());
    if allocated == Some(leased) {
        facts::published(lb).is_none()
    } else {
        status.address.as_ref() == Some(leased)
    }
}

fn later(at: DateTime<FixedOffset>, now: DateTime<FixedOffset>) -> RetentionStep {
    RetentionStep::Later((at - now).to_std().unwrap_or_default())
}

fn has_address(record: &DHCPLease) -> bool {
    record.status.as_ref().is_some_and(|status| status.address.is_some())
}

/// Merge patch that removes the agent's finalizer from a deleted record. `None`: the record does
/// not have this finalizer.
pub fn without_finalizer(record: &DHCPLease) -> Option<Value> {
    removal_patch(&record.metadata, &[DHCP_FINALIZER])
}
