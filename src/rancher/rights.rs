//! Rights of a token's bearer in the cluster to which a cloud credential leads.
//!
//! Invariant: where that cannot be asked, it is not known, and is no refusal.

use std::time::Duration;

use http::Method;
use serde_json::Value;
use tokio::time::timeout;

use super::{ACCESS_REVIEW, Error, Issuer, Rancher, Secret, parsed, plain};
use crate::domain::credentials::kubeconfig::Reach;
use crate::domain::credentials::node_driver::{RIGHTS, Right};
use crate::domain::credentials::token::Token;

/// Namespaces in which it is asked. Of more it is not known what may be done in the others.
const MOST_NAMESPACES: usize = 16;
/// Time for all reviews of a token. One of the few workers does nothing else meanwhile.
const ASKED_WITHIN: Duration = Duration::from_secs(10);
/// The namespaces that the user may see, as Rancher's UI lists them to choose the machines' one.
const NAMESPACES: &str = "/v1/namespaces";

/// Rights of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rights {
    /// All that is needed, everywhere or in a namespace.
    Enough,
    /// Not all, as the text says.
    Lacking(String),
    /// The review cannot be had, as the text says.
    Unknown(String),
}

impl Issuer {
    /// Whether the bearer of a token may do what Rancher's node driver must, on the way that it goes.
    pub async fn rights(&self, value: &Token, reach: &Reach) -> Rights {
        let place = match self.place(reach) {
            Ok(place) => place,
            Err(why) => return Rights::Unknown(why),
        };
        let token = Secret::from(value);
        match timeout(ASKED_WITHIN, place.rights(&token)).await {
            Ok(Ok(rights)) => rights,
            Ok(Err(error @ Error::Unauthorized)) => Rights::Lacking(error.to_string()),
            Ok(Err(error)) => Rights::Unknown(error.to_string()),
            Err(_) => Rights::Unknown(format!("not within {} s", ASKED_WITHIN.as_secs())),
        }
    }
}

impl Rancher {
    async fn rights(&self, token: &Secret) -> Result<Rights, Error> {
        let Some(lacking) = self.lacks(token, &RIGHTS, None).await? else {
            return Ok(Rights::Enough);
        };
        // What is not allowed in all of them may be in some.
        let namespaces = self.namespaces(token).await?;
        for namespace in namespaces.iter().take(MOST_NAMESPACES) {
            if self.lacks(token, &RIGHTS, Some(namespace)).await?.is_none() {
                return Ok(Rights::Enough);
            }
        }
        Ok(if namespaces.len() > MOST_NAMESPACES {
            Rights::Unknown(format!("the user may see {} namespaces", namespaces.len()))
        } else {
            Rights::Lacking(lacking.lacking())
        })
    }

    /// The first right that is missing.
    async fn lacks(
        &self,
        token: &Secret,
        rights: &[Right],
        namespace: Option<&str>,
    ) -> Result<Option<Right>, Error> {
        for right in rights {
            let body = right.review(namespace);
            let answer = self.send(token, Method::POST, ACCESS_REVIEW, Some(plain(&body))).await?;
            let review: Value = parsed(&answer)?;
            match review["status"]["allowed"].as_bool() {
                Some(true) => {}
                Some(false) => return Ok(Some(*right)),
                None => return Err(Error::Unreadable("it is no review".to_owned())),
            }
        }
        Ok(None)
    }

    /// The names of the namespaces that the token's user may see.
    async fn namespaces(&self, token: &Secret) -> Result<Vec<String>, Error> {
        let answer = self.send(token, Method::GET, NAMESPACES, None).await?;
        let list: Value = parsed(&answer)?;
        let all = list["data"].as_array();
        let all = all.ok_or_else(|| Error::Unreadable("it is no list".to_owned()))?;
        let name = |one: &Value| one["metadata"]["name"].as_str().map(str::to_owned);
        Ok(all.iter().filter_map(name).collect())
    }
}
