//! Text about the addresses that a pool holds back because the cluster itself uses them.

use super::super::allocator::AllocatorPool;

/// Describes the addresses and networks in the pool's ranges that the cluster itself uses. Returns
/// an empty text if there are none. At most five are shown. Networks in which a LoadBalancer holds
/// an address come first.
pub(super) fn held_back(pool: &AllocatorPool) -> String {
    const SHOWN: usize = 5;
    let mut all: Vec<_> = pool
        .infrastructure
        .iter()
        .map(|(network, what)| {
            let holder = pool.ledger.claims_in(*network).next();
            (holder.is_none(), network, what, holder)
        })
        .collect();
    all.sort_by_key(|(is_unused, ..)| *is_unused);
    let shown = all.iter().take(SHOWN).map(|(_, network, what, holder)| {
        let is_one = network.prefix_len() == network.max_prefix_len();
        let is = if is_one { network.addr().to_string() } else { network.to_string() };
        match holder {
            Some((ip, owner)) => {
                let held = if is_one { "it".to_owned() } else { ip.to_string() };
                format!(
                    "{is} is {what}, and LoadBalancer {} holds {held}: move that LoadBalancer",
                    owner.name
                )
            }
            None => format!("{is} is {what}"),
        }
    });
    let shown = shown.collect::<Vec<_>>().join("; ");
    match all.len() {
        0 => String::new(),
        count if count > SHOWN => format!("held back: {shown}; and {} more", count - SHOWN),
        _ => format!("held back: {shown}"),
    }
}
