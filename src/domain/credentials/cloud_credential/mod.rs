//! Cloud credential for Harvester, as its Secret in a Rancher holds it.
//!
//! Invariants:
//!
//! * A Secret that Rancher would ignore, or that would crash Rancher, is refused with a reason, and
//!   never written.
//! * In a kubeconfig, only the token of the current context's user and the kept old token change.
//!   If the server changes, a new kubeconfig is made instead.
//! * Rancher deletes a token that no cloud credential names any more. So the content can keep the
//!   old token beside the new one. Then both tokens work during the overlap.

use std::collections::BTreeMap;

use super::credential_fault::{CREATOR, CredentialFault};
use super::kubeconfig::{Kubeconfig, ServerEndpoint};
use super::secret_text::SecretText;

/// Parsed content of a cloud credential: a kubeconfig, with the user whose token is in use.
pub struct CloudCredential {
    config: Kubeconfig,
    user: String,
    /// ID of the Rancher user who made the cloud credential. This user may read the token in the
    /// cloud credential.
    pub owner: String,
    /// Token in use: the token of the current context's user. `None`: this user has no token.
    pub token: Option<SecretText>,
    /// Server of the current context. A client sends the token in use to this server.
    pub reach: ServerEndpoint,
}

impl std::fmt::Debug for CloudCredential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CloudCredential")
    }
}

impl CloudCredential {
    /// Parses the Secret of a cloud credential. The error is the reason why the cloud credential
    /// cannot be used. `going`: whether the Secret is being deleted. `content`: the kubeconfig in
    /// the Secret, if the Secret has one.
    pub fn read(
        annotations: &BTreeMap<String, String>,
        going: bool,
        content: Option<&str>,
    ) -> Result<Self, CredentialFault> {
        if going {
            return Err(CredentialFault::Leaving);
        }
        let owner = annotations.get(CREATOR).filter(|owner| !owner.is_empty());
        let owner = owner.ok_or(CredentialFault::NoCreator)?;
        let content = content.ok_or(CredentialFault::NotForHarvester)?;
        let config = Kubeconfig::parse(content)?;
        let user = config.current_user()?;
        let token = config.token_of(&user)?;
        let reach = config.reach(&user)?;
        if reach.insecure {
            return Err(CredentialFault::UnverifiedCloudCredential);
        }
        Ok(Self { config, user, owner: owner.clone(), token, reach })
    }

    /// Replaced token that the content keeps beside the token in use. `None`: no token is kept.
    pub fn kept_token(&self) -> Option<SecretText> {
        self.config.kept_token(&self.user)
    }

    /// SHA-256 hashes of all tokens in the content except the token in use.
    pub fn other_tokens(&self) -> Vec<String> {
        let others = self.config.tokens().into_iter().filter(|(user, _)| *user != self.user);
        others.map(|(_, token)| token.hash()).collect()
    }

    /// New content of the cloud credential, with `token` as the token in use. The error says why
    /// the content cannot be made. `keep`: whether the replaced token stays in the content. `to`:
    /// server for which a new kubeconfig is made. `None`: the present kubeconfig stays, and only
    /// its tokens change.
    pub fn with_token(
        &self,
        token: &SecretText,
        keep: bool,
        to: Option<&ServerEndpoint>,
    ) -> Result<String, CredentialFault> {
        let old = self.token.as_ref().filter(|old| keep && old.hash() != token.hash());
        match to {
            None => self.config.with_token(&self.user, token, old),
            Some(to) => Kubeconfig::for_server(to, token, old),
        }
    }

    /// Content of the cloud credential without the old token that it keeps beside the token in use.
    /// `None`: the content keeps no old token. The error says why the new content cannot be made.
    pub fn without_kept(&self) -> Result<Option<String>, CredentialFault> {
        self.config.without_kept(&self.user)
    }
}

#[cfg(test)]
mod tests;
