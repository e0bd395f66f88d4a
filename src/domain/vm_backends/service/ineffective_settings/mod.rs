//! Settings that users make on a Service, and that do not have their documented effect if kube-vip
//! announces the Service.

use std::collections::BTreeSet;

use super::super::endpoints::VmEndpoint;
use super::StoredService;

/// Setting that does not have its documented effect on a Service. The text in each variant says
/// what is wrong, and what the user can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingMisfit {
    /// `externalTrafficPolicy` is Local, and no VM is known to serve on the node that announced the
    /// address last. kube-vip announces the address only while a VM serves on the node of
    /// kube-vip's leader.
    NoLocalBackend(String),
    /// `loadBalancerSourceRanges` is set. But if kube-proxy uses iptables, clients outside the
    /// ranges still reach programs of the announcing node itself on the Service's ports.
    SourceRanges(String),
}

/// Finds a setting that does not have its documented effect on this Service. If there are several,
/// the result is the first in the order of [`SettingMisfit`]. `endpoints`: VMs behind the Service.
/// `None`: no such setting was found.
pub fn misfit(stored: &StoredService, endpoints: &[VmEndpoint]) -> Option<SettingMisfit> {
    let bypassed = stored.source_range.is_some();
    no_local_backend(stored, endpoints)
        .map(SettingMisfit::NoLocalBackend)
        .or_else(|| bypassed.then(|| SettingMisfit::SourceRanges(source_ranges(stored))))
}

/// Text that says why kube-vip does not announce the address: `externalTrafficPolicy` is Local, and
/// no VM is known to serve on the node of kube-vip's leader. The Service itself does not show this:
/// kube-vip 1.2 withdraws the address, but leaves the Service's status and the annotation
/// [`super::ANNOUNCING_NODE`] unchanged (`getAllEndpoints`, pkg/endpoints/endpoints_generic.go).
/// The node in this annotation is taken for the leader's node. `None` in each of these cases:
///
/// * The policy is not Local.
/// * A VM serves on the node that announced the address last.
/// * A program other than kube-vip may announce the address.
fn no_local_backend(stored: &StoredService, endpoints: &[VmEndpoint]) -> Option<String> {
    let node = stored.announcing_node();
    // If an address is announced, but the announcing node is not known, the announcer may be
    // another program than kube-vip.
    let is_known = node.is_some() || stored.ingress.is_empty();
    let is_local = |endpoint: &VmEndpoint| Some(&*endpoint.node) == node && endpoint.serving;
    if stored.policy != "Local" || !is_known || endpoints.iter().any(is_local) {
        return None;
    }
    let nodes: BTreeSet<&str> =
        endpoints.iter().filter(|endpoint| endpoint.ready()).map(|e| &*e.node).collect();
    let nodes = nodes.into_iter().collect::<Vec<_>>().join(", ");
    let last = match node {
        Some(node) => format!("Node {node} announced it last"),
        None => "no node has announced it yet".to_owned(),
    };
    Some(format!(
        "spec.externalTrafficPolicy of the Service is Local, so kube-vip announces the address only while kube-vip's leading node runs a ready VM; {last}, and ready VMs are on {nodes}: run a VM on the leading node, or set externalTrafficPolicy to Cluster"
    ))
}

fn source_ranges(stored: &StoredService) -> String {
    let ports: Vec<String> =
        stored.ports.iter().map(|port| format!("{} {}", port.protocol, port.port)).collect();
    format!(
        "clients outside spec.loadBalancerSourceRanges of the Service are not refused where kube-proxy uses iptables: they reach what the announcing node itself serves on {}: use ports on which nodes serve nothing, or filter this traffic before the node",
        ports.join(", ")
    )
}

#[cfg(test)]
mod tests;
