//! Reads and writes the objects that admission needs: its Secret, the webhook configurations, and
//! the CRD with the conversion webhook.
//!
//! Invariants:
//! * These objects are accessed by name, because the rights in `config/rbac` allow no more.
//! * None of them is created or deleted here.
//! * Every write carries the resourceVersion of the object that the decision was based on.
//!
//! Leadership is not needed, because every replica serves admission, and all replicas want the same
//! content of these objects.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client, Resource, ResourceExt};
use kube_runtime::watcher::Config;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::calls::{ApiCalls as _, ApiWrites as _};
use super::informer::{self, ObjectEvent, split_key};
use super::{CallError, count_write};
use crate::api::LABEL_SERVICE_NAME;
use crate::domain::admission::webhook_configuration::{CONFIGURATION, CRD, WebhookObject};
use crate::metrics::Metrics;

/// Name of the Secret with the certificates of admission. All replicas share the Secret.
pub const SECRET: &str = "harvester-guest-operator-admission";

/// Content and resourceVersion of the admission Secret.
#[derive(Clone, PartialEq, Eq)]
pub struct VersionedSecret {
    /// Values by key.
    pub data: BTreeMap<String, Vec<u8>>,
    version: String,
}

/// State of an object that admission needs, as [`WebhookObjects::watch`] reports it. A variant
/// holds `None` if the object does not exist.
#[derive(Clone)]
pub enum ObservedObject {
    /// The admission Secret.
    Secret(Option<VersionedSecret>),
    /// A webhook configuration, or the CRD with the conversion webhook. Field 0: which of them.
    /// Field 1: the object, reduced to the fields that decisions use.
    Configuration(WebhookObject, Option<Value>),
}

/// Client for the objects that admission needs: the admission Secret, the webhook configurations,
/// and the CRD with the conversion webhook.
#[derive(Clone)]
pub struct WebhookObjects {
    client: Client,
    namespace: String,
    metrics: Metrics,
}

impl WebhookObjects {
    /// Creates a client. Sends no request. `namespace` is the namespace of the admission Secret.
    pub fn new(client: Client, namespace: &str, metrics: Metrics) -> Self {
        Self { client, namespace: namespace.to_owned(), metrics }
    }

    /// Watches the admission Secret, the webhook configurations, and the CRD with the conversion
    /// webhook, until the process ends. The returned receiver first gets the present state of each
    /// object, and then each state that is observed later.
    pub fn watch(&self) -> mpsc::UnboundedReceiver<ObservedObject> {
        let (sender, seen) = mpsc::unbounded_channel();
        let secret = |secret: Option<Secret>| ObservedObject::Secret(secret.map(sealed));
        self.report(self.secrets(), format!("{}/{SECRET}", self.namespace), secret, &sender);
        self.watch_part::<ValidatingWebhookConfiguration>(WebhookObject::Validating, &sender);
        self.watch_part::<MutatingWebhookConfiguration>(WebhookObject::Mutating, &sender);
        self.watch_part::<CustomResourceDefinition>(WebhookObject::Conversion, &sender);
        seen
    }

    fn watch_part<K>(&self, part: WebhookObject, sender: &mpsc::UnboundedSender<ObservedObject>)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug,
        K: Send + Sync + 'static,
    {
        let observed = move |object: Option<K>| {
            ObservedObject::Configuration(part, object.as_ref().map(value))
        };
        self.report(Api::all(self.client.clone()), name(part).to_owned(), observed, sender);
    }

    /// Watches the object with the key `key` (`namespace/name`, or the name of a cluster-scoped
    /// object) until the process ends. Sends each observed state to `sender`. `observed`: makes the
    /// message from the object, or from `None` if the object does not exist.
    fn report<K>(
        &self,
        api: Api<K>,
        key: String,
        observed: impl Fn(Option<K>) -> ObservedObject + Send + Sync + 'static,
        sender: &mpsc::UnboundedSender<ObservedObject>,
    ) where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let (metrics, sender) = (self.metrics.clone(), sender.clone());
        let config = Config::default().fields(&format!("metadata.name={}", split_key(&key).1));
        tokio::spawn(async move {
            let known = || HashSet::from([key.clone()]);
            let send = |object: Option<K>| drop(sender.send(observed(object)));
            informer::watch(api, config, &metrics, known, |event| match event {
                ObjectEvent::Listed(object) | ObjectEvent::Changed(object) => send(Some(object)),
                ObjectEvent::Gone(..) => send(None),
                ObjectEvent::Unreadable(_) | ObjectEvent::Complete | ObjectEvent::Refused(_) => {}
            })
            .await;
        });
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The admission Secret as the API server has it now. `None`: the Secret does not exist.
    pub async fn secret(&self) -> Result<Option<VersionedSecret>, CallError> {
        Ok(self.secrets().call_get_opt(SECRET).await?.map(sealed))
    }

    /// Replaces the content of the admission Secret. Returns the changed Secret. Fails with a
    /// conflict if the Secret's resourceVersion is not that of `seen`.
    ///
    /// `seen` is `None` if the Secret does not exist. The write then fails, because this client
    /// does not create the Secret. The right to create Secrets would let the operator create
    /// Secrets into which the API server puts the tokens of other accounts.
    pub async fn write_secret(
        &self,
        seen: Option<&VersionedSecret>,
        data: BTreeMap<String, Vec<u8>>,
    ) -> Result<VersionedSecret, CallError> {
        let seen = seen.ok_or(CallError::Missing("Secret", SECRET))?;
        // A merge patch keeps each key that it does not set to null. So the old keys are set to
        // null first.
        let gone = seen.data.keys().map(|key| (key.clone(), None));
        let kept = data.into_iter().map(|(key, value)| (key, Some(ByteString(value))));
        let data: BTreeMap<String, Option<ByteString>> = gone.chain(kept).collect();
        let content = json!({"metadata": {"resourceVersion": seen.version}, "data": data});
        let written = self.secrets().call_patch(SECRET, &content).await;
        Ok(sealed(count_write(&self.metrics, "Secret", written)?))
    }

    /// Client for the object `part`, which is a webhook configuration or the CRD.
    fn objects(&self, part: WebhookObject) -> Api<DynamicObject> {
        let kind = match part {
            WebhookObject::Validating => ApiResource::erase::<ValidatingWebhookConfiguration>(&()),
            WebhookObject::Mutating => ApiResource::erase::<MutatingWebhookConfiguration>(&()),
            WebhookObject::Conversion => ApiResource::erase::<CustomResourceDefinition>(&()),
        };
        Api::all_with(self.client.clone(), &kind)
    }

    /// Applies the merge patch `content` to the object `part`, which is a webhook configuration or
    /// the CRD. Returns the changed object, reduced to the fields that decisions use.
    pub async fn write(&self, part: WebhookObject, content: &Value) -> Result<Value, CallError> {
        let written = self.objects(part).call_patch(name(part), content).await;
        count_write(&self.metrics, part.kind(), written).map(|object| value(&object))
    }

    /// Reads the object `part` from the API server. `part` is a webhook configuration or the CRD.
    /// Returns the object, reduced to the fields that decisions use. `None`: the object does not
    /// exist.
    pub async fn read(&self, part: WebhookObject) -> Result<Option<Value>, CallError> {
        Ok(self.objects(part).call_get_opt(name(part)).await?.as_ref().map(value))
    }

    /// Owner reference that names the ClusterRole `name` as the owner. `None`: the ClusterRole does
    /// not exist.
    pub async fn owner(&self, name: &str) -> Result<Option<OwnerReference>, CallError> {
        let role = Api::<ClusterRole>::all(self.client.clone()).call_get_opt(name).await?;
        Ok(role.and_then(|role| role.owner_ref(&())))
    }

    /// Whether the Service `namespace/name` has a ready endpoint. False if the Service does not
    /// exist.
    pub async fn is_served(&self, namespace: &str, name: &str) -> Result<bool, CallError> {
        let slices = Api::<EndpointSlice>::namespaced(self.client.clone(), namespace);
        let of = ListParams::default().labels(&format!("{LABEL_SERVICE_NAME}={name}"));
        let slices = slices.call_list(&of).await?;
        Ok(slices
            .into_iter()
            .flat_map(|slice| slice.endpoints.unwrap_or_default())
            .any(|endpoint| endpoint.conditions.is_some_and(|is| is.ready.unwrap_or(true))))
    }

    /// User name under which the API server knows this operator. `None`: the API server does not
    /// report the name.
    pub async fn user_name(&self) -> Result<Option<String>, CallError> {
        let api = Api::<SelfSubjectReview>::all(self.client.clone());
        let asked = SelfSubjectReview::default();
        let answer = api.call_create(&asked).await?;
        Ok(answer.status.and_then(|status| status.user_info).and_then(|user| user.username))
    }
}

fn name(part: WebhookObject) -> &'static str {
    match part {
        WebhookObject::Validating | WebhookObject::Mutating => CONFIGURATION,
        WebhookObject::Conversion => CRD,
    }
}

fn sealed(secret: Secret) -> VersionedSecret {
    let version = secret.resource_version().unwrap_or_default();
    let data = secret.data.unwrap_or_default();
    VersionedSecret { data: data.into_iter().map(|(key, value)| (key, value.0)).collect(), version }
}

/// JSON of `object`, which is a webhook configuration or a CRD. Managed fields and annotations are
/// left out, because no decision uses them. Each version of a CRD is reduced to its name, because
/// the schemas of the versions are most of a CRD's size.
fn value(object: &impl Serialize) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    let versions = value.pointer_mut("/spec/versions").and_then(Value::as_array_mut);
    for version in versions.into_iter().flatten() {
        if let Some(version) = version.as_object_mut() {
            version.retain(|field, _| field == "name");
        }
    }
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        metadata.remove("annotations");
    }
    value
}
