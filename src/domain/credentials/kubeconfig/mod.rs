//! Changes of kubeconfigs. There are two kinds:
//!
//! * The tokens of one user change: the token in use, and the old token, which has a user entry of
//!   its own.
//! * A new kubeconfig for another server is made.
//!
//! Invariants:
//!
//! * If only tokens change, the clusters, the contexts, the other users and unknown fields stay the
//!   same.
//! * The token of a user is replaced only if the user's entry selects no other method of
//!   authentication. The error about another method names the user.
//! * The written text parses to the intended value.
//!
//! The file is read as a JSON value, not as the type `Kubeconfig` of kube-client. That type refuses
//! a whole file if one field of any entry has an unexpected type, and drops fields whose value is
//! null.

use serde_json::{Value, json};

use super::client_certificate;
use super::credential_fault::CredentialFault;
use super::secret_text::SecretText;
use super::token::TokenClaims;

/// Fields of a user entry. If the entry has one of them, the operator does not replace its token,
/// because a client would use the field instead of the token, or together with the token.
const OTHER_AUTH_FIELDS: [&str; 8] = [
    "exec",
    "auth-provider",
    "tokenFile",
    "username",
    "password",
    "client-certificate",
    "client-certificate-data",
    "client-key",
];
/// Fields of a user entry. Each field selects a method of authentication for which the file does
/// not state an expiry.
const UNKNOWN_END_FIELDS: [&str; 6] =
    ["exec", "auth-provider", "tokenFile", "username", "password", "client-certificate"];
/// Suffix of the name of a user entry that keeps an old token. For the user `admin`, the entry is
/// `admin-previous`.
const PREVIOUS: &str = "-previous";
/// Name of the cluster, the context and the user in a new kubeconfig for another server.
const MADE: &str = "harvester";

/// Parsed content of a kubeconfig.
pub struct Kubeconfig(Value);

/// Server to which a client sends a user's token, as a kubeconfig describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerEndpoint {
    /// URL of the API server.
    pub server: String,
    /// Certificates of the server's authority, PEM in base64. `None`: the system's authorities are
    /// trusted.
    pub authority: Option<String>,
    /// Name in the server's certificate, if it differs from the host in the URL.
    pub server_name: Option<String>,
    /// Whether the kubeconfig turns off the check of the server's certificate.
    pub insecure: bool,
}

impl ServerEndpoint {
    /// Checks that a token may be sent to the server. The error is the reason why no token may be
    /// sent.
    pub fn check(&self) -> Result<(), CredentialFault> {
        let is_secure = self.server.get(..8).is_some_and(|s| s.eq_ignore_ascii_case("https://"));
        if self.insecure {
            Err(CredentialFault::Unverified)
        } else if is_secure {
            Ok(())
        } else {
            Err(CredentialFault::InClear)
        }
    }
}

impl Kubeconfig {
    /// Parses a kubeconfig in YAML or JSON. The error does not repeat the text, because the text
    /// may be secret.
    pub fn parse(text: &str) -> Result<Self, CredentialFault> {
        let value: Value = serde_saphyr::from_str(text).map_err(|_| CredentialFault::NotYaml)?;
        if value["users"].as_array().is_none_or(Vec::is_empty) {
            return Err(CredentialFault::NoUsers);
        }
        Ok(Self(value))
    }

    /// Entries of a list in the file, such as `users`.
    fn entries(&self, list: &str) -> impl Iterator<Item = &Value> {
        self.0[list].as_array().into_iter().flatten()
    }

    /// All tokens in the file that are not empty. Field 0: name of the user. Field 1: token of this
    /// user.
    pub fn tokens(&self) -> Vec<(String, SecretText)> {
        self.entries("users")
            .filter_map(|entry| {
                let token = entry["user"]["token"].as_str().filter(|token| !token.is_empty())?;
                let user = entry["name"].as_str().unwrap_or_default();
                Some((user.to_owned(), SecretText::trimmed(token.to_owned())))
            })
            .collect()
    }

    /// Methods by which the users in the file authenticate. The result can have several entries for
    /// one user. Field 0: name of the user. Field 1: name and times of the token or certificate.
    /// The error in field 1 says why the expiry is not known. If a user has several of the methods
    /// in `UNKNOWN_END_FIELDS`, only the one that comes first in that list gets an entry.
    pub fn auth_methods(&self) -> Vec<(String, Result<TokenClaims, String>)> {
        self.entries("users")
            .flat_map(|entry| {
                let user = entry["name"].as_str().unwrap_or_default();
                auth_methods(&entry["user"]).into_iter().map(|method| (user.to_owned(), method))
            })
            .collect()
    }

    /// Whether the file has a user with this name.
    pub fn has_user(&self, user: &str) -> bool {
        self.entries("users").any(|entry| entry["name"] == user)
    }

    /// Name of the current context's user. It is an error if the context or its user is missing.
    pub fn current_user(&self) -> Result<String, CredentialFault> {
        let name = &self.0["current-context"];
        let mut contexts = self.entries("contexts");
        let context = contexts.find(|context| context["name"] == *name && name.is_string());
        let user = context.and_then(|context| context["context"]["user"].as_str());
        user.map(str::to_owned).ok_or(CredentialFault::NoCurrentUser)
    }

    /// Old token of `user` that the file keeps beside the user's present token. `None`: no old
    /// token is kept.
    pub fn kept_token(&self, user: &str) -> Option<SecretText> {
        let name = format!("{user}{PREVIOUS}");
        self.tokens().into_iter().find(|(user, _)| *user == name).map(|(_, token)| token)
    }

    /// Token of `user`. `None`: the user has no token yet, and the operator can add one. The error
    /// says why the operator cannot give the user a token.
    pub fn token_of(&self, user: &str) -> Result<Option<SecretText>, CredentialFault> {
        let entry = self.entry(user)?;
        let token = entry["user"]["token"].as_str().filter(|token| !token.trim().is_empty());
        Ok(token.map(|token| SecretText::trimmed(token.to_owned())))
    }

    /// Text of this kubeconfig with `token` as the token of `user`. The error says why the text
    /// cannot be made. `kept`: old token that is stored in a user entry of its own, because the
    /// issuer may delete a token that the target no longer names. `None`: an existing entry for an
    /// old token stays as it is.
    pub fn with_token(
        &self,
        user: &str,
        token: &SecretText,
        kept: Option<&SecretText>,
    ) -> Result<String, CredentialFault> {
        self.entry(user)?;
        let mut config = self.0.clone();
        let users = config["users"].as_array_mut().into_iter().flatten();
        for entry in users.filter(|entry| entry["name"] == user) {
            if !entry["user"].is_object() {
                entry["user"] = json!({});
            }
            entry["user"]["token"] = json!(token.reveal());
        }
        if let (Some(old), Some(users)) = (kept, config["users"].as_array_mut()) {
            let name = format!("{user}{PREVIOUS}");
            users.retain(|entry| entry["name"] != name.as_str());
            users.push(json!({"name": name, "user": {"token": old.reveal()}}));
        }
        to_yaml(&config)
    }

    /// Text of a new kubeconfig for the server `to`, with one context, whose user has `token`.
    /// `kept`: old token, for a second user entry. `None`: there is no second user entry.
    pub fn for_server(
        to: &ServerEndpoint,
        token: &SecretText,
        kept: Option<&SecretText>,
    ) -> Result<String, CredentialFault> {
        let mut cluster = json!({"server": to.server});
        if let Some(authority) = &to.authority {
            cluster["certificate-authority-data"] = json!(authority);
        }
        let mut users = vec![json!({"name": MADE, "user": {"token": token.reveal()}})];
        users.extend(kept.map(
            |old| json!({"name": format!("{MADE}{PREVIOUS}"), "user": {"token": old.reveal()}}),
        ));
        to_yaml(&json!({
            "apiVersion": "v1", "kind": "Config", "current-context": MADE,
            "clusters": [{"name": MADE, "cluster": cluster}],
            "contexts": [{"name": MADE, "context": {"cluster": MADE, "user": MADE}}],
            "users": users,
        }))
    }

    /// Text of this kubeconfig without the entry that keeps an old token of `user`. `None`: there
    /// is no such entry. The error says why the text cannot be made.
    pub fn without_kept(&self, user: &str) -> Result<Option<String>, CredentialFault> {
        self.entry(user)?;
        let name = format!("{user}{PREVIOUS}");
        let mut config = self.0.clone();
        let Some(users) = config["users"].as_array_mut() else { return Ok(None) };
        let before = users.len();
        users.retain(|entry| entry["name"] != name.as_str());
        if users.len() == before { Ok(None) } else { to_yaml(&config).map(Some) }
    }

    /// Server to which a client sends the token of `user`. If the current context has this user,
    /// the current context gives the server. If not, the first context with this user gives the
    /// server. The error says which part is missing or cannot be used.
    pub fn reach(&self, user: &str) -> Result<ServerEndpoint, CredentialFault> {
        self.entry(user)?;
        let theirs = |context: &&Value| context["context"]["user"] == user;
        let current = &self.0["current-context"];
        let context = self
            .entries("contexts")
            .filter(theirs)
            .find(|context| context["name"] == *current)
            .or_else(|| self.entries("contexts").find(theirs))
            .ok_or_else(|| CredentialFault::NoContext(user.to_owned()))?;
        let name = &context["context"]["cluster"];
        let cluster = self
            .entries("clusters")
            .find(|cluster| cluster["name"] == *name && !name.is_null())
            .map(|entry| &entry["cluster"])
            .ok_or_else(|| CredentialFault::NoCluster(user.to_owned()))?;
        let text = |field: &str| cluster[field].as_str().map(str::to_owned);
        for field in ["proxy-url", "certificate-authority"] {
            if cluster[field].as_str().is_some_and(|value| !value.is_empty()) {
                return Err(CredentialFault::Untestable(field));
            }
        }
        Ok(ServerEndpoint {
            server: text("server").ok_or(CredentialFault::NoServer)?,
            authority: text("certificate-authority-data").filter(|data| !data.is_empty()),
            server_name: text("tls-server-name").filter(|name| !name.is_empty()),
            insecure: cluster["insecure-skip-tls-verify"] == true,
        })
    }

    /// Entry of `user` in the list of users. It is an error if the user has no entry, two entries,
    /// or a method of authentication other than a token in the file.
    fn entry(&self, user: &str) -> Result<&Value, CredentialFault> {
        let mut all = self.entries("users");
        let entry = all
            .find(|entry| entry["name"] == user)
            .ok_or_else(|| CredentialFault::NoUser(user.to_owned()))?;
        if all.any(|entry| entry["name"] == user) {
            return Err(CredentialFault::TwoUsers(user.to_owned()));
        }
        match OTHER_AUTH_FIELDS.iter().find(|method| !entry["user"][**method].is_null()) {
            Some(&method) => Err(CredentialFault::OtherMethod { user: user.to_owned(), method }),
            None => Ok(entry),
        }
    }
}

fn auth_methods(user: &Value) -> Vec<Result<TokenClaims, String>> {
    let text = |field: &str| user[field].as_str().filter(|text| !text.is_empty());
    let mut auth_methods = Vec::new();
    // A client prefers `tokenFile` to `token`. So `token` counts only if there is no `tokenFile`.
    if let Some(token) = text("token").filter(|_| text("tokenFile").is_none()) {
        auth_methods.push(Ok(SecretText::trimmed(token.to_owned()).claims()));
    }
    if let Some(data) = text("client-certificate-data") {
        let why = "its client-certificate-data is not a certificate";
        auth_methods.push(client_certificate::claims(data).ok_or_else(|| why.to_owned()));
    }
    let is_there = |method: &&&str| !user[**method].is_null() && user[**method] != "";
    // A client prefers a certificate in the file to a path to a certificate. So the path counts
    // only if there is no certificate in the file.
    let path = |method: &&&str| {
        **method == "client-certificate" && text("client-certificate-data").is_some()
    };
    if let Some(method) = UNKNOWN_END_FIELDS.iter().find(|method| is_there(method) && !path(method))
    {
        auth_methods.push(Err(format!(
            "the user authenticates by {method}: the file does not say when the credential expires"
        )));
    }
    auth_methods
}

fn to_yaml(config: &Value) -> Result<String, CredentialFault> {
    let text = serde_saphyr::to_string(config).map_err(|_| CredentialFault::NotWritable)?;
    let again: Option<Value> = serde_saphyr::from_str(&text).ok();
    if again.as_ref() == Some(config) { Ok(text) } else { Err(CredentialFault::ReadsOtherwise) }
}

#[cfg(test)]
mod tests;
