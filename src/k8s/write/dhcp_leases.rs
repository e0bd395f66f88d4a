//! Guarded writes of DHCPLeases (records). The controller writes metadata and spec. The agents
//! write the status, and remove the agent's finalizer from a record.

use kube::{Api, ResourceExt};
use serde_json::Value;

use super::ApiWriter;
use crate::api::DHCPLease;
use crate::k8s::CallError;
use crate::k8s::calls::{ApiWrites as _, only_if};

impl ApiWriter {
    /// Creates a record, and returns the stored record. Fails with a conflict if a record with that
    /// name exists.
    pub async fn create_record(&self, record: &DHCPLease) -> Result<DHCPLease, CallError> {
        let api = self.records(record)?;
        self.count::<DHCPLease, _>(api.call_create(record).await)
    }

    /// Applies the merge patch `patch` to the record with the namespace and name of `record`.
    /// Returns the changed record.
    pub async fn patch_record(
        &self,
        record: &DHCPLease,
        patch: &Value,
    ) -> Result<DHCPLease, CallError> {
        let api = self.records(record)?;
        self.count::<DHCPLease, _>(api.call_patch(&record.name_any(), patch).await)
    }

    /// Applies the merge patch `patch` of an agent to a record: to its status if `is_status` is
    /// true, and otherwise to its metadata. Returns the record's new resourceVersion.
    pub async fn patch_record_of_agent(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
        is_status: bool,
    ) -> Result<String, CallError> {
        let meta = if is_status {
            self.patch_status::<DHCPLease>(Some(namespace), name, patch).await?
        } else {
            self.patch::<DHCPLease>(Some(namespace), name, patch).await?
        };
        Ok(meta.resource_version.unwrap_or_default())
    }

    /// Deletes a record. Fails with a conflict if the stored UID or resourceVersion differs from
    /// that of `record`.
    pub async fn delete_record(&self, record: &DHCPLease) -> Result<(), CallError> {
        let api = self.records(record)?;
        let (uid, version) = (record.uid(), record.resource_version());
        let params = only_if(uid.as_deref(), version.as_deref());
        self.count::<DHCPLease, _>(api.call_delete(&record.name_any(), &params).await).map(drop)
    }

    fn records(&self, record: &DHCPLease) -> Result<Api<DHCPLease>, CallError> {
        self.leading(&record.namespace().unwrap_or_default())
    }
}
