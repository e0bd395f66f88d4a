//! Status of a pool: counts, conditions, and the ledger as it is stored.

use super::allocator::AllocatorPool;
use crate::object_fields::condition::{condition, with_condition};
use crate::reason;
use api::{Condition, ConditionStatus, IPPoolStatus};

const MANUAL_RELEASE: &str = "ManualRelease";
/// Type of the condition that `crd_replaced` returns.
const CRD_REPLACED: &str = "CRDReplaced";

/// The condition `ManualRelease`, with the reason why a manual release was refused.
pub fn manual_release_refused(reason: &str, message: String) -> Condition {
    Condition {
        type_: MANUAL_RELEASE.to_owned(),
        ..condition(ConditionStatus::False, reason, message)
    }
}

/// Condition `CRDReplaced` of a pool: another form has replaced the operator's form of IPPool's
/// CRD.
fn crd_replaced() -> Condition {
    Condition {
        type_: CRD_REPLACED.to_owned(),
        ..condition(ConditionStatus::True, "OtherForm", reason::FORM_REPLACED.to_owned())
    }
}

/// Condition `Ready` of a pool. Its status is True if the pool has no fault and no conflict and is
/// not being deleted.
pub fn pool_ready(pool: &AllocatorPool) -> Condition {
    let (status, reason, message) = match (&pool.fault, pool.deleting, &pool.conflict) {
        (Some(fault), ..) => (ConditionStatus::False, reason::INVALID_RANGE, fault.to_string()),
        (None, true, _) => (
            ConditionStatus::False,
            reason::DELETING,
            format!("waits for {} addresses to be released", pool.ledger.claims().len()),
        ),
        (None, false, Some(conflict)) => {
            (ConditionStatus::False, conflict.reason(), conflict.standing_back())
        }
        (None, false, None) => (ConditionStatus::True, reason::POOL_READY, held_back(pool)),
    };
    condition(status, reason, message)
}

/// Returns the status that a pool should have. Parameters:
/// * `conditions`: conditions that the pool has now;
/// * `notice`: condition about a refused manual release. `None` removes this condition;
/// * `crd_is_replaced`: whether another form has replaced the operator's form of IPPool's CRD.
///   `None`: not known, so the condition `CRDReplaced` stays as it is;
/// * `generation`: generation of the spec, for `observedGeneration`;
/// * `now`: RFC 3339 time.
pub fn pool_status(
    pool: &AllocatorPool,
    conditions: &[Condition],
    notice: Option<&Condition>,
    crd_is_replaced: Option<bool>,
    generation: Option<i64>,
    now: &str,
) -> IPPoolStatus {
    let ledger = &pool.ledger;
    let (total, available) = (ledger.total(), ledger.available());
    let used = i64::try_from(ledger.claims().len()).unwrap_or(i64::MAX);
    let entries = ledger.claims().iter();
    let mut conditions = conditions.to_vec();
    conditions.retain(|condition| match condition.type_.as_str() {
        MANUAL_RELEASE => notice.is_some(),
        CRD_REPLACED => crd_is_replaced != Some(false),
        _ => true,
    });
    let replaced = crd_is_replaced.and_then(|is| is.then(crd_replaced));
    for wanted in [Some(pool_ready(pool)), notice.cloned(), replaced].into_iter().flatten() {
        conditions = with_condition(&conditions, wanted, now).unwrap_or(conditions);
    }
    IPPoolStatus {
        total,
        available,
        used_percent: Some(percent(used, total)),
        last_allocated: ledger.cursor().map(|ip| ip.to_string()).unwrap_or_default(),
        allocated: entries.clone().map(|(ip, o)| (ip.to_string(), o.name.clone())).collect(),
        allocated_owners: entries
            .filter(|(_, o)| !o.uid.is_empty())
            .map(|(ip, o)| (ip.to_string(), o.uid.clone()))
            .collect(),
        allocated_history: ledger.history().map(|(ip, n)| (ip.to_string(), n.to_owned())).collect(),
        observed_generation: generation,
        conditions,
    }
}

/// Describes the addresses and networks of the cluster itself that are in the pool's ranges. At
/// most five are shown. Those in which a LoadBalancer holds an address come first. Returns an empty
/// text if there are none.
fn held_back(pool: &AllocatorPool) -> String {
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

/// Share of `part` in `whole`, in percent. The result is rounded up, and is at most 100. If `whole`
/// is 0, the result is 100.
fn percent(part: i64, whole: i64) -> i64 {
    if whole == 0 {
        return 100;
    }
    let rounded_up = (i128::from(part) * 100 + i128::from(whole) - 1) / i128::from(whole);
    i64::try_from(rounded_up).unwrap_or(100).min(100)
}

#[cfg(test)]
mod tests;
