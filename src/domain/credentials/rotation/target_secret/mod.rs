//! Credentials in a target Secret, and the values to write there.
//!
//! Invariant: a Secret is refused if a write would harm its other content. The text of the refusal
//! contains nothing secret.

use super::super::credential_fault::CredentialFault;
use super::super::kubeconfig::{Kubeconfig, ServerEndpoint};
use super::super::secret_text::SecretText;
use super::watched::{self, WatchedCredentials};
use super::{TargetCredential, TargetState};
use api::SecretTarget;

/// Fields that a rotation reads from a target Secret, or from the Secret with the API key.
#[derive(Clone, Debug, Default)]
pub struct SecretContent {
    /// Version of the Secret (resourceVersion).
    pub version: String,
    /// Value under the key that the spec names. `None`: the Secret does not have the key.
    pub value: Option<SecretText>,
    /// Whether the Secret is immutable.
    pub immutable: bool,
    /// URL in the Secret's annotation [`api::ANNOTATION_RANCHER_URL`]. The operator sends an API
    /// key in `value` only to this URL. `None`: the Secret does not have this annotation.
    pub rancher_url: Option<String>,
}

/// Result of reading a target.
pub struct TargetRead {
    /// State of the target, for decisions.
    pub target: TargetState,
    /// Credentials in the target, if the target is only watched.
    pub watched: WatchedCredentials,
    /// Kubeconfig in the target. `None`: the target is not a Secret with a kubeconfig, or cannot be
    /// used.
    kubeconfig: Option<Kubeconfig>,
    /// Server in the target's kubeconfig, to which the target's users send the token. `None`: the
    /// target is a watched Secret, has no kubeconfig, or cannot be used. Without a kubeconfig, the
    /// users send the token to its issuer.
    pub reach: Option<ServerEndpoint>,
}

impl TargetRead {
    /// Result without a kubeconfig, for a target that was not read, cannot be used, holds no
    /// kubeconfig, or is not a Secret of this cluster.
    pub fn of(target: TargetState, watched: WatchedCredentials) -> Self {
        Self { target, watched, kubeconfig: None, reach: None }
    }
}

/// Reads the credentials in a target Secret. `rotated`: whether the operator will write the Secret.
/// `secret`: `None` if the Secret does not exist.
pub fn read(wants: &SecretTarget, rotated: bool, secret: Option<&SecretContent>) -> TargetRead {
    let none = |target| TargetRead::of(target, WatchedCredentials::default());
    let Some(secret) = secret else {
        return none(match &wants.kubeconfig_user {
            None if rotated => TargetState::Absent,
            _ => TargetState::Unfit(format!("there is no Secret {:?}", wants.name)),
        });
    };
    if secret.immutable && rotated {
        return none(TargetState::Unfit("the Secret is immutable".to_owned()));
    }
    match read_value(wants, rotated, secret) {
        Ok(read) => read,
        Err(why) => none(TargetState::Unfit(format!("key {:?}: {why}", wants.key))),
    }
}

fn read_value(
    wants: &SecretTarget,
    rotated: bool,
    secret: &SecretContent,
) -> Result<TargetRead, CredentialFault> {
    let text = secret.value.as_ref().map(SecretText::reveal).filter(|text| !text.is_empty());
    let user = wants.kubeconfig_user.as_deref();
    let there = |holds: Option<SecretText>, other_tokens: Vec<String>| TargetState::There {
        version: secret.version.clone(),
        holds: holds.map(|token| TargetCredential {
            hash: token.hash(),
            claims: token.claims(),
            ..TargetCredential::default()
        }),
        other_tokens,
        kept: None,
    };
    let looks_like = text.filter(|text| text.contains("users:") || text.contains("\"users\""));
    let config = match (user, text) {
        (Some(_), None) => return Err(CredentialFault::NotThere),
        (Some(_), Some(text)) => Some(Kubeconfig::parse(text)?),
        (None, _) => looks_like.and_then(|text| Kubeconfig::parse(text).ok()),
    };
    let Some(config) = config else {
        let token = secret.value.clone().filter(|token| !token.reveal().is_empty());
        let watched = token.iter().filter(|_| !rotated);
        let watched = watched.map(|token| watched::token_entry("", &token.claims())).collect();
        return Ok(TargetRead::of(there(token, Vec::new()), WatchedCredentials::of(watched)));
    };
    let all = config.tokens();
    if !rotated {
        // A watched kubeconfig is listed with all methods by which its users authenticate.
        if let Some(user) = user.filter(|user| !config.has_user(user)) {
            return Err(CredentialFault::NoUser(user.to_owned()));
        }
        let held = all.iter().find(|(other, _)| user.is_none_or(|user| user == other));
        let target = there(held.map(|(_, token)| token.clone()), Vec::new());
        let watched = config.auth_methods().into_iter().map(|(user, claims)| match claims {
            Ok(claims) => watched::token_entry(&user, &claims),
            Err(why) => watched::unknown_entry(&user, &why),
        });
        let watched = WatchedCredentials::of(watched.collect());
        return Ok(TargetRead { target, watched, kubeconfig: Some(config), reach: None });
    }
    let Some(user) = user else {
        return Err(CredentialFault::UserNotNamed);
    };
    let holds = config.token_of(user)?;
    let reach = config.reach(user)?;
    reach.check()?;
    let other_tokens = all.iter().filter(|(other, _)| other != user).map(|(_, token)| token.hash());
    let target = there(holds, other_tokens.collect());
    let watched = WatchedCredentials::default();
    Ok(TargetRead { target, watched, kubeconfig: Some(config), reach: Some(reach) })
}

impl TargetRead {
    /// Token in the target: the token of the kubeconfig's user that `wants` names, or else the
    /// whole value of `secret`. `None`: the target holds no such token, or `wants` names no user
    /// although the target holds a kubeconfig.
    pub fn token(
        &self,
        wants: &SecretTarget,
        secret: Option<&SecretContent>,
    ) -> Option<SecretText> {
        match (&wants.kubeconfig_user, &self.kubeconfig) {
            (Some(user), Some(config)) => config.token_of(user).ok().flatten(),
            (None, None) => secret?.value.clone().filter(|token| !token.reveal().is_empty()),
            _ => None,
        }
    }

    /// Value of the target with `token` in place of the present token. The error says why the value
    /// cannot be made.
    pub fn value_with(
        &self,
        wants: &SecretTarget,
        token: &SecretText,
    ) -> Result<SecretText, CredentialFault> {
        match (&wants.kubeconfig_user, &self.kubeconfig) {
            (Some(user), Some(config)) => {
                config.with_token(user, token, None).map(SecretText::trimmed)
            }
            (None, None) => Ok(token.clone()),
            _ => Err(CredentialFault::NoKubeconfig),
        }
    }
}

#[cfg(test)]
mod tests;
