//! Reads and writes of the `cloud-config` command. It writes ServiceAccounts, RBAC objects and
//! token Secrets of guest clusters. It also reads TokenRotations, VMs, namespaces and Harvester's
//! address.
//!
//! Invariants:
//! * Objects are created or deleted, but never changed.
//! * An object is deleted only in the version that was read.
//! * Lists of Secrets have only metadata. The content of a Secret is read by name, one Secret at a
//!   time.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, RoleBinding, RoleRef, Subject as FullSubject,
};
use kube::api::{GetParams, ListParams, PostParams};
use kube::core::{ObjectMeta, PartialObjectMeta, Request};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::CallError;
use super::calls::{ApiCalls as _, only_if};
use super::credentials::{BoundToken, raw_within, signed_token};
use crate::api::TokenRotation;
use crate::api::kubevirt::VirtualMachine;
use crate::domain::credentials::guest_account::list::GuestObjects;
use crate::domain::credentials::guest_account::output::{TokenMaterial, VIP};
use crate::domain::credentials::guest_account::{
    ANNOTATION_ACCOUNT, ANNOTATION_ACCOUNT_UID, ANNOTATION_GUEST, ANNOTATION_STANDS_IN,
    BindingSubject, ExistingObjects, ForeignSecret, GUEST_ROLES, GuestCluster, KindAndName,
    LABEL_INVALID_SINCE, LABEL_LAST_USED, ObjectKind, ObjectRemoval, SHARED_NAMESPACES,
    StoredAccount, StoredBinding, TOKEN_TYPE, TokenSecret,
};
use crate::domain::credentials::secret_text::SecretText;

/// Deadline of one call, and of the setup of a connection. The value is large, because nothing but
/// the command waits for a call. If an established connection brings no data while an answer is
/// due, the call fails earlier, after [`super::SILENCE`].
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Pause between two tries to list TokenRotations while the API server answers 429.
const MOMENT: Duration = Duration::from_millis(500);

/// Client for the ServiceAccounts, RBAC objects and token Secrets of guest clusters.
pub struct GuestCredentials {
    client: Client,
}

impl GuestCredentials {
    /// Creates a client. Sends no request.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Address of Harvester's API server, from the ConfigMap `vip`. `None`: the ConfigMap does not
    /// exist. Empty: the ConfigMap contains no address.
    pub async fn vip(&self) -> Result<Option<String>, CallError> {
        let (namespace, name, key) = VIP;
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), namespace);
        let map = maps.within(PATIENCE).call_get_opt(name).await?;
        Ok(map.map(|map| map.data.unwrap_or_default().remove(key).unwrap_or_default()))
    }

    /// Whether the namespace exists.
    pub async fn has_namespace(&self, name: &str) -> Result<bool, CallError> {
        let namespaces = Api::<PartialObjectMeta<Namespace>>::all(self.client.clone());
        Ok(namespaces.within(PATIENCE).call_get_opt(name).await?.is_some())
    }

    /// Objects from which the credentials of guests are listed:
    /// * ServiceAccounts, token Secrets and TokenRotations: those in `namespace`.
    /// * RoleBindings: those in `namespace` and in the shared namespaces.
    /// * ClusterRoleBindings: all.
    ///
    /// If `namespace` is `None`, the objects in all namespaces are read. VMs are not read.
    pub async fn survey(&self, namespace: Option<&str>) -> Result<GuestObjects, CallError> {
        let accounts = self.metadata::<ServiceAccount>(namespace, "").await?;
        let tokens = self.metadata::<Secret>(namespace, &format!("type={TOKEN_TYPE}")).await?;
        let place = |meta: &ObjectMeta| meta.namespace.clone().unwrap_or_default();
        Ok(GuestObjects {
            accounts: accounts
                .into_iter()
                .map(|m| ((place(&m), m.name.clone().unwrap_or_default()), account(&m)))
                .collect(),
            bindings: self.bindings(namespace).await?,
            tokens: tokens.into_iter().map(|meta| (place(&meta), token(&meta))).collect(),
            machines: None,
            rotations: self.rotations(namespace).await?,
        })
    }

    /// TokenRotations in `namespace`, or in all namespaces if `namespace` is `None`. Empty if the
    /// cluster does not serve the kind.
    async fn rotations(&self, namespace: Option<&str>) -> Result<Vec<TokenRotation>, CallError> {
        let all = scoped::<TokenRotation>(&self.client, namespace);
        let listed = async {
            loop {
                match all.within(PATIENCE).call_list(&ListParams::default()).await {
                    Ok(list) => return Ok(list.items),
                    Err(error) if has_code(&error, 404) => return Ok(Vec::new()),
                    // The API server answers 429 for a moment after the installation of the CRD.
                    Err(error) if has_code(&error, 429) => tokio::time::sleep(MOMENT).await,
                    Err(error) => return Err(error),
                }
            }
        };
        tokio::time::timeout(PATIENCE, listed).await.unwrap_or_else(|_| {
            let call = format!("GET {}", all.resource_url());
            Err(CallError::Timeout { call, within: PATIENCE })
        })
    }

    /// Metadata of the VirtualMachines in `namespace`, or in all namespaces if `namespace` is
    /// `None`. Fails if the cluster does not serve the kind.
    pub async fn machines(&self, namespace: Option<&str>) -> Result<Vec<ObjectMeta>, CallError> {
        self.metadata::<VirtualMachine>(namespace, "").await
    }

    /// Existing objects that belong to the credential of the guest cluster `guest`. They include
    /// each Secret that has a name in `names` and is in the guest's namespace, even if the Secret
    /// is not a token Secret.
    pub async fn found(
        &self,
        guest: &GuestCluster,
        names: &[String],
    ) -> Result<ExistingObjects, CallError> {
        let mut found = self.survey(Some(&guest.namespace)).await?.found(guest);
        let roles = Api::<ClusterRole>::all(self.client.clone());
        for name in GUEST_ROLES {
            if let Some(role) = roles.within(PATIENCE).call_get_opt(name).await? {
                found.roles.insert(name.to_owned(), json!(role.rules));
            }
        }
        for name in SHARED_NAMESPACES {
            if self.has_namespace(name).await? {
                found.shared.insert(name.to_owned());
            }
        }
        let secrets =
            Api::<PartialObjectMeta<Secret>>::namespaced(self.client.clone(), &guest.namespace);
        for name in names.iter().filter(|n| found.tokens.iter().all(|token| token.name != **n)) {
            if let Some(secret) = secrets.within(PATIENCE).call_get_opt(name).await? {
                let taken = ForeignSecret {
                    uid: secret.uid().unwrap_or_default(),
                    version: secret.resource_version().unwrap_or_default(),
                    stands_for: secret.annotations().get(ANNOTATION_STANDS_IN).cloned(),
                };
                found.taken.insert(name.clone(), taken);
            }
        }
        Ok(found)
    }

    /// Metadata of the objects of one kind in `namespace` that match the field selector `fields`.
    /// `namespace: None`: the objects in all namespaces.
    async fn metadata<K>(
        &self,
        namespace: Option<&str>,
        fields: &str,
    ) -> Result<Vec<ObjectMeta>, CallError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Debug + Clone,
    {
        let api = scoped::<PartialObjectMeta<K>>(&self.client, namespace);
        let params = ListParams::default().fields(fields);
        let list = api.within(PATIENCE).call_list(&params).await?;
        Ok(list.items.into_iter().map(|object| object.metadata).collect())
    }

    /// All ClusterRoleBindings, and the RoleBindings of `namespace` and of the shared namespaces.
    /// If `namespace` is `None`, the RoleBindings of all namespaces are included.
    async fn bindings(&self, namespace: Option<&str>) -> Result<Vec<StoredBinding>, CallError> {
        let all = Api::<ClusterRoleBinding>::all(self.client.clone());
        let list = all.within(PATIENCE).call_list(&ListParams::default()).await?;
        let wide = |b: ClusterRoleBinding| binding(b.metadata, b.role_ref, b.subjects);
        let mut bindings: Vec<_> = list.items.into_iter().map(wide).collect();
        let places: Vec<Option<&str>> = match namespace {
            None => vec![None],
            Some(own) => {
                let shared = SHARED_NAMESPACES.into_iter().filter(|shared| *shared != own);
                [own].into_iter().chain(shared).map(Some).collect()
            }
        };
        for place in places {
            let api = scoped::<RoleBinding>(&self.client, place);
            let list = api.within(PATIENCE).call_list(&ListParams::default()).await?;
            let narrow = |b: RoleBinding| binding(b.metadata, b.role_ref, b.subjects);
            bindings.extend(list.items.into_iter().map(narrow));
        }
        Ok(bindings)
    }

    /// Creates `object` with the fields in `body`. Fails with a conflict if the object exists.
    pub async fn create(&self, object: &KindAndName, body: &Value) -> Result<(), CallError> {
        let bytes = named(object, body).to_string().into_bytes();
        let request = Request::new(place(object).0).create(&PostParams::default(), bytes);
        self.send(request).await
    }

    /// Values of the Secret `namespace/name`, by key. Fails if the Secret does not exist.
    async fn values(&self, namespace: &str, name: &str) -> Result<Values, CallError> {
        let list = Secret::url_path(&(), Some(namespace));
        let request = Request::new(list).get(name, &GetParams::default());
        let answer = raw_within(PATIENCE, &self.client, request).await?;
        Ok(answer.granted::<SecretFields>()?.data.unwrap_or_default())
    }

    /// Creates the Secret `object` with the fields in `body`, and with the values of the Secret
    /// `from` in the same namespace.
    pub async fn copy(
        &self,
        object: &KindAndName,
        body: &Value,
        from: &str,
    ) -> Result<(), CallError> {
        let namespace = object.namespace.as_deref().unwrap_or_default();
        let values = self.values(namespace, from).await?;
        let text = ObjectWithValues { body: &named(object, body), data: &values }.text()?;
        let request = Request::new(place(object).0).create(&PostParams::default(), text);
        self.send(request).await
    }

    /// Deletes the object that `removal` names. Fails with a conflict if the UID or the
    /// resourceVersion of the object differs from that in `removal`.
    pub async fn remove(&self, removal: &ObjectRemoval) -> Result<(), CallError> {
        let params = only_if(Some(&removal.uid), Some(&removal.version));
        let request = Request::new(place(&removal.object).0).delete(&removal.object.name, &params);
        self.send(request).await
    }

    async fn send(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<(), CallError> {
        // The answer to a write of a Secret contains the Secret, so the answer is wiped from memory
        // without being read.
        raw_within(PATIENCE, &self.client, request).await?.accepted().map(drop)
    }

    /// Requests a new token of the guest's account, to check that the account works. The token is
    /// valid for ten minutes, and only while the Secret with the name `secret` and the UID
    /// `secret_uid` exists. The token in the Secret itself is not used for the check: the API
    /// server would record this use on the Secret, as if the guest had used the token.
    pub async fn passing(
        &self,
        guest: &GuestCluster,
        (secret, secret_uid): (&str, &str),
    ) -> Result<SecretText, CallError> {
        let GuestCluster { namespace, cluster: account } = guest;
        let wanted = BoundToken { namespace, account, seconds: 600, secret, secret_uid };
        signed_token(PATIENCE, &self.client, wanted).await
    }

    /// Token and CA certificate of a token Secret. `None`: the Secret lacks one of the two, or does
    /// not exist (any 404).
    pub async fn material(
        &self,
        namespace: &str,
        name: &str,
    ) -> anyhow::Result<Option<TokenMaterial>> {
        let values = match self.values(namespace, name).await {
            Err(CallError::NotFound(_)) => return Ok(None),
            values => values?,
        };
        let (Some(token), Some(authority)) = (values.get("token"), values.get("ca.crt")) else {
            return Ok(None);
        };
        let token = Zeroizing::new(STANDARD.decode(token.as_bytes()).unwrap_or_default());
        let token = std::str::from_utf8(&token)
            .map_err(|_| anyhow::anyhow!("Secret {namespace}/{name}: the token is not text"))?;
        let token = Zeroizing::new(token.to_owned());
        let authority = STANDARD.decode(authority.as_bytes()).unwrap_or_default();
        Ok(Some(TokenMaterial { token, authority }))
    }
}

/// Values of a Secret by key, in Base64. Wiped from memory when dropped.
type Values = BTreeMap<String, Zeroizing<String>>;

/// Fields of a Secret that this client reads.
#[derive(Deserialize)]
struct SecretFields {
    #[serde(default)]
    data: Option<Values>,
}

/// Object to create, with the values of a Secret.
#[derive(Serialize)]
struct ObjectWithValues<'a> {
    #[serde(flatten)]
    body: &'a Value,
    data: &'a Values,
}

impl ObjectWithValues<'_> {
    /// JSON text of the object, in one preallocated buffer. A growing buffer would leave copies of
    /// the values in memory.
    fn text(&self) -> Result<Vec<u8>, CallError> {
        let values = self.data.iter().map(|(key, value)| key.len() + value.len() + 16);
        let mut text = Vec::with_capacity(4096 + values.sum::<usize>());
        serde_json::to_writer(&mut text, self)
            .map_err(|error| CallError::not_sent("Secret", kube::Error::SerdeError(error)))?;
        Ok(text)
    }
}

/// Copy of `body` with the `apiVersion`, `kind` and name of `object`.
fn named(object: &KindAndName, body: &Value) -> Value {
    let mut body = body.clone();
    body["apiVersion"] = json!(place(object).1);
    body["kind"] = json!(format!("{:?}", object.kind));
    body["metadata"]["name"] = json!(object.name);
    body
}

/// API path of the list that contains `object`, such as `/api/v1/namespaces/default/secrets` (field
/// 0), and the kind's `apiVersion` (field 1).
fn place(object: &KindAndName) -> (String, String) {
    fn of<K: Resource<DynamicType = ()>>(namespace: Option<&str>) -> (String, String) {
        (K::url_path(&(), namespace), K::api_version(&()).into_owned())
    }
    let namespace = object.namespace.as_deref();
    match object.kind {
        ObjectKind::ServiceAccount => of::<ServiceAccount>(namespace),
        ObjectKind::Secret => of::<Secret>(namespace),
        ObjectKind::ClusterRole => of::<ClusterRole>(namespace),
        ObjectKind::RoleBinding => of::<RoleBinding>(namespace),
        ObjectKind::ClusterRoleBinding => of::<ClusterRoleBinding>(namespace),
    }
}

fn scoped<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn created(meta: &ObjectMeta) -> i64 {
    meta.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second())
}

fn account(meta: &ObjectMeta) -> StoredAccount {
    let annotations = meta.annotations.as_ref();
    StoredAccount {
        uid: meta.uid.clone().unwrap_or_default(),
        version: meta.resource_version.clone().unwrap_or_default(),
        created: created(meta),
        made_for: annotations.and_then(|all| all.get(ANNOTATION_GUEST)).cloned(),
    }
}

fn token(meta: &ObjectMeta) -> TokenSecret {
    let annotation = |key: &str| {
        meta.annotations.as_ref().and_then(|all| all.get(key)).cloned().unwrap_or_default()
    };
    let label = |key: &str| meta.labels.as_ref().and_then(|all| all.get(key)).cloned();
    TokenSecret {
        name: meta.name.clone().unwrap_or_default(),
        account: (annotation(ANNOTATION_ACCOUNT), annotation(ANNOTATION_ACCOUNT_UID)),
        uid: meta.uid.clone().unwrap_or_default(),
        version: meta.resource_version.clone().unwrap_or_default(),
        created: created(meta),
        last_used: label(LABEL_LAST_USED),
        invalid_since: label(LABEL_INVALID_SINCE),
    }
}

/// Whether the API server refused the call with the HTTP status `code`. Always false for 409, which
/// is a [`CallError::Conflict`]. The code alone is compared, and not `status.reason`: the API
/// server answers a request for an unknown API group with 404 in plain text, without the reason
/// `NotFound`.
fn has_code(error: &CallError, code: u16) -> bool {
    match error {
        CallError::NotFound(_) => code == 404,
        CallError::Other(failed) => {
            matches!(&failed.error, kube::Error::Api(status) if status.code == code)
        }
        _ => false,
    }
}

fn binding(meta: ObjectMeta, role: RoleRef, subjects: Option<Vec<FullSubject>>) -> StoredBinding {
    let subject = |s: FullSubject| BindingSubject {
        kind: s.kind,
        namespace: s.namespace.unwrap_or_default(),
        name: s.name,
    };
    StoredBinding {
        namespace: meta.namespace,
        name: meta.name.unwrap_or_default(),
        role: (role.kind, role.name),
        subjects: subjects.unwrap_or_default().into_iter().map(subject).collect(),
        uid: meta.uid.unwrap_or_default(),
        version: meta.resource_version.unwrap_or_default(),
    }
}
