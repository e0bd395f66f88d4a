//! Requests for IPPools, and what each is answered.
//!
//! Objects are short: `{name, labels, annotations, spec}`; [`object`] makes them whole. `before` is
//! created first, in order, by somebody else than the operator; a `{lb, pool}` there is a
//! LoadBalancer that names the pool and has its address before the request is made, so that row
//! needs a leader. A message is a part of the answer. Of what does not fit its type the API server
//! has dropped unknown fields before anybody is asked.

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

use Expect::{Accept, Label, Refuse, Schema, Warn};
use Operation::{Create, Delete, Update};

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

const GLOBAL: &str = "loadbalancer.harvesterhci.io/global-ip-pool";
const VID: &str = "loadbalancer.harvesterhci.io/vid";
const RELEASE: &str = "metadata.annotations[loadbalancer.harvesterhci.io/manuallyReleaseIP]";
const FLAG: &str = "metadata.annotations[loadbalancer.harvesterhci.io/global-ip-pool]";

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

pub(crate) const ROWS: &[Row] = &[
    // What is accepted, and the labels it gets.
    row("a pool", &[], Create, OLD, Accept),
    row("label of a pool that is not global", &[], Create, OLD, Label(GLOBAL, "false")),
    row("label of the VLAN", &[], Create, OLD, Label(VID, "100")),
    row("label of no VLAN", &[], Create, PLAIN, Label(VID, "0")),
    row("label of the global pool", &[], Create, ALL, Label(GLOBAL, "true")),
    row(
        "no longer global",
        &[ALL],
        Update,
        r#"{name: all, spec: {selector: {scope: [{project: "*", namespace: default, guestCluster: "*"}]}}}"#,
        Label(GLOBAL, "false"),
    ),
    row(
        "global from now on",
        &[OLD],
        Update,
        r#"{name: old, spec: {selector: {scope: [{project: "*", namespace: "*", guestCluster: "*"}]}}}"#,
        Label(GLOBAL, "true"),
    ),
    // Copied, and not quite right.
    row(
        "scope as a map",
        &[],
        Create,
        r#"{name: p, spec: {ranges: [{subnet: 10.2.0.0/24}], selector: {scope: {project: "*", namespace: default}}}}"#,
        Refuse("spec.selector.scope", "must be a list: - project:"),
    ),
    row(
        "scope as text",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.0/24}], selector: {scope: default}}}",
        Refuse("spec.selector.scope", "must be a list: - project:"),
    ),
    row(
        "entry of the scope as text",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.0/24}], selector: {scope: [default]}}}",
        Refuse("spec.selector.scope[0]", "must be an object"),
    ),
    row(
        "namespace as a list",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.0/24}], selector: {scope: [{namespace: [default]}]}}}",
        Refuse("spec.selector.scope[0].namespace", "leave out the dash"),
    ),
    row(
        "selector as a list",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.0/24}], selector: [{priority: 1}]}}",
        Refuse("spec.selector", "must be an object"),
    ),
    row(
        "priority in quotes",
        &[],
        Create,
        r#"{name: p, spec: {ranges: [{subnet: 10.2.0.0/24}], selector: {priority: "7"}}}"#,
        Refuse("spec.selector.priority", "without quotes: priority: 7"),
    ),
    row(
        "priority as a word",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.0/24}], selector: {priority: high}}}",
        Refuse("spec.selector.priority", "must be a whole number"),
    ),
    row(
        "priority below 0",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.0/24}], selector: {priority: -1}}}",
        Schema("priority"),
    ),
    row(
        "network as a list",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.0/24}], selector: {network: [default/x]}}}",
        Refuse("spec.selector.network", "not a list"),
    ),
    row(
        "ranges as a map",
        &[],
        Create,
        "{name: p, spec: {ranges: {subnet: 10.2.0.0/24}}}",
        Refuse("spec.ranges", "must be a list: - subnet:"),
    ),
    row(
        "ranges as text",
        &[],
        Create,
        "{name: p, spec: {ranges: [10.2.0.0/24]}}",
        Refuse("spec.ranges[0]", "must be an object: - subnet: 10.2.0.0/24"),
    ),
    row(
        "no range",
        &[],
        Create,
        "{name: p, spec: {ranges: []}}",
        Refuse("spec.ranges", "range can't be empty"),
    ),
    row(
        "no ranges",
        &[],
        Create,
        "{name: p, spec: {description: x}}",
        Refuse("spec.ranges", "range can't be empty"),
    ),
    row(
        "no subnet",
        &[],
        Create,
        "{name: p, spec: {ranges: [{rangeStart: 10.2.0.9}]}}",
        Refuse("spec.ranges[0].subnet", "is missing"),
    ),
    row(
        "subnet as a number",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10}]}}",
        Refuse("spec.ranges[0].subnet", "in quotes"),
    ),
    row(
        "exclude as text",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.0/24, exclude: 10.2.0.9}]}}",
        Refuse("spec.ranges[0].exclude", "must be a list: [10.2.0.9]"),
    ),
    row(
        "the flag as an annotation",
        &[],
        Create,
        r#"{name: p, annotations: {loadbalancer.harvesterhci.io/global-ip-pool: "true"}, spec: {ranges: [{subnet: 10.2.0.0/24}]}}"#,
        Refuse(FLAG, "is a label, not an annotation"),
    ),
    // Ranges.
    row(
        "subnet without a length",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.0}]}}",
        Schema("CIDR form"),
    ),
    row(
        "start outside the subnet",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.0/24, rangeStart: 10.3.0.1}]}}",
        Schema("rangeStart must lie within subnet"),
    ),
    row(
        "reversed",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.0/24, rangeStart: 10.2.0.20, rangeEnd: 10.2.0.10}]}}",
        Refuse("spec.ranges[0].rangeStart", "exchange the two"),
    ),
    row(
        "network address",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.0/24, rangeStart: 10.2.0.0}]}}",
        Refuse("spec.ranges[0].rangeStart", "10.2.0.0 is the network address"),
    ),
    row(
        "broadcast address",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.0/24, rangeEnd: 10.2.0.255}]}}",
        Refuse("spec.ranges[0].rangeEnd", "10.2.0.255 is the broadcast address"),
    ),
    row(
        "exclusion that is none",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.0/24, exclude: [x]}]}}",
        Refuse("spec.ranges[0].exclude[0]", "not an IP address"),
    ),
    row(
        "gateway of another family",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.0/24, gateway: 'fd00::1'}]}}",
        Refuse("spec.ranges[0].gateway", "family"),
    ),
    row(
        "ranges of one pool that overlap",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.0/25}, {subnet: 10.2.0.0/24}]}}",
        Refuse("spec.ranges[1]", "overlaps spec.ranges[0]"),
    ),
    // Other pools.
    row(
        "overlap by one address",
        &[PLAIN],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.1.0.0/24, rangeStart: 10.1.0.29, rangeEnd: 10.1.0.30}]}}",
        Refuse("spec.ranges[0]", "the ranges 10.1.0.29 overlap with other pools: IPPool plain"),
    ),
    row(
        "side by side",
        &[PLAIN],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.1.0.0/24, rangeStart: 10.1.0.30, rangeEnd: 10.1.0.31}]}}",
        Warn("scope is empty"),
    ),
    row(
        "overlap that is excluded",
        &[PLAIN],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.1.0.0/24, rangeStart: 10.1.0.29, rangeEnd: 10.1.0.30, exclude: [10.1.0.29]}]}}",
        Warn("scope is empty"),
    ),
    row(
        "overlap on another network",
        &[OLD],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.1.0.0/24, rangeStart: 10.1.0.10, rangeEnd: 10.1.0.19}], selector: {network: default/z}}}",
        Warn("scope is empty"),
    ),
    row(
        "overlap on a network by another name",
        &[OLD],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.1.0.0/24, rangeStart: 10.1.0.10, rangeEnd: 10.1.0.19}], selector: {network: default/y}}}",
        Refuse("spec.ranges[0]", "networks default/y and default/x are one and the same"),
    ),
    row(
        "overlap with the global pool",
        &[ALL],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.1.0.0/24, rangeStart: 10.1.0.39, rangeEnd: 10.1.0.49}], selector: {network: default/z}}}",
        Refuse("spec.ranges[0]", "IPPool all is global and serves every network"),
    ),
    row(
        "widened over another",
        &[PLAIN, NAMED],
        Update,
        "{name: plain, spec: {ranges: [{subnet: 10.1.0.0/24, rangeStart: 10.1.0.20, rangeEnd: 10.1.0.40}]}}",
        Refuse("spec.ranges[0]", "IPPool named"),
    ),
    row(
        "a second global pool",
        &[ALL],
        Create,
        r#"{name: p, spec: {ranges: [{subnet: 10.2.0.0/24}], selector: {scope: [{project: "*", namespace: "*", guestCluster: "*"}]}}}"#,
        Refuse("spec.selector.scope", "there is already a global IP pool: all"),
    ),
    row(
        "a second global pool by its label",
        &[ALL, PLAIN],
        Update,
        r#"{name: plain, labels: {loadbalancer.harvesterhci.io/global-ip-pool: "true"}}"#,
        Refuse("spec.selector.scope", "there is already a global IP pool: all"),
    ),
    row(
        "the same priority",
        &[OLD],
        Create,
        r#"{name: p, spec: {ranges: [{subnet: 10.2.0.0/24}], selector: {network: default/x, priority: 5, scope: [{project: "*", namespace: kube-system, guestCluster: "*"}]}}}"#,
        Refuse("spec.selector.priority", "the priority can't be the same as the pool old"),
    ),
    row(
        "the same priority on another network",
        &[OLD],
        Create,
        r#"{name: p, spec: {ranges: [{subnet: 10.2.0.0/24, rangeStart: 10.2.0.9}], selector: {network: default/z, priority: 5, scope: [{project: "*", namespace: default, guestCluster: "*"}]}}}"#,
        Accept,
    ),
    row(
        "the same scope without priority",
        &[PLAIN],
        Create,
        r#"{name: p, spec: {ranges: [{subnet: 10.2.0.0/24}], selector: {scope: [{project: local/p, namespace: "*", guestCluster: "*"}]}}}"#,
        Refuse(
            "spec.selector.scope[0]",
            "scope selector is same as the pool plain with priority 0",
        ),
    ),
    row(
        "the same scope with a priority",
        &[PLAIN],
        Create,
        r#"{name: p, spec: {ranges: [{subnet: 10.2.0.0/24, rangeStart: 10.2.0.9}], selector: {priority: 1, scope: [{project: local/p, namespace: "*", guestCluster: "*"}]}}}"#,
        Accept,
    ),
    // Holders.
    row(
        "shrunk under an address",
        &[NAMED, HOLDER],
        Update,
        "{name: named, spec: {ranges: [{subnet: 10.1.0.0/24, rangeStart: 10.1.0.41, rangeEnd: 10.1.0.49}]}}",
        Refuse("spec.ranges", "allocated IP 10.1.0.40 (default/holder) is excluded"),
    ),
    row(
        "an address excluded",
        &[NAMED, HOLDER],
        Update,
        "{name: named, spec: {ranges: [{subnet: 10.1.0.0/24, rangeStart: 10.1.0.40, rangeEnd: 10.1.0.49, exclude: [10.1.0.40]}]}}",
        Refuse("spec.ranges", "allocated IP 10.1.0.40 (default/holder) is excluded"),
    ),
    row(
        "shrunk elsewhere",
        &[NAMED, HOLDER],
        Update,
        "{name: named, spec: {ranges: [{subnet: 10.1.0.0/24, rangeStart: 10.1.0.40, rangeEnd: 10.1.0.41}]}}",
        Warn("scope is empty"),
    ),
    row(
        "deleted under an address",
        &[NAMED, HOLDER],
        Delete,
        "{name: named}",
        Refuse(
            "",
            "can't delete pool before releasing all the allocated IP: 10.1.0.40 (default/holder)",
        ),
    ),
    row("deleted empty", &[NAMED], Delete, "{name: named}", Accept),
    row("described", &[NAMED, HOLDER], Update, "{name: named, spec: {description: x}}", Accept),
    row(
        "annotated",
        &[NAMED, HOLDER],
        Update,
        "{name: named, annotations: {example.com/x: some}}",
        Accept,
    ),
    row(
        "released by hand while in use",
        &[NAMED, HOLDER],
        Update,
        "{name: named, annotations: {loadbalancer.harvesterhci.io/manuallyReleaseIP: '10.1.0.40: default/holder'}}",
        Refuse(RELEASE, "LoadBalancer default/holder exists"),
    ),
    row(
        "released by hand for another",
        &[NAMED, HOLDER],
        Update,
        "{name: named, annotations: {loadbalancer.harvesterhci.io/manuallyReleaseIP: '10.1.0.40: default/other'}}",
        Refuse(RELEASE, "10.1.0.40 is held by default/holder"),
    ),
    row(
        "released by hand, misspelt",
        &[NAMED],
        Update,
        "{name: named, annotations: {loadbalancer.harvesterhci.io/manuallyReleaseIP: 10.1.0.40 default/holder}}",
        Refuse(RELEASE, "is not of the form"),
    ),
    row(
        "released by hand, nobody's",
        &[NAMED],
        Update,
        "{name: named, annotations: {loadbalancer.harvesterhci.io/manuallyReleaseIP: '10.1.0.40: default/holder'}}",
        Warn("is not allocated here"),
    ),
    // Surprises.
    row(
        "the gateway within",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.0/24, rangeStart: 10.2.0.1, rangeEnd: 10.2.0.9}]}}",
        Warn("the gateway 10.2.0.1 lies within"),
    ),
    row(
        "the whole subnet",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.0/24}]}}",
        Warn("every host of 10.2.0.0/24"),
    ),
    row(
        "a host for a subnet",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.7/24, rangeStart: 10.2.0.9}]}}",
        Warn("means the whole network 10.2.0.0/24"),
    ),
    row(
        "a pair",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.0/31}]}}",
        Warn("is a pair of hosts"),
    ),
    row(
        "a network that is not there",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.9/32}], selector: {network: default/none}}}",
        Warn("default/none does not exist"),
    ),
    row(
        "a namespace that is not there",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.9/32}], selector: {scope: [{namespace: none}]}}}",
        Warn("none does not exist"),
    ),
    row(
        "a namespace left out",
        &[],
        Create,
        r#"{name: p, spec: {ranges: [{subnet: 10.2.0.9/32}], selector: {scope: [{project: "*"}]}}}"#,
        Warn("admits nobody"),
    ),
    row(
        "for nobody unasked",
        &[],
        Create,
        "{name: p, spec: {ranges: [{subnet: 10.2.0.9/32}]}}",
        Warn("scope is empty"),
    ),
];
