//! How the API server is told to call admission: what its configurations say, and whether what is
//! stored says it.
//!
//! Invariants: the configurations are the Go webhook's by name, so that there is never a pair of
//! them; what others added besides the fields decided here is left alone.

use serde_json::{Map, Value, json};

use api::GROUP;

/// Name of both configurations: the Go webhook's.
pub const CONFIGURATION: &str = "harvester-load-balancer-webhook";
/// The CRD whose versions are converted.
pub const CRD: &str = "loadbalancers.loadbalancer.harvesterhci.io";
/// The version that needs conversion.
const OLD_VERSION: &str = "v1alpha1";
/// The label that says who made an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The label that says whose a configuration's webhooks are. Who made the object is another matter.
pub const REGISTERED_BY: &str = "loadbalancer.harvesterhci.io/registered-by";
/// This operator, in those labels.
pub const MANAGER: &str = "harvester-guest-operator";
/// The field that says with whom an object goes.
const OWNERS: &str = "ownerReferences";
/// What the API server waits for an answer, in seconds. It asks twice, and a user waits for both: for
/// a replica whose node has just lost its power, as long as this.
const TIMEOUT: i64 = 5;

/// False for an update of an object that is being deleted, such as of its finalizers, if the status
/// stays as it is. The rules have nothing to say about it, and with nobody to answer it passes. An
/// update that changes the status is judged.
const NOT_ONLY_LEAVING: &str = "request.operation != 'UPDATE' || \
    !has(object.metadata.deletionTimestamp) || has(object.status) != has(oldObject.status) || \
    (has(object.status) && object.status != oldObject.status)";
/// False for the deletion of an IPPool that nobody holds an address of.
const NOT_AN_EMPTY_LEDGER: &str = "request.operation != 'DELETE' || (has(oldObject.status) && \
    has(oldObject.status.allocated) && size(oldObject.status.allocated) > 0)";

/// Which configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// The ValidatingWebhookConfiguration.
    Validating,
    /// The MutatingWebhookConfiguration.
    Mutating,
    /// The CRD's conversion.
    Conversion,
}

impl Part {
    /// All of them, in the order in which they are written: nothing is changed before it can be
    /// judged.
    pub const ALL: [Self; 3] = [Self::Validating, Self::Mutating, Self::Conversion];

    /// The kind of object.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Validating => "ValidatingWebhookConfiguration",
            Self::Mutating => "MutatingWebhookConfiguration",
            Self::Conversion => "CustomResourceDefinition",
        }
    }
}

/// Where the API server finds admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A Service, by namespace and name.
    Service(String, String),
    /// An address outside the cluster: scheme, host and port.
    Url(String),
}

/// What the configurations say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The namespace that is part of the webhooks' names, which users see in refusals.
    pub namespace: String,
    /// Where admission is.
    pub place: Place,
    /// Who this operator is. Its own requests are not sent here.
    pub me: String,
    /// The authorities that are trusted, in base64 of PEM.
    pub bundle: String,
    /// The paths of validation, mutation and conversion.
    pub paths: [&'static str; 3],
    /// With whom the webhook configurations go.
    pub owner: Option<Owner>,
}

/// A ClusterRole of the operator's: it is removed with the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uid: String,
}

impl Registration {
    /// What the object must hold. `None`: it is to be left alone.
    pub fn wanted(&self, part: Part, stored: Option<&Value>) -> Option<Value> {
        match part {
            Part::Validating => Some(self.configuration(&self.validating())),
            Part::Mutating => Some(self.configuration(&self.mutating())),
            Part::Conversion => stored.is_some_and(needs_conversion).then(|| self.conversion()),
        }
    }

    fn configuration(&self, webhook: &Value) -> Value {
        let mut wanted =
            json!({"metadata": {"labels": {REGISTERED_BY: MANAGER}}, "webhooks": [webhook]});
        if let Some(Owner { name, uid }) = &self.owner {
            wanted["metadata"][OWNERS] = json!([{
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "name": name, "uid": uid,
            }]);
        }
        wanted
    }

    /// Fails closed: a pool that overlaps another one is worse than one that comes later.
    fn validating(&self) -> Value {
        let operations = ["CREATE", "UPDATE", "DELETE"];
        let mut webhook = self.webhook("validator", self.paths[0], "Fail");
        webhook["rules"] = json!([
            rule(&["ippools"], &operations, "Cluster"),
            // Its status is the ledger; only RBAC would guard it otherwise.
            rule(&["ippools/status"], &["UPDATE"], "Cluster"),
            rule(&["loadbalancers"], &operations[..2], "Namespaced"),
        ]);
        webhook
    }

    /// Fails open: what it fills in has defaults, and what it would have kept of a status is
    /// judged by the other one, which refuses a status that was wiped.
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
        // Its own writes must not wait for it: with nobody to answer, nobody could put that right.
        // Nor must anything that only takes leave.
        let others = format!("request.userInfo.username != '{}'", self.me.replace('\'', "\\'"));
        json!({
            "name": format!("{role}.{}.{CONFIGURATION}", self.namespace),
            "clientConfig": self.client(path),
            "failurePolicy": failure,
            "sideEffects": "None",
            // A request for v1alpha1 is judged as well, as what it will be stored as.
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
        // In a merge patch, what goes must be named.
        let other = if client.get("url").is_some() { "service" } else { "url" };
        client[other] = Value::Null;
        json!({"spec": {"conversion": {
            "strategy": "Webhook",
            "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": client},
        }}})
    }

    fn client(&self, path: &str) -> Value {
        match &self.place {
            Place::Service(namespace, name) => json!({
                "service": {"namespace": namespace, "name": name, "path": path, "port": 443},
                "caBundle": self.bundle,
            }),
            Place::Url(url) => json!({
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

/// Whether a CRD serves the version that only a webhook can convert.
pub fn needs_conversion(crd: &Value) -> bool {
    let versions = crd["spec"]["versions"].as_array();
    versions.is_some_and(|versions| versions.iter().any(|v| v["name"] == OLD_VERSION))
}

/// Whether the stored object says what is wanted.
pub fn says(stored: &Value, wanted: &Value) -> bool {
    // The Go webhook names a Secret as owner: the configuration would go with it.
    let others = stored["metadata"].get(OWNERS).is_some() && wanted["metadata"][OWNERS].is_null();
    !others && covers(stored, wanted)
}

/// Whether everything that is wanted is there. Lists are compared as a whole.
fn covers(stored: &Value, wanted: &Value) -> bool {
    match wanted {
        // A selector that selects everything must not be one that does not.
        Value::Object(fields) if fields.is_empty() => stored == wanted,
        Value::Object(fields) => fields.iter().all(|(name, wanted)| match stored.get(name) {
            Some(stored) => covers(stored, wanted),
            // An API server from before 1.28 drops these; then our own requests come here too.
            None => wanted.is_null() || name == "matchConditions",
        }),
        Value::Array(items) => stored.as_array().is_some_and(|stored| {
            stored.len() == items.len() && stored.iter().zip(items).all(|(s, w)| covers(s, w))
        }),
        _ => stored == wanted,
    }
}

/// The merge patch from a stored object to what is wanted.
pub fn patch(stored: &Value, wanted: &Value) -> Value {
    let mut patch = wanted.clone();
    let metadata = patch.as_object_mut().map(|patch| patch.entry("metadata"));
    if let Some(metadata) = metadata.map(|m| m.or_insert_with(|| Value::Object(Map::new()))) {
        metadata["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
        if stored["metadata"].get(OWNERS).is_some() && metadata[OWNERS].is_null() {
            metadata[OWNERS] = Value::Null;
        }
    }
    patch
}

/// The merge patch after which a configuration leads to nobody.
pub fn emptied(stored: &Value) -> Value {
    json!({
        "metadata": {
            "resourceVersion": stored["metadata"]["resourceVersion"],
            "labels": {REGISTERED_BY: null},
        },
        "webhooks": [],
    })
}

/// Whether a configuration is this operator's.
pub fn is_ours(stored: &Value) -> bool {
    stored["metadata"]["labels"][REGISTERED_BY] == MANAGER
}

/// The bundles, in base64, that an object tells the API server to trust.
pub fn bundles(part: Part, stored: &Value) -> Vec<&str> {
    match part {
        Part::Conversion => {
            let client = &stored["spec"]["conversion"]["webhook"]["clientConfig"];
            client["caBundle"].as_str().into_iter().collect()
        }
        Part::Validating | Part::Mutating => stored["webhooks"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|webhook| webhook["clientConfig"]["caBundle"].as_str().unwrap_or_default())
            .collect(),
    }
}

#[cfg(test)]
mod tests;
