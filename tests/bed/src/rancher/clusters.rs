//! Owns the routes to the clusters, and the dispatch by path: `/v3/clusters`, `/k8s/clusters/<id>`
//! and the server's own Kubernetes API.

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::Version;
use super::answer::{
    Answer, Body, Request, json_answer, kubernetes, must_authenticate, norman, text, tunnel,
    unauthorized,
};
use super::rights::ACCESS_REVIEW;
use super::world::{Kind, Token, Who, World, rfc3339};

const REVIEW: [&str; 4] = ["apis", "authentication.k8s.io", "v1", "selfsubjectreviews"];
const EXT: [&str; 3] = ["apis", "ext.cattle.io", "v1"];
pub(super) const NAMESPACE: &str = "cattle-global-data";
/// Name of the user in kubeconfigs of ext.cattle.io, and of the cluster and context for Rancher itself.
const SHARED: &str = "rancher";
/// User name of every ServiceAccount.
pub(super) const ACCOUNT: &str = "system:serviceaccount:cattle-global-data:operator";

impl World {
    /// Answers a request.
    pub(super) fn answer(&mut self, request: &Request) -> Answer {
        self.take_turns();
        let answer = self.route(request);
        self.is_second = false;
        answer
    }

    fn route(&mut self, request: &Request) -> Answer {
        let who = self.who(request.authorization.as_deref());
        let path: Vec<&str> = request.path.iter().map(String::as_str).collect();
        match path[..] {
            ["cacerts"] => text(200, &self.ca_pem),
            ["v3", "tokens", ref rest @ ..] => self.v3_tokens(&who, request, rest),
            ["v3", "settings", ref rest @ ..] => self.v3_settings(&who, request, rest),
            ["v3", "clusters", id] => self.v3_cluster(&who, request, id),
            ["v3", "cloudCredentials", ref rest @ ..] => self.v3_credentials(&who, request, rest),
            ["v3", ..] if self.user_of(&who).is_none() => must_authenticate(),
            ["v3", ..] => norman(404, "NotFound", "not found"),
            ["k8s", "clusters", id, ref rest @ ..] if id != "local" => {
                self.downstream(&who, request, id, rest)
            }
            // A ServiceAccount may do there what a Role says, and nothing else.
            ["k8s", "clusters", "local", ref rest @ ..] if self.secret_of(request).is_some() => {
                match (rest, self.secret_of(request)) {
                    (["api", "v1", "namespaces", NAMESPACE, "secrets", name], Some(secret))
                        if *name == secret =>
                    {
                        self.secrets_api(ACCOUNT, request, &[name])
                    }
                    _ => kubernetes(403, "Forbidden", &format!("User \"{ACCOUNT}\" is forbidden")),
                }
            }
            ["k8s", "clusters", "local", ref rest @ ..] => {
                let user = self.user_in(&who, "local");
                self.local(&who, user, request, rest)
            }
            ref rest => {
                let user = self.user_of(&who);
                self.local(&who, user, request, rest)
            }
        }
    }

    /// Secret that the caller may get and patch, if it is a ServiceAccount.
    fn secret_of(&self, request: &Request) -> Option<String> {
        let token = request.authorization.as_deref()?.strip_prefix("Bearer ")?;
        self.accounts.get(token).cloned()
    }

    /// Answers for the server's own Kubernetes API.
    fn local(
        &mut self,
        who: &Who,
        user: Option<String>,
        request: &Request,
        path: &[&str],
    ) -> Answer {
        if *who == Who::Anonymous {
            return match path {
                ["version"] => version(),
                _ => Answer {
                    body: Body::Text("not authorized".to_owned()),
                    ..json_answer(401, Value::Null)
                },
            };
        }
        let Some(user) = user else { return unauthorized() };
        match path {
            ["version"] => version(),
            _ if *path == REVIEW => self.review(who, request),
            _ if *path == ACCESS_REVIEW => self.access_review(&user, None, request),
            ["api", "v1", "namespaces", NAMESPACE, "secrets", rest @ ..] => {
                self.secrets_api(&user, request, rest)
            }
            [a, b, c, rest @ ..] if [*a, *b, *c] == EXT => self.ext(&user, request, rest),
            _ => kubernetes(404, "NotFound", "the server could not find the requested resource"),
        }
    }

    /// Answers for another cluster, through its agent.
    fn downstream(&mut self, who: &Who, request: &Request, id: &str, path: &[&str]) -> Answer {
        let user = match who {
            Who::Token(name) => self.token(name).cloned(),
            _ => None,
        };
        let user = user.filter(|token| token.cluster.is_empty() || token.cluster == id);
        let forbidden = |user: &str| {
            let message = format!(
                "clusters.management.cattle.io \"{id}\" is forbidden: User \"{user}\" cannot get \
                 resource \"clusters\" in API group \"management.cattle.io\" at the cluster scope"
            );
            tunnel(403, "Forbidden", &message)
        };
        // An unauthenticated client does not learn whether the cluster exists.
        let Some(Token { user, .. }) = user else { return forbidden("system:unauthenticated") };
        let Some(cluster) = self.clusters.get(id) else {
            let message = format!("clusters.management.cattle.io \"{id}\" not found");
            return if self.is_admin(&user) {
                tunnel(404, "NotFound", &message)
            } else {
                forbidden(&user)
            };
        };
        if !self.may_enter(&user, cluster) {
            return forbidden(&user);
        }
        if !cluster.agent {
            return tunnel(503, "ClusterUnavailable", "cluster not provisioned");
        }
        match path {
            ["version"] => version(),
            _ if *path == REVIEW && cluster.reviews => self.review(who, request),
            _ if *path == ACCESS_REVIEW => self.access_review(&user, Some(cluster), request),
            ["v1", "namespaces"] => self.namespaces(&user, cluster),
            _ => kubernetes(404, "NotFound", "the server could not find the requested resource"),
        }
    }

    /// Answers a SelfSubjectReview with the user of the request.
    fn review(&self, who: &Who, request: &Request) -> Answer {
        if request.method != "POST" {
            return kubernetes(405, "MethodNotAllowed", "the server does not allow this method");
        }
        let Who::Token(name) = who else { return unauthorized() };
        let user = self.token(name).map(|token| token.user.clone()).unwrap_or_default();
        let mut extra = json!({"principalid": [format!("local://{user}")], "username": [user]});
        if self.version >= Version::V2_11 {
            extra["requesttokenid"] = json!([name]);
        }
        json_answer(
            201,
            json!({
                "kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1",
                "metadata": {"creationTimestamp": rfc3339(self.now())},
                "status": {"userInfo": {
                    "username": user,
                    "groups": ["system:authenticated", "system:cattle:authenticated"],
                    "extra": extra,
                }},
            }),
        )
    }

    fn v3_cluster(&mut self, who: &Who, request: &Request, id: &str) -> Answer {
        let token = match who {
            Who::Token(name) => self.token(name).cloned(),
            _ => None,
        };
        let token = token.filter(|token| token.cluster.is_empty() || token.cluster == id);
        let Some(Token { user, .. }) = token else { return must_authenticate() };
        let Some(cluster) = self.clusters.get(id) else {
            return norman(404, "NotFound", &format!("cluster \"{id}\" not found"));
        };
        if !self.may_enter(&user, cluster) {
            return norman(403, "Forbidden", &format!("clusters \"{id}\" is forbidden"));
        }
        match (request.method.as_str(), request.query.as_str()) {
            ("GET", _) => {
                json_answer(200, json!({"type": "cluster", "id": id, "name": cluster.name}))
            }
            ("POST", "action=generateKubeconfig") => {
                let config = self.generate_kubeconfig(&user, id);
                json_answer(200, json!({"type": "generateKubeConfigOutput", "config": config}))
            }
            ("POST", _) => norman(404, "NotFound", "no such action"),
            _ => norman(405, "MethodNotAllowed", "Method not allowed"),
        }
    }

    /// Makes a kubeconfig with a token of its own.
    pub(super) fn generate_kubeconfig(&mut self, user: &str, id: &str) -> String {
        let blank = self.blank(Kind::V3, user, self.kubeconfig_ttl(), "Kubeconfig token");
        let name = self.name(&format!("kubeconfig-{user}"));
        let bearer = self.mint(&name, blank);
        self.kubeconfig_text(id, &bearer)
    }

    /// Renders the kubeconfig of generateKubeconfig: each entry has the cluster's name.
    pub(super) fn kubeconfig_text(&self, id: &str, bearer: &str) -> String {
        let name = self.clusters.get(id).map_or(id, |cluster| cluster.name.as_str());
        let cluster = self.cluster_entry(name, &format!("/k8s/clusters/{id}"));
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n{cluster}\nusers:\n- name: \"{name}\"\n  user:\n    \
             token: \"{bearer}\"\n\n\ncontexts:\n{}\ncurrent-context: \"{name}\"\n",
            context_entry(name, name),
        )
    }

    /// Renders the kubeconfig of ext.cattle.io: comments first, and one user for all clusters. `with_own`:
    /// with an entry for Rancher itself, before that of the cluster.
    pub(super) fn ext_kubeconfig_text(
        &self,
        (name, ttl): (&str, i64),
        id: &str,
        bearer: &str,
        with_own: bool,
    ) -> String {
        let display = self.clusters.get(id).map_or(id, |cluster| cluster.name.as_str());
        let mut clusters = self.cluster_entry(display, &format!("/k8s/clusters/{id}"));
        let mut contexts = context_entry(display, SHARED);
        if with_own {
            clusters.insert_str(0, &self.cluster_entry(SHARED, ""));
            contexts.insert_str(0, &context_entry(SHARED, SHARED));
        }
        format!(
            "# Generated by Rancher\n# name: {name}\n# createdTimestamp: {created}\n# ttl: {ttl}\n\
             apiVersion: v1\nkind: Config\nclusters:\n{clusters}\nusers:\n- name: \"{SHARED}\"\n  user:\n    \
             token: \"{bearer}\"\n\n\ncontexts:\n{contexts}\ncurrent-context: \"{display}\"\n",
            created = rfc3339(self.now()),
        )
    }

    /// A cluster in a kubeconfig. The authority is broken into lines.
    fn cluster_entry(&self, name: &str, path: &str) -> String {
        let authority = serde_json::to_value(ByteString(self.ca_pem.clone().into_bytes()));
        let authority = authority.unwrap_or_default();
        let authority = authority.as_str().unwrap_or_default();
        let lines: Vec<&str> = (0..authority.len())
            .step_by(76)
            .map(|at| &authority[at..authority.len().min(at + 76)])
            .collect();
        let (url, authority) = (&self.url, lines.join("\\\n      "));
        format!(
            "- name: \"{name}\"\n  cluster:\n    server: \"{url}{path}\"\n    \
             certificate-authority-data: \"{authority}\"\n"
        )
    }

    /// Makes the kubeconfig that this version's UI puts into a cloud credential.
    pub(super) fn ui_kubeconfig(&mut self, user: &str, id: &str) -> String {
        if self.version < Version::V2_14 {
            return self.generate_kubeconfig(user, id);
        }
        let made =
            self.make_kubeconfig(user, id, self.kubeconfig_ttl(), self.version < Version::Main);
        made["status"]["value"].as_str().unwrap_or_default().to_owned()
    }
}

fn context_entry(cluster: &str, user: &str) -> String {
    format!("- name: \"{cluster}\"\n  context:\n    user: \"{user}\"\n    cluster: \"{cluster}\"\n")
}

fn version() -> Answer {
    json_answer(200, json!({"major": "1", "minor": "36", "gitVersion": "v1.36.3"}))
}
