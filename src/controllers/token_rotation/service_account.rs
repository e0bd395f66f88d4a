//! Mints and verifies tokens of a ServiceAccount of this cluster. The target of such a token is a
//! Secret, or a cloud credential of a Rancher.
//!
//! Invariant: a token is verified at the server to which its users send it. This server is the
//! first of these that is known:
//!
//! * The server that `spec.target.cloudCredential.server` names. This cluster's own CA must have
//!   signed its certificate.
//! * The server in the target's kubeconfig.
//! * The API server, as the operator itself reaches it.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt as _;

use super::rotation_run::{RotationRun, StepFault, TEST_DEADLINE};
use crate::domain::credentials::rotation::MintedCredential;
use crate::domain::credentials::rotation::status::source_account;
use crate::domain::credentials::secret_text::SecretText;
use crate::k8s::CallError;
use crate::k8s::credentials::BoundToken;
use crate::k8s::write::BoundSecret;
use crate::rancher::ServerClient;

/// Maximum number of reads of a ServiceAccount's new Secret, while the Secret contains no token
/// yet.
const TOKEN_READS: u32 = 20;
/// Pause between two reads of a ServiceAccount's new Secret.
const TOKEN_READ_INTERVAL: Duration = Duration::from_millis(500);

impl RotationRun<'_> {
    fn account(&self) -> String {
        source_account(&self.rotation).cloned().unwrap_or_default().service_account_name
    }

    /// Makes a token of the ServiceAccount, bound to the Secret `name`. If the Secret does not
    /// exist, creates the Secret first. The API server returns the token. Exception: if the spec
    /// has `serviceAccountTokenSecret`, Kubernetes writes the token into the Secret, and the
    /// operator reads it there.
    pub(super) async fn mint_account_token(
        &self,
        name: &str,
    ) -> Result<(SecretText, MintedCredential), StepFault> {
        let token = match self.request_account_token(name).await {
            Err(CallError::NotFound(_)) => {
                let (namespace, account) = (self.namespace(), self.account());
                return Err(StepFault::Step(format!(
                    "spec.source: there is no ServiceAccount {namespace}/{account}: create it"
                )));
            }
            other => other?,
        };
        let claims = token.claims();
        let made = MintedCredential {
            hash: token.hash(),
            issued: claims.issued.unwrap_or(self.clock.now()),
            expires: claims.expires,
        };
        Ok((token, made))
    }

    async fn request_account_token(&self, name: &str) -> Result<SecretText, CallError> {
        let account = self.account();
        let stored = self.plan.source.is_some_and(|source| source.readable);
        let (namespace, uid) = (self.namespace(), self.uid());
        let (writer, credentials) = (&self.context.ctx.writer, &self.context.ctx.credentials);
        if stored {
            credentials.check_right_to_sign(&namespace, &account).await?;
        }
        // If the account owns the TokenRotation, the account also becomes the owner of the Secrets
        // that the tokens are bound to. So these Secrets and the TokenRotation are deleted with the
        // account.
        let owns = |owner: &&OwnerReference| {
            (owner.api_version.as_str(), owner.kind.as_str(), &owner.name)
                == ("v1", "ServiceAccount", &account)
        };
        let owner = self.rotation.owner_references().iter().find(owns);
        let bound = BoundSecret {
            namespace: &namespace,
            name,
            rotation: &uid,
            account: Some(account.as_str()).filter(|_| stored),
            owner,
        };
        let secret_uid = match writer.create_bound_secret(bound).await {
            Err(CallError::Conflict(_)) => {
                credentials.bound_secret_uid(&namespace, name, &uid).await?
            }
            other => other?,
        };
        if stored {
            return self.read_stored_token(name).await;
        }
        let wanted = BoundToken {
            namespace: &namespace,
            account: &account,
            seconds: self.plan.lifetime,
            secret: name,
            secret_uid: &secret_uid,
        };
        writer.request_token(wanted).await
    }

    /// Reads the token from a ServiceAccount's new Secret. The cluster writes the token some time
    /// after the Secret was created, so the read is repeated, at most [`TOKEN_READS`] times.
    async fn read_stored_token(&self, name: &str) -> Result<SecretText, CallError> {
        for _ in 0..TOKEN_READS {
            let namespace = self.namespace();
            let read = self.context.ctx.credentials.secret(&namespace, name, "token").await?;
            let token = read.0.and_then(|secret| secret.value);
            if let Some(token) = token.filter(|token| !token.reveal().is_empty()) {
                return Ok(token);
            }
            tokio::time::sleep(TOKEN_READ_INTERVAL).await;
        }
        let call = format!("token in Secret {}/{name}", self.namespace());
        Err(CallError::Timeout { call, within: TOKEN_READ_INTERVAL * TOKEN_READS })
    }

    /// Tests a token at the server where the target's users send it. For a cloud credential, tests
    /// the token's rights as well.
    pub(super) async fn verify_account_token(&self, token: &SecretText) -> Result<(), StepFault> {
        let account = format!("{}:{}", self.namespace(), self.account());
        let there = self.own_server().or_else(|| self.read.reach.clone());
        let there = there.unwrap_or_else(|| self.context.ctx.credentials.own_way());
        let there = ServerClient::of(&there).map_err(StepFault::Step)?;
        let expected = format!("system:serviceaccount:{account}");
        let tried = there.accepts(token, &expected, TEST_DEADLINE).await;
        tried.map_err(StepFault::Step)?;
        if !self.is_for_cloud_credential() {
            return Ok(());
        }
        let namespaces = self.context.ctx.credentials.namespaces().await;
        let namespaces = namespaces.map_err(StepFault::Call)?;
        let account = account.replace(':', "/");
        let rights = there.account_rights(token, &account, &namespaces).await;
        self.missing_rights(rights).map_or(Ok(()), |why| Err(StepFault::Step(why)))
    }
}
