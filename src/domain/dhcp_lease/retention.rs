//! Retention of a record while no LoadBalancer uses it.

use std::time::Duration;

use chrono::{DateTime, FixedOffset};
use serde_json::Value;

use super::{LeasingFacts, LeasingStep, ends, has_moved, is_anothers, step};
use crate::load_balancer::facts;
use crate::object_fields::finalizers::removal_patch;
use crate::object_fields::rfc3339;
use api::{DHCP_FINALIZER, DHCPLease, LoadBalancer};

/// Next action on a record, to keep it or to release its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetentionStep {
    /// Do nothing, because the LoadBalancer uses the record or is being deleted, or because the
    /// record is deleted and waits for its agent.
    Nothing,
    /// Decide again after this time.
    Later(Duration),
    /// Set `spec.releaseAfter` to this time. At this time, the record is deleted if no LoadBalancer
    /// wants it.
    Leave(DateTime<FixedOffset>),
    /// Delete the record: its agent then gives the address back.
    Delete,
    /// Remove the finalizer of a deleted record, although no agent gave its address back. No agent
    /// is active, and the lease has expired by the wall clock or the record has no address.
    Forget,
}

/// Decides the next action on a record. `lb` is the LoadBalancer of the same name, and `network` is
/// the network of this LoadBalancer. `agent`: whether the agent of the record's network is active.
/// An address is kept for `grace` after its LoadBalancer was deleted.
pub fn keep(
    record: &DHCPLease,
    lb: Option<&LoadBalancer>,
    network: &str,
    agent: bool,
    grace: Duration,
    now: DateTime<FixedOffset>,
) -> RetentionStep {
    if record.metadata.deletion_timestamp.is_some() {
        return match ends(record) {
            _ if agent || without_finalizer(record).is_none() => RetentionStep::Nothing,
            Some(end) if end > now => later(end, now),
            // Only an agent can give back a lease that never expires.
            None if has_address(record) => RetentionStep::Nothing,
            _ => RetentionStep::Forget,
        };
    }
    match lb {
        // The LoadBalancer is being deleted: first its Service and its finalizer are removed.
        Some(lb) if facts::is_leaving(lb) => return RetentionStep::Nothing,
        Some(lb) if wants(record, lb, network, now) => return RetentionStep::Nothing,
        // The LoadBalancer exists and does not use the record, so no later LoadBalancer will use
        // it.
        Some(_) => return RetentionStep::Delete,
        None => {}
    }
    match record.spec.release_after.as_deref().map(rfc3339::parse) {
        None => RetentionStep::Leave(now + grace),
        Some(Some(at)) if at > now => later(at, now),
        Some(_) => RetentionStep::Delete,
    }
}

/// Whether a LoadBalancer has, or is to have, its address from this record. The LoadBalancer is not
/// being deleted.
fn wants(record: &DHCPLease, lb: &LoadBalancer, network: &str, now: DateTime<FixedOffset>) -> bool {
    let moved = has_moved(record, lb, network) || is_anothers(record, lb);
    let record = Some(record);
    let (declared, fault, serving, service, early) = (true, None, true, None, false);
    let seen = LeasingFacts { lb, network, record, declared, fault, serving, service, early, now };
    !facts::wants_pool(lb) && !moved && !matches!(step(&seen), LeasingStep::Guest(_))
}

fn later(at: DateTime<FixedOffset>, now: DateTime<FixedOffset>) -> RetentionStep {
    RetentionStep::Later((at - now).to_std().unwrap_or_default())
}

fn has_address(record: &DHCPLease) -> bool {
    record.status.as_ref().is_some_and(|status| status.address.is_some())
}

/// Merge patch that removes the agent's finalizer from a deleted record. `None`: the finalizer is
/// not set.
pub fn without_finalizer(record: &DHCPLease) -> Option<Value> {
    removal_patch(&record.metadata, &[DHCP_FINALIZER])
}
