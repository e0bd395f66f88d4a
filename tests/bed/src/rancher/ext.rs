//! Owns ext.cattle.io/v1: the tokens and kubeconfigs of Rancher's newer API.
//!
//! Tokens are always stored as hashes; the secret is in the answer to the creation and nowhere
//! else.

use serde_json::{Value, json};

use super::Version;
use super::answer::{Answer, Request, json_answer, kubernetes, text};
use super::world::{Kind, Token, World, rfc3339};

impl World {
    /// Answers below /apis/ext.cattle.io/v1.
    pub(super) fn ext(&mut self, user: &str, request: &Request, path: &[&str]) -> Answer {
        if self.ext_is_down {
            return text(503, "service unavailable\n");
        }
        match path {
            ["tokens", rest @ ..] if self.version >= Version::V2_12 => {
                self.ext_tokens(user, request, rest)
            }
            ["kubeconfigs", rest @ ..] if self.version >= Version::V2_14 => {
                self.ext_kubeconfigs(user, request, rest)
            }
            // Authorization comes before the check whether the kind exists. A plain user's roles
            // name a kind only in versions that have it.
            [kind, ..] if !self.is_admin(user) => {
                let verb = if request.method == "GET" { "list" } else { "create" };
                let message = format!(
                    "{kind}.ext.cattle.io is forbidden: User \"{user}\" cannot {verb} resource \"{kind}\" \
                     in API group \"ext.cattle.io\" at the cluster scope"
                );
                kubernetes(403, "Forbidden", &message)
            }
            _ => kubernetes(404, "NotFound", "the server could not find the requested resource"),
        }
    }

    fn ext_tokens(&mut self, user: &str, request: &Request, rest: &[&str]) -> Answer {
        let admin = self.is_admin(user);
        match (request.method.as_str(), rest) {
            ("POST", []) => self.ext_mint(user, request),
            ("GET", []) => {
                let seen = |token: &Token| token.kind == Kind::Ext && (admin || token.user == user);
                let names = self.tokens.iter().filter(|(_, token)| seen(token));
                let items: Vec<Value> = names.map(|(name, _)| self.ext_view(name)).collect();
                json_answer(
                    200,
                    json!({
                        "kind": "TokenList", "apiVersion": "ext.cattle.io/v1", "metadata": {},
                        "items": items,
                    }),
                )
            }
            (method, [name]) => {
                let seen = |t: &&Token| t.kind == Kind::Ext && (admin || t.user == user);
                let Some(token) = self.tokens.get(*name).filter(seen).cloned() else {
                    let message = format!("tokens.ext.cattle.io \"{name}\" not found");
                    return kubernetes(404, "NotFound", &message);
                };
                match method {
                    "GET" => json_answer(200, self.ext_view(name)),
                    "PUT" => self.ext_change(name, &token, request),
                    "DELETE" => {
                        let view = self.ext_view(name);
                        self.delete_token(name);
                        json_answer(200, view)
                    }
                    _ => not_allowed(),
                }
            }
            _ => not_allowed(),
        }
    }

    fn ext_mint(&mut self, user: &str, request: &Request) -> Answer {
        let body = match request.json() {
            Ok(body) => body,
            Err(refusal) => return refusal,
        };
        let spec = &body["spec"];
        if spec["userID"].as_str().is_some_and(|asked| asked != user) {
            return kubernetes(400, "BadRequest", "unable to create token for other user");
        }
        let asked = spec["ttl"].as_i64().unwrap_or(0);
        let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
        let (name, bearer) = self.mint_ext(user, self.token_ttl(asked), &text("description"));
        if let Some(token) = self.tokens.get_mut(&name) {
            token.cluster = text("clusterName");
        }
        let mut view = self.ext_view(&name);
        view["status"]["value"] =
            json!(bearer.rsplit_once(':').map(|(_, secret)| secret).unwrap_or_default());
        if self.version >= Version::V2_14 {
            view["status"]["bearerToken"] = json!(bearer);
        }
        json_answer(201, view)
    }

    /// Makes a token; returns its name and its bearer text.
    pub(super) fn mint_ext(&mut self, user: &str, ttl: i64, what: &str) -> (String, String) {
        let blank = self.blank(Kind::Ext, user, ttl, what);
        let name = self.name("token-");
        let bearer = self.mint(&name, blank);
        (name, bearer)
    }

    /// Changes a token: its lifetime may be shortened, never extended.
    fn ext_change(&mut self, name: &str, was: &Token, request: &Request) -> Answer {
        let body = match request.json() {
            Ok(body) => body,
            Err(refusal) => return refusal,
        };
        let ttl = body["spec"]["ttl"].as_i64().unwrap_or(was.ttl);
        if ttl > was.ttl || ttl <= 0 && ttl != was.ttl {
            return kubernetes(400, "BadRequest", "forbidden to extend time-to-live");
        }
        let enabled = body["spec"]["enabled"].as_bool().unwrap_or(was.enabled);
        if let Some(token) = self.tokens.get_mut(name) {
            token.ttl = ttl;
            token.enabled = enabled;
        }
        json_answer(200, self.ext_view(name))
    }

    fn ext_view(&self, name: &str) -> Value {
        let Some(token) = self.tokens.get(name) else { return Value::Null };
        json!({
            "kind": "Token", "apiVersion": "ext.cattle.io/v1",
            "metadata": {
                "name": name, "uid": name, "creationTimestamp": rfc3339(token.created),
                "labels": {"cattle.io/user-id": token.user},
            },
            "spec": {
                "userID": token.user, "ttl": token.ttl, "description": token.description,
                "enabled": token.enabled, "clusterName": token.cluster,
                "userPrincipal": {"metadata": {"name": format!("local://{}", token.user)}},
            },
            "status": {
                "current": false, "expired": token.expired(self.now()),
                "expiresAt": rfc3339(token.created + token.ttl),
                "lastUsedAt": token.last_used.map(rfc3339),
                "lastUpdateTime": rfc3339(token.created),
            },
        })
    }

    fn ext_kubeconfigs(&mut self, user: &str, request: &Request, rest: &[&str]) -> Answer {
        match (request.method.as_str(), rest) {
            ("POST", []) => self.ext_kubeconfig(user, request),
            (method, [name]) => {
                let Some(found) = self.kubeconfigs.get(*name).cloned() else {
                    let message = format!("kubeconfigs.ext.cattle.io \"{name}\" not found");
                    return kubernetes(404, "NotFound", &message);
                };
                match method {
                    "GET" => json_answer(200, found),
                    "PUT" => kubernetes(400, "BadRequest", "spec.ttl is immutable"),
                    "DELETE" => {
                        self.kubeconfigs.remove(*name);
                        for token in found["status"]["tokens"].as_array().into_iter().flatten() {
                            self.delete_token(token.as_str().unwrap_or_default());
                        }
                        json_answer(200, found)
                    }
                    _ => not_allowed(),
                }
            }
            _ => not_allowed(),
        }
    }

    fn ext_kubeconfig(&mut self, user: &str, request: &Request) -> Answer {
        let body = match request.json() {
            Ok(body) => body,
            Err(refusal) => return refusal,
        };
        let usual = self.kubeconfig_ttl() / 1000;
        let asked = body["spec"]["ttl"].as_i64().unwrap_or(0);
        if asked < 0 {
            return kubernetes(400, "BadRequest", "spec.ttl can't be negative (infinite)");
        }
        let limit = if self.version == Version::Main { "max" } else { "default" };
        let setting = format!("kubeconfig-{limit}-token-ttl-minutes");
        let minutes: i64 = self.setting(&setting).and_then(|text| text.parse().ok()).unwrap_or(0);
        let most = minutes * 60;
        if most > 0 && asked > most {
            let message = format!("spec.ttl {asked} exceeds max ttl {most}");
            return kubernetes(400, "BadRequest", &message);
        }
        let cluster = body["spec"]["clusters"][0].as_str().unwrap_or("local").to_owned();
        if cluster != "*" && !self.clusters.contains_key(&cluster) {
            return kubernetes(400, "BadRequest", &format!("cluster {cluster} not found"));
        }
        let ttl = if asked == 0 { usual } else { asked };
        let with_own = body["spec"]["includeDefaultEntry"].as_bool().unwrap_or(true);
        json_answer(201, self.make_kubeconfig(user, &cluster, ttl * 1000, with_own))
    }

    /// Makes a kubeconfig with a token of its own. `ttl` in milliseconds. `with_own`: with an entry for
    /// Rancher itself.
    pub(super) fn make_kubeconfig(
        &mut self,
        user: &str,
        cluster: &str,
        ttl: i64,
        with_own: bool,
    ) -> Value {
        let (token, bearer) = if self.version < Version::V2_15 {
            let blank = self.blank(Kind::V3, user, ttl, "Kubeconfig token");
            let name = self.name(&format!("kubeconfig-{user}"));
            let bearer = self.mint(&name, blank);
            (name, bearer)
        } else {
            self.mint_ext(user, ttl, "Kubeconfig token")
        };
        let (name, seconds) = (self.name("kubeconfig-"), ttl / 1000);
        let mut made = json!({
            "kind": "Kubeconfig", "apiVersion": "ext.cattle.io/v1",
            "metadata": {"name": name, "creationTimestamp": rfc3339(self.now())},
            "spec": {"clusters": [cluster], "ttl": seconds},
            "status": {
                "summary": "Complete", "tokens": [token],
                "conditions": [{"type": "TokenCreated", "status": "True"}],
            },
        });
        self.kubeconfigs.insert(name.clone(), made.clone());
        let text = self.ext_kubeconfig_text((&name, seconds), cluster, &bearer, with_own);
        made["status"]["value"] = json!(text);
        made
    }
}

fn not_allowed() -> Answer {
    kubernetes(405, "MethodNotAllowed", "the server does not allow this method")
}
