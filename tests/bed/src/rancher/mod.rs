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
//! | a token for one cluster: 200 there and on `/v3/clusters/ID`; 401 on /v3/tokens, on ext.cattle.io and, if it is for another cluster, on `local` | all | seen on main |
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
//! | ext kubeconfigs: comments with name, creation and `ttl`; one user `rancher` for all clusters; a cluster and a context `rancher` for Rancher itself, unless `includeDefaultEntry` is false | from 2.14 | seen on main; read: pkg/ext/stores/kubeconfig/store.go, pkg/kubeconfig/templates.go |
//! | the UI's credential is such a kubeconfig | from 2.14 | read: management.cattle.io.cluster.js of dashboard |
//! | the UI leaves the entry for Rancher itself out | main | read: the same file; the version: assumed |
//! | several replicas: one that has not seen a deletion yet accepts the token; a new v3 token is accepted by all, because it is read from the API server if the cache lacks it; a new ext token is refused until the cache has it ([`Rancher::second_replica`]) | all | read: pkg/auth/requests/authenticate.go, pkg/ext/stores/tokens/tokens.go (`GetSecret`); the delay: assumed |
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
mod objects;
mod rights;
mod serve;
mod tokens;
mod world;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::listen;
use crate::pki::Authority;
use crate::proxy::{Call, Record, Verdict};
use serve::Shared;
pub use world::Role;
use world::World;

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
}
