//! Tokens that are made by a plan: a name is its description in Rancher, by which it is found again.

use super::{Dated, Error, Listed, Order, Rancher, Secret, Token, TokenApi, TokenList, Trust};
use crate::domain::credentials::kubeconfig::Reach;
use crate::domain::credentials::rotation::{Held, Made, Seconds, Term};
use crate::domain::credentials::token::{Says, Token as Value};

/// A Rancher, and the API key with which it is asked.
#[derive(Clone, Debug)]
pub struct Issuer {
    rancher: Rancher,
    key: Secret,
    /// Authorities that the spec gives, in PEM.
    authority: Option<String>,
}

/// The key's user and that user's tokens, as Rancher lists them.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The API that lists them, and makes others.
    pub api: TokenApi,
    /// The key's user.
    pub user: String,
    /// The tokens of that user.
    pub tokens: Vec<Token>,
    /// The server's time.
    pub now: Option<Seconds>,
}

/// Fault of a new token, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The fault.
    pub why: String,
    /// Another replica of Rancher may not have heard of the token yet.
    pub may_pass: bool,
}

impl Fault {
    fn of(what: &str, error: &Error) -> Self {
        let may_pass = matches!(error, Error::Unauthorized | Error::Forbidden(_));
        Self { why: format!("{what}: {error}"), may_pass }
    }

    fn lasting(why: String) -> Self {
        Self { why, may_pass: false }
    }
}

/// Whether a token works, as far as its own API key can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// What is known of it.
    pub says: Says,
    /// The token is accepted. `None`: not known, because it is none that the key's user may see.
    pub alive: Option<bool>,
    /// The token is missing from the list that would show it if it were the key's user's.
    pub is_missing: bool,
}

impl Life {
    /// The token, as what it is in a target.
    pub fn held(self, token: &Value, in_cloud_credential: bool) -> Held {
        let term = Term::of(token, &self.says, in_cloud_credential);
        let (is_unseen, is_missing) = (self.alive.is_none(), self.is_missing);
        Held { hash: token.hash(), says: self.says, is_unseen, is_missing, term }
    }
}

impl Issuer {
    /// The fault, in words, if the URL or the authorities cannot be used.
    pub fn new(url: &str, authority: Option<&str>, key: Secret) -> Result<Self, String> {
        let trust = authority.map_or(Trust::System, Trust::Pem);
        let rancher = Rancher::new(url, trust)?;
        Ok(Self { rancher, key, authority: authority.map(str::to_owned) })
    }

    pub(super) fn rancher(&self) -> &Rancher {
        &self.rancher
    }

    pub(super) fn key(&self) -> &Secret {
        &self.key
    }

    /// Everything that the key's user has.
    pub async fn issued(&self) -> Result<Issued, Error> {
        let Dated { value: TokenList { api, mut tokens }, date } =
            self.rancher.tokens(&self.key).await?;
        let user = self.user(api, &tokens).await?;
        // An administrator is shown everybody's by ext.cattle.io.
        tokens.retain(|token| token.user == user);
        Ok(Issued { api, user, tokens, now: date })
    }

    /// The key's user: by the list, or else by a review. /v3 lists tokens of one user alone.
    async fn user(&self, api: TokenApi, listed: &[Token]) -> Result<String, Error> {
        let name = Value::new(self.key.reveal().to_owned()).says().name;
        let own = |token: &&Token| api == TokenApi::V3 || token.name == name;
        if let Some(token) = listed.iter().find(own).filter(|token| !token.user.is_empty()) {
            return Ok(token.user.clone());
        }
        let bearer = self.rancher.behind("local").bearer(&self.key).await?.value;
        let why = "its own cluster must be Kubernetes 1.28 or later to say whose the API key is";
        bearer.user.ok_or_else(|| Error::NotFound(why.to_owned()))
    }

    /// The cloud credentials for Harvester that the key's user may see.
    pub async fn credentials(&self) -> Result<Vec<Listed>, Error> {
        Ok(self.rancher.credentials(&self.key).await?.value)
    }

    /// Makes a token by this name.
    pub async fn mint(
        &self,
        issued: &Issued,
        name: &str,
        lifetime: Seconds,
        cluster: Option<&str>,
    ) -> Result<(Value, Made), Error> {
        let order = Order { lifetime, description: name, cluster };
        let minted = self.rancher.mint(&self.key, issued.api, order).await?.value;
        let value = Value::new(minted.secret.reveal().to_owned());
        let token = minted.token;
        let made = Made { hash: value.hash(), issued: token.created, expires: token.ends };
        Ok((value, made))
    }

    /// Tries a token out: that it is accepted where it will be used, and can be read. Without a place it is tried
    /// on Rancher itself.
    pub async fn verify(
        &self,
        value: &Value,
        reach: Option<&Reach>,
        cluster: Option<&str>,
    ) -> Result<(), Fault> {
        let name = value.says().name;
        let own = Secret::from(value);
        let place = match (reach, cluster) {
            (Some(reach), _) => self.place(reach).map_err(Fault::lasting)?,
            (None, cluster) => self.rancher.behind(cluster.unwrap_or("local")),
        };
        let bearer = place.bearer(&own).await;
        let bearer =
            bearer.map_err(|e| Fault::of("the new token, where it will be used", &e))?.value;
        if let Some(named) = bearer.token
            && named != name.trim_start_matches("ext/")
            && named != name
        {
            let why = "where the new token will be used, it counts as another";
            return Err(Fault::lasting(why.to_owned()));
        }
        // One for a single cluster may not ask about itself.
        let key = if cluster.is_some() { &self.key } else { &own };
        match self.rancher.token(key, &name).await {
            Ok(Dated { value: Some(_), .. }) => Ok(()),
            Ok(_) => {
                let why = "Rancher does not know the new token yet".to_owned();
                Err(Fault { why, may_pass: true })
            }
            Err(error) => Err(Fault::of("the new token cannot be read", &error)),
        }
    }

    /// State of a token that is in use somewhere, by Rancher's word to the API key. The token itself
    /// is sent nowhere: it may be another user's, and each use of it is recorded as that user's.
    pub async fn life(&self, value: &Value, issued: &Issued) -> Result<Life, Error> {
        let says = value.says();
        let now = issued.now;
        if says.expires.is_some() || says.name.is_empty() {
            let over = now.is_some_and(|now| says.expires.is_some_and(|end| end <= now));
            return Ok(Life { says, alive: Some(!over), is_missing: false });
        }
        if let Some(own) = issued.tokens.iter().find(|token| token.name == says.name) {
            return Ok(life(own, now));
        }
        // /v3 shows no other user's; an administrator may see one in ext.cattle.io.
        if [issued.api, TokenApi::of(&says.name)].contains(&TokenApi::Ext) {
            match self.rancher.token(&self.key, &says.name).await {
                Ok(Dated { value: Some(token), date }) => return Ok(life(&token, date.or(now))),
                Err(error @ (Error::Unauthorized | Error::Silent(_))) => return Err(error),
                Ok(_) => return Ok(Life { says, alive: None, is_missing: true }),
                // The API may be away while the other one answers.
                Err(_) => {}
            }
        }
        if issued.api == TokenApi::V3 && issued.is_own(&says.name) {
            // It ended no later than now; the time is not known.
            let says = Says { issued: now.map(|now| now - 1), expires: now, ..says };
            return Ok(Life { says, alive: Some(false), is_missing: false });
        }
        let is_listed = issued.api == TokenApi::V3 && TokenApi::of(&says.name) == TokenApi::V3;
        Ok(Life { says, alive: None, is_missing: is_listed })
    }

    /// Ends every token by this name.
    pub async fn revoke(&self, name: &str) -> Result<(), Error> {
        let issued = self.issued().await?;
        for token in issued.tokens.iter().filter(|token| token.description == name) {
            self.rancher.revoke(&self.key, &token.name).await?;
        }
        Ok(())
    }

    /// The way that a kubeconfig goes. Its own authorities count, else those of the spec.
    pub(super) fn place(&self, reach: &Reach) -> Result<Rancher, String> {
        let authority = match &reach.authority {
            None => self.authority.clone(),
            Some(encoded) => Some(pem(encoded)?),
        };
        let trust = authority.as_deref().map_or(Trust::System, Trust::Pem);
        self.rancher.cluster(&reach.server, trust, reach.server_name.as_deref())
    }
}

impl Issued {
    /// The names of those that were made by a plan with this prefix.
    pub fn named(&self, prefix: &str) -> Vec<String> {
        let ours = |token: &&Token| number(&token.description, prefix).is_some();
        let mut names: Vec<String> =
            self.tokens.iter().filter(ours).map(|token| token.description.clone()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Whether a name is of a token that Rancher made for a kubeconfig of the key's user: it is the user's id
    /// and five letters.
    fn is_own(&self, name: &str) -> bool {
        let letters = name.strip_prefix("kubeconfig-").and_then(|n| n.strip_prefix(&self.user));
        letters.is_some_and(|letters| letters.len() == 5 && !letters.contains('-'))
    }
}

fn life(token: &Token, now: Option<Seconds>) -> Life {
    let over = token.ends.is_some_and(|end| now.is_some_and(|now| end <= now));
    // What was made by a plan is called as the plan called it.
    let name = if token.description.is_empty() { &token.name } else { &token.description };
    let says = Says {
        name: if is_name(name) { name.clone() } else { token.name.clone() },
        issued: Some(token.created),
        expires: if token.enabled { token.ends } else { now.or(token.ends) },
    };
    Life { says, alive: Some(token.enabled && !over), is_missing: false }
}

/// A description that a plan gave, and not a sentence.
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
        .ok_or_else(|| "its certificate-authority-data is no text in base64".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that an administrator has disabled is dead from now on, whatever its time.
    #[test]
    fn a_token_lives_until_its_end_unless_it_is_disabled() {
        let token = Token {
            name: "token-abcde".to_owned(),
            user: "u-1".to_owned(),
            description: String::new(),
            created: 100,
            ends: Some(900),
            cluster: None,
            enabled: true,
        };
        let disabled = Token { enabled: false, ..token.clone() };
        for (token, now, end, alive) in [
            (&token, Some(500), 900, true),
            (&token, Some(900), 900, false),
            (&token, None, 900, true),
            (&disabled, Some(500), 500, false),
            (&disabled, None, 900, false),
        ] {
            let found = life(token, now);
            assert_eq!((found.says.expires, found.alive), (Some(end), Some(alive)), "{now:?}");
        }
    }
}
