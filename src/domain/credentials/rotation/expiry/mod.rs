//! Conditions about the expiry of a target's credentials and of the API key.

use super::super::timestamp::{parse_rfc3339, rfc3339};
use super::watched::WatchedCredentials;
use super::{RotationPlan, RotationState, Seconds, due};
use api::ApiKey;
use api::ConditionStatus::{self, False, True};

/// Type of the condition that says whether a credential in the target expires soon.
pub const EXPIRING: &str = "Expiring";
/// Type of the condition that says whether the API key is refused, has expired, or expires soon and
/// is not renewed.
pub const MINTER_EXPIRING: &str = "MinterExpiring";

/// Status, reason and message of a condition.
pub(super) type ConditionText = (ConditionStatus, &'static str, String);

/// Time from which the condition Expiring is True: the latest time for the replacement ([`due`]),
/// if there is one. If not, the time is `plan.schedule.minimum_left` before `expires`, the earliest
/// known expiry of the target's credentials. The result is `None` if neither of the two times is
/// known.
pub fn alarm(
    plan: &RotationPlan,
    state: &RotationState,
    expires: Option<Seconds>,
) -> Option<Seconds> {
    match due(plan, state) {
        Some(due) => Some(due.latest),
        None => expires.map(|end| end - plan.schedule.minimum_left),
    }
}

/// Condition Expiring of the target's credentials. `expires`: earliest known expiry of these
/// credentials.
pub(super) fn expiring_condition(
    plan: &RotationPlan,
    state: &RotationState,
    watched: &WatchedCredentials,
    expires: Option<Seconds>,
    now: Seconds,
) -> ConditionText {
    let is_near = alarm(plan, state, expires).is_some_and(|at| at <= now);
    match (is_near, expires) {
        (true, Some(end)) if plan.source.is_none() => {
            let named = watched.expiring_by(now + plan.schedule.minimum_left, now);
            let named = if named.is_empty() {
                format!("the credential expires at {}", rfc3339(end))
            } else {
                named
            };
            let reason = if end <= now { "Expired" } else { "NotReplaced" };
            (True, reason, format!("{named}: not replaced automatically"))
        }
        (true, Some(end)) if end <= now => {
            (True, "Expired", format!("the credential in the target expired at {}", rfc3339(end)))
        }
        (true, _) => {
            let message =
                "the credential should have been replaced by now: see the condition Ready";
            (True, "Overdue", message.to_owned())
        }
        (false, Some(_)) => (False, "TimeLeft", String::new()),
        (false, None) => (False, "NoEnd", String::new()),
    }
}

/// Time from which the condition MinterExpiring of an API key is True. If a TokenRotation renews
/// the key, the time is the expiry itself. If not, the time is earlier than the expiry, by
/// `plan.schedule.minimum_left` or by half of the key's lifetime, whichever is less. `None`: the
/// key does not expire, or its expiry is not known.
pub fn key_alarm(plan: &RotationPlan, key: &ApiKey) -> Option<Seconds> {
    let end = parse_rfc3339(key.expires_at.as_deref()?)?;
    if key.renewed {
        return Some(end);
    }
    let issued = key.issued_at.as_deref().and_then(parse_rfc3339);
    let half = issued.map_or(Seconds::MAX, |issued| (end - issued) / 2);
    Some(end - plan.schedule.minimum_left.min(half).max(0))
}

/// Condition MinterExpiring of an API key. `refused`: whether the Rancher server rejects the key,
/// which can happen before the key's expiry.
pub(super) fn minter_condition(
    plan: &RotationPlan,
    key: &ApiKey,
    refused: bool,
    now: Seconds,
) -> ConditionText {
    let end = key.expires_at.as_deref().unwrap_or_default();
    let is_over = parse_rfc3339(end).is_some_and(|end| end <= now);
    match key_alarm(plan, key) {
        _ if refused => {
            let message = format!(
                "Rancher refuses the API key, last known as {}: put another key into its Secret",
                key.name
            );
            (True, "NotAccepted", message)
        }
        None => (False, "NoEnd", String::new()),
        Some(_) if is_over => {
            let message = format!(
                "the API key {} expired at {end}: put another one into its Secret",
                key.name
            );
            (True, "Expired", message)
        }
        Some(at) if at <= now => {
            let message = format!(
                "the API key {} expires at {end}, and no TokenRotation renews it: make one before then, because a key that has expired cannot renew itself",
                key.name
            );
            (True, "NotRenewed", message)
        }
        Some(_) if key.renewed => (False, "Renewed", String::new()),
        Some(_) => (False, "TimeLeft", String::new()),
    }
}

#[cfg(test)]
mod tests;
