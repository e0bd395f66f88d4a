//! A Rancher as the issuer of tokens: makes, lists, tests and revokes the tokens of an API key's
//! user.
//!
//! The plan of a rotation gives each token a name. Rancher stores this name as the description of
//! the token, and the operator finds the token by the description.

use http::Method;

use super::token_bearer::REVIEW;
use super::{
    DatedAnswer, ListedToken, RancherError, ServerClient, TokenApi, TokenList, TokenOrder,
};
use crate::domain::credentials::children::ListedCredential;
use crate::domain::credentials::kubeconfig::ServerEndpoint;
use crate::domain::credentials::rotation::{IssuerReport, MintedCredential, TargetCredential};
use crate::domain::credentials::secret_text::SecretText;
use crate::domain::credentials::timestamp::Seconds;
use crate::domain::credentials::token::TokenClaims;

/// A Rancher, and the API key for the calls to it.
#[derive(Clone, Debug)]
pub struct RancherIssuer {
    pub(super) rancher: ServerClient,
    pub(super) key: SecretText,
    /// Certificate authorities that may have signed the Rancher's certificate, in PEM. `None`: the
    /// authorities that the system trusts.
    authority: Option<String>,
}

/// User of the API key, and the tokens of this user, as Rancher lists them.
#[derive(Clone, Debug)]
pub struct IssuedTokens {
    /// The API that lists the tokens, and makes new ones.
    pub api: TokenApi,
    /// ID of the API key's user. Empty: Rancher refuses to list tokens to this API key.
    pub user: String,
    /// Tokens of the API key's user.
    pub tokens: Vec<ListedToken>,
    /// Server time, in seconds since the epoch. `None`: the server did not send it.
    pub now: Option<Seconds>,
}

/// Reason why a new token cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenFault {
    /// Text for a message: why the new token cannot be used.
    pub why: String,
    /// Whether another try may succeed: a replica of Rancher perhaps does not know the token yet.
    pub may_pass: bool,
}

impl TokenFault {
    pub(super) fn of(what: &str, error: &RancherError) -> Self {
        let may_pass = matches!(error, RancherError::Unauthorized(_) | RancherError::Forbidden(..));
        Self { why: format!("{what}: {error}"), may_pass }
    }

    fn lasting(why: String) -> Self {
        Self { why, may_pass: false }
    }
}

/// State of a token, as Rancher reports it to the API key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenLife {
    /// Name, time of issue and expiry of the token.
    pub claims: TokenClaims,
    /// Whether the token is accepted. `None`: unknown, because Rancher shows nothing about the
    /// token to the API key. A token of another issuer counts as accepted, because Rancher is not
    /// asked about it.
    pub alive: Option<bool>,
    /// Whether an answer of Rancher lacks the token, and the reason is unknown. Either the token
    /// was deleted, or it belongs to another user.
    pub is_missing: bool,
}

impl TokenLife {
    /// Describes the credential in a target. `self`: state of the credential. `token`: text of the
    /// credential. `in_cloud_credential`: whether the target is a cloud credential.
    pub fn held(self, token: &SecretText, in_cloud_credential: bool) -> TargetCredential {
        let report = IssuerReport::of(token, &self.claims, in_cloud_credential);
        TargetCredential {
            hash: token.hash(),
            claims: self.claims,
            is_unseen: self.alive.is_none(),
            is_dead: self.alive == Some(false),
            is_missing: self.is_missing,
            report,
        }
    }
}

impl RancherIssuer {
    /// An issuer for the Rancher at a URL. The error says why the URL or the authorities cannot be
    /// used.
    pub fn new(url: &str, authority: Option<&str>, key: SecretText) -> Result<Self, String> {
        let rancher = ServerClient::new(url, authority, None)?;
        Ok(Self { rancher, key, authority: authority.map(str::to_owned) })
    }

    /// Lists all tokens of the API key's user.
    pub async fn issued(&self) -> Result<IssuedTokens, RancherError> {
        let DatedAnswer { value: TokenList { api, mut tokens }, date } =
            self.rancher.tokens(&self.key).await?;
        let user = self.user(api, &tokens).await?;
        // The API ext.cattle.io lists the tokens of all users to an administrator.
        tokens.retain(|token| token.user == user);
        Ok(IssuedTokens { api, user, tokens, now: date })
    }

    /// ID of the API key's user. Comes from a token in the list `listed`, or else from a
    /// SelfSubjectReview. In a list of the API /v3, any token will do, because /v3 lists only the
    /// tokens of the key's user. In a list of ext.cattle.io, only the API key's own token will do.
    async fn user(&self, api: TokenApi, listed: &[ListedToken]) -> Result<String, RancherError> {
        let name = self.key.claims().name;
        let own = |token: &&ListedToken| api == TokenApi::V3 || token.name == name;
        if let Some(token) = listed.iter().find(own).filter(|token| !token.user.is_empty()) {
            return Ok(token.user.clone());
        }
        let local = self.rancher.behind("local");
        let bearer = local.bearer(&self.key).await?;
        let why =
            "Rancher's own cluster must run Kubernetes 1.28 or later to name the API key's user";
        bearer.user.ok_or_else(|| {
            RancherError::NotFound(local.name_call(&Method::POST, REVIEW), why.to_owned())
        })
    }

    /// Cloud credentials for Harvester that the API key's user may see.
    pub async fn credentials(&self) -> Result<Vec<ListedCredential>, RancherError> {
        self.rancher.credentials(&self.key).await
    }

    /// Makes a token with the description `name`, and returns it with its hash and times.
    /// `issued.api`: the API that makes the token. `lifetime`: requested lifetime. `cluster`: the
    /// only cluster that shall accept the token. `cluster: None`: no limit.
    pub async fn mint(
        &self,
        issued: &IssuedTokens,
        name: &str,
        lifetime: Seconds,
        cluster: Option<&str>,
    ) -> Result<(SecretText, MintedCredential), RancherError> {
        let order = TokenOrder { lifetime, description: name, cluster };
        let minted = self.rancher.mint(&self.key, issued.api, order).await?.value;
        let (value, token) = (minted.secret, minted.token);
        let made =
            MintedCredential { hash: value.hash(), issued: token.created, expires: token.expires };
        Ok((value, made))
    }

    /// Tests the new token `value`. Succeeds if both are true:
    /// * The server where the token will be used accepts the token, and does not identify it as
    ///   another token.
    /// * A read of the token from Rancher succeeds.
    ///
    /// `cluster`: the only cluster that accepts the token. `None`: the token is not limited.
    /// `reach`: server where the token will be used. `None`: the API server of `cluster`, or of
    /// Rancher's own cluster if there is no `cluster`. Rancher forwards requests to this API
    /// server.
    pub async fn verify(
        &self,
        value: &SecretText,
        reach: Option<&ServerEndpoint>,
        cluster: Option<&str>,
    ) -> Result<(), TokenFault> {
        let name = value.claims().name;
        let place = match (reach, cluster) {
            (Some(reach), _) => self.place(reach).map_err(TokenFault::lasting)?,
            (None, cluster) => self.rancher.behind(cluster.unwrap_or("local")),
        };
        let bearer = place.bearer(value).await;
        let bearer = bearer
            .map_err(|e| TokenFault::of("cannot use the new token where it will be used", &e))?;
        if let Some(named) = bearer.token
            && named != name.trim_start_matches("ext/")
            && named != name
        {
            let why = "the server where the new token will be used identifies it as another token";
            return Err(TokenFault::lasting(why.to_owned()));
        }
        // Rancher does not let a token for a single cluster read itself, so the API key reads it.
        let key = if cluster.is_some() { &self.key } else { value };
        match self.rancher.token(key, &name).await {
            Ok(DatedAnswer { value: Some(_), .. }) => Ok(()),
            Ok(_) => {
                let why = "Rancher does not know the new token yet".to_owned();
                Err(TokenFault { why, may_pass: true })
            }
            Err(error) => Err(TokenFault::of("cannot read the new token from Rancher", &error)),
        }
    }

    /// State of the token `value`, from the list `issued` or from a read with the API key. For a
    /// token of another issuer, the state comes from the token's own claims. The token itself is
    /// not used, because it may belong to another user. Rancher would record that this user has
    /// used the token.
    pub async fn life(
        &self,
        value: &SecretText,
        issued: &IssuedTokens,
    ) -> Result<TokenLife, RancherError> {
        let claims = value.claims();
        let now = issued.now;
        if claims.expires.is_some() || claims.name.is_empty() {
            // Another issuer made the token. So Rancher is not asked about the token, and Rancher's
            // clock does not decide whether the token has expired.
            return Ok(TokenLife { claims, alive: Some(true), is_missing: false });
        }
        if issued.user.is_empty() {
            return Ok(TokenLife { claims, alive: None, is_missing: false });
        }
        if let Some(own) = issued.tokens.iter().find(|token| token.name == claims.name) {
            return Ok(life(own, now));
        }
        // The API /v3 shows no tokens of other users. The API ext.cattle.io may show them, if the
        // API key is an administrator's.
        if [issued.api, TokenApi::of(&claims.name)].contains(&TokenApi::Ext) {
            match self.rancher.token(&self.key, &claims.name).await {
                Ok(DatedAnswer { value: Some(token), date }) => {
                    return Ok(life(&token, date.or(now)));
                }
                Err(error @ (RancherError::Unauthorized(_) | RancherError::Silent(..))) => {
                    return Err(error);
                }
                Ok(_) => return Ok(TokenLife { claims, alive: None, is_missing: true }),
                // The API of this token may be unavailable while the other API answers.
                Err(_) => {}
            }
        }
        if issued.api == TokenApi::V3 && issued.is_own(&claims.name) {
            // The token belongs to the key's user, but Rancher does not list it. So the token has
            // ended, at an unknown time.
            let claims = TokenClaims { issued: now.map(|now| now - 1), expires: now, ..claims };
            return Ok(TokenLife { claims, alive: Some(false), is_missing: false });
        }
        let is_listed = issued.api == TokenApi::V3 && TokenApi::of(&claims.name) == TokenApi::V3;
        Ok(TokenLife { claims, alive: None, is_missing: is_listed })
    }

    /// Revokes each token that has the description `name` and belongs to the API key's user.
    pub async fn revoke(&self, name: &str) -> Result<(), RancherError> {
        let issued = self.issued().await?;
        for token in issued.tokens.iter().filter(|token| token.description == name) {
            self.rancher.revoke(&self.key, &token.name).await?;
        }
        Ok(())
    }

    /// Client for the cluster behind this Rancher that `reach` names. `Err`: why `reach` cannot be
    /// used. If `reach` has no certificate authorities, the same ones are trusted as for the
    /// Rancher.
    pub(super) fn place(&self, reach: &ServerEndpoint) -> Result<ServerClient, String> {
        let authority = match &reach.authority {
            None => self.authority.clone(),
            Some(encoded) => Some(pem(encoded)?),
        };
        let name = reach.server_name.as_deref();
        self.rancher.cluster(&reach.server, authority.as_deref(), name)
    }
}

impl IssuedTokens {
    /// Empty list, for an API key to which Rancher refuses to list tokens.
    pub fn unlisted() -> Self {
        Self { api: TokenApi::V3, user: String::new(), tokens: Vec::new(), now: None }
    }

    /// Descriptions of the tokens that were made for a rotation's plan. Such a description consists
    /// of `prefix`, a dash and a number. The result is sorted and has no duplicates.
    pub fn named(&self, prefix: &str) -> Vec<String> {
        let ours = |token: &&ListedToken| number(&token.description, prefix).is_some();
        let mut names: Vec<String> =
            self.tokens.iter().filter(ours).map(|token| token.description.clone()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Whether Rancher made a token with this name for a kubeconfig of the key's user: the name is
    /// `kubeconfig-`, then the user's ID, then five characters other than dashes.
    fn is_own(&self, name: &str) -> bool {
        let letters = name.strip_prefix("kubeconfig-").and_then(|n| n.strip_prefix(&self.user));
        letters.is_some_and(|letters| letters.len() == 5 && !letters.contains('-'))
    }
}

fn life(token: &ListedToken, now: Option<Seconds>) -> TokenLife {
    let over = token.expires.is_some_and(|end| now.is_some_and(|now| end <= now));
    // A plan gives each of its tokens a name, which Rancher stores as the description.
    let name = if token.description.is_empty() { &token.name } else { &token.description };
    let claims = TokenClaims {
        name: if is_name(name) { name.clone() } else { token.name.clone() },
        issued: Some(token.created),
        expires: if token.enabled { token.expires } else { now.or(token.expires) },
    };
    TokenLife { claims, alive: Some(token.enabled && !over), is_missing: false }
}

/// Whether the text can be a name that a plan gives: it has only lower-case letters, digits, dots
/// and dashes, and at least one dash. A description in words is not such a name.
fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    text.contains('-') && text.chars().all(fits)
}

fn number(name: &str, prefix: &str) -> Option<u64> {
    name.strip_prefix(prefix)?.strip_prefix('-')?.parse().ok()
}

pub(super) fn pem(encoded: &str) -> Result<String, String> {
    use base64::Engine as _;
    let plain: String = encoded.split_whitespace().collect();
    let bytes = base64::engine::general_purpose::STANDARD.decode(plain).ok();
    bytes
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(|| "certificate-authority-data must be text in base64".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token that an administrator has disabled counts as dead, whatever its expiry.
    #[test]
    fn a_token_lives_until_its_end_unless_it_is_disabled() {
        let token = ListedToken {
            name: "token-abcde".to_owned(),
            user: "u-1".to_owned(),
            description: String::new(),
            created: 100,
            expires: Some(900),
            cluster: None,
            enabled: true,
        };
        let disabled = ListedToken { enabled: false, ..token.clone() };
        for (token, now, end, alive) in [
            (&token, Some(500), 900, true),
            (&token, Some(900), 900, false),
            (&token, None, 900, true),
            (&disabled, Some(500), 500, false),
            (&disabled, None, 900, false),
        ] {
            let found = life(token, now);
            assert_eq!((found.claims.expires, found.alive), (Some(end), Some(alive)), "{now:?}");
        }
    }
}
