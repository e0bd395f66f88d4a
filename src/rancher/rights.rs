//! Rights of a token's bearer in the cluster whose API server a cloud credential names.
//!
//! Invariant: [`TokenRights::Lacking`] comes only from reviews that the server has answered. A
//! failed review does not mean that a right is missing.

use std::time::Duration;

use http::Method;
use serde_json::Value;
use tokio::time::timeout;

use super::{RancherError, RancherIssuer, ServerClient, TokenFault, parsed};
use crate::domain::credentials::kubeconfig::ServerEndpoint;
use crate::domain::credentials::node_driver::{DriverRight, RIGHTS};
use crate::domain::credentials::secret_text::SecretText;

/// Maximum number of namespaces in which the rights of a token are reviewed, if the caller names no
/// namespaces. The result is [`TokenRights::Unknown`] if there are more namespaces, and the rights
/// in the reviewed ones do not suffice.
const MOST_NAMESPACES: usize = 16;
/// Time limit for all reviews of the rights of one token. It is short, because the reviews are part
/// of a reconcile of a TokenRotation, and few of these reconciles run at the same time.
const ASKED_WITHIN: Duration = Duration::from_secs(10);
/// Path of the list of namespaces that a user may see. The rights are reviewed in these namespaces,
/// because Rancher's UI offers the same list when a user chooses the namespace of the machines.
const NAMESPACES: &str = "/v1/namespaces";

/// Result of a review of the rights that Rancher's node driver needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenRights {
    /// The bearer has all needed rights, cluster-wide or in one namespace.
    Enough,
    /// Needed rights are missing cluster-wide, and also in each reviewed namespace. The text names
    /// the first right that is missing cluster-wide.
    Lacking(String),
    /// The review could not be made. The text says why.
    Unknown(String),
}

impl RancherIssuer {
    /// Asks the server that `reach` names whether the bearer of a token has the rights that
    /// Rancher's node driver needs. `Err`: the server does not accept the token, perhaps because a
    /// replica of Rancher does not know the token yet. So another try may succeed.
    pub async fn rights(
        &self,
        value: &SecretText,
        reach: &ServerEndpoint,
    ) -> Result<TokenRights, TokenFault> {
        let place = match self.place(reach) {
            Ok(place) => place,
            Err(why) => return Ok(TokenRights::Unknown(why)),
        };
        let rights = place.rights(value, None, |right| right.lacking()).await;
        rights.map_err(|e| TokenFault::of("cannot check the rights of the new token", &e))
    }
}

impl ServerClient {
    /// Reviews whether the token's bearer has all rights that Rancher's node driver needs, either
    /// cluster-wide or in one of `namespaces`. `account`: ServiceAccount of the token, for the
    /// message about a missing right.
    pub async fn account_rights(
        &self,
        token: &SecretText,
        account: &str,
        namespaces: &[String],
    ) -> TokenRights {
        let lacking = |right: DriverRight| right.account_lacks(account);
        let rights = self.rights(token, Some(namespaces), lacking).await;
        rights.unwrap_or_else(|error| TokenRights::Unknown(error.to_string()))
    }

    /// Reviews whether the token's bearer has all rights that Rancher's node driver needs, either
    /// cluster-wide or in one of `namespaces`. `Err`: the server does not accept the token.
    /// `namespaces: None`: the namespaces that the token's user may see, [`MOST_NAMESPACES`] at
    /// most. `lacking`: makes the message about a missing right.
    async fn rights(
        &self,
        token: &SecretText,
        namespaces: Option<&[String]>,
        lacking: impl Fn(DriverRight) -> String,
    ) -> Result<TokenRights, RancherError> {
        let asked = async {
            let Some(right) = self.lacks(token, None).await? else {
                return Ok(TokenRights::Enough);
            };
            // A right that is missing cluster-wide may exist in a namespace.
            let (all, most) = match namespaces {
                Some(all) => (all.to_vec(), usize::MAX),
                None => (self.namespaces(token).await?, MOST_NAMESPACES),
            };
            for namespace in all.iter().take(most) {
                if self.lacks(token, Some(namespace)).await?.is_none() {
                    return Ok(TokenRights::Enough);
                }
            }
            Ok::<_, RancherError>(if all.len() > most {
                let count = all.len();
                let why = format!("the user may see {count} namespaces, too many to check");
                TokenRights::Unknown(why)
            } else {
                TokenRights::Lacking(lacking(right))
            })
        };
        match timeout(ASKED_WITHIN, asked).await {
            Ok(Err(error @ RancherError::Unauthorized(_))) => Err(error),
            Ok(Err(error)) => Ok(TokenRights::Unknown(error.to_string())),
            Ok(rights) => rights,
            Err(_) => {
                let seconds = ASKED_WITHIN.as_secs();
                let why = format!("the server did not answer within {seconds} s");
                Ok(TokenRights::Unknown(why))
            }
        }
    }

    /// Finds the first right of the node driver that a token's bearer lacks. `None`: the bearer has
    /// all rights. `namespace`: namespace of the rights. `namespace: None`: all namespaces.
    async fn lacks(
        &self,
        token: &SecretText,
        namespace: Option<&str>,
    ) -> Result<Option<DriverRight>, RancherError> {
        for right in RIGHTS {
            if !self.allowed(token, &right.review(namespace)).await? {
                return Ok(Some(right));
            }
        }
        Ok(None)
    }

    /// Names of the namespaces that the token's user may see.
    async fn namespaces(&self, token: &SecretText) -> Result<Vec<String>, RancherError> {
        let answer = self.send(token, Method::GET, NAMESPACES, None).await?;
        let list: Value = parsed(&answer)?;
        let all = list["data"].as_array();
        let all = all.ok_or_else(|| answer.unreadable("it is not a list"))?;
        let name = |one: &Value| one["metadata"]["name"].as_str().map(str::to_owned);
        Ok(all.iter().filter_map(name).collect())
    }
}
