//! Objects that make the API server call admission and conversion ([`WebhookObject`]): their
//! desired content, and whether a stored object has this content.
//!
//! Invariants:
//! * the two webhook configurations have the same names as those of the Go webhook, so that there
//!   is never a second pair of configurations;
//! * only fields that are decided here are changed. A list is replaced as a whole, so webhooks and
//!   owners that other clients have added are removed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Value, json};

use api::{GROUP, MANAGER};

/// Name of the validating and of the mutating configuration. Harvester's Go webhook uses this name
/// too, for both of its configurations.
pub const CONFIGURATION: &str = "harvester-load-balancer-webhook";
/// Name of the CRD whose versions are converted.
pub const CRD: &str = "loadbalancers.loadbalancer.harvesterhci.io";
/// The old version of the CRD. A webhook must convert objects of this version to v1beta1, and back.
const OLD_VERSION: &str = "v1alpha1";
/// Label whose value is the program that registered the webhooks of a configuration. Another
/// program may have created the configuration.
pub const REGISTERED_BY: &str = "loadbalancer.harvesterhci.io/registered-by";
/// Field of an object's `metadata` that names the object's owners.
const OWNERS: &str = "ownerReferences";
/// Time limit for the answer of one webhook, in seconds. The API server calls two webhooks one
/// after the other. If the node of the called replica has just lost power, a user waits this long
/// for each webhook.
const TIMEOUT: i64 = 5;

/// CEL condition for a call of admission. False for an update of an object that is being deleted,
/// if the update leaves the status unchanged. The API server does not send such an update to
/// admission. So the removal of a finalizer, for example, succeeds even while no replica answers.
const NOT_ONLY_LEAVING: &str = "request.operation != 'UPDATE' || \
    !has(object.metadata.deletionTimestamp) || has(object.status) != has(oldObject.status) || \
    (has(object.status) && object.status != oldObject.status)";
/// CEL condition for a call of admission. False for the deletion of an IPPool without claims. The
/// API server does not send such a deletion to admission.
const NOT_AN_EMPTY_LEDGER: &str = "request.operation != 'DELETE' || (has(oldObject.status) && \
    has(oldObject.status.allocated) && size(oldObject.status.allocated) > 0)";

/// Object that makes the API server call admission or conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WebhookObject {
    /// The ValidatingWebhookConfiguration.
    Validating,
    /// The MutatingWebhookConfiguration.
    Mutating,
    /// `spec.conversion` of the CRD of LoadBalancer.
    Conversion,
}

impl WebhookObject {
    /// All objects, in the order in which they are written: validation comes before mutation.
    pub const ALL: [Self; 3] = [Self::Validating, Self::Mutating, Self::Conversion];

    /// Kind of the object.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Validating => "ValidatingWebhookConfiguration",
            Self::Mutating => "MutatingWebhookConfiguration",
            Self::Conversion => "CustomResourceDefinition",
        }
    }
}

/// Address at which the API server calls admission and conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmissionEndpoint {
    /// A Service, by namespace and name.
    Service(String, String),
    /// A URL outside the cluster: scheme, host and port.
    Url(String),
}

/// Values from which the desired content of each [`WebhookObject`] is made.
#[derive(Clone, Debug, PartialEq)]
pub struct Registration {
    /// Namespace in the webhooks' names, which users see in refusals.
    pub namespace: String,
    /// Address at which the API server calls admission and conversion.
    pub endpoint: AdmissionEndpoint,
    /// Username of this operator. The operator's own requests are not sent to admission.
    pub username: String,
    /// Certificate authorities that the API server trusts for admission and conversion, in base64
    /// of PEM.
    pub bundle: String,
    /// Paths of validation, mutation and conversion, in this order.
    pub paths: [&'static str; 3],
    /// Owner of the webhook configurations: a ClusterRole of the operator, which is removed
    /// together with the operator. `None`: the configurations get no owner.
    pub owner: Option<OwnerReference>,
}

impl Registration {
    /// Returns the desired content of the object `part`. `None`: the CRD must not be changed,
    /// because it needs no conversion or is not stored. `stored`: the object as it is stored now;
    /// `None` if it is not stored.
    pub fn wanted(&self, part: WebhookObject, stored: Option<&Value>) -> Option<Value> {
        match part {
            WebhookObject::Validating => Some(self.configuration(&self.validating())),
            WebhookObject::Mutating => Some(self.configuration(&self.mutating())),
            WebhookObject::Conversion => {
                stored.is_some_and(needs_conversion).then(|| self.conversion())
            }
        }
    }

    fn configuration(&self, webhook: &Value) -> Value {
        let mut wanted =
            json!({"metadata": {"labels": {REGISTERED_BY: MANAGER}}, "webhooks": [webhook]});
        if let Some(owner) = &self.owner {
            wanted["metadata"][OWNERS] = json!([owner]);
        }
        wanted
    }

    /// The validating webhook. While no replica answers, the API server refuses writes. Reason: a
    /// pool that overlaps another pool is worse than a delay.
    fn validating(&self) -> Value {
        let operations = ["CREATE", "UPDATE", "DELETE"];
        let mut webhook = self.webhook("validator", self.paths[0], "Fail");
        webhook["rules"] = json!([
            rule(&["ippools"], &operations, "Cluster"),
            // The status contains the ledger. Without this rule, only RBAC would protect the
            // ledger.
            rule(&["ippools/status"], &["UPDATE"], "Cluster"),
            rule(&["loadbalancers"], &operations[..2], "Namespaced"),
        ]);
        webhook
    }

    /// The mutating webhook. If a call of this webhook fails, the API server goes on without
    /// mutation. This does no harm:
    /// * The operator does not rely on the fields that mutation fills in. For example, it applies
    ///   the same defaults to a health check itself.
    /// * A request that wipes the status is still refused: by the validating webhook, or by the API
    ///   server if the call of the validating webhook fails too.
    fn mutating(&self) -> Value {
        let operations = ["CREATE", "UPDATE"];
        let mut webhook = self.webhook("mutator", self.paths[1], "Ignore");
        webhook["rules"] = json!([
            rule(&["ippools"], &operations, "Cluster"),
            rule(&["loadbalancers"], &operations, "Namespaced"),
        ]);
        webhook["reinvocationPolicy"] = json!("Never");
        webhook
    }

    fn webhook(&self, role: &str, path: &str, failure: &str) -> Value {
        // The operator's own writes are not sent to the webhook, so that the operator can repair
        // objects while no replica answers. Requests that only complete a deletion are not sent
        // either.
        let others =
            format!("request.userInfo.username != '{}'", self.username.replace('\'', "\\'"));
        json!({
            "name": format!("{role}.{}.{CONFIGURATION}", self.namespace),
            "clientConfig": self.client(path),
            "failurePolicy": failure,
            "sideEffects": "None",
            // The API server also sends requests for v1alpha1, after it has converted their objects
            // to v1beta1.
            "matchPolicy": "Equivalent",
            "timeoutSeconds": TIMEOUT,
            "admissionReviewVersions": ["v1"],
            "namespaceSelector": {},
            "objectSelector": {},
            "matchConditions": [
                {"name": "not-the-operator", "expression": others},
                {"name": "not-only-leaving", "expression": NOT_ONLY_LEAVING},
                {"name": "not-an-empty-ledger", "expression": NOT_AN_EMPTY_LEDGER},
            ],
        })
    }

    fn conversion(&self) -> Value {
        let mut client = self.client(self.paths[2]);
        // A merge patch removes a field only if the patch sets the field to null.
        let other = if client.get("url").is_some() { "service" } else { "url" };
        client[other] = Value::Null;
        json!({"spec": {"conversion": {
            "strategy": "Webhook",
            "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": client},
        }}})
    }

    fn client(&self, path: &str) -> Value {
        match &self.endpoint {
            AdmissionEndpoint::Service(namespace, name) => json!({
                "service": {"namespace": namespace, "name": name, "path": path, "port": 443},
                "caBundle": self.bundle,
            }),
            AdmissionEndpoint::Url(url) => json!({
                "url": format!("{}{path}", url.trim_end_matches('/')),
                "caBundle": self.bundle,
            }),
        }
    }
}

fn rule(resources: &[&str], operations: &[&str], scope: &str) -> Value {
    json!({
        "apiGroups": [GROUP], "apiVersions": ["v1beta1"], "resources": resources,
        "operations": operations, "scope": scope,
    })
}

/// Whether a CRD has the version v1alpha1, which only a webhook can convert.
pub fn needs_conversion(crd: &Value) -> bool {
    let versions = crd["spec"]["versions"].as_array();
    versions.is_some_and(|versions| versions.iter().any(|v| v["name"] == OLD_VERSION))
}

/// Whether the stored object has the desired content.
pub fn has_content(stored: &Value, wanted: &Value) -> bool {
    !has_unwanted_owners(stored, wanted) && covers(stored, wanted)
}

/// Whether the stored object has owners, and the desired content has none. The configuration that
/// Harvester's Go webhook wrote has a Secret as owner. The deletion of that Secret would delete the
/// configuration, so the owner must be removed.
fn has_unwanted_owners(stored: &Value, wanted: &Value) -> bool {
    stored["metadata"].get(OWNERS).is_some() && wanted["metadata"][OWNERS].is_null()
}

/// Whether `stored` contains everything in `wanted`. `stored` may have further fields, but a list
/// in `stored` must not have further items.
fn covers(stored: &Value, wanted: &Value) -> bool {
    match wanted {
        // An empty selector selects everything, so the stored selector must be empty.
        Value::Object(fields) if fields.is_empty() => stored == wanted,
        Value::Object(fields) => fields.iter().all(|(name, wanted)| match stored.get(name) {
            Some(stored) => covers(stored, wanted),
            // An API server before 1.28 drops `matchConditions`. Such an API server sends even the
            // operator's own requests to admission.
            None => wanted.is_null() || name == "matchConditions",
        }),
        Value::Array(items) => stored.as_array().is_some_and(|stored| {
            stored.len() == items.len() && stored.iter().zip(items).all(|(s, w)| covers(s, w))
        }),
        _ => stored == wanted,
    }
}

/// The merge patch that changes a stored object to the desired content. The patch fails if the
/// stored object has changed since it was read.
pub fn patch(stored: &Value, wanted: &Value) -> Value {
    let mut patch = wanted.clone();
    patch["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
    if has_unwanted_owners(stored, wanted) {
        patch["metadata"][OWNERS] = Value::Null;
    }
    patch
}

/// The merge patch that removes all webhooks and the label [`REGISTERED_BY`] from a configuration.
/// The patch fails if the stored object has changed since it was read.
pub fn emptied(stored: &Value) -> Value {
    json!({
        "metadata": {
            "resourceVersion": stored["metadata"]["resourceVersion"],
            "labels": {REGISTERED_BY: null},
        },
        "webhooks": [],
    })
}

/// Whether this operator (any replica) has registered the webhooks of a configuration.
pub fn is_ours(stored: &Value) -> bool {
    stored["metadata"]["labels"][REGISTERED_BY] == MANAGER
}

/// Bundles of certificate authorities in an object, in base64. For a webhook configuration, the
/// list has one bundle for each webhook. The bundle is empty text if the webhook has none.
pub fn bundles(part: WebhookObject, stored: &Value) -> Vec<&str> {
    match part {
        WebhookObject::Conversion => {
            let client = &stored["spec"]["conversion"]["webhook"]["clientConfig"];
            client["caBundle"].as_str().into_iter().collect()
        }
        WebhookObject::Validating | WebhookObject::Mutating => stored["webhooks"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|webhook| webhook["clientConfig"]["caBundle"].as_str().unwrap_or_default())
            .collect(),
    }
}

#[cfg(test)]
mod tests;
