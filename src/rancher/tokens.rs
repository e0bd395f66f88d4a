//! Tokens in Rancher's API: creation, search, reading, revocation.
//!
//! There are two kinds of tokens:
//!
//! * Tokens of the API /v3. Every version of Rancher so far has this API.
//! * Tokens of the API ext.cattle.io. The operator puts `ext/` before their names. Their secrets
//!   begin with `ext/` too.
//!
//! A token with a known name is read and revoked by the API of its kind. The API /v3 makes and
//! lists tokens. ext.cattle.io makes and lists them only if the server does not have /v3, for two
//! reasons:
//!
//! * Before Rancher 2.12, a plain user may not use ext.cattle.io: the answer is 403.
//! * ext.cattle.io is an aggregated API, which may be unavailable while /v3 works.
//!
//! Invariant: the expiry of a token is computed from its creation and its lifetime, because
//! `expiresAt` is empty at first, and wrong after a change of the lifetime.

use http::Method;
use serde::Deserialize;
use serde_json::json;
use zeroize::Zeroizing;

use super::error::{RancherError, safe};
use super::transport::WireAnswer;
use super::{DatedAnswer, ServerClient, parsed, plain};
use crate::domain::credentials::secret_text::SecretText;
use crate::domain::credentials::timestamp;

const V3: &str = "/v3/tokens";
const EXT: &str = "/apis/ext.cattle.io/v1/tokens";
const EXT_PREFIX: &str = "ext/";

/// An API for tokens. Tokens of a Rancher are made and listed by one API only: `V3` if the Rancher
/// has it, or else `Ext`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenApi {
    /// `/v3/tokens`.
    V3,
    /// `/apis/ext.cattle.io/v1/tokens`, where `/v3/tokens` is gone.
    Ext,
}

impl TokenApi {
    /// The API to which a token with this name belongs.
    pub fn of(name: &str) -> Self {
        if name.starts_with(EXT_PREFIX) { Self::Ext } else { Self::V3 }
    }
}

/// Tokens that Rancher lists to an API key: see [`ServerClient::tokens`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenList {
    /// The API that lists the tokens, and makes new ones.
    pub api: TokenApi,
    /// All tokens in the list.
    pub tokens: Vec<ListedToken>,
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedToken {
    /// Name of the token; in ext.cattle.io with the prefix `ext/`.
    pub name: String,
    /// ID of the token's user.
    pub user: String,
    /// Description of the token. Empty: the token has no description.
    pub description: String,
    /// Time of creation, in seconds since the epoch.
    pub created: i64,
    /// Expiry, in seconds since the epoch. `None`: the token does not expire.
    pub expires: Option<i64>,
    /// The only cluster that accepts the token. `None`: the token is not limited.
    pub cluster: Option<String>,
    /// Whether the token is enabled: an administrator can disable it. An expired token may still be
    /// enabled.
    pub enabled: bool,
}

/// A token that was just made.
#[derive(Debug)]
pub struct MintedToken {
    /// Fields of the new token.
    pub token: ListedToken,
    /// Text of the token. Rancher returns it only once.
    pub secret: SecretText,
}

/// A request for a new token.
#[derive(Clone, Copy, Debug)]
pub struct TokenOrder<'a> {
    /// Lifetime in seconds. Rancher may grant less: [`ListedToken::expires`] shows the granted
    /// expiry.
    pub lifetime: i64,
    /// Description of the token. If Rancher's answer to the request is lost, the token is found by
    /// this description.
    pub description: &'a str,
    /// The only cluster that shall accept the token. `None`: no limit.
    pub cluster: Option<&'a str>,
}

#[derive(Deserialize)]
struct OldForm {
    id: String,
    #[serde(default, rename = "userId")]
    user: String,
    description: Option<String>,
    created: String,
    ttl: i64,
    #[serde(rename = "clusterId")]
    cluster: Option<String>,
    enabled: Option<bool>,
    token: Option<Zeroizing<String>>,
}

#[derive(Deserialize)]
struct OldList {
    /// Some versions of Rancher return null in place of an item.
    data: Vec<Option<OldForm>>,
}

#[derive(Deserialize)]
struct NewForm {
    metadata: TokenMetadata,
    spec: TokenSpec,
    #[serde(default)]
    status: TokenStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TokenMetadata {
    name: String,
    creation_timestamp: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TokenSpec {
    #[serde(default, rename = "userID")]
    user: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    ttl: i64,
    enabled: Option<bool>,
    cluster_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TokenStatus {
    value: Option<Zeroizing<String>>,
    bearer_token: Option<Zeroizing<String>>,
}

#[derive(Deserialize)]
struct NewList {
    items: Vec<NewForm>,
}

impl ServerClient {
    /// Makes a token for the user of the key. `api`: the API in the result of [`Self::tokens`].
    ///
    /// If Rancher's answer is lost, the token may exist, but its secret is lost. [`Self::tokens`]
    /// then lists the token with the description in `order`.
    pub async fn mint(
        &self,
        key: &SecretText,
        api: TokenApi,
        order: TokenOrder<'_>,
    ) -> Result<DatedAnswer<MintedToken>, RancherError> {
        match api {
            TokenApi::V3 => self.mint_old(key, order).await,
            TokenApi::Ext => self.mint_new(key, order).await,
        }
    }

    async fn mint_old(
        &self,
        key: &SecretText,
        order: TokenOrder<'_>,
    ) -> Result<DatedAnswer<MintedToken>, RancherError> {
        let body = json!({
            "type": "token", "ttl": order.lifetime * 1000, "description": order.description,
            "clusterId": order.cluster.unwrap_or_default(),
        });
        let answer = self.send(key, Method::POST, V3, Some(plain(&body))).await?;
        let mut form: OldForm = parsed(&answer)?;
        let secret = form.token.take();
        minted(&answer, form.token(&answer)?, secret)
    }

    async fn mint_new(
        &self,
        key: &SecretText,
        order: TokenOrder<'_>,
    ) -> Result<DatedAnswer<MintedToken>, RancherError> {
        let body = json!({
            "apiVersion": "ext.cattle.io/v1", "kind": "Token", "metadata": {},
            "spec": {
                "ttl": order.lifetime * 1000, "description": order.description,
                "clusterName": order.cluster.unwrap_or_default(),
            },
        });
        let answer = self.send(key, Method::POST, EXT, Some(plain(&body))).await?;
        let mut form: NewForm = parsed(&answer)?;
        let value = form.status.value.take();
        let secret = form.status.bearer_token.take().or_else(|| {
            let value = value.filter(|value| !value.is_empty())?;
            Some(Zeroizing::new(format!("{EXT_PREFIX}{}:{}", form.metadata.name, value.as_str())))
        });
        minted(&answer, form.token(&answer)?, secret)
    }

    /// Lists tokens by the API /v3, which lists only the tokens of the key's user. If the server
    /// does not have /v3, lists them by ext.cattle.io, which lists the tokens of all users to an
    /// administrator.
    pub async fn tokens(&self, key: &SecretText) -> Result<DatedAnswer<TokenList>, RancherError> {
        let answer = match self.send(key, Method::GET, V3, None).await {
            Ok(answer) => answer,
            Err(error) if is_gone(&error) => return self.tokens_new(key).await,
            Err(error) => return Err(error),
        };
        let forms = parsed::<OldList>(&answer)?.data.into_iter().flatten();
        let tokens = forms.map(|form| form.token(&answer)).collect::<Result<_, _>>()?;
        Ok(DatedAnswer { value: TokenList { api: TokenApi::V3, tokens }, date: answer.date })
    }

    async fn tokens_new(&self, key: &SecretText) -> Result<DatedAnswer<TokenList>, RancherError> {
        let answer = self.send(key, Method::GET, EXT, None).await?;
        let forms = parsed::<NewList>(&answer)?.items.into_iter();
        let tokens = forms.map(|form| form.token(&answer)).collect::<Result<_, _>>()?;
        Ok(DatedAnswer { value: TokenList { api: TokenApi::Ext, tokens }, date: answer.date })
    }

    /// Reads the token with this name. `None`: no such token is visible to the user of `key`. A
    /// token that is not limited to a cluster can read itself.
    pub async fn token(
        &self,
        key: &SecretText,
        name: &str,
    ) -> Result<DatedAnswer<Option<ListedToken>>, RancherError> {
        let path = self.token_path(&Method::GET, name)?;
        let answer = match self.send(key, Method::GET, &path, None).await {
            Ok(answer) => answer,
            Err(RancherError::NotFound(..)) => return Ok(DatedAnswer { value: None, date: None }),
            Err(error) => return Err(error),
        };
        let token = match TokenApi::of(name) {
            TokenApi::V3 => parsed::<OldForm>(&answer)?.token(&answer)?,
            TokenApi::Ext => parsed::<NewForm>(&answer)?.token(&answer)?,
        };
        Ok(DatedAnswer { value: Some(token), date: answer.date })
    }

    /// Revokes the token with this name. False: no such token is visible to the user of `key`.
    pub async fn revoke(&self, key: &SecretText, name: &str) -> Result<bool, RancherError> {
        let path = self.token_path(&Method::DELETE, name)?;
        match self.send(key, Method::DELETE, &path, None).await {
            Ok(_) => Ok(true),
            Err(RancherError::NotFound(..)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Path of the token with this name. `method`: HTTP method of the call, for the error that is
    /// returned if `name` is not valid.
    fn token_path(&self, method: &Method, name: &str) -> Result<String, RancherError> {
        let (folder, name) = match name.strip_prefix(EXT_PREFIX) {
            Some(name) => (EXT, name),
            None => (V3, name),
        };
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
        if name.is_empty() || name.starts_with('.') || !name.chars().all(fits) {
            let why = format!("{:?} is not the name of a token", safe(name));
            return Err(RancherError::NotFound(self.name_call(method, folder), why));
        }
        Ok(format!("{folder}/{name}"))
    }
}

impl OldForm {
    fn token(self, answer: &WireAnswer) -> Result<ListedToken, RancherError> {
        let created = time(&self.created, answer)?;
        Ok(ListedToken {
            // In /v3, a `ttl` of 0 means for ever, and less than 0 means expired at creation.
            expires: (self.ttl != 0).then(|| created + self.ttl.max(0) / 1000),
            name: self.id,
            user: self.user,
            description: self.description.unwrap_or_default(),
            created,
            cluster: self.cluster.filter(|cluster| !cluster.is_empty()),
            enabled: self.enabled.unwrap_or(true),
        })
    }
}

impl NewForm {
    fn token(self, answer: &WireAnswer) -> Result<ListedToken, RancherError> {
        let created = time(&self.metadata.creation_timestamp, answer)?;
        Ok(ListedToken {
            // In ext.cattle.io, a `ttl` of less than 0 means for ever. Rancher replaces 0 before it
            // stores the token.
            expires: (self.spec.ttl > 0).then(|| created + self.spec.ttl / 1000),
            name: format!("{EXT_PREFIX}{}", self.metadata.name),
            user: self.spec.user,
            description: self.spec.description,
            created,
            cluster: self.spec.cluster_name.filter(|cluster| !cluster.is_empty()),
            enabled: self.spec.enabled.unwrap_or(true),
        })
    }
}

fn minted(
    answer: &WireAnswer,
    token: ListedToken,
    secret: Option<Zeroizing<String>>,
) -> Result<DatedAnswer<MintedToken>, RancherError> {
    let secret = secret.filter(|secret| !secret.is_empty());
    let secret = secret.ok_or_else(|| answer.unreadable("it contains no token"))?;
    let secret = SecretText::trimmed(secret.as_str().to_owned());
    Ok(DatedAnswer { value: MintedToken { token, secret }, date: answer.date })
}

/// Whether the error shows that the server does not have the requested API.
fn is_gone(error: &RancherError) -> bool {
    matches!(error, RancherError::NotFound(..) | RancherError::Refused { status: 405, .. })
}

fn time(text: &str, answer: &WireAnswer) -> Result<i64, RancherError> {
    timestamp::parse_rfc3339(text)
        .ok_or_else(|| answer.unreadable("it does not have the time of the token's creation"))
}
