//! Tokens of a ServiceAccount of this cluster, also those in a cloud credential of a Rancher.
//!
//! Invariants: a token is tested at the server that its readers use, which must have a certificate
//! of this cluster's own authority if the spec names it; a Rancher that does not answer hinders no
//! revocation that needs no answer of it.

use super::InHand;
use super::session::{RotationRun, TRIED_WITHIN};
use crate::api::{ServiceAccountToken, TokenRotation};
use crate::domain::credentials::kubeconfig::ServerEndpoint;
use crate::domain::credentials::rotation::{
    RotationStep, UnknownReason, UnpublishedCredential, status,
};
use crate::k8s::CallError;
use crate::rancher::{ApiServer, TokenRights};
use kube::ResourceExt as _;

/// ServiceAccount whose tokens the spec asks for.
pub(super) fn of(rotation: &TokenRotation) -> Option<&ServiceAccountToken> {
    let source = rotation.spec.source.as_ref()?;
    source.service_account_token.as_ref().or(source.service_account_token_secret.as_ref())
}

/// Reason why a target in a Rancher is unknown. An account's tokens are known, and revoked, without
/// the Rancher; only to spare what the target holds, an answer is waited for.
pub(super) fn unknown(rotation: &TokenRotation, reason: UnknownReason) -> UnknownReason {
    match reason {
        _ if of(rotation).is_none() => reason,
        UnknownReason::Silent if !status::plan(rotation).revokes => reason,
        _ => UnknownReason::TargetBarred,
    }
}

impl RotationRun<'_> {
    /// Whether a Rancher makes and revokes the credentials.
    pub(super) fn is_by_rancher(&self) -> bool {
        self.side.is_some() && of(&self.rotation).is_none()
    }

    /// Message that the account is missing.
    pub(super) fn no_account(&self) -> String {
        let account = of(&self.rotation).cloned().unwrap_or_default().service_account_name;
        format!("spec.source: there is no ServiceAccount {}/{account}: make it", self.namespace())
    }

    /// Server of this cluster that a cloud credential is to lead to. `None`: the target stays with
    /// its own server.
    pub(super) fn own_server(&self) -> Option<ServerEndpoint> {
        let target = self.rotation.spec.target.cloud_credential.as_ref()?;
        let server = target.server.as_ref()?.trim_end_matches('/').to_owned();
        let own = self.keeper.ctx.credentials.own_way();
        Some(ServerEndpoint {
            server,
            authority: own.authority,
            server_name: None,
            insecure: false,
        })
    }

    /// Tests the credential in memory where it will be used.
    pub(super) async fn verify(&mut self) -> Result<(), CallError> {
        let Some(InHand { hand, token: Some(token) }) = self.in_hand() else {
            self.take(None);
            return Ok(());
        };
        let account = of(&self.rotation).cloned().unwrap_or_default().service_account_name;
        let account = format!("{}:{account}", self.namespace());
        let there = self.own_server().or_else(|| self.read.reach.clone());
        let there = there.unwrap_or_else(|| self.keeper.ctx.credentials.own_way());
        let tried = async {
            let there = ApiServer::of(&there)?;
            let expected = format!("system:serviceaccount:{account}");
            there.accepts(token.reveal(), &expected, TRIED_WITHIN).await.map(|()| there)
        };
        let why = match tried.await {
            Ok(there) => self.account_lacks(&there, token.reveal(), &account).await?,
            Err(why) => Some(why),
        };
        if let Some(why) = why {
            return self.failed(RotationStep::Verify, &hand.name, &why).await;
        }
        let hand = UnpublishedCredential { verified: true, ..hand };
        self.take(Some(InHand { hand, token: Some(token) }));
        Ok(())
    }

    /// Rights that Rancher's node driver needs and the token for it lacks.
    async fn account_lacks(
        &self,
        there: &ApiServer,
        token: &str,
        account: &str,
    ) -> Result<Option<String>, CallError> {
        if self.rotation.spec.target.cloud_credential.is_none() {
            return Ok(None);
        }
        let namespaces = self.keeper.ctx.credentials.namespaces().await?;
        let account = account.replace(':', "/");
        Ok(match there.rights(token, &account, &namespaces).await {
            TokenRights::Enough => None,
            TokenRights::Lacking(why) => Some(why),
            TokenRights::Unknown(why) => {
                self.say_rights_unknown(&why);
                None
            }
        })
    }

    /// Logs that the rights of a token are not known.
    pub(super) fn say_rights_unknown(&self, why: &str) {
        let (namespace, rotation) = (self.namespace(), self.rotation.name_any());
        let said = "the rights of the new token are unknown: it is published nevertheless";
        tracing::info!(namespace, rotation, why, "{said}");
    }
}
