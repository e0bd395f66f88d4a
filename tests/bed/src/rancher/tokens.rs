//! Owns /v3/tokens and /v3/settings: Rancher's older API for tokens.
//!
//! A secret is in the answer to its creation and nowhere else. Every user sees only their own
//! tokens, administrators too.

use serde_json::{Value, json};

use super::answer::{Answer, Request, empty, json_answer, must_authenticate, norman};
use super::world::{Kind, Token, Who, World, rfc3339};

impl World {
    /// Answers below /v3/tokens.
    pub(super) fn v3_tokens(&mut self, who: &Who, request: &Request, rest: &[&str]) -> Answer {
        let Some(user) = self.user_of(who) else { return must_authenticate() };
        if self.retired {
            return norman(404, "NotFound", "no resource type: tokens");
        }
        match (request.method.as_str(), rest) {
            ("GET", []) => self.v3_list(&user),
            ("POST", []) => self.v3_mint(&user, request),
            (_, []) => norman(405, "MethodNotAllowed", "Method not allowed"),
            (method, [name]) => {
                if !self.tokens.get(*name).is_some_and(|t| t.kind == Kind::V3 && t.user == user) {
                    return norman(404, "NotFound", &format!("{name} not found"));
                }
                match method {
                    "GET" => {
                        let answer = self.v3_view(name);
                        self.show_end(name);
                        json_answer(200, answer)
                    }
                    "DELETE" => {
                        self.delete_token(name);
                        empty(204)
                    }
                    // The links offer it, but it does not exist.
                    "PUT" => norman(404, "NotFound", "no store found"),
                    _ => norman(405, "MethodNotAllowed", "Method not allowed"),
                }
            }
            _ => norman(404, "NotFound", "not found"),
        }
    }

    fn v3_mint(&mut self, user: &str, request: &Request) -> Answer {
        let body = match request.json() {
            Ok(body) => body,
            Err(refusal) => return refusal,
        };
        let asked = match &body["ttl"] {
            Value::Null => 0,
            Value::Number(number) => number.as_i64().unwrap_or(0),
            _ => {
                let message =
                    "json: cannot unmarshal string into Go struct field Token.ttl of type int64";
                return norman(422, "InvalidFormat", message);
            }
        };
        let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
        let blank = self.blank(Kind::V3, user, self.token_ttl(asked), &text("description"));
        let name = self.name("token-");
        let bearer = self.mint(&name, Token { cluster: text("clusterId"), ..blank });
        let mut view = self.v3_view(&name);
        view["token"] = json!(bearer);
        self.show_end(&name);
        json_answer(201, view)
    }

    fn v3_list(&mut self, user: &str) -> Answer {
        let own = |(_, token): &(&String, &Token)| token.kind == Kind::V3 && token.user == user;
        let names: Vec<String> =
            self.tokens.iter().filter(own).map(|(name, _)| name.clone()).collect();
        let data: Vec<Value> = names.iter().map(|name| self.v3_view(name)).collect();
        for name in &names {
            self.show_end(name);
        }
        json_answer(200, collection("token", &data))
    }

    /// Token in the form of /v3, without its secret.
    fn v3_view(&self, name: &str) -> Value {
        let Some(token) = self.tokens.get(name) else { return Value::Null };
        let expires = if token.shown && token.ttl != 0 {
            rfc3339(token.created + token.ttl)
        } else {
            String::new()
        };
        let kind = if name.starts_with("kubeconfig-") { "kubeconfig" } else { "" };
        json!({
            "type": "token", "baseType": "token", "id": name, "name": name,
            "authProvider": "local", "userId": token.user, "isDerived": true,
            "clusterId": if token.cluster.is_empty() { Value::Null } else { json!(token.cluster) },
            // False even for the token of the request, when that is an API key.
            "current": false,
            "description": token.description, "enabled": token.enabled, "ttl": token.ttl,
            "created": rfc3339(token.created), "createdTS": token.created,
            "expired": token.expired(self.now()), "expiresAt": expires,
            "lastUsedAt": token.last_used.map(rfc3339),
            "labels": {
                "authn.management.cattle.io/token-userId": token.user,
                "authn.management.cattle.io/kind": kind,
            },
            "uuid": name,
            "links": {
                "self": format!("{}/v3/tokens/{name}", self.url),
                "update": format!("{}/v3/tokens/{name}", self.url),
                "remove": format!("{}/v3/tokens/{name}", self.url),
            },
        })
    }

    /// Makes the next read of the token show its expiresAt, which a controller writes a moment
    /// later.
    fn show_end(&mut self, name: &str) {
        if let Some(token) = self.tokens.get_mut(name) {
            token.shown = true;
        }
    }

    /// Answers below /v3/settings.
    pub(super) fn v3_settings(&mut self, who: &Who, request: &Request, rest: &[&str]) -> Answer {
        let &[name] = rest else { return norman(404, "NotFound", "not found") };
        let user = self.user_of(who);
        if user.is_none() && name != "cacerts" {
            return must_authenticate();
        }
        if name == "cacerts" && request.method == "GET" {
            return json_answer(200, json!({"type": "setting", "id": name, "value": self.ca_pem}));
        }
        match request.method.as_str() {
            "PUT" if name == "cacerts" => norman(405, "MethodNotAllowed", "cacerts is readOnly"),
            "PUT" if !user.is_some_and(|user| self.is_admin(&user)) => {
                norman(403, "Forbidden", "settings.management.cattle.io is forbidden")
            }
            "PUT" => match request.json() {
                Err(refusal) => refusal,
                Ok(body) => {
                    if !self.set(name, body["value"].as_str().unwrap_or_default()) {
                        return norman(404, "NotFound", &format!("{name} not found"));
                    }
                    self.setting_view(name)
                }
            },
            "GET" => self.setting_view(name),
            _ => norman(405, "MethodNotAllowed", "Method not allowed"),
        }
    }

    fn setting_view(&self, name: &str) -> Answer {
        match self.setting(name) {
            Some(value) => json_answer(200, json!({"type": "setting", "id": name, "value": value})),
            None => norman(404, "NotFound", &format!("{name} not found")),
        }
    }
}

/// List in the form of /v3.
pub(super) fn collection(kind: &str, data: &[Value]) -> Value {
    json!({
        "type": "collection", "resourceType": kind, "data": data,
        "pagination": {"limit": 1000, "total": data.len()},
    })
}
