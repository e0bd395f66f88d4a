//! Conversion between a rotation's recorded state and its status, and the conditions in that
//! status.
//!
//! Invariant: a status may contain the name and hash of a credential, never the credential itself.

use super::super::timestamp::{parse_rfc3339, rfc3339};
use super::expiry::{EXPIRING, MINTER_EXPIRING, expiring_condition, minter_condition};
use super::ready::ReadyState;
use super::schedule::{MaintenanceWindow, ReplacementSchedule};
use super::watched::WatchedCredentials;
use super::{
    CurrentEntry, IssuerTraits, MintedCredential, PendingEntry, PendingPublication,
    RetiredCredential, RotationPlan, RotationRequests, RotationState, Seconds, due,
};
use crate::object_fields::condition::with_condition;
use crate::object_fields::digest::sha256_hex;
use api::{
    ANNOTATION_LEAKED, ANNOTATION_ROTATE, ApiKey, Condition, ConditionStatus, CurrentCredential,
    OnDelete, PendingCredential, PendingStep, PreviousCredential, READY, ServiceAccountToken,
    Target, TokenRotation, TokenRotationStatus,
};

const LIFETIME: Seconds = 2_592_000;
/// Lifetime that is requested from a Rancher if the spec sets none: 365 days, in seconds. Rancher
/// shortens a longer request to its limit, which is ninety days by default. So the token lives as
/// long as Rancher permits, up to 365 days.
const LONGEST: Seconds = 31_536_000;
const OVERLAP: Seconds = 3_600;
/// Default overlap for a cloud credential, in seconds. This overlap is long because of jobs that
/// make machines. Such a job uses the credential with which it began, also in each retry.
const OVERLAP_CLOUD_CREDENTIAL: Seconds = 86_400;
const LEFT_PERCENT: Seconds = 33;
/// Default of `spec.schedule.minimumLeftSeconds`: one week.
pub const MINIMUM_LEFT: Seconds = 604_800;
const JITTER_PERCENT: Seconds = 5;
/// Maximum number of characters that the names of credentials take from the name of their
/// TokenRotation.
const LONGEST_STEM: usize = 200;

/// Plan of a rotation, from its spec and annotations.
pub fn plan(rotation: &TokenRotation) -> RotationPlan {
    let spec = &rotation.spec;
    let wants = spec.schedule.clone().unwrap_or_default();
    // If the target is `allCloudCredentials`, children of this TokenRotation replace the
    // credentials. The TokenRotation itself then has no source.
    let source = spec.source.as_ref().filter(|_| spec.target.all_cloud_credentials.is_none());
    let account = source_account(rotation);
    let readable = source.is_some_and(|source| source.service_account_token_secret.is_some());
    let annotations = rotation.metadata.annotations.as_ref();
    let request =
        |key: &str| annotations.and_then(|all| all.get(key)).map(|text| stored_request(text));
    let minted = source.and_then(|source| source.rancher_token.as_ref());
    let lifetime = account.and_then(|account| account.lifetime_seconds);
    let lifetime = lifetime.or(minted.and_then(|minted| minted.lifetime_seconds));
    // Rancher deletes a token that no cloud credential names any more. A token in another target
    // stays.
    let prunes = spec.target.cloud_credential.is_some();
    let is_apart = prunes && account.is_some();
    RotationPlan {
        prefix: prefix(rotation),
        source: source.map(|_| IssuerTraits { readable, prunes, is_apart }),
        lifetime: lifetime.unwrap_or(minted.map_or(LIFETIME, |_| LONGEST)),
        presumed: lifetime.unwrap_or(LIFETIME),
        schedule: ReplacementSchedule {
            left_percent: wants.renew_when_left_percent.unwrap_or(LEFT_PERCENT),
            minimum_left: wants.minimum_left_seconds.unwrap_or(MINIMUM_LEFT),
            jitter_percent: wants.jitter_percent.unwrap_or(JITTER_PERCENT),
            window: wants.maintenance_window.as_ref().and_then(window),
            paused: wants.paused.unwrap_or_default(),
        },
        overlap: spec.overlap_seconds.unwrap_or(if prunes {
            OVERLAP_CLOUD_CREDENTIAL
        } else {
            OVERLAP
        }),
        restarts: spec.restart_workloads.is_some(),
        revokes: spec.on_delete == Some(OnDelete::Revoke),
        is_second: false,
        deleting: rotation.metadata.deletion_timestamp.as_ref().map(|time| time.0.as_second()),
        requests: RotationRequests {
            rotate: request(ANNOTATION_ROTATE),
            leaked: request(ANNOTATION_LEAKED),
        },
    }
}

/// ServiceAccount in the source of a rotation. `None`: the source is not a token of a
/// ServiceAccount, or is not set.
pub fn source_account(rotation: &TokenRotation) -> Option<&ServiceAccountToken> {
    let source = rotation.spec.source.as_ref()?;
    source.service_account_token.as_ref().or(source.service_account_token_secret.as_ref())
}

/// Value of an annotation that requests a replacement, in the form in which the status stores it: a
/// value of up to 64 bytes unchanged, a longer value as its SHA-256.
fn stored_request(request: &str) -> String {
    if request.len() <= 64 { request.to_owned() } else { sha256_hex(request.as_bytes()) }
}

/// Prefix of the names of a rotation's credentials. The prefix is made from the rotation's name and
/// UID, so that a recreated rotation uses other names.
fn prefix(rotation: &TokenRotation) -> String {
    let name = rotation.metadata.name.as_deref().unwrap_or_default();
    let uid = rotation.metadata.uid.as_deref().unwrap_or_default();
    let stem: String = name.chars().take(LONGEST_STEM).collect();
    let part: String = sha256_hex(uid.as_bytes()).chars().take(8).collect();
    format!("{}-{part}", stem.trim_end_matches(['-', '.']))
}

fn window(wants: &api::Window) -> Option<MaintenanceWindow> {
    let (hours, minutes) = wants.start.split_once(':')?;
    let start = hours.parse::<Seconds>().ok()? * 60 + minutes.parse::<Seconds>().ok()?;
    let mut days = [wants.days.is_empty(); 7];
    for day in &wants.days {
        days[*day as usize] = true;
    }
    Some(MaintenanceWindow { start, minutes: wants.duration_minutes, days })
}

/// Recorded state in a rotation's status. If `status` is `None`, the state is empty. A time that
/// cannot be parsed becomes the epoch, so a step that waits for that time is due now.
pub fn state(status: Option<&TokenRotationStatus>) -> RotationState {
    let Some(status) = status else { return RotationState::default() };
    let at = |text: &String| parse_rfc3339(text).unwrap_or_default();
    let maybe = |text: &Option<String>| text.as_ref().map(at);
    RotationState {
        serial: u64::try_from(status.serial).unwrap_or_default(),
        current: status.current.as_ref().map(|current| CurrentEntry {
            name: current.name.clone(),
            hash: current.hash.clone(),
            ours: current.ours,
            issued: at(&current.issued_at),
            expires: maybe(&current.expires_at),
            kept_alive: current.kept_by_rancher,
        }),
        pending: status.pending.as_ref().map(|pending| PendingEntry {
            name: pending.name.clone(),
            since: at(&pending.since),
            requests: RotationRequests {
                rotate: pending.rotate_request.clone(),
                leaked: pending.leak_report.clone(),
            },
            publishing: pending.hash.clone().map(|hash| PendingPublication {
                made: MintedCredential {
                    hash,
                    issued: maybe(&pending.issued_at).unwrap_or_default(),
                    expires: maybe(&pending.expires_at),
                },
                replaces: pending.replaces.clone().unwrap_or_default(),
            }),
        }),
        previous: status
            .previous
            .iter()
            .map(|old| RetiredCredential {
                name: old.name.clone(),
                hash: old.hash.clone(),
                after: maybe(&old.revoke_after),
                replaces: old.replaces.clone(),
                failures: u32::try_from(old.failures).unwrap_or_default(),
            })
            .collect(),
        restarted_for: status.restarted_for.clone(),
        done: RotationRequests {
            rotate: status.rotate_request.clone(),
            leaked: status.leak_report.clone(),
        },
        failures: u32::try_from(status.failures).unwrap_or_default(),
        retry_after: maybe(&status.retry_after),
        last_rotation: maybe(&status.last_rotation),
        last_result: status.last_result.clone(),
    }
}

/// Observations for a new status, beside the recorded state. `None` in a field: the value is not
/// observed now, and the status keeps its earlier value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusObservations {
    /// Credentials to list in `status.watched`.
    pub watched: Option<WatchedCredentials>,
    /// Name and times of the API key for the Rancher.
    pub key: Option<ApiKey>,
    /// URL of the Rancher from the API key's Secret, if the spec does not set a URL.
    pub rancher_url: Option<String>,
    /// Whether the Rancher refuses the API key.
    pub refused: bool,
}

/// Expiry that a status states for the target. This is the earliest expiry of the target's
/// credentials, without those that children replace. `None`: no expiry is known.
pub fn expiry(status: &TokenRotationStatus) -> Option<Seconds> {
    status.expires_at.as_deref().and_then(parse_rfc3339)
}

/// Watched credentials that a status lists.
pub fn watched(status: &TokenRotationStatus) -> WatchedCredentials {
    let beyond = usize::try_from(status.watched_beyond.unwrap_or_default()).unwrap_or_default();
    WatchedCredentials { listed: status.watched.clone(), beyond }
}

/// New status of a rotation. `ready`: new condition Ready. `None`: Ready stays as it is.
pub fn status(
    rotation: &TokenRotation,
    state: &RotationState,
    observed: &StatusObservations,
    ready: Option<&ReadyState>,
    now: Seconds,
) -> TokenRotationStatus {
    let plan = plan(rotation);
    let old = rotation.status.clone().unwrap_or_default();
    let watched = observed.watched.clone().unwrap_or_else(|| watched(&old));
    let api_key = observed.key.clone().or(old.api_key);
    let held = state.current.as_ref().and_then(|current| current.expires);
    let expires = held.into_iter().chain(watched.first_expiry()).min();
    let due = due(&plan, state);
    let beyond = i64::try_from(watched.beyond).ok().filter(|beyond| *beyond > 0);
    let mut status = TokenRotationStatus {
        observed_generation: rotation.metadata.generation,
        target: Some(target_name(&rotation.spec.target)),
        watched: watched.listed.clone(),
        watched_beyond: beyond,
        // The URL that was recorded first is never replaced by another one.
        rancher_url: old.rancher_url.or_else(|| observed.rancher_url.clone()),
        api_key,
        expires_at: expires.map(rfc3339),
        next_rotation: due.filter(|_| !plan.schedule.paused).map(|due| rfc3339(due.at)),
        conditions: old.conditions,
        ..recorded(state)
    };
    if let Some(ReadyState { status: holds, reason, message }) = ready {
        set_condition(&mut status.conditions, READY, (*holds, reason, message.clone()), now);
    }
    let said = expiring_condition(&plan, state, &watched, expires, now);
    set_condition(&mut status.conditions, EXPIRING, said, now);
    if let Some(key) = &status.api_key {
        let said = minter_condition(&plan, key, observed.refused, now);
        set_condition(&mut status.conditions, MINTER_EXPIRING, said, now);
    }
    status
}

/// Target as a status shows it: kind, slash and name, such as `secret/api-token`. The target
/// `allCloudCredentials` has the name `*`.
fn target_name(target: &Target) -> String {
    match (&target.secret, &target.cloud_credential) {
        (Some(secret), _) => format!("secret/{}", secret.name),
        (_, Some(credential)) => format!("cloudcredential/{}", credential.name),
        (None, None) => "cloudcredential/*".to_owned(),
    }
}

fn set_condition(
    conditions: &mut Vec<Condition>,
    type_: &str,
    (status, reason, message): (ConditionStatus, &str, String),
    now: Seconds,
) {
    let new = Condition {
        type_: type_.to_owned(),
        status,
        reason: Some(reason.to_owned()),
        message: Some(message).filter(|message| !message.is_empty()),
        ..Condition::default()
    };
    if let Some(all) = with_condition(conditions, new, &rfc3339(now)) {
        *conditions = all;
    }
}

/// Status that stores only `state`.
fn recorded(state: &RotationState) -> TokenRotationStatus {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    TokenRotationStatus {
        serial: signed(state.serial),
        current: state.current.as_ref().map(|current| CurrentCredential {
            name: current.name.clone(),
            hash: current.hash.clone(),
            ours: current.ours,
            issued_at: rfc3339(current.issued),
            expires_at: current.expires.map(rfc3339),
            kept_by_rancher: current.kept_alive,
        }),
        pending: state.pending.as_ref().map(pending),
        previous: state
            .previous
            .iter()
            .map(|old| PreviousCredential {
                name: old.name.clone(),
                hash: old.hash.clone(),
                revoke_after: old.after.map(rfc3339),
                replaces: old.replaces.clone(),
                failures: old.failures.into(),
            })
            .collect(),
        last_rotation: state.last_rotation.map(rfc3339),
        last_result: state.last_result.clone(),
        failures: state.failures.into(),
        retry_after: state.retry_after.map(rfc3339),
        restarted_for: state.restarted_for.clone(),
        rotate_request: state.done.rotate.clone(),
        leak_report: state.done.leaked.clone(),
        ..TokenRotationStatus::default()
    }
}

fn pending(pending: &PendingEntry) -> PendingCredential {
    let publishing = pending.publishing.as_ref();
    PendingCredential {
        name: pending.name.clone(),
        step: publishing.map_or(PendingStep::Minting, |_| PendingStep::Publishing),
        since: rfc3339(pending.since),
        hash: publishing.map(|p| p.made.hash.clone()),
        issued_at: publishing.map(|p| rfc3339(p.made.issued)),
        expires_at: publishing.and_then(|p| p.made.expires).map(rfc3339),
        replaces: publishing.map(|p| p.replaces.clone()),
        rotate_request: pending.requests.rotate.clone(),
        leak_report: pending.requests.leaked.clone(),
    }
}

#[cfg(test)]
mod tests;
