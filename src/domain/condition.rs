//! Conditions of all kinds of objects: one form, one function to set them.

use crate::load_balancer::bounds::{self, LONGEST_TEXT};
use api::{Condition, ConditionStatus, READY};

/// Condition `Ready`, without times. An empty message is left out, and a long one is cut.
pub(super) fn condition(status: ConditionStatus, reason: &str, message: String) -> Condition {
    Condition {
        type_: READY.to_owned(),
        status,
        reason: Some(reason.to_owned()),
        message: Some(bounds::cut(message, LONGEST_TEXT)).filter(|m| !m.is_empty()),
        ..Condition::default()
    }
}

/// Sets a condition in a list, at `now` (RFC 3339). `None`: the list has the same condition
/// already. The times change only if the status, the reason or the message changes.
pub(super) fn with_condition(
    list: &[Condition],
    new: Condition,
    now: &str,
) -> Option<Vec<Condition>> {
    let old = list.iter().find(|c| c.type_ == new.type_);
    // Go clients write an empty message where this operator writes none.
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    if let Some(old) = old
        && old.status == new.status
        && text(&old.reason) == text(&new.reason)
        && text(&old.message) == text(&new.message)
    {
        return None;
    }
    let transition = old
        .filter(|old| old.status == new.status)
        .and_then(|old| old.last_transition_time.clone())
        .unwrap_or_else(|| now.to_owned());
    let type_ = new.type_.clone();
    let new = Condition {
        last_update_time: Some(now.to_owned()),
        last_transition_time: Some(transition),
        ..new
    };
    let mut list: Vec<Condition> = list.to_vec();
    match list.iter_mut().find(|c| c.type_ == type_) {
        Some(slot) => *slot = new,
        None => list.push(new),
    }
    Some(list)
}
