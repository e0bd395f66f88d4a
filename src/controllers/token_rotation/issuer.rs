//! Issuer of a TokenRotation's credentials: this cluster's API server for tokens of a
//! ServiceAccount, or a Rancher for tokens of an API key's user.
//!
//! Invariant: a new credential stays in memory until it is published or abandoned.

use super::UnpublishedToken;
use super::rotation_run::{RotationRun, StepFault};
use crate::api::TokenRotation;
use crate::domain::credentials::rotation::UnpublishedCredential;
use crate::domain::credentials::rotation::status::source_account;
use crate::k8s::CallError;

/// Issuer of a TokenRotation's credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CredentialIssuer {
    /// API server of this cluster: tokens of a ServiceAccount, each bound to a Secret.
    ServiceAccount,
    /// A Rancher: tokens of the API key's user.
    Rancher,
}

impl CredentialIssuer {
    pub(super) fn of(rotation: &TokenRotation) -> Self {
        match (&rotation.spec.rancher, source_account(rotation)) {
            (Some(_), None) => Self::Rancher,
            _ => Self::ServiceAccount,
        }
    }
}

impl RotationRun<'_> {
    /// Names of the credentials that were made for this TokenRotation and still exist. For a
    /// Rancher, the names are from the session's last read, without a further call.
    pub(super) async fn list_credentials(&self) -> Result<Vec<String>, CallError> {
        match CredentialIssuer::of(&self.rotation) {
            CredentialIssuer::ServiceAccount => {
                self.context.ctx.credentials.made_by(&self.namespace(), &self.uid()).await
            }
            CredentialIssuer::Rancher => Ok(self.rancher_tokens()),
        }
    }

    /// Makes the credential `name`, and keeps it in memory. If the credential was made before and
    /// the issuer can still return it, the credential is read from the issuer instead.
    pub(super) async fn mint(&mut self, name: &str) -> Result<(), StepFault> {
        let (token, made) = match CredentialIssuer::of(&self.rotation) {
            CredentialIssuer::ServiceAccount => self.mint_account_token(name).await?,
            CredentialIssuer::Rancher => self.mint_rancher_token(name).await?,
        };
        let credential =
            UnpublishedCredential { name: name.to_owned(), made: Some(made), verified: false };
        self.keep_unpublished(Some(UnpublishedToken { credential, text: Some(token) }));
        self.existing.push(name.to_owned());
        Ok(())
    }

    /// Tests the unpublished credential at the server where it will be used.
    pub(super) async fn verify(&mut self) -> Result<(), StepFault> {
        let Some(UnpublishedToken { credential, text: Some(token) }) = self.unpublished() else {
            self.keep_unpublished(None);
            return Ok(());
        };
        match CredentialIssuer::of(&self.rotation) {
            CredentialIssuer::ServiceAccount => self.verify_account_token(&token).await?,
            CredentialIssuer::Rancher => self.verify_rancher_token(&token).await?,
        }
        let credential = UnpublishedCredential { verified: true, ..credential };
        self.keep_unpublished(Some(UnpublishedToken { credential, text: Some(token) }));
        Ok(())
    }

    /// Revokes the credential with this name.
    pub(super) async fn revoke(&mut self, name: &str) -> Result<(), StepFault> {
        match CredentialIssuer::of(&self.rotation) {
            CredentialIssuer::ServiceAccount => {
                self.context.ctx.writer.delete_bound_secret(&self.namespace(), name).await?;
            }
            CredentialIssuer::Rancher => self.revoke_rancher_token(name).await?,
        }
        self.existing.retain(|other| other != name);
        Ok(())
    }
}
