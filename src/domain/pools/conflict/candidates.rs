//! Search for the pairs of pools that may be in conflict. Only these pairs are compared. So if one
//! pool among thousands changes, not every pool is compared with every other pool.

use std::net::IpAddr;

use super::PoolContender;

/// First and last of a pool's addresses. `None`: the pool has no address.
pub type AddressSpan = Option<(IpAddr, IpAddr)>;

/// Calls `compare` once for each pair of spans that have an address in common. The arguments are
/// the indexes of the two spans, in any order.
pub fn each_meeting(spans: &[AddressSpan], mut compare: impl FnMut(usize, usize)) {
    let indexed = spans.iter().enumerate();
    let mut by_first: Vec<(IpAddr, IpAddr, usize)> = indexed
        .filter_map(|(place, span)| span.map(|(first, last)| (first, last, place)))
        .collect();
    by_first.sort_unstable();
    let mut open: Vec<(IpAddr, usize)> = Vec::new();
    for (first, last, place) in by_first {
        open.retain(|(end, _)| *end >= first);
        for (_, other) in &open {
            compare(*other, place);
        }
        open.push((last, place));
    }
}

/// Calls `compare` once for each pair of pools that may compete for a LoadBalancer. The arguments
/// are the indexes of the two pools, the lower one first. There are two kinds of pairs:
/// * two global pools;
/// * two pools that are not global and have a scope, the same network name and the same priority.
pub(super) fn each_rivalry(pools: &[PoolContender<'_>], mut compare: impl FnMut(usize, usize)) {
    let order = |place: &usize| {
        let selector = pools[*place].selector;
        (!selector.is_global()).then(|| (selector.network(), selector.priority()))
    };
    // A global pool has a scope.
    let mut places: Vec<usize> =
        (0..pools.len()).filter(|place| pools[*place].selector.has_scope()).collect();
    places.sort_by_key(order);
    for group in places.chunk_by(|a, b| order(a) == order(b)) {
        for (at, a) in group.iter().enumerate() {
            for b in &group[at + 1..] {
                compare(*a, *b);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn any_span() -> impl Strategy<Value = AddressSpan> {
        prop::option::of((0_u8..12, 0_u8..4, any::<bool>())).prop_map(|span| {
            let (first, length, is_dual) = span?;
            let v4 = |last| IpAddr::from([10, 0, 0, last]);
            let v6 = |last| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)]);
            let last = if is_dual { v6(first + length) } else { v4(first + length) };
            Some((v4(first), last))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

        #[test]
        fn each_two_spans_that_meet_are_compared_once(
            spans in prop::collection::vec(any_span(), 0..9),
        ) {
            let mut compared = Vec::new();
            each_meeting(&spans, |a, b| compared.push((a.min(b), a.max(b))));
            let meet = |a: AddressSpan, b: AddressSpan| {
                a.zip(b).is_some_and(|(a, b)| a.0 <= b.1 && b.0 <= a.1)
            };
            let mut expected = BTreeSet::new();
            for b in 0..spans.len() {
                expected.extend((0..b).filter(|a| meet(spans[*a], spans[b])).map(|a| (a, b)));
            }
            prop_assert_eq!(compared.len(), expected.len());
            prop_assert_eq!(compared.into_iter().collect::<BTreeSet<_>>(), expected);
        }
    }
}
