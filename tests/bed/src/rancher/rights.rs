//! Owns the rights of users in a cluster, and the answers about them.

use serde_json::{Value, json};

use super::answer::{Answer, Request, json_answer, kubernetes};
use super::world::{Cluster, Role, World, rfc3339};

pub(super) const ACCESS_REVIEW: [&str; 4] =
    ["apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"];
/// Namespaces of every cluster.
const NAMESPACES: [&str; 4] = ["default", "harvester-system", "kube-system", "team"];

impl World {
    /// Answers a SelfSubjectAccessReview. `cluster`: `None` for the server's own.
    pub(super) fn access_review(
        &self,
        user: &str,
        cluster: Option<&Cluster>,
        request: &Request,
    ) -> Answer {
        if request.method != "POST" {
            return kubernetes(405, "MethodNotAllowed", "the server does not allow this method");
        }
        let body = match request.json() {
            Ok(body) => body,
            Err(refusal) => return refusal,
        };
        let spec = &body["spec"];
        if spec["resourceAttributes"].is_object() == spec["nonResourceAttributes"].is_object() {
            let message = "spec.resourceAttributes: Invalid value: exactly one of \
                           nonResourceAttributes or resourceAttributes must be specified";
            return kubernetes(422, "Invalid", message);
        }
        let role = cluster.and_then(|cluster| cluster.roles.get(user));
        let allowed = match role {
            _ if self.is_admin(user) => true,
            Some(role) => role.allows(&spec["resourceAttributes"]),
            None => cluster.is_some(),
        };
        let status = if allowed {
            let reason = format!("RBAC: allowed by a binding of User \"{user}\"");
            json!({"allowed": true, "reason": reason})
        } else {
            json!({"allowed": false})
        };
        json_answer(
            201,
            json!({
                "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
                "metadata": {"creationTimestamp": rfc3339(self.now())},
                "spec": spec, "status": status,
            }),
        )
    }

    /// Lists the namespaces that the user may see, in the form of Rancher's own API.
    pub(super) fn namespaces(&self, user: &str, cluster: &Cluster) -> Answer {
        let role = cluster.roles.get(user).filter(|_| !self.is_admin(user));
        let sees = |name: &&str| role.is_none_or(|role| role.is_about(name));
        let one = |name: &str| json!({"id": name, "type": "namespace", "metadata": {"name": name}});
        let data: Vec<Value> = NAMESPACES.into_iter().filter(|name| sees(name)).map(one).collect();
        json_answer(
            200,
            json!({
                "type": "collection", "resourceType": "namespace", "count": data.len(),
                "data": data,
            }),
        )
    }
}

impl Role {
    fn is_about(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.iter().any(|name| name == namespace)
    }

    fn allows(&self, what: &Value) -> bool {
        let text = |field: &str| what[field].as_str().unwrap_or_default();
        let reads = matches!(text("verb"), "get" | "list" | "watch");
        (reads || self.writes) && self.is_about(text("namespace"))
    }
}
