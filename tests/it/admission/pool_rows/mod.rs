//! Requests for IPPools, and the answer to each.
//!
//! Objects are short: `{name, labels, annotations, spec}`; [`object`] completes them. A user other
//! than the operator creates `before` first, in order; a `{lb, pool}` there is a LoadBalancer that
//! names the pool and has its address before the request is made, so that row needs a leader. A
//! message is a part of the answer. If an object does not fit its type, the API server has dropped
//! unknown fields before it calls admission.

mod alone;
mod beside;

use serde_json::{Value, json};

/// A request and its expected result.
pub(crate) struct Row {
    /// Purpose of the row.
    pub(crate) name: &'static str,
    /// Existing objects.
    pub(crate) before: &'static [&'static str],
    /// The object. For a deletion, its name.
    pub(crate) request: &'static str,
    pub(crate) operation: Operation,
    pub(crate) expect: Expect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    /// A merge patch.
    Update,
    Delete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Accepted without a warning.
    Accept,
    /// Accepted with this warning.
    Warn(&'static str),
    /// The webhook refuses it: field and part of the message.
    Refuse(&'static str, &'static str),
    /// The schema refuses it, with and without admission.
    Schema(&'static str),
    /// Accepted, with this label.
    Label(&'static str, &'static str),
}

/// Completes a short object.
pub(crate) fn object(text: &str) -> anyhow::Result<Value> {
    let short: Value = serde_saphyr::from_str(text)?;
    if !short["lb"].is_null() {
        return Ok(json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
            "kind": "LoadBalancer",
            "metadata": {"name": short["lb"], "namespace": "default"},
            "spec": {"workloadType": "cluster", "ipPool": short["pool"]},
        }));
    }
    let mut metadata = json!({"name": short["name"]});
    for part in ["labels", "annotations", "finalizers"] {
        if !short[part].is_null() {
            metadata[part] = short[part].clone();
        }
    }
    let mut whole = json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
        "kind": "IPPool",
        "metadata": metadata,
    });
    if !short["spec"].is_null() {
        whole["spec"] = short["spec"].clone();
    }
    Ok(whole)
}

pub(super) const GLOBAL: &str = "loadbalancer.harvesterhci.io/global-ip-pool";
const VID: &str = "loadbalancer.harvesterhci.io/vid";
const RELEASE: &str = "metadata.annotations[loadbalancer.harvesterhci.io/manuallyReleaseIP]";

/// `10.1.0.10` to `.19` for namespace `default` on network `default/x`, which is VLAN 100 by an
/// object of that name; `default/y` is the same VLAN, `default/z` is VLAN 200.
const OLD: &str = r#"{name: old, spec: {ranges: [{subnet: 10.1.0.0/24, rangeStart: 10.1.0.10, rangeEnd: 10.1.0.19}], selector: {network: default/x, priority: 5, scope: [{project: "*", namespace: default, guestCluster: "*"}]}}}"#;
/// A pool without network or priority.
const PLAIN: &str = r#"{name: plain, spec: {ranges: [{subnet: 10.1.0.0/24, rangeStart: 10.1.0.20, rangeEnd: 10.1.0.29}], selector: {scope: [{project: "*", namespace: default, guestCluster: "*"}]}}}"#;
/// The global pool.
const ALL: &str = r#"{name: all, spec: {ranges: [{subnet: 10.1.0.0/24, rangeStart: 10.1.0.30, rangeEnd: 10.1.0.39}], selector: {scope: [{project: "*", namespace: "*", guestCluster: "*"}]}}}"#;
/// A pool for LoadBalancers that name it.
const NAMED: &str = "{name: named, spec: {ranges: [{subnet: 10.1.0.0/24, rangeStart: 10.1.0.40, rangeEnd: 10.1.0.49}]}}";
const HOLDER: &str = "{lb: holder, pool: named}";

const fn row(
    name: &'static str,
    before: &'static [&'static str],
    operation: Operation,
    request: &'static str,
    expect: Expect,
) -> Row {
    Row { name, before, request, operation, expect }
}

/// Rows of both tables.
pub(crate) fn rows() -> impl Iterator<Item = &'static Row> {
    alone::ROWS.iter().chain(beside::ROWS)
}
