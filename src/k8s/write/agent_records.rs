//! Guarded writes by a network's agent: the status and the finalizers of the network's records
//! (DHCPLeases).

use serde_json::{Value, json};

use super::ApiWriter;
use crate::api::DHCPLease;
use crate::k8s::CallError;

impl ApiWriter {
    /// Applies the merge patch `status` to the status of a record. Returns the record's new
    /// resourceVersion. Fails with a conflict if the record's resourceVersion is not `version`.
    pub async fn patch_record_status(
        &self,
        namespace: &str,
        name: &str,
        version: &str,
        status: &Value,
    ) -> Result<String, CallError> {
        let patch = json!({"metadata": {"resourceVersion": version}, "status": status});
        let meta = self.patch::<DHCPLease>(Some(namespace), name, &patch, Some("status")).await?;
        Ok(meta.resource_version.unwrap_or_default())
    }

    /// Replaces the finalizers of a record with `finalizers`. Fails with a conflict if the record's
    /// resourceVersion is not `version`.
    pub async fn finish_record(
        &self,
        namespace: &str,
        name: &str,
        version: &str,
        finalizers: &[String],
    ) -> Result<(), CallError> {
        let patch = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
        self.patch::<DHCPLease>(Some(namespace), name, &patch, None).await.map(drop)
    }
}
