//! Reads a cloud credential as the target of a rotation, and replaces its content.

use super::issuer::{IssuedTokens, RancherIssuer};
use super::{DatedAnswer, RancherError, StoredCredential, TokenExpiry};
use crate::domain::credentials::cloud_credential::CloudCredential;
use crate::domain::credentials::kubeconfig::ServerEndpoint;
use crate::domain::credentials::rotation::TargetState;
use crate::domain::credentials::secret_text::SecretText;
use crate::domain::credentials::timestamp::Seconds;

/// A cloud credential as it was read.
#[derive(Debug)]
pub struct CloudCredentialView {
    /// The target, as the rotation's decisions use it.
    pub target: TargetState,
    /// Server time, in seconds since the epoch. `None`: the server did not send it.
    pub now: Option<i64>,
    there: Option<ExistingCredential>,
}

#[derive(Debug)]
struct ExistingCredential {
    stored: StoredCredential,
    credential: CloudCredential,
}

/// A token that replaces the token in a cloud credential.
#[derive(Debug)]
pub struct ReplacementToken<'a> {
    /// The token.
    pub token: &'a SecretText,
    /// Expiry of the token, in seconds since the epoch. `None`: the token does not expire.
    pub expires: Option<Seconds>,
    /// Whether the replaced token stays in the cloud credential, beside the new one.
    pub keep: bool,
    /// Server where the token is used. The cloud credential gets a new kubeconfig for this server.
    /// `None`: the present kubeconfig stays, and only its token changes.
    pub to: Option<&'a ServerEndpoint>,
}

impl CloudCredentialView {
    /// ID of the Rancher user who created the cloud credential, and may read it. `None`: the target
    /// is [`TargetState::Unfit`].
    pub fn owner(&self) -> Option<&str> {
        self.there.as_ref().map(|there| there.credential.owner.as_str())
    }

    /// Server where the cloud credential's token is used. `None`: the target is
    /// [`TargetState::Unfit`].
    pub fn reach(&self) -> Option<&ServerEndpoint> {
        self.there.as_ref().map(|there| &there.credential.reach)
    }
}

impl RancherIssuer {
    /// Whether Rancher reports that a cloud credential does not exist, or that the key's user has
    /// no right to read it. False: the credential can be read, or the read fails for another
    /// reason.
    pub async fn lacks(&self, name: &str) -> bool {
        let stored = self.rancher.stored(&self.key, name).await;
        matches!(stored, Ok(DatedAnswer { value: None, .. }) | Err(RancherError::Forbidden(..)))
    }

    /// Reads a cloud credential. After an error, the state of the credential is unknown.
    pub async fn read_target(
        &self,
        name: &str,
        issued: &IssuedTokens,
    ) -> Result<CloudCredentialView, RancherError> {
        let DatedAnswer { value, date } = self.rancher.stored(&self.key, name).await?;
        let now = date.or(issued.now);
        let unfit =
            |why: String| CloudCredentialView { target: TargetState::Unfit(why), now, there: None };
        let Some(stored) = value else {
            return Ok(unfit("there is no cloud credential of that name".to_owned()));
        };
        let content = stored.content.as_ref().map(SecretText::reveal);
        let credential = match CloudCredential::read(&stored.annotations, stored.going, content) {
            Ok(credential) => credential,
            Err(fault) => return Ok(unfit(fault.to_string())),
        };
        let holds = match &credential.token {
            None => None,
            Some(token) => Some(self.life(token, issued).await?.held(token, true)),
        };
        let target = TargetState::There {
            version: stored.version.clone(),
            holds,
            other_tokens: credential.other_tokens(),
            kept: credential.kept_token().map(|kept| kept.hash()),
        };
        let there = Some(ExistingCredential { stored, credential });
        Ok(CloudCredentialView { target, now, there })
    }

    /// Writes the token `new` into the cloud credential `name`. `Err`: for example, the cloud
    /// credential has changed since `view` was read. If the target in `view` is
    /// [`TargetState::Unfit`], nothing is written, and the result is `Ok`.
    pub async fn publish(
        &self,
        name: &str,
        view: &CloudCredentialView,
        new: &ReplacementToken<'_>,
    ) -> Result<(), RancherError> {
        let Some(there) = &view.there else { return Ok(()) };
        let content = there.credential.with_token(new.token, new.keep, new.to);
        let content = content.map_err(|why| self.rancher.not_written(name, why.to_string()))?;
        self.store(name, &there.stored, content, Some(TokenExpiry(new.expires))).await
    }

    /// Removes the kept old token from the cloud credential `name`. `Err`: for example, the cloud
    /// credential has changed since `view` was read. If there is no kept token, or the target in
    /// `view` is [`TargetState::Unfit`], nothing is written, and the result is `Ok`.
    pub async fn drop_old(
        &self,
        name: &str,
        view: &CloudCredentialView,
    ) -> Result<(), RancherError> {
        let Some(there) = &view.there else { return Ok(()) };
        let content = there.credential.without_kept();
        match content.map_err(|why| self.rancher.not_written(name, why.to_string()))? {
            None => Ok(()),
            Some(content) => self.store(name, &there.stored, content, None).await,
        }
    }

    async fn store(
        &self,
        name: &str,
        was: &StoredCredential,
        content: String,
        expires: Option<TokenExpiry>,
    ) -> Result<(), RancherError> {
        let content = SecretText::new(content);
        self.rancher.write(&self.key, name, was, &content, expires).await.map(drop)
    }
}
