//! Credentials in a target Secret, and the values to write there.
//!
//! Invariant: a Secret is refused if a write would harm its other content. The text of the refusal
//! contains nothing secret.

use super::super::kubeconfig::{Kubeconfig, Reach, Unfit, Way};
use super::super::token::Token;
use super::watched::{self, Watched};
use super::{Held, Target};
use api::{SecretTarget, WatchedCredential};

/// Fields of a Secret that matter here.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// Version of the Secret (resourceVersion).
    pub version: String,
    /// Value of the key.
    pub value: Option<Token>,
    /// Whether the Secret is immutable.
    pub immutable: bool,
    /// URL of the Rancher to which the value may be sent, from the Secret's annotation.
    pub rancher_url: Option<String>,
}

/// A target after a read.
pub struct Read {
    /// State of the target, for decisions.
    pub target: Target,
    /// Credentials in the target, if it is only watched.
    pub watched: Watched,
    /// Kubeconfig to write back with another token.
    kubeconfig: Option<Kubeconfig>,
    /// Server where the token is used. `None`: the operator's own API server.
    pub reach: Option<Reach>,
}

impl Read {
    /// Read of a target that is no Secret of this cluster, or cannot be used.
    pub fn elsewhere(target: Target, watched: Watched) -> Self {
        Self { target, watched, kubeconfig: None, reach: None }
    }
}

/// Reads a target. `rotated`: the operator will write it.
pub fn read(wants: &SecretTarget, rotated: bool, secret: Option<&Content>) -> Read {
    let none = |target| Read::elsewhere(target, Watched::default());
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
        holds: holds.map(|token| Held {
            hash: token.hash(),
            says: token.says(),
            ..Held::default()
        }),
        beside,
        kept: None,
    };
    let looks_like = text.filter(|text| text.contains("users:") || text.contains("\"users\""));
    let config = match (user, text) {
        (Some(_), None) => return Err("it is not there".to_owned()),
        (Some(_), Some(text)) => Some(Kubeconfig::parse(text)?),
        (None, _) => looks_like.and_then(|text| Kubeconfig::parse(text).ok()),
    };
    let Some(config) = config else {
        let token = secret.value.clone().filter(|token| !token.reveal().is_empty());
        let watched = token.iter().map(|token| watched::token("", &token.says())).collect();
        return Ok(Read::elsewhere(there(token, Vec::new()), Watched::of(watched)));
    };
    let all = config.tokens();
    if !rotated {
        // All ways in which its users authenticate are listed.
        if let Some(user) = user.filter(|user| !config.has_user(user)) {
            return Err(format!("it has no user {user:?}"));
        }
        let held = all.iter().find(|(other, _)| user.is_none_or(|user| user == other));
        let target = there(held.map(|(_, token)| token.clone()), Vec::new());
        let watched = config.ways().iter().map(|(user, way)| credential(user, way)).collect();
        return Ok(Read {
            target,
            watched: Watched::of(watched),
            kubeconfig: Some(config),
            reach: None,
        });
    }
    let Some(user) = user else {
        return Err("it holds a kubeconfig: spec.target.secret.kubeconfigUser must name the user"
            .to_owned());
    };
    let holds = config.token_of(user)?;
    let reach = config.reach(user)?;
    if let Some(fault) = reach.fault() {
        return Err(fault);
    }
    let beside = all.iter().filter(|(other, _)| other != user).map(|(_, token)| token.hash());
    let target = there(holds, beside.collect());
    Ok(Read { target, watched: Watched::default(), kubeconfig: Some(config), reach: Some(reach) })
}

fn credential(user: &str, way: &Way) -> WatchedCredential {
    match way {
        Way::Token(token) => watched::token(user, &token.says()),
        Way::Certificate(says) => watched::token(user, says),
        Way::Unknown(why) => watched::unknown(user, why),
    }
}

impl Read {
    /// Token that the named user uses, or the whole value if the spec names no user.
    pub fn token(&self, wants: &SecretTarget, secret: Option<&Content>) -> Option<Token> {
        match (&wants.kubeconfig_user, &self.kubeconfig) {
            (Some(user), Some(config)) => config.token_of(user).ok().flatten(),
            (None, None) => secret?.value.clone().filter(|token| !token.reveal().is_empty()),
            _ => None,
        }
    }

    /// Value with another token in it. `keep`: the old token stays beside the new one.
    pub fn with(&self, wants: &SecretTarget, token: &Token, keep: bool) -> Result<Token, Unfit> {
        match (&wants.kubeconfig_user, &self.kubeconfig) {
            (Some(user), Some(config)) => config.with(user, token, keep).map(Token::new),
            (None, None) => Ok(token.clone()),
            _ => Err("it is no kubeconfig".to_owned()),
        }
    }

    /// Value without the kept token. `None`: no token is kept.
    pub fn without_previous(&self, wants: &SecretTarget) -> Result<Option<Token>, Unfit> {
        match (&wants.kubeconfig_user, &self.kubeconfig) {
            (Some(user), Some(config)) => Ok(config.without_previous(user)?.map(Token::new)),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;
