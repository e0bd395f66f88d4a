//! Requests for IPPools, and what each is answered.
//!
//! Objects are short: `{name, labels, annotations, spec}`; [`object`] makes them whole. `before` is
//! created first, in order, by somebody else than the operator; a `{lb, pool}` there is a
//! LoadBalancer that names the pool and has its address before the request is made, so that row
//! needs a leader. A message is a part of the answer. Of what does not fit its type the API server
//! has dropped unknown fields before anybody is asked.

mod alone;
mod beside;

use serde_json::{Value, json};

/// One request.
pub(crate) struct Row {
    /// What it shows.
    pub(crate) name: &'static str,
    /// What is there.
    pub(crate) before: &'static [&'static str],
    /// The object. Of a deletion, its name.
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
    /// Nothing is said.
    Accept,
    /// It is done, and something is said about it.
    Warn(&'static str),
    /// It is not: by the webhook, with field and part of the message.
    Refuse(&'static str, &'static str),
    /// It is not: by the schema, whoever is asked.
    Schema(&'static str),
    /// It is done, with this label.
    Label(&'static str, &'static str),
}

/// A whole object.
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
/// Without network or priority.
const PLAIN: &str = r#"{name: plain, spec: {ranges: [{subnet: 10.1.0.0/24, rangeStart: 10.1.0.20, rangeEnd: 10.1.0.29}], selector: {scope: [{project: "*", namespace: default, guestCluster: "*"}]}}}"#;
/// The global one.
const ALL: &str = r#"{name: all, spec: {ranges: [{subnet: 10.1.0.0/24, rangeStart: 10.1.0.30, rangeEnd: 10.1.0.39}], selector: {scope: [{project: "*", namespace: "*", guestCluster: "*"}]}}}"#;
/// For those who name it.
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

/// All of them.
pub(crate) fn rows() -> impl Iterator<Item = &'static Row> {
    alone::ROWS.iter().chain(beside::ROWS)
}
