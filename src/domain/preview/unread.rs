//! Failed reads of objects, and the facts that the plan lacks because of the failures.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

/// Request that reads objects, in the terms of a rule in an RBAC Role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RoleRead {
    /// Verb of the request: `get` or `list`.
    pub verb: &'static str,
    /// API group of the kind; empty for the core group.
    pub group: String,
    /// Plural name of the kind, such as `pods`.
    pub resource: String,
    /// Namespace of the objects; empty for all namespaces, and for kinds without a namespace.
    pub namespace: String,
    /// Name of the object; empty for a list.
    pub name: String,
}

impl fmt::Display for RoleRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, group, resource, namespace, name } = self;
        write!(f, "{verb} {resource}")?;
        if !group.is_empty() {
            write!(f, ".{group}")?;
        }
        if !name.is_empty() {
            write!(f, " {name}")?;
        }
        if !namespace.is_empty() {
            write!(f, " in namespace {namespace}")?;
        }
        Ok(())
    }
}

/// Reason why a read failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadFailure {
    /// No role gives the user the right to this read.
    Forbidden,
    /// The cluster does not serve the kind.
    NotServed,
}

/// Facts that the plan lacks if the objects of the kind `resource` cannot be read. `None`: the plan
/// does not depend on this kind.
fn facts(resource: &str) -> Option<&'static str> {
    Some(match resource {
        "namespaces" => "the Rancher project of each namespace, and the identities of DHCP clients",
        "nodes" => "addresses of nodes, which no pool gives out, and regions and zones of VMs",
        "services" => {
            "addresses of Services, which no pool gives out, and the Services of load balancers"
        }
        "servicecidrs" => "networks of Services, which no pool gives out",
        "configmaps" => "Harvester's management address, and the addresses in kube-vip's ConfigMap",
        "network-attachment-definitions" => {
            "bridges and VLANs of networks (all networks count as one segment)"
        }
        "hostnetworkconfigs" => "links of nodes for VLANs",
        "virtualmachineinstances" => "VMs behind load balancers",
        "virtualmachines" => {
            "guest clusters that are being removed (their LoadBalancers get no address)"
        }
        "pods" => "addresses of VMs on the pod network, and whether they are ready",
        "endpointslices" => "EndpointSlices of load balancers",
        "dhcpleases" => "addresses that the host has leased",
        "leases" => "who leads, and which DHCP agents run",
        "ippools" => "conflicts of leased addresses with pools",
        "tokenrotations" => "credentials that a TokenRotation renews or watches",
        "secrets" => "expiries of the credentials in Secrets",
        "validatingwebhookconfigurations" => "the webhooks that check LoadBalancers and IPPools",
        _ => return None,
    })
}

/// Sentences about facts that the plan lacks. Each failed read in `reads` gives one, unless the
/// plan has all its facts without this read. Each kind in `late` gives one, because its objects
/// were not listed in time. Equal sentences in a row are returned once.
pub fn sentences(reads: &BTreeMap<RoleRead, ReadFailure>, late: &[&str]) -> Vec<String> {
    let refused = reads.iter().filter_map(|(read, why)| sentence(read, *why));
    let late = late.iter().map(|resource| {
        format!("{}: {resource} were not listed in time", facts(resource).unwrap_or(resource))
    });
    let mut all: Vec<String> = refused.chain(late).collect();
    all.dedup();
    all
}

/// Section `Not known` of the report, with one line for each sentence. Empty if there are no
/// sentences.
pub fn section(sentences: &[String]) -> String {
    let mut text = String::new();
    if !sentences.is_empty() {
        let _ = writeln!(text, "\nNot known ({}):", sentences.len());
        for sentence in sentences {
            let _ = writeln!(text, "  {sentence}");
        }
    }
    text
}

/// Sentence about a failed read. `None`: the plan has all its facts without this read.
fn sentence(read: &RoleRead, why: ReadFailure) -> Option<String> {
    let facts = facts(&read.resource)?;
    match why {
        ReadFailure::Forbidden => Some(format!("{facts}: the right to {read} is missing")),
        ReadFailure::NotServed if read.resource.starts_with("virtualmachine") => {
            Some(format!("{facts}: this cluster does not serve {}", read.resource))
        }
        // If the cluster does not serve the kind, there are no objects of the kind, so no fact is
        // missing.
        ReadFailure::NotServed => None,
    }
}
