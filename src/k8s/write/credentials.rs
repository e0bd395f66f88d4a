//! Guarded writes of credentials: the objects that credentials are bound to, the Secrets that
//! consumers read, and the TokenRotations. Also restarts the workloads that use a credential.
//!
//! Invariant: an answer that holds a credential is not parsed by kube, because kube logs text that
//! it cannot parse.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource as _;
use kube::api::DeleteParams;
use kube::core::Request;
use serde_json::{Value, json};

use super::ApiWriter;
use crate::api::{
    ANNOTATION_HASH, BOUND_SECRET_TYPE, LABEL_ROTATION, MANAGED_BY, MANAGER, TokenRotation,
    Workload, WorkloadKind,
};
use crate::domain::credentials::secret_text::SecretText;
use crate::domain::object_fields::digest::sha256_hex;
use crate::k8s::calls::{ApiWrites as _, only_if};
use crate::k8s::credentials::{BoundToken, signed_token};
use crate::k8s::{CALL_DEADLINE, CallError, count_write};

/// Place of a value: a Secret, and the key under which the value is written.
#[derive(Clone, Copy, Debug)]
pub struct SecretKeyRef<'a> {
    /// Namespace of the Secret.
    pub namespace: &'a str,
    /// Name of the Secret.
    pub name: &'a str,
    /// Key under which the value is written.
    pub key: &'a str,
    /// resourceVersion that the Secret must have before the write. If this text is empty, the
    /// Secret must not exist.
    pub version: &'a str,
}

/// Bound Secret to create for a TokenRotation. The deletion of the Secret revokes the token that is
/// bound to it or that it holds.
#[derive(Clone, Copy, Debug)]
pub struct BoundSecret<'a> {
    /// Namespace of the Secret.
    pub namespace: &'a str,
    /// Name of the Secret.
    pub name: &'a str,
    /// UID of the TokenRotation, for the Secret's label.
    pub rotation: &'a str,
    /// ServiceAccount whose token the API server puts into the Secret. `None`: the Secret contains
    /// no token.
    pub account: Option<&'a str>,
    /// Owner in the Secret's owner references. `None`: the Secret has no owner.
    pub owner: Option<&'a OwnerReference>,
}

impl ApiWriter {
    /// Applies the merge patch `patch` to a TokenRotation's status. Returns the changed object.
    pub async fn patch_rotation_status(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<TokenRotation, CallError> {
        let api = self.leading::<TokenRotation>(namespace)?;
        self.count::<TokenRotation, _>(api.call_patch_status(name, patch).await)
    }

    /// Applies the merge patch `patch` to a TokenRotation's metadata and spec. Returns the changed
    /// object.
    pub async fn patch_rotation_meta(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<TokenRotation, CallError> {
        let api = self.leading::<TokenRotation>(namespace)?;
        self.count::<TokenRotation, _>(api.call_patch(name, patch).await)
    }

    /// Creates a TokenRotation. Fails with a conflict if a TokenRotation with that name exists.
    pub async fn create_rotation(
        &self,
        namespace: &str,
        rotation: &TokenRotation,
    ) -> Result<(), CallError> {
        self.create::<TokenRotation>(namespace, rotation).await.map(drop)
    }

    /// Deletes a TokenRotation. Fails with a conflict if the TokenRotation's UID is not `uid`.
    pub async fn delete_rotation(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<(), CallError> {
        let list = TokenRotation::url_path(&(), Some(namespace));
        let request = Request::new(list).delete(name, &only_if(Some(uid), None));
        self.send::<TokenRotation>(request).await.map(drop)
    }

    /// Creates a bound Secret, and returns the Secret's UID. Fails with a conflict if a Secret with
    /// that name exists.
    pub async fn create_bound_secret(&self, bound: BoundSecret<'_>) -> Result<String, CallError> {
        let BoundSecret { namespace, name, rotation, account, owner } = bound;
        let mut secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "name": name, "namespace": namespace,
                "labels": {LABEL_ROTATION: rotation, MANAGED_BY: MANAGER},
            },
            "type": BOUND_SECRET_TYPE,
        });
        if let Some(account) = account {
            secret["type"] = json!("kubernetes.io/service-account-token");
            secret["metadata"]["annotations"] =
                json!({"kubernetes.io/service-account.name": account});
        }
        if let Some(OwnerReference { api_version, kind, name, uid, .. }) = owner {
            secret["metadata"]["ownerReferences"] =
                json!([{"apiVersion": api_version, "kind": kind, "name": name, "uid": uid}]);
        }
        let meta = self.create::<Secret>(namespace, &secret).await?;
        Ok(meta.uid.unwrap_or_default())
    }

    /// Requests a token of a ServiceAccount from the API server, and returns the token.
    pub async fn request_token(&self, wanted: BoundToken<'_>) -> Result<SecretText, CallError> {
        self.check_leadership()?;
        let token = signed_token(CALL_DEADLINE, &self.client, wanted).await;
        count_write(&self.metrics, "TokenRequest", token)
    }

    /// Writes `value` under the key `at.key` of the Secret, and the hash of `value` into the
    /// annotation [`ANNOTATION_HASH`].
    /// * `at.version` is empty: creates the Secret. Fails with a conflict if the Secret exists.
    /// * `at.version` is not empty: changes the Secret. Fails with a conflict if the Secret has
    ///   another resourceVersion.
    pub async fn write_target(
        &self,
        at: SecretKeyRef<'_>,
        value: &SecretText,
    ) -> Result<(), CallError> {
        let text = value.reveal().as_bytes();
        let annotations = json!({ANNOTATION_HASH: sha256_hex(text)});
        let data = BTreeMap::from([(at.key, k8s_openapi::ByteString(text.to_vec()))]);
        if at.version.is_empty() {
            let secret = json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {
                    "name": at.name, "namespace": at.namespace,
                    "labels": {MANAGED_BY: MANAGER}, "annotations": annotations,
                },
                "data": data,
            });
            return self.create::<Secret>(at.namespace, &secret).await.map(drop);
        }
        let patch = json!({
            "metadata": {"resourceVersion": at.version, "annotations": annotations},
            "data": data,
        });
        self.patch::<Secret>(Some(at.namespace), at.name, &patch).await.map(drop)
    }

    /// Deletes the bound Secret `name`, whatever its UID and resourceVersion are. Succeeds even if
    /// there is no such Secret.
    pub async fn delete_bound_secret(&self, namespace: &str, name: &str) -> Result<(), CallError> {
        let list = Secret::url_path(&(), Some(namespace));
        let request = Request::new(&list).delete(name, &DeleteParams::default());
        match self.send::<Secret>(request).await {
            Err(CallError::NotFound(_)) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Restarts a workload's pods: sets the annotation `key` of the pod template to `value`. If the
    /// annotation already has this value, nothing restarts. The patch needs no resourceVersion,
    /// because it sets only this annotation, and so overwrites no other client's change.
    pub async fn restart(
        &self,
        namespace: &str,
        workload: &Workload,
        (key, value): (&str, &str),
    ) -> Result<(), CallError> {
        let patch = json!({"spec": {"template": {"metadata": {"annotations": {key: value}}}}});
        let (namespace, name) = (Some(namespace), &workload.name);
        match workload.kind {
            WorkloadKind::Deployment => self.patch::<Deployment>(namespace, name, &patch).await,
            WorkloadKind::StatefulSet => self.patch::<StatefulSet>(namespace, name, &patch).await,
            WorkloadKind::DaemonSet => self.patch::<DaemonSet>(namespace, name, &patch).await,
        }
        .map(drop)
    }
}
