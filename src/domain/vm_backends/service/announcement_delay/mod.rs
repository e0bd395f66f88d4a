//! Delay of a new Service's announcement: kube-vip must ignore the Service until kube-proxy has
//! rules for it.
//!
//! kube-vip first binds an address, and then writes it into the Service's status. kube-proxy
//! redirects traffic only for an address in the status. So between these two steps, programs on the
//! node would answer. For a new Service, the order is therefore:
//!
//! 1. The operator creates the Service with an annotation that makes kube-vip ignore it.
//! 2. The operator writes the address into the Service's status, with the mark [`NOT_ANNOUNCED`].
//!    An address with this mark does not count as announced.
//! 3. The operator waits until every kube-proxy has had the time to write its rules, and removes
//!    the annotation.
//! 4. kube-vip announces the address, and replaces the operator's entry in the status with its own.

use chrono::{DateTime, FixedOffset, TimeDelta};
use serde_json::{Value, json};

use super::{ASKED_ADDRESS, ServicePlan, StoredPort, StoredService};
use crate::object_fields::rfc3339;
use api::DHCP_ADDRESS;

/// Annotation that makes kube-vip ignore the Service.
pub const IGNORED: &str = "kube-vip.io/ignore";
/// Annotation with the time (RFC 3339) at which the delay ends. The text is empty while the
/// Service's status does not yet contain the address.
pub const HELD_UNTIL: &str = "loadbalancer.harvesterhci.io/held-until";
/// Text that marks an address in a Service's status: the operator wrote the address, and no
/// announcer announces it yet. The text is in the field `error` of the address's ports.
pub const NOT_ANNOUNCED: &str = "loadbalancer.harvesterhci.io/NotAnnounced";

/// Assumed time until kube-proxy has written its rules for a new Service. kube-proxy writes rules
/// at most once a second (`minSyncPeriod`), and a write takes a part of a second.
const DELAY: TimeDelta = TimeDelta::seconds(2);

/// Returns the next step of the delay: to write the address into the Service's status, to wait
/// until every kube-proxy can have written its rules, or to let kube-vip announce the Service.
/// [`ServicePlan::Keep`]: the Service has no delay, or the delay was ended before. `address` is the
/// address that the Service asks for. Precondition: the content of the Service is as required.
pub(super) fn next_step(
    stored: &StoredService,
    address: &str,
    now: DateTime<FixedOffset>,
) -> ServicePlan {
    let Some(until) = stored.annotations.get(HELD_UNTIL) else { return ServicePlan::Keep };
    if !stored.ingress.is_empty() {
        // An announcer already announces the Service, so there is nothing to wait for.
        return ServicePlan::Change(announcement(stored));
    }
    if until.is_empty() {
        return ServicePlan::ChangeStatus(address_patch(stored, address, now + DELAY));
    }
    // If the annotation's text is not a time, the delay is over.
    let left = rfc3339::parse(until).map_or(TimeDelta::zero(), |until| until - now);
    // If more than `DELAY` is left, the clock was set back, so the delay is over.
    let is_delayed = left > TimeDelta::zero() && left <= DELAY;
    if is_delayed {
        ServicePlan::DelayAnnouncement(left)
    } else {
        ServicePlan::Change(announcement(stored))
    }
}

/// Adds the annotations that delay the announcement of a new Service. Two kinds of Services stay
/// unchanged: a Service that the user wants kube-vip to ignore, and a Service whose address
/// kube-vip leases. A leased address is not known before kube-vip announces it.
pub fn delay_announcement(mut service: Value) -> Value {
    let annotations = &mut service["metadata"]["annotations"];
    if annotations[ASKED_ADDRESS] != DHCP_ADDRESS && annotations[IGNORED].is_null() {
        annotations[IGNORED] = json!("true");
        annotations[HELD_UNTIL] = json!("");
    }
    service
}

/// Patch after which kube-vip may announce the Service.
fn announcement(stored: &StoredService) -> Value {
    json!({"metadata": {
        "resourceVersion": stored.version,
        "annotations": {IGNORED: null, HELD_UNTIL: null},
    }})
}

/// Patch that writes `address` into the status, and `until`, the end of the delay, into an
/// annotation. The patch is for the status subresource, which also accepts changes of annotations.
fn address_patch(stored: &StoredService, address: &str, until: DateTime<FixedOffset>) -> Value {
    let port = |port: &StoredPort| json!({"port": port.port, "protocol": port.protocol, "error": NOT_ANNOUNCED});
    let ports: Vec<Value> = stored.ports.iter().map(port).collect();
    json!({
        "metadata": {
            "resourceVersion": stored.version,
            "annotations": {HELD_UNTIL: rfc3339::to_millisecond(until)},
        },
        "status": {"loadBalancer": {"ingress": [{"ip": address, "ports": ports}]}},
    })
}

#[cfg(test)]
mod tests;
