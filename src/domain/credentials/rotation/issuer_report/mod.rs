//! State of the credential in use, as its issuer reports it at each read. The expiry may change
//! although the credential stays the same.

use super::super::secret_text::SecretText;
use super::super::token::TokenClaims;
use super::{RotationState, Seconds, TargetCredential};

/// Prefixes of the names of tokens that Rancher 2.12 and later keeps alive: such a token has no
/// expiry as long as a cloud credential names the token.
const EXTENDED: [&str; 2] = ["kubeconfig-u-", "kubeconfig-user-"];

/// State of a credential, as its issuer reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IssuerReport {
    /// Name of the credential at the issuer.
    pub id: String,
    /// Expiry. `None`: the credential has no expiry.
    pub expires: Option<Seconds>,
    /// Whether the issuer itself keeps the credential valid without an expiry.
    pub kept_alive: bool,
}

impl IssuerReport {
    /// State of `token`, as Rancher reports it. `word`: name and times of the token, as far as
    /// Rancher's answer gives them. `None`, if one of these holds:
    ///
    /// * Rancher reports nothing about the token: `word` has no time of issue.
    /// * The token itself states its time of issue, so another issuer made the token.
    ///
    /// A token counts as kept alive, whatever the version of Rancher is, if all of these hold:
    ///
    /// * The token's name starts with an entry of `EXTENDED`: Rancher itself made the token.
    /// * The token is in a cloud credential.
    /// * Rancher reports no expiry.
    pub fn of(token: &SecretText, word: &TokenClaims, in_cloud_credential: bool) -> Option<Self> {
        let own = token.claims();
        if own.issued.is_some() || word.issued.is_none() {
            return None;
        }
        let is_extended = EXTENDED.iter().any(|kind| own.name.starts_with(kind));
        let kept_alive = in_cloud_credential && is_extended && word.expires.is_none();
        Some(Self { id: own.name, expires: word.expires, kept_alive })
    }
}

impl TargetCredential {
    /// Whether the issuer keeps the credential valid without an expiry. False if the issuer reports
    /// nothing.
    pub(super) fn is_kept_alive(&self) -> bool {
        self.report.as_ref().is_some_and(|report| report.kept_alive)
    }
}

/// State with the expiry that the issuer reports for the credential in use. A foreign credential
/// counts as expired at `now` if the issuer reported it before and does not list it now. `None`, if
/// one of these holds:
///
/// * The state records no credential in use.
/// * The issuer reports nothing about a credential that does not count as expired.
/// * The state already has what the issuer reports.
/// * The recorded and the reported expiry have both passed.
pub(super) fn with_reported_expiry(
    state: &RotationState,
    held: &TargetCredential,
    now: Seconds,
) -> Option<RotationState> {
    let mut next = state.clone();
    let current = next.current.as_mut()?;
    // A foreign credential counts as deleted if the issuer reported it before and does not list it
    // now. Credentials that the operator made are looked up by their names instead.
    let was_seen = !current.ours && (current.expires.is_some() || current.kept_alive);
    let (expires, kept_alive) = match &held.report {
        Some(report) => (report.expires, report.kept_alive),
        None if held.is_missing && was_seen => (Some(now), false),
        None => return None,
    };
    // The exact expiry of a credential that has expired may be unknown, so the recorded one stays.
    let is_over = |end: Option<Seconds>| end.is_some_and(|end| end <= now);
    let is_same = current.expires == expires && current.kept_alive == kept_alive;
    if is_same || is_over(current.expires) && is_over(expires) {
        return None;
    }
    (current.expires, current.kept_alive) = (expires, kept_alive);
    Some(next)
}

#[cfg(test)]
mod tests;
