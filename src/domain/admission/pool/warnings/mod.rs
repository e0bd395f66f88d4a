//! Warnings about IPPools: valid specs whose effect the user may not expect.

use std::net::IpAddr;

use ipnet::IpNet;

use super::super::AdmissionAnswer;
use super::{PoolQuestion, PoolRuleFacts};
use crate::pools::ranges::{PoolRanges, from_u128, to_u128};
use api::Range;

/// Longest warning, in characters. Kubernetes recommends this maximum.
const LONGEST: usize = 120;
/// Maximum number of warnings about addresses that the cluster itself uses, in one answer.
const FEW: usize = 3;

/// Adds warnings about the pool's ranges and selector to an answer. Must be called only for an
/// answer without refusals.
pub(super) fn warn(question: &PoolQuestion, known: &PoolRuleFacts, answer: &mut AdmissionAnswer) {
    let mut warnings = Vec::new();
    if question.ranges_changed {
        for (index, range) in question.spec.ranges.iter().enumerate() {
            of_range(&format!("spec.ranges[{index}]"), range, &mut warnings);
        }
    }
    if let Some(ranges) = &question.pool.ranges {
        of_addresses(ranges, known, &mut warnings);
    }
    of_selector(question, known, &mut warnings);
    for warning in warnings {
        answer.warn(warning.chars().take(LONGEST).collect::<String>());
    }
}

fn of_range(path: &str, range: &Range, warnings: &mut Vec<String>) {
    let Ok(net) = range.subnet.parse::<IpNet>() else { return };
    let given = |field: &Option<String>| field.as_deref().and_then(|ip| ip.parse::<IpAddr>().ok());
    let (first, last) = (given(&range.range_start), given(&range.range_end));
    let hosts = net.max_prefix_len() - net.prefix_len();
    if hosts == 0 && (first.is_some() || last.is_some()) {
        warnings.push(format!(
            "{path}: {net} is a single address: rangeStart and rangeEnd change nothing"
        ));
    } else if hosts == 0 {
        return;
    } else if net.addr() != net.network() {
        warnings.push(format!("{path}.subnet: {net} means the whole network {}", net.trunc()));
    }
    if hosts == 1 {
        warnings.push(format!(
            "{path}: {} is a pair of hosts: if gateway is unset, the second host is the gateway",
            net.trunc()
        ));
    } else if first.is_none() && last.is_none() && hosts > 1 {
        warnings.push(format!(
            "{path}: without rangeStart and rangeEnd every host of {} except the gateway is given out",
            net.trunc()
        ));
    }
    if net.addr() == net.trunc().addr() && is_link_local(&net) {
        warnings.push(format!("{path}.subnet: {net} is link-local: routers do not forward it"));
    }
    match (given(&range.gateway), first) {
        (Some(gateway), _) if !net.contains(&gateway) => {
            warnings.push(format!("{path}.gateway: {gateway} is outside subnet {}", net.trunc()));
        }
        (gateway, Some(first)) => {
            let default = || from_u128(to_u128(net.network()) + 1, net.addr().is_ipv4());
            let gateway = gateway.unwrap_or_else(default);
            if first <= gateway && last.is_none_or(|last| gateway <= last) {
                warnings.push(format!(
                    "{path}: the gateway {gateway} lies within the range and is not given out"
                ));
            }
        }
        _ => {}
    }
}

fn is_link_local(net: &IpNet) -> bool {
    match net {
        IpNet::V4(net) => net.network().is_link_local(),
        IpNet::V6(net) => net.network().is_unicast_link_local(),
    }
}

fn of_addresses(ranges: &PoolRanges, known: &PoolRuleFacts, warnings: &mut Vec<String>) {
    for (network, what) in ranges.held_back(&known.infrastructure).iter().take(FEW) {
        let is_one = network.prefix_len() == network.max_prefix_len();
        warnings.push(if !what.is_held_back_on(&known.segment) {
            // A VM load balancer cannot use addresses of this network: the nodes would announce an
            // address that they also use for their pods or Services.
            format!("usable by guest clusters only: {network} is {what}")
        } else if is_one {
            format!("{} is held back: it is {what}", network.addr())
        } else {
            format!("addresses of {network} are held back: each is {what}")
        });
    }
    if ranges.total() == 0 {
        warnings.push(
            "spec.ranges: no address is left to give out: gateway and exclude cover all".into(),
        );
    }
}

fn of_selector(question: &PoolQuestion, known: &PoolRuleFacts, warnings: &mut Vec<String>) {
    let network = question.network();
    if known.has_network == Some(false) && !network.is_empty() {
        warnings
            .push(format!("spec.selector.network: {network:.60} does not exist: no VM is on it"));
    }
    let selector = question.spec.selector.as_ref();
    let scope = selector.and_then(|selector| selector.scope.as_deref()).unwrap_or_default();
    if scope.is_empty() {
        warnings.push(
            "spec.selector.scope is empty: only LoadBalancers that name this pool get addresses"
                .into(),
        );
    }
    for (index, entry) in scope.iter().enumerate().take(64) {
        let path = format!("spec.selector.scope[{index}]");
        match entry.namespace.as_deref().unwrap_or_default() {
            "" => warnings.push(format!(
                "{path}.namespace is empty and admits no LoadBalancer: \"*\" admits any"
            )),
            name if known.missing.iter().any(|missing| missing == name) => {
                warnings.push(format!("{path}.namespace: {name:.60} does not exist"));
            }
            _ => {}
        }
        if let Some(first) = scope[..index].iter().position(|earlier| earlier == entry) {
            warnings.push(format!("{path} repeats spec.selector.scope[{first}]"));
        }
        if entry.namespace.as_deref() == Some("*")
            && is_any(entry.project.as_deref())
            && !is_any(entry.guest_cluster.as_deref())
        {
            warnings.push(format!(
                "{path}: any tenant may name that guestCluster: add its project or namespace"
            ));
        }
        if entry.project.as_deref().unwrap_or_default().contains(':') {
            warnings.push(format!("{path}.project is written cluster/project, with a slash"));
        }
    }
    if !network.is_empty() && question.pool.selector.is_global() {
        warnings
            .push("a global pool serves every network: spec.selector.network has no effect".into());
    }
}

/// Whether a field of a scope names no particular value: the field is absent, empty or `*`.
fn is_any(field: Option<&str>) -> bool {
    matches!(field, None | Some("" | "*"))
}

#[cfg(test)]
mod tests;
