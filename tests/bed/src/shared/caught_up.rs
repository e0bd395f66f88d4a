//! The wait for the API server's caches after a restore: see [`Plane::caught_up`].

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::Api;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, ClusterResourceScope, NamespaceResourceScope, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{CRDS, Plane, SOON, Stage};
use crate::eventually;

const WEBHOOKS: [&str; 2] =
    ["/registry/validatingwebhookconfigurations/", "/registry/mutatingwebhookconfigurations/"];
const RIGHTS: [&str; 4] = [
    "/registry/roles/",
    "/registry/rolebindings/",
    "/registry/clusterroles/",
    "/registry/clusterrolebindings/",
];
const MARKER: &str = "testbed-marker";

impl Plane {
    /// Waits until the API server's caches are as new as the store. A list without a version is.
    /// Rights and webhooks cannot be asked for their version: once a marker that was written last
    /// has its effect, everything that was written before it has.
    pub(super) async fn caught_up(
        &self,
        stage: Stage,
        kinds: &[ApiResource],
        changed: &BTreeSet<String>,
    ) -> Result<()> {
        let is_changed = |prefix: &str| changed.iter().any(|key| key.starts_with(prefix));
        for kind in kinds.iter().filter(|kind| places(kind).iter().any(|place| is_changed(place))) {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), kind);
            api.list_metadata(&ListParams::default().limit(1)).await?;
        }
        if RIGHTS.into_iter().any(is_changed) {
            self.rights_known().await?;
        }
        let webhooks = WEBHOOKS.into_iter().any(is_changed);
        if webhooks {
            self.webhooks_known().await?;
        }
        if stage == Stage::Installed && (webhooks || is_changed(CRDS)) {
            self.conversion_known().await?;
        }
        Ok(())
    }

    async fn rights_known(&self) -> Result<()> {
        let rule = json!([{"apiGroups": [MARKER], "resources": ["markers"], "verbs": ["get"]}]);
        let subject = |user: &str| json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]);
        let granted =
            |kind| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": MARKER});
        let (here, everywhere) = ("testbed-here", "testbed-everywhere");
        self.mark::<ClusterRole>(json!({"rules": rule})).await?;
        self.mark_in::<Role>(json!({"rules": rule})).await?;
        let to = json!({"subjects": subject(everywhere), "roleRef": granted("ClusterRole")});
        self.mark::<ClusterRoleBinding>(to).await?;
        let to = json!({"subjects": subject(here), "roleRef": granted("Role")});
        self.mark_in::<RoleBinding>(to).await?;
        for user in [here, everywhere] {
            let review: SubjectAccessReview = serde_json::from_value(json!({
                "metadata": {}, "spec": {"user": user, "resourceAttributes": {
                    "namespace": "default", "group": MARKER, "resource": "markers", "verb": "get",
                }},
            }))?;
            let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
            eventually(SOON, "marker's right", async || {
                let answer = api.create(&PostParams::default(), &review).await?;
                anyhow::Ok(answer.status.is_some_and(|status| status.allowed))
            })
            .await?;
        }
        Ok(())
    }

    async fn webhooks_known(&self) -> Result<()> {
        let (validating, mutating) = ("validating.testbed.local", "mutating.testbed.local");
        self.mark::<ValidatingWebhookConfiguration>(webhook(validating)).await?;
        self.mark::<MutatingWebhookConfiguration>(webhook(mutating)).await?;
        for name in [validating, mutating] {
            let map: ConfigMap = serde_json::from_value(json!({
                "metadata": {"name": MARKER, "labels": {MARKER: name}},
            }))?;
            let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), "default");
            let dry = PostParams { dry_run: true, ..PostParams::default() };
            eventually(SOON, "marker's refusal", async || match api.create(&dry, &map).await {
                Err(kube::Error::Api(status)) => status.message.contains(name),
                _ => false,
            })
            .await?;
        }
        Ok(())
    }

    /// Waits until the server calls the missing Service for conversions, as at the beginning.
    async fn conversion_known(&self) -> Result<()> {
        let kind = ApiResource {
            group: "loadbalancer.harvesterhci.io".to_owned(),
            version: "v1alpha1".to_owned(),
            api_version: "loadbalancer.harvesterhci.io/v1alpha1".to_owned(),
            kind: "LoadBalancer".to_owned(),
            plural: "loadbalancers".to_owned(),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), "default", &kind);
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": kind.api_version, "kind": kind.kind,
            "metadata": {"name": MARKER},
            "spec": {"ipam": "pool", "workloadType": "cluster"},
        }))?;
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        eventually(SOON, "conversion webhook without a Service", async || {
            match api.create(&dry, &object).await {
                Err(kube::Error::Api(status)) if status.message.contains("not found") => Ok(true),
                Err(error) => Err(error.to_string()),
                Ok(_) => Err("a LoadBalancer that needs no conversion".to_owned()),
            }
        })
        .await
    }

    async fn mark<K>(&self, fields: Value) -> Result<()>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope>,
        K: Clone + std::fmt::Debug + DeserializeOwned,
    {
        apply(&Api::<K>::all(self.client.clone()), fields).await
    }

    async fn mark_in<K>(&self, fields: Value) -> Result<()>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + std::fmt::Debug + DeserializeOwned,
    {
        apply(&Api::<K>::namespaced(self.client.clone(), "default"), fields).await
    }
}

/// Prefixes of the keys of a kind's objects: kinds of the API server itself are stored by their
/// plural (nodes as `minions`), others by group and plural.
fn places(kind: &ApiResource) -> [String; 2] {
    let own = if kind.plural == "nodes" { "minions" } else { &kind.plural };
    [format!("/registry/{own}/"), format!("/registry/{}/{}/", kind.group, kind.plural)]
}

/// A webhook that cannot be reached, and so refuses each ConfigMap with the marker as its label.
fn webhook(name: &str) -> Value {
    json!({"webhooks": [{
        "name": name,
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
            "resources": ["configmaps"],
        }],
        "objectSelector": {"matchLabels": {MARKER: name}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
    }]})
}

async fn apply<K>(api: &Api<K>, fields: Value) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let mut object = fields;
    object["apiVersion"] = K::api_version(&()).into();
    object["kind"] = K::kind(&()).into();
    object["metadata"] = json!({"name": MARKER});
    let params = PatchParams::apply(MARKER).force();
    api.patch(MARKER, &params, &Patch::Apply(&object)).await.context("put a marker")?;
    Ok(())
}
