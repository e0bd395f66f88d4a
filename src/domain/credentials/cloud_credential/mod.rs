//! A Rancher's cloud credential for Harvester, by what its Secret says.
//!
//! Invariants: what Rancher would not take, or would end on, is refused by name and never written;
//! of a kubeconfig only the token of the current context's user changes, and the one that it had
//! may stay beside it for a while: Rancher deletes tokens of kubeconfigs that are no longer named.

use std::collections::BTreeMap;

use super::kubeconfig::{Kubeconfig, Reach, Unfit};
use super::token::Token;

const CREATOR: &str = "field.cattle.io/creatorId";

/// A cloud credential.
pub struct CloudCredential {
    config: Kubeconfig,
    user: String,
    /// Rancher's user who made it, and may read it.
    pub owner: String,
    /// Where it is used.
    pub reach: Reach,
}

impl std::fmt::Debug for CloudCredential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CloudCredential")
    }
}

impl CloudCredential {
    /// Reads a Secret, or says why it cannot be used.
    pub fn read(
        annotations: &BTreeMap<String, String>,
        going: bool,
        content: Option<&str>,
    ) -> Result<Self, Unfit> {
        if going {
            return Err("it is being deleted".to_owned());
        }
        let owner = annotations.get(CREATOR).filter(|owner| !owner.is_empty()).ok_or_else(|| {
            format!(
                "it has no annotation {CREATOR}: Rancher leaves it alone, and ends on one without any annotation"
            )
        })?;
        let content = content.ok_or_else(|| "it is no credential for Harvester".to_owned())?;
        let config = Kubeconfig::parse(content)?;
        let user = config.current_user()?;
        config.token_of(&user)?;
        let reach = config.reach(&user)?;
        if reach.insecure {
            return Err("its cluster has insecure-skip-tls-verify: a token is not sent to whom nobody knows".to_owned());
        }
        Ok(Self { config, user, owner: owner.clone(), reach })
    }

    /// The token that is used. `None`: it has none.
    pub fn token(&self) -> Result<Option<Token>, Unfit> {
        self.config.token_of(&self.user)
    }

    /// The token that was kept beside it.
    pub fn previous(&self) -> Option<Token> {
        self.config.previous(&self.user)
    }

    /// The hashes of all other tokens in it.
    pub fn beside(&self) -> Vec<String> {
        let others = self.config.tokens().into_iter().filter(|(user, _)| *user != self.user);
        others.map(|(_, token)| token.hash()).collect()
    }

    /// The content with another token; with `keep` the one that it had stays beside it.
    pub fn with(&self, token: &Token, keep: bool) -> Result<String, Unfit> {
        self.config.with(&self.user, token, keep)
    }

    /// The content without the token that was kept. `None`: there is none.
    pub fn without_previous(&self) -> Result<Option<String>, Unfit> {
        self.config.without_previous(&self.user)
    }
}

#[cfg(test)]
mod tests;
