//! Conditions in the status of objects. `with_condition` sets them, for all kinds of objects.

use crate::limits::text::{LONGEST_TEXT, cut};
use api::{Condition, ConditionStatus, READY};

/// Condition `Ready` without times. An empty message is left out. A message of more than
/// [`LONGEST_TEXT`] bytes is cut.
pub(crate) fn condition(status: ConditionStatus, reason: &str, message: String) -> Condition {
    Condition {
        type_: READY.to_owned(),
        status,
        reason: Some(reason.to_owned()),
        message: Some(cut(message, LONGEST_TEXT)).filter(|m| !m.is_empty()),
        ..Condition::default()
    }
}

/// Returns `list` with the condition `new`, which replaces a condition of the same type. `None`:
/// `list` already has a condition with the same type, status, reason and message. `now`: time of
/// the update (RFC 3339). If the replaced condition has the same status and a transition time, this
/// time stays. Otherwise the transition time is `now`.
pub(crate) fn with_condition(
    list: &[Condition],
    new: Condition,
    now: &str,
) -> Option<Vec<Condition>> {
    let old = list.iter().find(|c| c.type_ == new.type_);
    // Go clients write an empty text where this operator leaves the field out. So an empty text and
    // an absent field count as equal.
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
    let new = Condition {
        last_update_time: Some(now.to_owned()),
        last_transition_time: Some(transition),
        ..new
    };
    let mut list: Vec<Condition> = list.to_vec();
    match list.iter_mut().find(|c| c.type_ == new.type_) {
        Some(slot) => *slot = new,
        None => list.push(new),
    }
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages contain texts of tenants, such as the name of a network.
    #[test]
    fn a_long_message_is_cut() {
        let long = condition(ConditionStatus::False, "Reason", "x".repeat(5_000));
        assert_eq!(long.message.as_ref().map(String::len), Some(LONGEST_TEXT));
    }
}
