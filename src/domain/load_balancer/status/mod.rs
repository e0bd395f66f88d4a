//! Merge patches of a LoadBalancer:
//! * A reconcile makes one patch with finalizer, claim, address, backends and condition together,
//!   or no patch if nothing changes.
//! * After the deletion of a LoadBalancer has begun, the patch only removes the finalizer.
//! * While another controller leads, a patch only sets the condition that names the other
//!   controller.

mod moving;

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::{bounds, facts};
use crate::LeasedAddress;
use crate::object_fields::condition::{condition, with_condition};
use crate::object_fields::finalizers::{removal_patch, with_finalizer};
use crate::pools::allocator::ClaimResult;
use crate::reason;
use crate::reason::{NoAddressReason, NoLease};
use crate::vm_backends::listeners;
use crate::vm_backends::readiness::{self, BackendCounts, ServingStatus};
use api::{
    ANNOTATION_ALLOCATED, AllocatedAddress, Condition, ConditionStatus, DHCP_ADDRESS,
    EndpointCounts, LB_FINALIZER, LoadBalancer, LoadBalancerStatus,
};
pub use moving::{keep_old_address, keep_while_served, may_lead_to, moves_from};

/// Decision about the address of a LoadBalancer that is not being deleted: the outcome of a
/// reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressOutcome {
    /// The address comes from a pool. The value is the allocator's answer, with two exceptions:
    /// * `Waiting` with the reason, if the reconcile itself refuses an address;
    /// * `Held` with the published claim, while the LoadBalancer changes its address and its
    ///   Service may still use the published one.
    Pool(ClaimResult),
    /// The announcer leases the address by DHCP. The text says why the host's agent does not lease
    /// it. `None`: a text that an earlier reconcile stored in the condition `Ready` stays.
    Guest(Option<String>),
    /// The host leases the address by DHCP. The value is the address that may be published, or the
    /// reason why there is none.
    Host(Result<LeasedAddress, NoLease>),
}

impl AddressOutcome {
    /// Whether the LoadBalancer has an address, or the announcer leases one.
    pub fn is_allocated(&self) -> bool {
        !matches!(self, Self::Pool(ClaimResult::Waiting(_)) | Self::Host(Err(_)))
    }

    /// Address that the LoadBalancer's Service must request. `None`: there is no address, or the
    /// announcer leases one.
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Pool(ClaimResult::Held { claim, .. }) => Some(claim.ip),
            Self::Host(Ok(lease)) => Some(lease.ip.into()),
            Self::Guest(_) | Self::Pool(ClaimResult::Waiting(_)) | Self::Host(Err(_)) => None,
        }
    }
}

/// Merge patch that writes the `outcome` into the LoadBalancer, or `None` if nothing changes.
/// `now`: an RFC 3339 time. `report`: state of a vm LoadBalancer's Service and VMs. There is no
/// report in these cases:
/// * the LoadBalancer is of type cluster;
/// * the operator may not create the Service yet ([`may_serve`]);
/// * the LoadBalancer has no address, and its Service is gone.
pub fn patch(
    lb: &LoadBalancer,
    outcome: &AddressOutcome,
    report: Option<&ServingStatus>,
    now: &str,
) -> Option<Value> {
    let none = LoadBalancerStatus::default();
    let status = lb.status.as_ref().unwrap_or(&none);
    let old = status.allocated_address.clone().unwrap_or_default();
    let (new, ready) = address_and_ready(lb, outcome, report);
    let vm = listeners::is_vm(lb);

    let mut changes = Map::new();
    if new != old {
        changes.insert("allocatedAddress".to_owned(), allocated_patch(&new));
    }
    let address = status.address.as_deref();
    let address = match report {
        Some(report) => announced_patch(address, report),
        None => address_patch(address, &old, &new, vm),
    };
    if let Some(address) = address {
        changes.insert("address".to_owned(), address);
    }
    if let Some(backends) = report.and_then(|report| report.backends.as_ref()) {
        changes.extend(backends_patch(status, backends));
    }
    if let Some(conditions) = with_condition(&status.conditions, ready, now) {
        changes.insert("conditions".to_owned(), json!(conditions));
    }
    // The finalizer delays the deletion of the object until its claim, its lease and its Service
    // are released.
    let holds = outcome.is_allocated() && (vm || !matches!(outcome, AddressOutcome::Guest(_)));
    let finalizers = lb.metadata.finalizers.as_deref().unwrap_or_default();
    let finalizers = with_finalizer(finalizers, LB_FINALIZER).filter(|_| holds);
    let annotation = allocated_annotation(lb, outcome);
    if changes.is_empty() && finalizers.is_none() && annotation.is_none() {
        return None;
    }
    // The resourceVersion makes the patch fail if the object has changed.
    let mut patch = json!({"metadata": {"resourceVersion": lb.metadata.resource_version}});
    if let Some(finalizers) = finalizers {
        patch["metadata"]["finalizers"] = json!(finalizers);
    }
    if let Some(annotation) = annotation {
        patch["metadata"]["annotations"] = json!({ANNOTATION_ALLOCATED: annotation});
    }
    if !changes.is_empty() {
        patch["status"] = Value::Object(changes);
    }
    Some(patch)
}

/// Whether `patch` only adds `status.endpoints`. `patch`: a patch of `lb` that [`patch()`] made.
pub fn adds_only_counts(lb: &LoadBalancer, patch: &Value) -> bool {
    let fields = patch["status"].as_object();
    lb.status.as_ref().is_none_or(|status| status.endpoints.is_none())
        && changes_only_counts(patch)
        && fields.is_some_and(|fields| fields.keys().eq(["endpoints"]))
}

/// Whether `patch` changes only `status.endpoints` or `status.backendServers`, or both. `patch`: a
/// patch that [`patch()`] made.
pub fn changes_only_counts(patch: &Value) -> bool {
    let is_count = |field: &String| matches!(field.as_str(), "endpoints" | "backendServers");
    let fields = |part: &str| patch[part].as_object();
    fields("metadata").is_some_and(|fields| fields.keys().eq(["resourceVersion"]))
        && fields("status").is_some_and(|fields| fields.keys().all(is_count))
}

/// New `status.allocatedAddress` and `Ready` condition, from `outcome` and `report`. The times of
/// the condition are not set.
pub fn address_and_ready(
    lb: &LoadBalancer,
    outcome: &AddressOutcome,
    report: Option<&ServingStatus>,
) -> (AllocatedAddress, Condition) {
    let old = lb.status.as_ref().and_then(|status| status.allocated_address.clone());
    let new = allocated(&old.unwrap_or_default(), outcome);
    let ready = ready(outcome, report, &new, listeners::is_vm(lb), facts::ready(lb));
    (new, ready)
}

/// Value of the annotation that records the present claim. `None`: the annotation is not changed,
/// for example while the LoadBalancer waits for an address. A LoadBalancer that is restored without
/// its status requests its former address by this annotation.
fn allocated_annotation(lb: &LoadBalancer, outcome: &AddressOutcome) -> Option<String> {
    let AddressOutcome::Pool(ClaimResult::Held { claim, .. }) = outcome else { return None };
    (facts::former(lb).as_ref() != Some(claim)).then(|| facts::written(claim))
}

/// Whether the operator may create the LoadBalancer's Service: an address is published, and the
/// finalizer delays the deletion of the LoadBalancer until the Service is deleted.
pub fn may_serve(lb: &LoadBalancer) -> bool {
    let finalizers = lb.metadata.finalizers.as_deref().unwrap_or_default();
    finalizers.iter().any(|f| f == LB_FINALIZER) && facts::allocated_ip(lb).is_some()
}

/// Whether a vm LoadBalancer may still have its Service, although the outcome of its reconcile has
/// no address. `true` in these cases:
/// * the LoadBalancer has the finalizer, and its status still publishes an address ([`may_serve`]);
/// * `status.address` has an address, so the Service was announced.
///
/// The view of Services cannot answer this: it may not be complete yet, and it lacks a Service
/// without the operator's label.
pub fn may_have_service(lb: &LoadBalancer) -> bool {
    let address = lb.status.as_ref().and_then(|status| status.address.as_deref());
    may_serve(lb) || address.is_some_and(|address| !address.is_empty())
}

/// The merge patch that removes this operator's finalizer from a LoadBalancer that is being
/// deleted. `None`: the LoadBalancer does not have this finalizer.
pub fn finalize(lb: &LoadBalancer) -> Option<Value> {
    removal_patch(&lb.metadata, &[LB_FINALIZER])
}

/// The desired `status.allocatedAddress`. Empty if the LoadBalancer has no address. If it has one,
/// the fields that this operator does not use are copied from `old`. Without them, the result would
/// differ from `old` at each reconcile, and each reconcile would write.
fn allocated(old: &AllocatedAddress, outcome: &AddressOutcome) -> AllocatedAddress {
    let text = |ip: Option<IpAddr>| ip.map(|ip| ip.to_string());
    let (ip_pool, ip, mask, gateway) = match outcome {
        AddressOutcome::Guest(_) => (None, DHCP_ADDRESS.to_owned(), None, None),
        AddressOutcome::Host(Ok(LeasedAddress { ip, mask, gateway, .. })) => {
            (None, ip.to_string(), text(mask.map(IpAddr::V4)), text(gateway.map(IpAddr::V4)))
        }
        AddressOutcome::Host(Err(_)) | AddressOutcome::Pool(ClaimResult::Waiting(_)) => {
            return AllocatedAddress::default();
        }
        AddressOutcome::Pool(ClaimResult::Held { claim, subnet, .. }) => {
            let ip = claim.ip.to_string();
            let (mask, gateway) = match subnet {
                Some(subnet) => (Some(subnet.mask()), text(subnet.gateway)),
                // The pool was deleted or has other ranges, so the subnet is unknown. The published
                // mask and gateway stay valid.
                None if old.ip.as_deref() == Some(&ip) => (old.mask.clone(), old.gateway.clone()),
                None => (None, None),
            };
            (Some(claim.pool.clone()), ip, mask, gateway)
        }
    };
    AllocatedAddress { ip_pool, ip: Some(ip), mask, gateway, ..old.clone() }
}

/// The patch of `allocatedAddress`, with the fields that this operator uses. If `new` has no
/// address, the patch is `null`, which removes the present value.
fn allocated_patch(new: &AllocatedAddress) -> Value {
    if new.ip.is_none() {
        return Value::Null;
    }
    json!({"ipPool": new.ip_pool, "ip": new.ip, "mask": new.mask, "gateway": new.gateway})
}

/// Patch of `status.address` for a LoadBalancer that has no Service of the operator. `None`: the
/// value stays. `address`: the present value. `old` and `new`: the present and the new
/// `status.allocatedAddress`.
/// * Type vm: the value is removed if `new` has no address, because no Service announces one.
/// * Type cluster: a value that is neither empty nor the address of `old` is the guest's own, and
///   stays. Any other value becomes the address of `new`, or is removed if `new` has none.
///
/// The operator writes the value for type cluster before the guest does. Reason: the guest's cloud
/// provider treats a LoadBalancer with an empty value as one that does not exist. If the guest
/// failed before its own write, and the value were empty, the provider would never delete the
/// LoadBalancer.
fn address_patch(
    address: Option<&str>,
    old: &AllocatedAddress,
    new: &AllocatedAddress,
    vm: bool,
) -> Option<Value> {
    let address = address.unwrap_or_default();
    let ours = address.is_empty() || Some(address) == old.ip.as_deref();
    match new.ip.as_deref() {
        Some(ip) if !vm && ours && address != ip => Some(json!(ip)),
        None if (vm || ours) && !address.is_empty() => Some(Value::Null),
        _ => None,
    }
}

/// Patch of `status.address` for a LoadBalancer of type vm with a Service. `None`: the value stays.
/// The new value is the first address at which the Service is announced, even if another address
/// was requested. If the Service is not announced, the value is removed. Exception: while the
/// LoadBalancer changes its address, the old value stays until the new address is announced.
/// `address`: the present value.
fn announced_patch(address: Option<&str>, report: &ServingStatus) -> Option<Value> {
    if report.moving_from.is_some() {
        return None;
    }
    let announced = report.announced();
    (address.filter(|address| !address.is_empty()) != announced).then(|| json!(announced))
}

fn backends_patch(status: &LoadBalancerStatus, backends: &BackendCounts) -> Map<String, Value> {
    let mut changes = Map::new();
    let texts: Vec<String> = backends.addresses().map(|address| address.to_string()).collect();
    let stored = status.backend_servers.as_deref().unwrap_or_default();
    if !bounds::is_list(stored, &texts) {
        changes.insert("backendServers".to_owned(), json!(texts));
    }
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let counts = EndpointCounts { total: count(backends.total()), ready: count(backends.ready()) };
    if status.endpoints != Some(counts) {
        changes.insert("endpoints".to_owned(), json!(counts));
    }
    changes
}

fn ready(
    outcome: &AddressOutcome,
    report: Option<&ServingStatus>,
    new: &AllocatedAddress,
    vm: bool,
    stored: Option<&Condition>,
) -> Condition {
    let ip = new.ip.as_deref().unwrap_or_default();
    match outcome {
        AddressOutcome::Pool(ClaimResult::Waiting(wait)) => {
            condition(ConditionStatus::False, wait.reason(), wait.message())
        }
        AddressOutcome::Host(Err(why)) => {
            condition(ConditionStatus::False, why.reason(), why.message())
        }
        _ if vm => vm_ready(outcome, report, ip),
        AddressOutcome::Pool(ClaimResult::Held { instead: Some(wait), .. }) => {
            condition(ConditionStatus::True, wait.reason(), keeps(ip, wait))
        }
        AddressOutcome::Pool(ClaimResult::Held { .. }) => {
            condition(ConditionStatus::True, reason::ALLOCATED, String::new())
        }
        AddressOutcome::Host(Ok(lease)) => {
            let message = format!("{} is leased on network {}", lease.ip, lease.network);
            condition(ConditionStatus::True, reason::LEASED, message)
        }
        AddressOutcome::Guest(why) => {
            // Only the reconcile that decided that the announcer leases has the reason. Later
            // reconciles keep the stored message, which contains this reason.
            let said = stored.filter(|stored| stored.reason.as_deref() == Some(reason::DHCP));
            let said = || said.and_then(|stored| stored.message.clone());
            let message = why.clone().or_else(said).unwrap_or_default();
            condition(ConditionStatus::True, reason::DHCP, message)
        }
    }
}

/// Condition `Ready` of a vm LoadBalancer that has the address `ip`, or whose announcer leases one.
/// If the LoadBalancer keeps `ip` although it asks for another address, the message says why. If
/// the condition is False, its message begins with the cause, because UIs match the beginning.
fn vm_ready(outcome: &AddressOutcome, report: Option<&ServingStatus>, ip: &str) -> Condition {
    let (status, reason, message) = match report {
        Some(report) => readiness::ready(report, ip),
        None => (
            ConditionStatus::False,
            reason::NOT_ANNOUNCED,
            format!("{ip} is allocated, and its Service is not written yet"),
        ),
    };
    match outcome {
        AddressOutcome::Pool(ClaimResult::Held { instead: Some(wait), .. }) => {
            let keeps = keeps(ip, wait);
            if status == ConditionStatus::True {
                condition(status, wait.reason(), keeps)
            } else {
                condition(status, reason, format!("{message}; {keeps}"))
            }
        }
        AddressOutcome::Guest(Some(why)) if status == ConditionStatus::True => {
            condition(status, reason, format!("{message}; {why}"))
        }
        _ => condition(status, reason, message),
    }
}

/// Message of a LoadBalancer that keeps the address `ip`, although it asks for another one.
fn keeps(ip: &str, wait: &NoAddressReason) -> String {
    format!("the LoadBalancer keeps {ip}: {}", wait.message())
}

/// Merge patch with the condition `Ready` that says that another controller leads. `holder`: name
/// of the other controller. Returns `None` in these cases:
/// * the LoadBalancer has an address, or is being deleted;
/// * the LoadBalancer has a condition `Ready` with another reason;
/// * the LoadBalancer already has this condition.
pub fn unanswered(lb: &LoadBalancer, holder: &str, now: &str) -> Option<Value> {
    if facts::has_address(lb) || lb.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let stored = lb.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let has_other_reason =
        |ready: &Condition| ready.reason.as_deref() != Some(reason::OTHER_CONTROLLER);
    if facts::ready(lb).is_some_and(has_other_reason) {
        return None;
    }
    let message = reason::other_controller(holder);
    let new = condition(ConditionStatus::False, reason::OTHER_CONTROLLER, message);
    let conditions = with_condition(stored, new, now)?;
    Some(json!({
        "metadata": {"resourceVersion": lb.metadata.resource_version},
        "status": {"conditions": conditions},
    }))
}

#[cfg(test)]
mod tests;
