//! Owns the state of the stand-in: its clock, users, clusters, tokens and Secrets, and the user of
//! a request.
//!
//! Times are milliseconds since the epoch; a token's creation is rounded down to the whole second.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use aws_lc_rs::digest;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::Version;

/// Letters of generated names, as Kubernetes uses them.
const NAME_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SECRET_LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const MINUTE: i64 = 60_000;
pub(super) const HOUR: i64 = 60 * MINUTE;

#[allow(clippy::struct_excessive_bools, reason = "each is a fault of its own")]
pub(super) struct World {
    pub(super) version: Version,
    /// Offset to the machine's time, in milliseconds.
    ahead: i64,
    /// Time of a stopped clock.
    stands: Option<i64>,
    settings: BTreeMap<String, String>,
    pub(super) hashing: bool,
    pub(super) retired: bool,
    /// Whether the aggregated API has no endpoint.
    pub(super) ext_is_down: bool,
    pub(super) users: BTreeMap<String, User>,
    pub(super) clusters: BTreeMap<String, Cluster>,
    pub(super) tokens: BTreeMap<String, Token>,
    pub(super) kubeconfigs: BTreeMap<String, Value>,
    pub(super) secrets: BTreeMap<String, Value>,
    /// Time by which the second replica learns of a change later, in milliseconds. 0: there is none.
    pub(super) lag: i64,
    /// Number of requests: the two replicas take turns.
    requests: u64,
    /// Whether the second replica answers the present request.
    pub(super) is_second: bool,
    /// Deleted tokens, each with the time of its deletion: the second replica knows them for a while.
    gone: BTreeMap<String, (Token, i64)>,
    /// Tokens of ServiceAccounts of the server's own cluster, each with the Secret that it may get
    /// and patch.
    pub(super) accounts: BTreeMap<String, String>,
    /// Longest list of cloud credentials.
    pub(super) longest_list: usize,
    /// Cloud credentials that the controller has to reconcile.
    pub(super) changed: BTreeSet<String>,
    pub(super) crashed: bool,
    pub(super) url: String,
    pub(super) ca_pem: String,
    serial: u64,
    /// Seed of names and secrets.
    seed: [u8; 32],
}

#[derive(Clone)]
pub(super) struct User {
    pub(super) admin: bool,
}

pub(super) struct Cluster {
    pub(super) name: String,
    pub(super) members: BTreeSet<String>,
    /// Roles of members with limited rights.
    pub(super) roles: BTreeMap<String, Role>,
    pub(super) agent: bool,
    /// Whether it serves SelfSubjectReview.
    pub(super) reviews: bool,
}

/// Role of a member of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// Whether the role may write.
    pub writes: bool,
    /// Namespaces of the role, the only ones that its user sees. Empty: all.
    pub namespaces: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    V3,
    Ext,
}

#[derive(Clone)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) user: String,
    /// The secret half, or its hash.
    pub(super) stored: String,
    pub(super) hashed: bool,
    pub(super) created: i64,
    pub(super) ttl: i64,
    pub(super) description: String,
    pub(super) cluster: String,
    pub(super) enabled: bool,
    pub(super) last_used: Option<i64>,
    /// Cloud credential to which its controller assigned it.
    pub(super) owner: Option<String>,
    /// Whether the controller has written expiresAt.
    pub(super) shown: bool,
}

impl Token {
    pub(super) fn expired(&self, now: i64) -> bool {
        match self.ttl {
            0 => false,
            ttl if ttl < 0 && self.kind == Kind::Ext => false,
            ttl => now - self.created >= ttl,
        }
    }
}

/// Sender of a request.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Who {
    /// The request has no credentials.
    Anonymous,
    /// The token is expired, deleted, disabled, unknown, wrong or missing: the answer does not say
    /// which.
    Unknown,
    /// The user of this token.
    Token(String),
}

impl World {
    pub(super) fn new(version: Version, url: String, ca_pem: String) -> Result<Self> {
        let mut seed = [0; 32];
        aws_lc_rs::rand::fill(&mut seed)?;
        let mut settings = BTreeMap::from([
            ("kubeconfig-default-token-ttl-minutes", "43200"),
            ("auth-token-max-ttl-minutes", "129600"),
        ]);
        if version == Version::Main {
            settings.insert("kubeconfig-max-token-ttl-minutes", "129600");
            settings.insert("auth-token-default-ttl-minutes", "129600");
        }
        let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let local = Cluster {
            name: "local".to_owned(),
            members: BTreeSet::new(),
            roles: BTreeMap::new(),
            agent: true,
            reviews: true,
        };
        Ok(Self {
            version,
            ahead: 0,
            stands: None,
            settings: settings.into_iter().map(own).collect(),
            hashing: false,
            retired: false,
            ext_is_down: false,
            users: BTreeMap::new(),
            clusters: BTreeMap::from([("local".to_owned(), local)]),
            tokens: BTreeMap::new(),
            kubeconfigs: BTreeMap::new(),
            secrets: BTreeMap::new(),
            lag: 0,
            requests: 0,
            is_second: false,
            gone: BTreeMap::new(),
            accounts: BTreeMap::new(),
            longest_list: 3_000,
            changed: BTreeSet::new(),
            crashed: false,
            url,
            ca_pem,
            serial: 0,
            seed,
        })
    }

    // ---- the clock -----------------------------------------------------------------------

    pub(super) fn now(&self) -> i64 {
        self.stands.unwrap_or_else(|| machine() + self.ahead)
    }

    /// Stops the clock at this time; then only [`Self::advance`] moves it.
    pub(super) fn stand(&mut self, at: i64) {
        self.stands = Some(at);
    }

    /// Moves the clock. Passing an hour runs the hourly purge.
    pub(super) fn advance(&mut self, by: i64) {
        let before = self.now();
        match &mut self.stands {
            Some(at) => *at += by,
            None => self.ahead += by,
        }
        if before.div_euclid(HOUR) != self.now().div_euclid(HOUR) {
            self.purge();
        }
    }

    /// Deletes expired tokens: at the start of the server, then hourly.
    pub(super) fn purge(&mut self) {
        let now = self.now();
        self.tokens.retain(|_, token| !token.expired(now));
    }

    // ---- settings ------------------------------------------------------------------------

    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    /// Changes a setting; false if the setting does not exist.
    pub(super) fn set(&mut self, name: &str, value: &str) -> bool {
        let slot = self.settings.get_mut(name);
        slot.map(|slot| value.clone_into(slot)).is_some()
    }

    /// A setting in minutes, as milliseconds.
    fn minutes(&self, name: &str) -> i64 {
        self.setting(name).and_then(|text| text.parse::<i64>().ok()).unwrap_or(0) * MINUTE
    }

    /// Lifetime of a token for a requested lifetime.
    pub(super) fn token_ttl(&self, asked: i64) -> i64 {
        let max = self.minutes("auth-token-max-ttl-minutes");
        if self.version < Version::Main {
            return clamped(asked, max, asked <= 0);
        }
        let asked = match (asked, self.minutes("auth-token-default-ttl-minutes")) {
            (0, 0) => -1,
            (0, usual) => usual,
            (asked, _) => asked,
        };
        clamped(asked, max, asked < 0)
    }

    /// Lifetime of a token in a kubeconfig.
    pub(super) fn kubeconfig_ttl(&self) -> i64 {
        let usual = self.minutes("kubeconfig-default-token-ttl-minutes");
        if self.version < Version::Main {
            return clamped(usual, self.minutes("auth-token-max-ttl-minutes"), usual <= 0);
        }
        let usual = if usual == 0 { -1 } else { usual };
        clamped(usual, self.minutes("kubeconfig-max-token-ttl-minutes"), usual < 0)
    }

    // ---- names and secrets ---------------------------------------------------------------

    /// Next serial number, higher each time.
    pub(super) fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Draws at most 64 letters, different each time.
    fn letters(&mut self, from: &[u8], count: usize) -> String {
        let mut text = self.seed.to_vec();
        text.extend(self.serial().to_be_bytes());
        let drawn = digest::digest(&digest::SHA512, &text);
        let letter = |byte: &u8| char::from(from[usize::from(*byte) % from.len()]);
        drawn.as_ref().iter().take(count).map(letter).collect()
    }

    /// Draws a name that no object has.
    pub(super) fn name(&mut self, prefix: &str) -> String {
        loop {
            let name = format!("{prefix}{}", self.letters(NAME_LETTERS, 5));
            let taken = self.tokens.contains_key(&name)
                || self.secrets.contains_key(&name)
                || self.users.contains_key(&name)
                || self.kubeconfigs.contains_key(&name);
            if !taken {
                return name;
            }
        }
    }

    /// Stores a token and returns its bearer text.
    pub(super) fn mint(&mut self, name: &str, token: Token) -> String {
        let secret = self.letters(SECRET_LETTERS, 54);
        let hashed = self.hashing || token.kind == Kind::Ext;
        let stored = if hashed { hash(&secret) } else { secret.clone() };
        let bearer = match token.kind {
            Kind::V3 => format!("{name}:{secret}"),
            Kind::Ext => format!("ext/{name}:{secret}"),
        };
        self.tokens.insert(name.to_owned(), Token { stored, hashed, ..token });
        bearer
    }

    /// A token without a secret yet, created now.
    pub(super) fn blank(&self, kind: Kind, user: &str, ttl: i64, description: &str) -> Token {
        Token {
            kind,
            user: user.to_owned(),
            stored: String::new(),
            hashed: false,
            created: whole_second(self.now()),
            ttl,
            description: description.to_owned(),
            cluster: String::new(),
            enabled: true,
            last_used: None,
            owner: None,
            shown: kind == Kind::Ext,
        }
    }

    // ---- senders of requests -------------------------------------------------------------

    /// Deletes a token. The second replica knows it for a while.
    pub(super) fn delete_token(&mut self, name: &str) {
        let now = self.now();
        let gone = self.tokens.remove(name).map(|token| (token, now));
        self.gone.extend(gone.map(|gone| (name.to_owned(), gone)));
    }

    /// Token by name, as the replica that answers knows it. The second one asks the API server for a
    /// v3 token that it does not know, and for no other.
    pub(super) fn token(&self, name: &str) -> Option<&Token> {
        if !self.is_second {
            return self.tokens.get(name);
        }
        let then = self.now() - self.lag;
        let is_known = |token: &&Token| token.kind == Kind::V3 || token.created <= then;
        let late = || self.gone.get(name).filter(|(_, at)| *at > then).map(|(token, _)| token);
        self.tokens.get(name).filter(is_known).or_else(late)
    }

    /// Name of the token of a bearer text, if it is accepted.
    pub(super) fn holder(&self, bearer: &str) -> Option<String> {
        let (kind, rest) = match bearer.strip_prefix("ext/") {
            Some(rest) => (Kind::Ext, rest),
            None => (Kind::V3, bearer),
        };
        let (name, secret) = rest.split_once(':')?;
        let token = self.token(name).filter(|token| token.kind == kind && token.enabled)?;
        let right =
            if token.hashed { token.stored == hash(secret) } else { token.stored == secret };
        (right && !token.expired(self.now())).then(|| name.to_owned())
    }

    /// Sends the present request to the other replica than the one before, if there are two.
    pub(super) fn take_turns(&mut self) {
        self.requests += 1;
        self.is_second = self.lag > 0 && self.requests.is_multiple_of(2);
    }

    /// Sender of a request by its header. The use of a token is noted with the second.
    pub(super) fn who(&mut self, authorization: Option<&str>) -> Who {
        let words = authorization.map(str::trim).filter(|text| !text.is_empty());
        let Some(words) = words else { return Who::Anonymous };
        let bearer =
            words.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let name = match bearer.map(|(_, token)| token.trim()) {
            // A scheme without a token counts as no header.
            None if words.eq_ignore_ascii_case("bearer") => return Who::Anonymous,
            None => None,
            Some(token) => self.holder(token),
        };
        let now = whole_second(self.now());
        match name {
            None => Who::Unknown,
            Some(name) => {
                if let Some(token) = self.tokens.get_mut(&name) {
                    token.last_used = Some(now);
                }
                Who::Token(name)
            }
        }
    }

    /// User of a token that is valid for all of Rancher, not for one cluster.
    pub(super) fn user_of(&self, who: &Who) -> Option<String> {
        let Who::Token(name) = who else { return None };
        let token = self.token(name)?;
        token.cluster.is_empty().then(|| token.user.clone())
    }

    /// User of a token that is valid for this cluster.
    pub(super) fn user_in(&self, who: &Who, cluster: &str) -> Option<String> {
        let Who::Token(name) = who else { return None };
        let token = self.token(name)?;
        (token.cluster.is_empty() || token.cluster == cluster).then(|| token.user.clone())
    }

    pub(super) fn is_admin(&self, user: &str) -> bool {
        self.users.get(user).is_some_and(|user| user.admin)
    }

    pub(super) fn may_enter(&self, user: &str, cluster: &Cluster) -> bool {
        self.is_admin(user) || cluster.members.contains(user)
    }
}

fn clamped(asked: i64, max: i64, out: bool) -> i64 {
    if max > 0 && (out || asked > max) { max } else { asked }
}

fn machine() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

pub(super) fn whole_second(at: i64) -> i64 {
    at.div_euclid(1000) * 1000
}

/// Time in the format of Kubernetes.
pub(super) fn rfc3339(at: i64) -> String {
    Timestamp::from_millisecond(whole_second(at)).map(|at| at.to_string()).unwrap_or_default()
}

/// Time in the format of HTTP.
pub(super) fn http_date(at: i64) -> String {
    Timestamp::from_millisecond(at)
        .map(|at| at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string())
        .unwrap_or_default()
}

/// Hash of a secret in Rancher's format; the salt is always the same.
fn hash(secret: &str) -> String {
    let hex = hex(digest::digest(&digest::SHA512, secret.as_bytes()).as_ref());
    format!("$3:1:AAAAAAAAAAA:{}", &hex[..86])
}

pub(super) fn sha256(content: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, content).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
