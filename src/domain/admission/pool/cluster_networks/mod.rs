//! Refusal of ranges that lie completely in networks of pods or Services. A pool gives out no
//! address of such a network, unless the pool is on a tagged VLAN.

use ipnet::IpNet;

use super::super::AdmissionAnswer;
use super::{PoolQuestion, PoolRuleFacts};
use crate::pools::ranges::AddressBlock;

/// Refuses each new range that lies completely in networks of pods or Services. A pool on a tagged
/// VLAN may give out addresses of these networks, so nothing is refused for such a pool. A range is
/// new if the stored pool's ranges do not include the first address of the range.
pub(super) fn check(question: &PoolQuestion, known: &PoolRuleFacts, answer: &mut AdmissionAnswer) {
    let Some(ranges) = question.pool.ranges.as_ref().filter(|_| question.ranges_changed) else {
        return;
    };
    let mut networks = ranges.held_back(&known.infrastructure);
    networks.retain(|_, what| what.is_network() && what.is_held_back_on(&known.segment));
    let rest = ranges.without(&networks.keys().copied().collect::<Vec<IpNet>>());
    for index in 0..question.spec.ranges.len() {
        let of_range = |stretch: &&AddressBlock| stretch.range == index;
        let Some(first) = ranges.stretches().iter().find(of_range) else { continue };
        let stored = question.before.as_ref().and_then(|before| before.ranges.as_ref());
        let is_stored = stored.is_some_and(|stored| stored.find(first.first).is_some());
        let is_usable = rest.stretches().iter().any(|stretch| stretch.range == index);
        let around = networks.iter().find(|(network, _)| network.contains(&first.first));
        if let Some((_, what)) = around.filter(|_| !is_stored && !is_usable) {
            answer.refuse(
                format!("spec.ranges[{index}]"),
                format!(
                    "{} is {what}, whose addresses are never given out: use addresses of the network where load balancers are announced",
                    first.first
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests;
