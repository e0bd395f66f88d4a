//! A new Service, held back from kube-vip until kube-proxy has its rules.
//!
//! kube-proxy redirects an address from when the Service's status names it; kube-vip binds the address
//! first and writes the status then. In between the address is the node's own, and so is what listens
//! there. So a new Service asks kube-vip to ignore it, its status names the address without further
//! ado, and kube-vip is let to it once every kube-proxy has had the time to follow.
//!
//! Invariant: an address in a status that was written from here carries [`NOT_ANNOUNCED`], and counts
//! as no announcement; kube-vip replaces it by its own.

use chrono::{DateTime, FixedOffset, SecondsFormat, TimeDelta};
use serde_json::{Value, json};

use super::{ASKED_ADDRESS, Stored, StoredPort};
use api::DHCP_ADDRESS;

/// Annotation: kube-vip does nothing about the Service.
pub const IGNORED: &str = "kube-vip.io/ignore";
/// Annotation: until when the Service is held back. Empty: its status does not name the address yet.
pub const HELD_UNTIL: &str = "loadbalancer.harvesterhci.io/held-until";
/// Error of the ports of an address that nothing announces yet.
pub const NOT_ANNOUNCED: &str = "loadbalancer.harvesterhci.io/NotAnnounced";

/// How long kube-proxy may need: it writes rules once a second (`minSyncPeriod`), and the writing takes
/// a part of one.
const HOLD: TimeDelta = TimeDelta::seconds(2);

/// Next step for a Service that is held back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// Its status is to name the address: this patch does that.
    Unnamed(Value),
    /// Nothing, for so long.
    For(TimeDelta),
    /// Kube-vip is to be let to it: this patch does that.
    Over(Value),
}

/// Looks whether a Service is held back. `address` is the one that it asks for.
pub fn held(stored: &Stored, address: &str, now: DateTime<FixedOffset>) -> Option<Held> {
    let until = stored.annotations.get(HELD_UNTIL)?;
    if !stored.ingress.is_empty() {
        // Something announces it already.
        return Some(Held::Over(released(stored)));
    }
    if until.is_empty() {
        return Some(Held::Unnamed(named(stored, address, now + HOLD)));
    }
    // Text that cannot be read holds nothing.
    let left =
        until.parse::<DateTime<FixedOffset>>().map_or(TimeDelta::zero(), |until| until - now);
    // Neither does a clock that went back.
    let is_held = left > TimeDelta::zero() && left <= HOLD;
    Some(if is_held { Held::For(left) } else { Held::Over(released(stored)) })
}

/// Holds a new Service back, unless its user wants it ignored, or kube-vip leases the address: that one
/// is not known before it is announced.
pub fn hold_back(mut service: Value) -> Value {
    let annotations = &mut service["metadata"]["annotations"];
    if annotations[ASKED_ADDRESS] != DHCP_ADDRESS && annotations[IGNORED].is_null() {
        annotations[IGNORED] = json!("true");
        annotations[HELD_UNTIL] = json!("");
    }
    service
}

fn released(stored: &Stored) -> Value {
    json!({"metadata": {
        "resourceVersion": stored.version,
        "annotations": {IGNORED: null, HELD_UNTIL: null},
    }})
}

/// The patch of the subresource status, which takes annotations in the same write.
fn named(stored: &Stored, address: &str, until: DateTime<FixedOffset>) -> Value {
    let port = |port: &StoredPort| json!({"port": port.port, "protocol": port.protocol, "error": NOT_ANNOUNCED});
    let ports: Vec<Value> = stored.ports.iter().map(port).collect();
    json!({
        "metadata": {
            "resourceVersion": stored.version,
            "annotations": {HELD_UNTIL: until.to_rfc3339_opts(SecondsFormat::Millis, true)},
        },
        "status": {"loadBalancer": {"ingress": [{"ip": address, "ports": ports}]}},
    })
}

#[cfg(test)]
mod tests;
