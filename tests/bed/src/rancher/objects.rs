//! Users, clusters, tokens and cloud credentials of the stand-in, as a test makes, changes and reads
//! them, without a request.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, anyhow};
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::answer::{Answer, Body};
use super::world::{Cluster, Kind, Role, Token, User};
use super::{Rancher, TokenView, credentials};

impl Rancher {
    /// Adds a user: an administrator's name begins with `user-`, another's with `u-`.
    pub fn user(&self, admin: bool) -> String {
        self.shared.with(|world| {
            let name = world.name(if admin { "user-" } else { "u-" });
            world.users.insert(name.clone(), User { admin });
            name
        })
    }

    /// Adds a cluster with a connected agent and these members.
    pub fn cluster(&self, id: &str, name: &str, members: &[&str]) {
        let members = members.iter().map(|&member| member.to_owned()).collect();
        let (name, roles) = (name.to_owned(), BTreeMap::new());
        let cluster = Cluster { name, members, roles, agent: true, reviews: true };
        self.shared.with(|world| world.clusters.insert(id.to_owned(), cluster));
    }

    /// Limits a member of a cluster to this role.
    pub fn role(&self, id: &str, user: &str, role: Role) {
        self.shared.with(|world| {
            if let Some(cluster) = world.clusters.get_mut(id) {
                cluster.roles.insert(user.to_owned(), role);
            }
        });
    }

    /// Connects or disconnects a cluster's agent.
    pub fn agent(&self, id: &str, connected: bool) {
        self.shared.with(|world| {
            if let Some(cluster) = world.clusters.get_mut(id) {
                cluster.agent = connected;
            }
        });
    }

    /// Removes SelfSubjectReview from a cluster, as in Kubernetes before 1.28.
    pub fn without_reviews(&self, id: &str) {
        self.shared.with(|world| {
            if let Some(cluster) = world.clusters.get_mut(id) {
                cluster.reviews = false;
            }
        });
    }

    /// Changes a setting; false if the setting does not exist.
    pub fn set(&self, name: &str, value: &str) -> bool {
        self.shared.with(|world| world.set(name, value))
    }

    /// Sets whether secrets of new tokens are stored as hashes.
    pub fn hash_tokens(&self, on: bool) {
        self.shared.with(|world| world.hashing = on);
    }

    /// Removes /v3/tokens; existing tokens stay valid.
    pub fn retire_v3_tokens(&self) {
        self.shared.with(|world| world.retired = true);
    }

    /// Removes the endpoint of the aggregated API, or restores it.
    pub fn ext_is_down(&self, down: bool) {
        self.shared.with(|world| world.ext_is_down = down);
    }

    /// Adds a second replica of the server behind the same address. It answers every other request, and
    /// learns of a deleted token, and of a new ext token, later by this time.
    pub fn second_replica(&self, late: Duration) {
        let late = i64::try_from(late.as_millis()).unwrap_or(i64::MAX);
        self.shared.with(|world| world.lag = late);
    }

    /// Makes a v3 token of a user; returns its bearer text. `ttl` in milliseconds is clamped as
    /// usual.
    pub fn api_key(&self, user: &str, ttl: i64, description: &str) -> String {
        self.shared.with(|world| {
            let blank = world.blank(Kind::V3, user, world.token_ttl(ttl), description);
            let name = world.name("token-");
            world.mint(&name, blank)
        })
    }

    /// Makes a v3 token that is valid for one cluster only.
    pub fn scoped_key(&self, user: &str, ttl: i64, cluster: &str) -> String {
        self.shared.with(|world| {
            let blank = world.blank(Kind::V3, user, world.token_ttl(ttl), "");
            let name = world.name("token-");
            world.mint(&name, Token { cluster: cluster.to_owned(), ..blank })
        })
    }

    /// Makes a token of a ServiceAccount of the server's own cluster that may get and patch the
    /// Secret of this credential, and nothing else.
    pub fn account_key(&self, cc: &str) -> String {
        self.shared.with(|world| {
            // The claims name the account and no end.
            let claims =
                "eyJrdWJlcm5ldGVzLmlvIjp7InNlcnZpY2VhY2NvdW50Ijp7Im5hbWUiOiJvcGVyYXRvciJ9fX0";
            let token = format!("eyJhbGciOiJSUzI1NiJ9.{claims}.{}", world.name("signature-"));
            world.accounts.insert(token.clone(), cc.to_owned());
            token
        })
    }

    /// Makes a token of the ext API; returns its bearer text.
    pub fn ext_key(&self, user: &str, ttl: i64, description: &str) -> String {
        self.shared.with(|world| world.mint_ext(user, world.token_ttl(ttl), description).1)
    }

    /// Makes the kubeconfig that this version's UI makes for a cloud credential.
    pub fn kubeconfig(&self, user: &str, cluster: &str) -> String {
        self.shared.with(|world| world.ui_kubeconfig(user, cluster))
    }

    /// Renders a kubeconfig with this token in Rancher's layout.
    pub fn kubeconfig_with(&self, cluster: &str, bearer: &str) -> String {
        self.shared.with(|world| world.kubeconfig_text(cluster, bearer))
    }

    /// Creates a cloud credential as the API does; returns its Secret's name.
    pub fn credential(
        &self,
        user: &str,
        name: &str,
        cluster: &str,
        content: &str,
    ) -> Result<String> {
        let config = json!({
            "kubeconfigContent": content, "clusterId": cluster, "clusterType": "imported",
        });
        self.shared.with(|world| world.create_credential(user, name, &config)).map_err(refused)
    }

    /// Replaces a credential's content as the UI does, through the API.
    pub fn put_content(&self, cc: &str, content: &str) -> Result<()> {
        let config = json!({"kubeconfigContent": content});
        self.shared.with(|world| world.put_credential(cc, &config)).map_err(refused)
    }

    /// The Secret of a credential, as the Kubernetes API shows it.
    pub fn secret(&self, cc: &str) -> Option<Value> {
        self.shared.with(|world| world.secrets.get(cc).cloned())
    }

    /// Kubeconfig in a credential's Secret.
    pub fn content(&self, cc: &str) -> String {
        self.shared.with(|world| world.content(cc))
    }

    /// Edits a Secret without Rancher's API and its checks; creates it if it does not exist.
    pub fn edit_secret(&self, cc: &str, edit: impl FnOnce(&mut Value)) {
        self.shared.with(|world| {
            let empty = json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": cc}});
            edit(world.secrets.entry(cc.to_owned()).or_insert(empty));
            world.touch(cc);
        });
    }

    /// Deletes a credential, and with it its user's right to its Secret.
    pub fn delete_credential(&self, cc: &str) {
        self.shared.with(|world| world.secrets.remove(cc));
    }

    /// Limits the number of cloud credentials in a list.
    pub fn list_at_most(&self, number: usize) {
        self.shared.with(|world| world.longest_list = number);
    }

    /// Writes a content into a Secret, as `kubectl edit` would.
    pub fn edit_content(&self, cc: &str, content: &str) {
        let encoded = serde_json::to_value(ByteString(content.as_bytes().to_vec()));
        let encoded = encoded.unwrap_or_default();
        self.edit_secret(cc, |secret| secret["data"][credentials::CONTENT] = encoded);
    }

    /// All stored tokens.
    pub fn tokens(&self) -> Vec<TokenView> {
        self.shared.with(|world| {
            let now = world.now();
            let view = |(name, token): (&String, &Token)| TokenView {
                name: name.clone(),
                user: token.user.clone(),
                description: token.description.clone(),
                created: token.created / 1000,
                ttl: token.ttl,
                cluster: token.cluster.clone(),
                alive: token.enabled && !token.expired(now),
                ext: token.kind == Kind::Ext,
                stored: token.stored.clone(),
                owner: token.owner.clone(),
                last_used: token.last_used.map(|at| at / 1000),
            };
            world.tokens.iter().map(view).collect()
        })
    }

    /// Token of this name.
    pub fn token(&self, name: &str) -> Option<TokenView> {
        self.tokens().into_iter().find(|token| token.name == name)
    }

    /// Whether this text is accepted as a token.
    pub fn accepts(&self, bearer: &str) -> bool {
        self.shared.with(|world| world.holder(bearer).is_some())
    }

    /// Sets a token's lifetime in milliseconds, as an administrator does by a patch of its object.
    pub fn set_ttl(&self, name: &str, ttl: i64) {
        self.shared.with(|world| {
            if let Some(token) = world.tokens.get_mut(name) {
                token.ttl = ttl;
            }
        });
    }

    /// Deletes a token.
    pub fn delete_token(&self, name: &str) {
        self.shared.with(|world| world.delete_token(name));
    }
}

fn refused(answer: Answer) -> anyhow::Error {
    match answer.body {
        Body::Json(body) => anyhow!("{}: {body}", answer.status),
        _ => anyhow!("{}", answer.status),
    }
}
