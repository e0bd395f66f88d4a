//! Refusal of ranges that newly include an address that the host cluster leased by DHCP.
//!
//! No ledger contains a leased address. So a pool with the address in its ranges could give it to a
//! second LoadBalancer. A pool that already includes a leased address can still be changed.

use std::net::{IpAddr, Ipv4Addr};

use super::super::AdmissionAnswer;
use super::{NAMED, PoolQuestion, PoolRuleFacts};
use crate::limits::text::some_of;
use crate::network::Segment;

/// An address that the host cluster leased by DHCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    /// The address.
    pub ip: Ipv4Addr,
    /// `namespace/name` of the LoadBalancer that the address was leased for.
    pub name: String,
    /// Segment where the address is announced.
    pub segment: Segment,
}

/// Refuses the request if a range newly includes an address that the host cluster leased by DHCP on
/// the pool's segment. For a global pool, the leases of all segments count. If the request changes
/// the pool's network, or whether the pool is global, each included address counts as newly
/// included.
pub(super) fn check(question: &PoolQuestion, known: &PoolRuleFacts, answer: &mut AdmissionAnswer) {
    let Some(ranges) = &question.pool.ranges else { return };
    let is_global = question.pool.selector.is_global();
    let before = question.before.as_ref().filter(|old| {
        old.selector.network() == question.pool.selector.network()
            && old.selector.is_global() == is_global
    });
    let before = before.and_then(|old| old.ranges.as_ref());
    let seen = known.leased.iter().filter(|l| is_global || l.segment.meets(&known.segment));
    let mut taken: Vec<(usize, &Leased)> = seen
        .filter_map(|leased| {
            let ip = IpAddr::V4(leased.ip);
            let is_new = before.is_none_or(|before| before.find(ip).is_none());
            ranges.find(ip).filter(|_| is_new).map(|stretch| (stretch.range, leased))
        })
        .collect();
    taken.sort_by_key(|(range, leased)| (*range, leased.ip));
    let Some((range, _)) = taken.first() else { return };
    let named = some_of(taken.iter().map(|(_, l)| format!("{} ({})", l.ip, l.name)), NAMED);
    answer.refuse(
        format!("spec.ranges[{range}]"),
        format!(
            "a DHCP server of this network leased {named}: give the pool addresses that the server does not give out, or add these to exclude"
        ),
    );
}

#[cfg(test)]
mod tests;
