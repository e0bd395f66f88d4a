//! Guarded writes: each write is refused while this process does not lead. [`ApiWriter`] names the
//! exceptions.
//!
//! A change is a merge patch with the resourceVersion of the object that the patch was computed
//! from. So the server refuses the patch if the object has another resourceVersion by now. Fields
//! that this version of the operator does not know stay as they are. A function that deviates from
//! these rules says so.

mod credentials;
mod dhcp_agents;
mod dhcp_leases;
mod serving;

pub use credentials::{BoundSecret, SecretKeyRef};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderValue;
use http::header::ACCEPT;
use k8s_openapi::NamespaceResourceScope;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::{ObjectMeta, PartialObjectMeta, Request};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::calls::{ApiCalls as _, ApiWrites as _, run_call};
use super::leadership::Leadership;
use super::{CALL_DEADLINE, CallError, count_write};
use crate::api::{ANNOTATION_KEEP_ORPHANS, IPPool, IPPoolStatus, LoadBalancer};
use crate::domain::object_fields::merge_patch::changed_entries;
use crate::metrics::Metrics;

/// Client for writes. Refuses each write while this process does not lead, except the writes of
/// [`Self::patch_lb_condition`] and [`Self::keep_claims`].
#[derive(Clone)]
pub struct ApiWriter {
    client: Client,
    leadership: Arc<Leadership>,
    metrics: Metrics,
    /// Whether IPPool is served without the status subresource, as it is with the CRD of
    /// Harvester's chart.
    plain_pools: Arc<AtomicBool>,
}

impl ApiWriter {
    /// Creates a writer. Sends no request.
    pub fn new(client: Client, leadership: Arc<Leadership>, metrics: Metrics) -> Self {
        Self { client, leadership, metrics, plain_pools: Arc::default() }
    }

    /// Applies the merge patch `patch` to a LoadBalancer, even if this process does not lead. The
    /// patch sets the condition that names the holder of the Lease. Precondition: the patch has a
    /// resourceVersion, so that it never overwrites a newer condition of the leader.
    pub async fn patch_lb_condition(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<(), CallError> {
        let lbs = Api::<LoadBalancer>::namespaced(self.client.clone(), namespace);
        self.count::<LoadBalancer, _>(lbs.call_patch(name, patch).await).map(drop)
    }

    /// Adds claims to a pool, so that no leader allocates their addresses. Writes even if this
    /// process does not lead. Two patches:
    /// * The first has the resourceVersion of `stored`. It sets the annotation
    ///   [`ANNOTATION_KEEP_ORPHANS`] to `why`.
    /// * The second has the resourceVersion that the first returned. It changes the status to
    ///   `desired`, which has the additional claims.
    pub async fn keep_claims(
        &self,
        stored: &IPPool,
        desired: &IPPoolStatus,
        why: &str,
    ) -> Result<(), CallError> {
        let name = stored.metadata.name.as_deref().unwrap_or_default();
        let pools = Api::<IPPool>::all(self.client.clone());
        let mark = json!({"metadata": {
            "resourceVersion": stored.metadata.resource_version,
            "annotations": {ANNOTATION_KEEP_ORPHANS: why},
        }});
        let marked = self.count::<IPPool, _>(pools.call_patch(name, &mark).await)?;
        let before = stored.status.clone().unwrap_or_default();
        let claims = json!({
            "metadata": {"resourceVersion": marked.metadata.resource_version},
            "status": status_diff(&before, desired),
        });
        // The answer 404 means that the CRD has no status subresource.
        let written = match pools.call_patch_status(name, &claims).await {
            Err(CallError::NotFound(_)) => pools.call_patch(name, &claims).await,
            written => written,
        };
        self.count::<IPPool, _>(written).map(drop)
    }

    /// Creates an IPPool. Returns the stored IPPool. Fails with a conflict if an IPPool with that
    /// name exists.
    pub async fn create_pool(&self, pool: &IPPool) -> Result<IPPool, CallError> {
        self.check_leadership()?;
        let api = Api::<IPPool>::all(self.client.clone());
        self.count::<IPPool, _>(api.call_create(pool).await)
    }

    /// Changes a pool's status from `stored` to `desired`. Returns the pool's new metadata.
    /// `version`: resourceVersion of the pool with the status `stored`.
    ///
    /// The write goes to the status subresource, or to the pool itself (a plain write) if the last
    /// write found no such subresource. The other form of the CRD may be installed at any time, and
    /// the write adapts to it:
    /// * If a write to the subresource fails with 404, and the pool exists, a plain write follows.
    /// * If a plain write does not change the status, the CRD has the subresource. The write then
    ///   counts as a conflict, and the next write uses the subresource.
    pub async fn write_pool_status(
        &self,
        name: &str,
        version: &str,
        stored: &IPPoolStatus,
        desired: &IPPoolStatus,
    ) -> Result<ObjectMeta, CallError> {
        let patch = json!({
            "metadata": {"resourceVersion": version},
            "status": status_diff(stored, desired),
        });
        if !self.plain_pools.load(Ordering::Relaxed) {
            match self.patch_status::<IPPool>(None, name, &patch).await {
                Err(CallError::NotFound(_)) => {
                    let pools = Api::<PartialObjectMeta<IPPool>>::all(self.client.clone());
                    pools.call_get(name).await?;
                    tracing::info!("IPPool is served without a status subresource");
                    self.plain_pools.store(true, Ordering::Relaxed);
                }
                answer => return answer,
            }
        }
        self.check_leadership()?;
        let pools = Api::<IPPool>::all(self.client.clone());
        let written = self.count::<IPPool, _>(pools.call_patch(name, &patch).await)?;
        let took = written.status.as_ref().is_some_and(|s| !differs(s, desired, true));
        if !took {
            tracing::info!("IPPool is served with a status subresource");
            self.plain_pools.store(false, Ordering::Relaxed);
            return Err(CallError::Conflict(pools.name_call("PATCH", name)));
        }
        Ok(written.metadata)
    }

    /// Whether IPPool is served without the status subresource, according to the last write of a
    /// pool's status. False before the first write.
    pub fn pools_are_plain(&self) -> bool {
        self.plain_pools.load(Ordering::Relaxed)
    }

    /// Client for the objects of a kind in `namespace`. Fails if this process does not lead.
    fn leading<K>(&self, namespace: &str) -> Result<Api<K>, CallError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        self.check_leadership()?;
        Ok(Api::namespaced(self.client.clone(), namespace))
    }

    /// Creates `object` in `namespace`. Returns its metadata. Fails with a conflict if an object of
    /// the kind with that name exists.
    pub async fn create<K: Resource<DynamicType = ()>>(
        &self,
        namespace: &str,
        object: &impl Serialize,
    ) -> Result<ObjectMeta, CallError> {
        let body = serde_json::to_vec(object).map_err(unserializable::<K>)?;
        let request = Request::new(K::url_path(&(), Some(namespace)));
        self.send::<K>(request.create(&PostParams::default(), body)).await
    }

    /// Applies the merge patch `patch` to the object `name`. `namespace: None`: the object is
    /// cluster-scoped. Returns the object's new metadata.
    pub async fn patch<K: Resource<DynamicType = ()>>(
        &self,
        namespace: Option<&str>,
        name: &str,
        patch: &impl Serialize,
    ) -> Result<ObjectMeta, CallError> {
        let request = Request::new(K::url_path(&(), namespace));
        self.send::<K>(request.patch(name, &PatchParams::default(), &Patch::Merge(patch))).await
    }

    /// Applies the merge patch `patch` to the status of the object `name`. `namespace: None`: the
    /// object is cluster-scoped. Returns the object's new metadata.
    pub async fn patch_status<K: Resource<DynamicType = ()>>(
        &self,
        namespace: Option<&str>,
        name: &str,
        patch: &impl Serialize,
    ) -> Result<ObjectMeta, CallError> {
        let (request, params) = (Request::new(K::url_path(&(), namespace)), PatchParams::default());
        self.send::<K>(request.patch_subresource("status", name, &params, &Patch::Merge(patch)))
            .await
    }

    /// Sends a write, and returns the new metadata of the written object. The request asks the API
    /// server for an answer with metadata only.
    async fn send<K: Resource<DynamicType = ()>>(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<ObjectMeta, CallError> {
        self.check_leadership()?;
        let mut request = request.map_err(|error| {
            CallError::not_sent(&K::kind(&()), kube::Error::BuildRequest(error))
        })?;
        let (method, uri) = (request.method().clone(), request.uri().clone());
        request.headers_mut().insert(
            ACCEPT,
            HeaderValue::from_static(
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            ),
        );
        let call = self.client.request::<PartialObjectMeta<K>>(request);
        let name = || format!("{method} {}", uri.path());
        let answer = run_call(CALL_DEADLINE, name, call).await;
        self.count::<K, _>(answer).map(|object| object.metadata)
    }

    /// Fails if this process does not lead. Callers also use this check before each write to
    /// another server, such as a Rancher.
    pub fn check_leadership(&self) -> Result<(), CallError> {
        if self.leadership.is_current() { Ok(()) } else { Err(CallError::NotLeader) }
    }

    /// Counts the write of an object of the kind `K` in the metrics. Returns `answer` unchanged.
    fn count<K: Resource<DynamicType = ()>, T>(
        &self,
        answer: Result<T, CallError>,
    ) -> Result<T, CallError> {
        count_write(&self.metrics, &K::kind(&()), answer)
    }
}

/// Object of type `K`, parsed from the JSON value `object`.
fn typed<K: Resource<DynamicType = ()> + DeserializeOwned>(object: &Value) -> Result<K, CallError> {
    K::deserialize(object).map_err(unserializable::<K>)
}

fn unserializable<K: Resource<DynamicType = ()>>(error: serde_json::Error) -> CallError {
    CallError::not_sent(&K::kind(&()), kube::Error::SerdeError(error))
}

/// Whether a write of `desired` would change the status `stored`. `plain`: whether IPPool is served
/// with Harvester's CRD. With that CRD, the API server drops the fields that only the operator's
/// CRD has. So these fields are not compared if `plain` is true.
pub fn differs(stored: &IPPoolStatus, desired: &IPPoolStatus, plain: bool) -> bool {
    if !plain {
        return stored != desired;
    }
    let known_there = |status: &IPPoolStatus| IPPoolStatus {
        used_percent: None,
        allocated_owners: BTreeMap::new(),
        observed_generation: None,
        ..status.clone()
    };
    known_there(stored) != known_there(desired)
}

/// The merge patch (RFC 7396) that changes `old` into `new`. Its maps contain only the changed
/// entries. The maps of a status may have thousands of entries, so they are compared without a
/// copy.
fn status_diff(old: &IPPoolStatus, new: &IPPoolStatus) -> Value {
    let IPPoolStatus { allocated, allocated_owners, allocated_history, .. } = new;
    let maps = [
        ("allocated", &old.allocated, allocated),
        ("allocatedOwners", &old.allocated_owners, allocated_owners),
        ("allocatedHistory", &old.allocated_history, allocated_history),
    ];
    let mut patch = json!({
        "total": new.total,
        "available": new.available,
        "usedPercent": new.used_percent,
        "lastAllocated": new.last_allocated,
        "observedGeneration": new.observed_generation,
        "conditions": new.conditions,
    });
    for (field, old, new) in maps {
        let changes = changed_entries(old, new);
        if !changes.is_empty() {
            patch[field] = Value::Object(changes);
        }
    }
    patch
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::discovery::v1::EndpointSlice;

    use super::*;
    use crate::api::{DHCPLease, TokenRotation, Workload, WorkloadKind};
    use crate::domain::credentials::secret_text::SecretText;
    use crate::k8s::credentials::BoundToken;

    fn status(allocated: &[(&str, &str)]) -> IPPoolStatus {
        let allocated = allocated.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        IPPoolStatus { allocated, ..IPPoolStatus::default() }
    }

    /// Each write fails before it is sent, because this process does not lead.
    #[tokio::test]
    async fn nothing_is_sent_without_leadership() {
        // No program listens at this address, so a call that is sent fails with another error than
        // `NotLeader`.
        let nowhere = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
        let client = Client::try_from(nowhere).unwrap();
        let writer = ApiWriter::new(client, Arc::default(), Metrics::new().unwrap());
        let status = IPPoolStatus::default();
        let at = SecretKeyRef { namespace: "ns", name: "s", key: "k", version: "1" };
        let bound =
            BoundSecret { namespace: "ns", name: "b", rotation: "uid", account: None, owner: None };
        let token = BoundToken {
            namespace: "ns",
            account: "sa",
            seconds: 600,
            secret: "b",
            secret_uid: "uid",
        };
        let workload = Workload { kind: WorkloadKind::DaemonSet, name: "d".to_owned() };
        let answers = [
            writer.patch_status::<LoadBalancer>(Some("ns"), "lb", &json!({})).await.err(),
            writer.patch::<IPPool>(None, "pool", &json!({})).await.err(),
            writer.write_pool_status("pool", "1", &status, &status).await.err(),
            writer.create_service("ns", &json!({})).await.err(),
            writer.patch_service("ns", "lb", &json!({})).await.err(),
            writer.delete_service("ns", "lb", "uid", "1").await.err(),
            writer.create::<EndpointSlice>("ns", &json!({})).await.err(),
            writer.delete_slice("ns", "lb", "1").await.err(),
            writer.create_deployment("ns", &json!({})).await.err(),
            writer.replace_deployment("ns", "d", &json!({})).await.err(),
            writer.delete_deployment("ns", "d", "uid", "1").await.err(),
            writer.patch_network("ns", "n", &json!({})).await.err(),
            writer.create_pool(&IPPool::default()).await.err(),
            writer.create_record(&DHCPLease::default()).await.err(),
            writer.patch_record(&DHCPLease::default(), &json!({})).await.err(),
            writer.delete_record(&DHCPLease::default()).await.err(),
            writer.patch::<IPPool>(None, "pool", &json!({})).await.err(),
            writer.patch_rotation_status("ns", "r", &json!({})).await.err(),
            writer.patch_rotation_meta("ns", "r", &json!({})).await.err(),
            writer.check_leadership().err(),
            writer.create_rotation("ns", &TokenRotation::default()).await.err(),
            writer.delete_rotation("ns", "r", "uid").await.err(),
            writer.create_bound_secret(bound).await.err(),
            writer.request_token(token).await.err(),
            writer.write_target(at, &SecretText::trimmed(String::new())).await.err(),
            writer.delete_bound_secret("ns", "b").await.err(),
            writer.restart("ns", &workload, ("k", "v")).await.err(),
        ];
        for answer in answers {
            assert!(matches!(answer, Some(CallError::NotLeader)), "{answer:?}");
        }
    }

    #[test]
    fn a_patch_names_only_the_entries_that_change() {
        let patch =
            status_diff(&status(&[("a", "x"), ("b", "y")]), &status(&[("b", "y"), ("c", "z")]));
        assert_eq!(patch["allocated"], json!({"a": null, "c": "z"}));
        assert_eq!(patch.get("allocatedOwners"), None);
    }
}
