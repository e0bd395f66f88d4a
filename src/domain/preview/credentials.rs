//! Credentials that the plan lists: those of TokenRotations, and those in Secrets. Only credentials
//! with a known expiry are listed.

use crate::credentials::rotation::status::{self, MINIMUM_LEFT};
use crate::credentials::rotation::target_secret::{self, SecretContent};
use crate::credentials::rotation::{due, expiry, watched};
use crate::credentials::timestamp::{self, Seconds};
use api::{SecretTarget, TokenRotation, WatchedCredential};

/// Credential with a known expiry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExpiringCredential {
    /// Time of the expiry, in seconds since the epoch.
    pub end: Seconds,
    /// Place of the credential, in one of these forms:
    ///
    /// * `Secret NAMESPACE/NAME, key KEY` for a token;
    /// * `Secret NAMESPACE/NAME, key KEY, user USER` for a user in a kubeconfig;
    /// * `TokenRotation NAMESPACE/NAME, user "USER"` for a token or user that the TokenRotation
    ///   watches. USER is empty for a token;
    /// * `TokenRotation NAMESPACE/NAME, cloud credential NAME` for a cloud credential that the
    ///   TokenRotation watches;
    /// * `TokenRotation NAMESPACE/NAME` for the credential in a target that is no Secret.
    pub place: String,
    /// Whether the report warns of the expiry, for one of these reasons:
    ///
    /// * The credential expires soon, and no TokenRotation replaces it.
    /// * A TokenRotation has not replaced the credential, and the latest time for the replacement
    ///   has passed.
    pub is_soon: bool,
    /// TokenRotation that replaces the credential before its expiry, as `namespace/name`. `None`:
    /// no TokenRotation replaces the credential, or the name of the TokenRotation is not known.
    pub renewed_by: Option<String>,
}

/// Credentials whose expiry is in the status of a TokenRotation: the current one, or the watched
/// ones. `now`: in seconds since the epoch.
pub fn of_rotation(rotation: &TokenRotation, now: Seconds) -> Vec<ExpiringCredential> {
    let meta = &rotation.metadata;
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    let (namespace, name) = (part(&meta.namespace), part(&meta.name));
    let Some(status) = &rotation.status else { return Vec::new() };
    let (plan, state) = (status::plan(rotation), status::state(Some(status)));
    let is_renewed = due(&plan, &state).is_some();
    let renewed_by = is_renewed.then(|| format!("{namespace}/{name}"));
    if is_renewed || status.watched.is_empty() {
        let end = status.expires_at.as_deref().and_then(timestamp::parse_rfc3339);
        let is_soon = expiry::alarm(&plan, &state, end).is_some_and(|alarm| alarm <= now);
        let place = match &rotation.spec.target.secret {
            Some(SecretTarget { name, key, kubeconfig_user, .. }) => {
                secret(&namespace, name, key, kubeconfig_user.as_deref())
            }
            None => format!("TokenRotation {namespace}/{name}"),
        };
        let credential = end.map(|end| ExpiringCredential { end, place, is_soon, renewed_by });
        return credential.into_iter().collect();
    }
    let near = now + plan.schedule.minimum_left;
    let one = |one: &WatchedCredential| {
        let what = one.credential.as_ref().map_or_else(
            || format!("user {:?}", one.user),
            |credential| format!("cloud credential {credential}"),
        );
        Some(ExpiringCredential {
            end: watched::expiry(one)?,
            place: format!("TokenRotation {namespace}/{name}, {what}"),
            is_soon: watched::is_near(one, near),
            renewed_by: None,
        })
    };
    status.watched.iter().filter_map(one).collect()
}

/// Credentials that a Secret contains under one key. Only those with a known expiry are returned.
/// In a kubeconfig, each user may have a credential. `now`: in seconds since the epoch.
pub fn of_secret(
    namespace: &str,
    name: &str,
    key: &str,
    content: &SecretContent,
    now: Seconds,
) -> Vec<ExpiringCredential> {
    let target = SecretTarget { name: name.to_owned(), key: key.to_owned(), ..Default::default() };
    let listed = target_secret::read(&target, false, Some(content)).watched.listed;
    let one = |one: &WatchedCredential| {
        let user = Some(one.user.as_str()).filter(|user| !user.is_empty());
        let place = secret(namespace, name, key, user);
        let is_soon = watched::is_near(one, now + MINIMUM_LEFT);
        Some(ExpiringCredential { end: watched::expiry(one)?, place, is_soon, renewed_by: None })
    };
    listed.iter().filter_map(one).collect()
}

/// Credentials of both lists, in the order of their expiry, earliest first. If both lists have a
/// credential in the same place, only the one from `rotations` is returned.
pub fn merged(
    rotations: Vec<ExpiringCredential>,
    secrets: Vec<ExpiringCredential>,
) -> Vec<ExpiringCredential> {
    let mut all = rotations;
    for credential in secrets {
        if !all.iter().any(|known| known.place == credential.place) {
            all.push(credential);
        }
    }
    all.sort();
    all
}

fn secret(namespace: &str, name: &str, key: &str, user: Option<&str>) -> String {
    let user = user.map(|user| format!(", user {user}")).unwrap_or_default();
    format!("Secret {namespace}/{name}, key {key}{user}")
}
