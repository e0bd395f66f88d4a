//! Owns cloud credentials: Rancher's API for them, the Secrets that store them, and the controller
//! that reconciles each changed one.
//!
//! The API strips white space around a content, a patch of the Secret does not. A patch also passes
//! the API's checks.

use std::collections::BTreeSet;

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::Version;
use super::answer::{Answer, Request, empty, json_answer, kubernetes, must_authenticate, norman};
use super::clusters::{ACCOUNT, NAMESPACE};
use super::tokens::collection;
use super::world::{Token, Who, World, rfc3339, sha256};

const CONFIG: &str = "harvestercredentialConfig";
pub(super) const CONTENT: &str = "harvestercredentialConfig-kubeconfigContent";
const CREATOR: &str = "field.cattle.io/creatorId";
const CHECKSUM: &str = "management.cattle.io/harvester-token-checksum";
const EXPIRATION: &str = "rancher.io/expiration-timestamp";
const FINALIZER: &str = "management.cattle.io/harvester-token-cleanup";

/// Reason why the controller did not finish a credential.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stuck {
    /// The controller tries again.
    Again,
    /// The controller's process ended.
    Crashed,
}

impl World {
    // ---- the API of Rancher --------------------------------------------------------------

    /// Answers below /v3/cloudCredentials.
    pub(super) fn v3_credentials(&mut self, who: &Who, request: &Request, rest: &[&str]) -> Answer {
        let Some(user) = self.user_of(who) else { return must_authenticate() };
        match (request.method.as_str(), rest) {
            ("GET", []) => {
                let names = self.secrets.keys().filter(|name| self.may_have(&user, name));
                let mut data: Vec<Value> =
                    names.filter_map(|name| self.credential_view(name)).collect();
                let partial = data.len() > self.longest_list;
                data.truncate(self.longest_list);
                let mut list = collection("cloudCredential", &data);
                list["pagination"]["partial"] = partial.into();
                json_answer(200, list)
            }
            ("POST", []) => match request.json() {
                Err(refusal) => refusal,
                Ok(body) => {
                    let name = body["name"].as_str().unwrap_or_default().to_owned();
                    match self.create_credential(&user, &name, &body[CONFIG]) {
                        Err(refusal) => refusal,
                        Ok(name) => self.shown(201, &name),
                    }
                }
            },
            (method, [id]) => {
                let name = id.strip_prefix("cattle-global-data:").unwrap_or_default();
                if self.credential_view(name).is_none() {
                    return norman(404, "NotFound", &format!("{id} not found"));
                }
                if !self.may_have(&user, name) {
                    return norman(403, "Forbidden", &format!("{id} is forbidden"));
                }
                match method {
                    "GET" => self.shown(200, name),
                    "PUT" => match request.json() {
                        Err(refusal) => refusal,
                        Ok(body) => match self.put_credential(name, &body[CONFIG]) {
                            Err(refusal) => refusal,
                            Ok(()) => self.shown(200, name),
                        },
                    },
                    "DELETE" => {
                        self.remove_secret(name);
                        empty(200)
                    }
                    _ => norman(405, "MethodNotAllowed", "Method not allowed"),
                }
            }
            _ => norman(405, "MethodNotAllowed", "Method not allowed"),
        }
    }

    /// Creates a credential as the API does, and returns its name.
    pub(super) fn create_credential(
        &mut self,
        user: &str,
        name: &str,
        config: &Value,
    ) -> Result<String, Answer> {
        let content = self.checked(config)?;
        let cc = self.name("cc-");
        let secret = json!({
            "kind": "Secret", "apiVersion": "v1", "type": "Opaque",
            "metadata": {
                "name": cc, "namespace": NAMESPACE, "uid": cc,
                "creationTimestamp": rfc3339(self.now()),
                "labels": {"cattle.io/creator": "norman"},
                "annotations": {CREATOR: user, "field.cattle.io/name": name},
            },
            "data": {},
        });
        self.secrets.insert(cc.clone(), secret);
        self.set_config(&cc, config, content);
        Ok(cc)
    }

    pub(super) fn put_credential(&mut self, cc: &str, config: &Value) -> Result<(), Answer> {
        let content = self.checked(config)?;
        self.set_config(cc, config, content);
        Ok(())
    }

    /// Content of a config without surrounding white space, if the API accepts it.
    fn checked(&self, config: &Value) -> Result<Option<String>, Answer> {
        if !config.is_object() {
            return Err(norman(422, "MissingRequired", "a Config field must be set"));
        }
        let content = config["kubeconfigContent"].as_str().map(|text| text.trim().to_owned());
        if self.version < Version::V2_12 {
            return Ok(content);
        }
        let refuse = |why: String| {
            let message = format!("failed to process harvester cloud credential: {why}");
            norman(500, "ServerError", &message)
        };
        let names = extended(content.as_deref().unwrap_or_default()).map_err(&refuse)?;
        for name in &names {
            if !self.tokens.contains_key(name) {
                let why = format!(
                    "failed to get token: tokens.management.cattle.io \"{name}\" not found"
                );
                return Err(refuse(why));
            }
        }
        let used: BTreeSet<String> = self
            .secrets
            .keys()
            .flat_map(|cc| extended(&self.content(cc)).unwrap_or_default())
            .collect();
        match names.iter().find(|name| used.contains(*name)) {
            Some(name) => Err(refuse(format!("token {name} is already in use by secret"))),
            None => Ok(content),
        }
    }

    fn set_config(&mut self, cc: &str, config: &Value, content: Option<String>) {
        let expiry = content.as_deref().and_then(|content| self.expiry(content));
        let expiry = expiry.filter(|_| self.version == Version::V2_11);
        if let Some(secret) = self.secrets.get_mut(cc) {
            for field in ["clusterId", "clusterType"] {
                if let Some(text) = config[field].as_str() {
                    secret["data"][format!("{CONFIG}-{field}")] = encoded(text);
                }
            }
            if let Some(content) = content {
                secret["data"][CONTENT] = encoded(&content);
            }
            if let Some(expiry) = expiry {
                secret["metadata"]["annotations"][EXPIRATION] = json!(expiry);
            }
        }
        self.touch(cc);
    }

    /// End of the first token of a content, as the annotation of 2.9.3 to 2.11 holds it.
    fn expiry(&self, content: &str) -> Option<String> {
        let bearer = bearers(content).ok()?.into_iter().next()?;
        let token = self.tokens.get(bearer.split_once(':')?.0)?;
        (token.ttl > 0).then(|| (token.created + token.ttl).to_string())
    }

    fn may_have(&self, user: &str, cc: &str) -> bool {
        self.is_admin(user)
            || self.secrets.get(cc).is_some_and(|s| s["metadata"]["annotations"][CREATOR] == *user)
    }

    fn credential_view(&self, cc: &str) -> Option<Value> {
        let secret = self.secrets.get(cc)?;
        let key = secret["data"].as_object()?.keys().next()?;
        // The field's name identifies the driver.
        let driver = key.split('-').next().unwrap_or_default();
        let metadata = &secret["metadata"];
        let annotations = &metadata["annotations"];
        let text = |field: &str| decoded(&secret["data"][format!("{CONFIG}-{field}")]);
        Some(json!({
            "type": "cloudCredential", "baseType": "cloudCredential",
            "id": format!("{NAMESPACE}:{cc}"), "name": annotations["field.cattle.io/name"],
            "creatorId": annotations[CREATOR], "annotations": annotations,
            "labels": metadata["labels"], "created": metadata["creationTimestamp"],
            driver: {"clusterId": text("clusterId"), "clusterType": text("clusterType")},
        }))
    }

    fn shown(&self, status: u16, cc: &str) -> Answer {
        json_answer(status, self.credential_view(cc).unwrap_or_default())
    }

    // ---- the Secrets ---------------------------------------------------------------------

    /// Answers below the Secrets of cattle-global-data.
    pub(super) fn secrets_api(&mut self, user: &str, request: &Request, rest: &[&str]) -> Answer {
        let method = request.method.as_str();
        let (name, may) = match rest {
            [name] if user == ACCOUNT => (*name, ["GET", "PATCH"].contains(&method)),
            [] => ("", self.is_admin(user)),
            [name] => (*name, self.may_have(user, name)),
            _ => return kubernetes(404, "NotFound", "the server could not find the resource"),
        };
        if !may {
            let verb = if rest.is_empty() { "list" } else { "get" };
            let message = format!(
                "secrets \"{name}\" is forbidden: User \"{user}\" cannot {verb} resource \
                 \"secrets\" in API group \"\" in the namespace \"{NAMESPACE}\""
            );
            return kubernetes(403, "Forbidden", &message);
        }
        if name.is_empty() {
            let items: Vec<&Value> = self.secrets.values().collect();
            return match method {
                "GET" => json_answer(
                    200,
                    json!({
                        "kind": "SecretList", "apiVersion": "v1", "metadata": {}, "items": items,
                    }),
                ),
                "POST" => self.create_secret(request),
                _ => kubernetes(405, "MethodNotAllowed", "the server does not allow this method"),
            };
        }
        let Some(found) = self.secrets.get(name).cloned() else {
            return kubernetes(404, "NotFound", &format!("secrets \"{name}\" not found"));
        };
        match method {
            "GET" => json_answer(200, found),
            "PATCH" => self.patch_secret(name, &found, request),
            "DELETE" => {
                self.remove_secret(name);
                json_answer(200, found)
            }
            _ => kubernetes(405, "MethodNotAllowed", "the server does not allow this method"),
        }
    }

    fn create_secret(&mut self, request: &Request) -> Answer {
        let mut secret = match request.json() {
            Ok(body) => body,
            Err(refusal) => return refusal,
        };
        let name = secret["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if self.secrets.contains_key(&name) {
            return kubernetes(409, "AlreadyExists", &format!("secrets \"{name}\" already exists"));
        }
        secret["metadata"]["creationTimestamp"] = json!(rfc3339(self.now()));
        self.secrets.insert(name.clone(), secret);
        self.touch(&name);
        json_answer(201, self.secrets[&name].clone())
    }

    /// Applies a merge patch. If it names a resourceVersion, that must be the current one.
    fn patch_secret(&mut self, name: &str, found: &Value, request: &Request) -> Answer {
        if request.content_type != "application/merge-patch+json" {
            let message = "the stand-in takes application/merge-patch+json only";
            return kubernetes(415, "UnsupportedMediaType", message);
        }
        let patch = match request.json() {
            Ok(patch) => patch,
            Err(refusal) => return refusal,
        };
        let version = &patch["metadata"]["resourceVersion"];
        if !version.is_null() && *version != found["metadata"]["resourceVersion"] {
            let message = format!(
                "Operation cannot be fulfilled on secrets \"{name}\": the object has been modified; \
                 please apply your changes to the latest version and try again"
            );
            return kubernetes(409, "Conflict", &message);
        }
        let mut next = found.clone();
        json_patch::merge(&mut next, &patch);
        if next != *found {
            self.secrets.insert(name.to_owned(), next);
            self.touch(name);
        }
        json_answer(200, self.secrets[name].clone())
    }

    fn remove_secret(&mut self, name: &str) {
        let now = rfc3339(self.now());
        let Some(secret) = self.secrets.get_mut(name) else { return };
        if secret["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty()) {
            secret["metadata"]["deletionTimestamp"] = json!(now);
            self.touch(name);
        } else {
            self.secrets.remove(name);
        }
    }

    /// Gives a changed Secret a new version, and enqueues it for the controller.
    pub(super) fn touch(&mut self, name: &str) {
        self.version_up(name);
        self.changed.insert(name.to_owned());
    }

    fn version_up(&mut self, name: &str) {
        let version = self.serial().to_string();
        if let Some(secret) = self.secrets.get_mut(name) {
            secret["metadata"]["resourceVersion"] = json!(version);
        }
    }

    /// Kubeconfig in a Secret.
    pub(super) fn content(&self, name: &str) -> String {
        self.secrets.get(name).map(|secret| decoded(&secret["data"][CONTENT])).unwrap_or_default()
    }

    // ---- the controller ------------------------------------------------------------------

    /// Reconciles one credential, as the controller does.
    pub(super) fn look(&mut self, cc: &str) -> Result<(), Stuck> {
        if self.version < Version::V2_12 {
            return Ok(());
        }
        let Some(secret) = self.secrets.get(cc) else { return Ok(()) };
        if secret["data"].get(CONTENT).is_none() {
            return Ok(());
        }
        if secret["metadata"]["annotations"].as_object().is_none_or(serde_json::Map::is_empty) {
            self.crashed = true;
            return Err(Stuck::Crashed);
        }
        if secret["metadata"].get("deletionTimestamp").is_some() {
            self.delete_owned(cc, &BTreeSet::new());
            self.secrets.remove(cc);
            return Ok(());
        }
        if secret["metadata"]["finalizers"].is_null() {
            self.write(cc, |secret| secret["metadata"]["finalizers"] = json!([FINALIZER]));
        }
        let content = self.content(cc);
        let checksum = sha256(content.as_bytes());
        if self.secrets[cc]["metadata"]["annotations"][CHECKSUM] == *checksum {
            return Ok(());
        }
        let names = extended(&content).map_err(|_| Stuck::Again)?;
        if names.iter().any(|name| !self.tokens.contains_key(name)) {
            return Err(Stuck::Again);
        }
        self.delete_owned(cc, &names);
        for name in &names {
            if let Some(token) = self.tokens.get_mut(name) {
                token.ttl = 0;
                token.owner = Some(cc.to_owned());
            }
        }
        self.write(cc, |secret| {
            let annotations = &mut secret["metadata"]["annotations"];
            annotations[CHECKSUM] = json!(checksum);
            if let Some(annotations) = annotations.as_object_mut() {
                annotations.remove(EXPIRATION);
            }
        });
        Ok(())
    }

    /// Deletes the tokens that are assigned to a credential, but these.
    fn delete_owned(&mut self, cc: &str, kept: &BTreeSet<String>) {
        let is_gone = |(name, token): &(&String, &Token)| {
            token.owner.as_deref() == Some(cc) && !kept.contains(*name)
        };
        let gone: Vec<String> =
            self.tokens.iter().filter(is_gone).map(|(name, _)| name.clone()).collect();
        for name in gone {
            self.delete_token(&name);
        }
    }

    /// Writes for the controller. Its watch event needs no further work.
    fn write(&mut self, cc: &str, change: impl FnOnce(&mut Value)) {
        if let Some(secret) = self.secrets.get_mut(cc) {
            change(secret);
        }
        self.version_up(cc);
    }
}

/// Names of the tokens in a kubeconfig that the controller assigns to a credential.
fn extended(content: &str) -> Result<BTreeSet<String>, String> {
    let ours = |bearer: &String| {
        bearer.starts_with("kubeconfig-u-") || bearer.starts_with("kubeconfig-user-")
    };
    let name = |bearer: String| match bearer.split_once(':') {
        Some((name, _)) => Ok(name.to_owned()),
        None => Err("unable to get token name from content".to_owned()),
    };
    bearers(content)?.into_iter().filter(ours).map(name).collect()
}

/// All tokens of a kubeconfig.
fn bearers(content: &str) -> Result<Vec<String>, String> {
    if content.trim().is_empty() {
        return Ok(Vec::new());
    }
    let config: Value = serde_saphyr::from_str(content)
        .map_err(|e| format!("failed to unmarshal kubeconfig: {e}"))?;
    let users = config["users"].as_array().cloned().unwrap_or_default();
    Ok(users.iter().filter_map(|user| user["user"]["token"].as_str()).map(str::to_owned).collect())
}

fn encoded(text: &str) -> Value {
    serde_json::to_value(ByteString(text.as_bytes().to_vec())).unwrap_or_default()
}

fn decoded(value: &Value) -> String {
    let bytes: ByteString = serde_json::from_value(value.clone()).unwrap_or_default();
    String::from_utf8_lossy(&bytes.0).into_owned()
}
