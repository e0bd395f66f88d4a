//! What a Secret holds for those who read it, and what it is to hold.
//!
//! Invariant: a Secret that cannot be changed without harm to what else it is for is refused, with
//! words that hold nothing secret.

use super::kubeconfig::{Kubeconfig, Reach, Unfit};
use super::token::{Says, Token};
use super::{Held, Target, status};
use crate::api::{SecretTarget, WatchedCredential};

/// Tokens of a kubeconfig that are told.
const MOST_WATCHED: usize = 32;

/// A Secret, as far as it matters here.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// Its version.
    pub version: String,
    /// The value of the key.
    pub value: Option<Token>,
    /// Whether nobody may change it.
    pub immutable: bool,
}

/// A target, as it was read.
pub struct Read {
    /// For decisions.
    pub target: Target,
    /// Every token in it, if it is only watched.
    pub watched: Vec<WatchedCredential>,
    /// What is written back, but for the token.
    kubeconfig: Option<Kubeconfig>,
    /// Where the token is used; `None`: where everybody is.
    pub reach: Option<Reach>,
}

impl Read {
    /// A target that is no Secret here.
    pub fn elsewhere(target: Target, watched: Vec<WatchedCredential>) -> Self {
        Self { target, watched, kubeconfig: None, reach: None }
    }
}

/// Reads a target. `rotated`: it is to be written, too.
pub fn read(wants: &SecretTarget, rotated: bool, secret: Option<&Content>) -> Read {
    let none = |target| Read { target, watched: Vec::new(), kubeconfig: None, reach: None };
    let Some(secret) = secret else {
        return none(match &wants.kubeconfig_user {
            None if rotated => Target::Absent,
            _ => Target::Unfit(format!("there is no Secret {:?}", wants.name)),
        });
    };
    if secret.immutable && rotated {
        return none(Target::Unfit("it is immutable".to_owned()));
    }
    match with(wants, rotated, secret) {
        Ok(read) => read,
        Err(why) => none(Target::Unfit(format!("key {:?}: {why}", wants.key))),
    }
}

fn with(wants: &SecretTarget, rotated: bool, secret: &Content) -> Result<Read, Unfit> {
    let text = secret.value.as_ref().map(Token::reveal).filter(|text| !text.is_empty());
    let user = wants.kubeconfig_user.as_deref();
    let there = |holds: Option<Token>, beside: Vec<String>| Target::There {
        version: secret.version.clone(),
        holds: holds.map(|token| Held { hash: token.hash(), says: token.says() }),
        beside,
    };
    let looks_like = text.filter(|text| text.contains("users:") || text.contains("\"users\""));
    let config = match (user, text) {
        (Some(_), None) => return Err("it is not there".to_owned()),
        (Some(_), Some(text)) => Some(Kubeconfig::parse(text)?),
        (None, _) => looks_like.and_then(|text| Kubeconfig::parse(text).ok()),
    };
    let Some(config) = config else {
        let token = secret.value.clone().filter(|token| !token.reveal().is_empty());
        let watched = token.iter().map(|token| watched("", token)).collect();
        return Ok(Read {
            target: there(token, Vec::new()),
            watched,
            kubeconfig: None,
            reach: None,
        });
    };
    let all = config.tokens();
    let told = all.iter().take(MOST_WATCHED).map(|(user, token)| watched(user, token)).collect();
    let Some(user) = user else {
        if rotated {
            return Err(
                "it holds a kubeconfig: spec.target.secret.kubeconfigUser must name the user"
                    .to_owned(),
            );
        }
        let first = all.first().map(|(_, token)| token.clone());
        let target = there(first, Vec::new());
        return Ok(Read { target, watched: told, kubeconfig: Some(config), reach: None });
    };
    let holds = config.token_of(user)?;
    let reach = if rotated { Some(config.reach(user)?) } else { None };
    let beside = all.iter().filter(|(other, _)| other != user).map(|(_, token)| token.hash());
    let target = there(holds, beside.collect());
    let told = if rotated { Vec::new() } else { told };
    Ok(Read { target, watched: told, kubeconfig: Some(config), reach })
}

fn watched(user: &str, token: &Token) -> WatchedCredential {
    watched_as(user, &token.says())
}

/// What is told of a token that is only watched.
pub fn watched_as(user: &str, says: &Says) -> WatchedCredential {
    WatchedCredential {
        user: user.chars().take(253).collect(),
        name: says.name.chars().take(253).collect(),
        expires_at: says.expires.map(status::time),
    }
}

impl Read {
    /// The token that its user, or everybody, takes from it.
    pub fn token(&self, wants: &SecretTarget, secret: Option<&Content>) -> Option<Token> {
        match (&wants.kubeconfig_user, &self.kubeconfig) {
            (Some(user), Some(config)) => config.token_of(user).ok().flatten(),
            (None, None) => secret?.value.clone().filter(|token| !token.reveal().is_empty()),
            _ => None,
        }
    }

    /// The value with another token in it. `keep`: with the one that it has beside it.
    pub fn with(&self, wants: &SecretTarget, token: &Token, keep: bool) -> Result<Token, Unfit> {
        match (&wants.kubeconfig_user, &self.kubeconfig) {
            (Some(user), Some(config)) => config.with(user, token, keep).map(Token::new),
            (None, None) => Ok(token.clone()),
            _ => Err("it is no kubeconfig".to_owned()),
        }
    }

    /// The value without the token that was kept. `None`: none was.
    pub fn without_previous(&self, wants: &SecretTarget) -> Result<Option<Token>, Unfit> {
        match (&wants.kubeconfig_user, &self.kubeconfig) {
            (Some(user), Some(config)) => Ok(config.without_previous(user)?.map(Token::new)),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;
