//! A stand-in for a Rancher server, over real HTTPS on loopback: the behaviour of Rancher's API for
//! tokens and for cloud credentials for Harvester.
//!
//! **It is no Rancher.** It does what was observed of a Rancher, or read in its source, and nothing
//! else; behaviour that is not listed here is missing. State is in memory. The clock runs with the
//! machine's until a test moves it, so a year takes as long as its requests.
//!
//! # Behaviour, by version and source
//!
//! *seen*: on a running server of Rancher's main branch, request by request. *read*: in Rancher's
//! source or documents. *assumed*: neither, so no conclusion may depend on it alone.
//!
//! | behaviour | versions | source |
//! |---|---|---|
//! | v3 tokens: 201 with `token` once, `ttl` in ms, `expiresAt` empty in that answer; form `name:secret`; a requested name, PUT and `?current` have no effect | all | seen |
//! | lifetime of a v3 token: 0 and negative values become the maximum, larger values are clamped without an error | to 2.15 | read |
//! | lifetime of a v3 token: 0 becomes the default; with maximum 0, -1 is expired when issued | main | seen |
//! | a `ttl` that is not a number: 422 | all | seen on main |
//! | expiry: when the whole second of creation + `ttl` has passed; 0: never | all | seen on main |
//! | a changed `ttl` in a v3 token's object applies at once; the controller resets it only when the content changes | all | seen on main; the reset: read |
//! | purge of expired tokens at each start and hourly | all | seen (start), read (hourly) |
//! | users see only their own tokens, administrators too; others' tokens are 404 | all | seen on main |
//! | an expired, wrong, disabled or unknown token: 401 on /v3 (own form) and on `local`, 403 naming `system:unauthenticated` on every other cluster, existing or not | all | seen on main |
//! | no header: 200 for /version, 401 with text for the rest of the Kubernetes API | all | seen on main |
//! | a token for one cluster: 200 there and on /v3/clusters/<it>; 401 on /v3/tokens, on ext.cattle.io and, if it is for another cluster, on `local` | all | seen on main |
//! | a ServiceAccount's token of the server's own cluster: accepted below /k8s/clusters/local, 401 on /v3 | all | seen on main |
//! | a cluster without agent 503, an unknown one 404, another user's 403 | all | seen on main; an unknown one for a plain user: assumed |
//! | a cluster before Kubernetes 1.28 has no SelfSubjectReview: 404 | all | read: Kubernetes serves no beta kind by default; Harvester 1.3.0 is 1.27.10 |
//! | SelfSubjectReview names the user | all | seen on `local`; on another cluster: assumed |
//! | SelfSubjectAccessReview: 201 with `allowed`, true with a reason, for an administrator on `local`, false for a plain user | all | seen on main; for another cluster's members: RBAC as Kubernetes has it |
//! | the namespaces of a cluster that its user may see, below `/v1` there | all | read: the UI chooses the machines' namespace from them (harvester.vue) |
//! | SelfSubjectReview names the token too, in `requesttokenid` | from 2.11 | seen on `local`; on another cluster: assumed; the version: read (authenticate.go of v2.8.5 to v2.10.3) |
//! | generateKubeconfig: `kubeconfig-<user>xxxxx`, description "Kubeconfig token", lifetime by kubeconfig-default, clamped by auth-token-max | to 2.15 | read |
//! | generateKubeconfig: lifetime clamped by kubeconfig-max; 0 and 0 give an expired token | main | seen |
//! | `lastUsedAt` by the second | all | seen on main |
//! | token-hashing: the secret of a new token is stored as `$3:1:…` | all | seen on main |
//! | ext tokens: `ext/name:secret`, `value` once, `bearerToken` from 2.13 on; the lifetime cannot be extended; deletion ends it at once; not on /v3 | from 2.12 | seen on main; the versions: read and, for the first, assumed |
//! | below ext.cattle.io before it has the kind: 403 for a plain user, whose role does not name it, 404 for an administrator | to 2.11 (tokens), to 2.13 (kubeconfigs) | read: steve's proxy of `/apis`, role_data.go of v2.8.5 to v2.12.3 |
//! | the aggregated API without an endpoint: 503 `service unavailable` as plain text; /v3 still answers | all | seen on main, for 15 to 30 s after each start |
//! | an ingress without a backend: 404 or 502 as a page in HTML ([`crate::proxy::Verdict::Page`]) | all | seen of ingress-nginx |
//! | ext kubeconfigs with a `ttl` in s; bound is kubeconfig-default to 2.15, kubeconfig-max on main | from 2.14 | seen on main, read |
//! | tokens in ext kubeconfigs, and in the UI's credentials: v3 before 2.15, ext since | | read, seen on main |
//! | /v3/tokens is gone | none; [`Rancher::retire_v3_tokens`] | assumed: the removal is announced; the later answer is not known |
//! | cloudCredentials: the Secret's form, white space stripped, 422 without a config, 403 for another user's | all | seen on main |
//! | the list has the user's own credentials, for an administrator all, of each driver; 3,000 at most, and reports whether it is complete | all | assumed, except the bound: read |
//! | the API records the end of the first token in `rancher.io/expiration-timestamp` | 2.11 (from 2.9.3) | read |
//! | the API refuses unknown tokens and tokens in use (500), and accepts expired ones | from 2.12 | seen on main |
//! | the controller: finalizer, `ttl` 0 and owner for each `kubeconfig-u-`/`kubeconfig-user-` token of the content, end of those that the content no longer names, checksum; 30 to 90 ms after a change | from 2.12 | seen on main; to 2.15: read |
//! | other kinds of token in a content: not extended, not owned; the previous token ends nevertheless | from 2.12 | seen on main |
//! | a content that names an unknown token: no change, at each retry | from 2.12 | seen on main |
//! | two `users` entries: both tokens stay | from 2.12 | seen on main |
//! | a Secret with a content and no annotations: the server's process ends, at each start again | from 2.12 | seen on main |
//! | annotations without a creator: the controller does the same (finalizer, `ttl` 0, checksum) | from 2.12 | seen on main |
//! | a deleted credential's tokens end with it | from 2.12 | seen on main |
//! | the Secret through /k8s/clusters/local: its creator may get, patch and delete it, and not list; a patch with another resourceVersion is refused | all | seen on main; before 2.12: read |
//! | /cacerts: the authority as text, with a final line break, also for a caller without a token | all | read: cacerts.go |
//! | Date header: the server's time | all | assumed: HTTP asks for it, and Go writes it |

mod answer;
mod clusters;
mod credentials;
mod ext;
mod rights;
mod serve;
mod tokens;
mod world;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::listen;
use crate::pki::Authority;
use crate::proxy::{Call, Record, Verdict};
use answer::{Answer, Body};
use serve::Shared;
pub use world::Role;
use world::{Cluster, Kind, Token, User, World};

/// Version of Rancher that the stand-in plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// Lifetimes are bounded; no controller acts on credentials.
    V2_8,
    /// The end of a credential's token is noted (2.9.3 to 2.11).
    V2_11,
    /// A controller makes the v3 tokens of kubeconfigs in credentials last for ever, and deletes
    /// replaced ones.
    V2_12,
    /// The UI makes kubeconfigs by the ext API, with v3 tokens in them.
    V2_14,
    /// Kubeconfigs hold ext tokens, which the controller does not know.
    V2_15,
    /// The main branch, whose behaviour was observed.
    Main,
}

impl Version {
    /// All versions, the oldest first.
    pub const ALL: [Self; 6] =
        [Self::V2_8, Self::V2_11, Self::V2_12, Self::V2_14, Self::V2_15, Self::Main];
}

/// A token, for tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenView {
    /// Name of the token.
    pub name: String,
    /// User of the token.
    pub user: String,
    /// Description of the token.
    pub description: String,
    /// Time of creation, in seconds since the epoch.
    pub created: i64,
    /// Lifetime in milliseconds. 0: for ever.
    pub ttl: i64,
    /// The only cluster that accepts it; empty for all.
    pub cluster: String,
    /// Whether it is accepted.
    pub alive: bool,
    /// Whether it is a token of the ext API.
    pub ext: bool,
    /// Stored form of the secret: itself, or its hash.
    pub stored: String,
    /// Cloud credential to which Rancher's controller assigned it.
    pub owner: Option<String>,
    /// Time of its last use, in seconds since the epoch.
    pub last_used: Option<i64>,
}

/// The stand-in. Dropping it closes its port and every connection.
pub struct Rancher {
    shared: Arc<Shared>,
    tasks: [AbortHandle; 2],
    url: String,
    ca_pem: String,
}

impl std::fmt::Debug for Rancher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rancher").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Drop for Rancher {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Rancher {
    /// Starts a server without users.
    pub async fn start(version: Version) -> Result<Self> {
        let authority = Authority::new("testbed-rancher")?;
        let acceptor = listen::acceptor(&authority.issue(&[])?)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("bind a port")?;
        let url = format!("https://{}", listener.local_addr()?);
        let ca_pem = authority.pem();
        let shared = Arc::new(Shared::new(World::new(version, url.clone(), ca_pem.clone())?));
        let of_all = shared.clone();
        let accept = listen::accept(listener, move |stream| {
            serve::client(stream, acceptor.clone(), of_all.clone())
        });
        let tasks = [
            tokio::spawn(accept).abort_handle(),
            tokio::spawn(serve::controller(shared.clone())).abort_handle(),
        ];
        Ok(Self { shared, tasks, url, ca_pem })
    }

    /// URL of the server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Certificate of the authority that signed the server's certificate, in PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    // ---- faults --------------------------------------------------------------------------

    /// Sets the rule for every call from now on, as [`crate::Proxy::set_rule`] does.
    pub fn set_rule(&self, rule: impl Fn(&Call) -> Verdict + Send + Sync + 'static) {
        self.shared.rule.send_replace(Some(Arc::new(rule)));
    }

    /// Removes the rule, so that every call passes.
    pub fn clear_rule(&self) {
        self.shared.rule.send_replace(None);
    }

    /// Records of all calls, in the order received.
    pub fn calls(&self) -> Vec<Record> {
        self.shared.journal.select(|_| true)
    }

    /// Removes the records so far.
    pub fn reset(&self) {
        self.shared.journal.clear();
    }

    /// Stops the server: it closes all connections, new ones too. Its state stays.
    pub fn stop(&self) {
        self.shared.down.send_replace(true);
    }

    /// Starts it again: expired tokens are purged, and the controller reconciles every credential.
    pub fn restart(&self) {
        self.shared.with(|world| {
            self.shared.down.send_replace(false);
            world.crashed = false;
            world.purge();
            world.changed = world.secrets.keys().cloned().collect();
        });
    }

    /// Whether the server is down.
    pub fn is_down(&self) -> bool {
        *self.shared.down.borrow()
    }

    // ---- time ----------------------------------------------------------------------------

    /// Time of the server's clock, in milliseconds since the epoch.
    pub fn now(&self) -> i64 {
        self.shared.with(|world| world.now())
    }

    /// Moves its clock forward.
    pub fn advance(&self, by: Duration) {
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.shared.with(|world| world.advance(by));
    }

    /// Moves its clock by this many milliseconds, forward or back.
    pub fn shift(&self, milliseconds: i64) {
        self.shared.with(|world| world.advance(milliseconds));
    }

    /// Stops its clock at this millisecond, until it is moved.
    pub fn stand(&self, at: i64) {
        self.shared.with(|world| world.stand(at));
    }

    // ---- users and objects ---------------------------------------------------------------

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
        self.shared.with(|world| world.tokens.remove(name));
    }
}

fn refused(answer: Answer) -> anyhow::Error {
    match answer.body {
        Body::Json(body) => anyhow!("{}: {body}", answer.status),
        _ => anyhow!("{}", answer.status),
    }
}
