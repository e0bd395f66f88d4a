//! Guarded writes of DHCPLeases (records): metadata and spec. The agents write the status.

use kube::Api;
use kube::ResourceExt;
use kube::api::{DeleteParams, Preconditions};
use serde_json::Value;

use super::ApiWriter;
use crate::api::DHCPLease;
use crate::k8s::CallError;
use crate::k8s::calls::ApiWrites as _;

const RECORD: &str = "DHCPLease";

impl ApiWriter {
    /// Creates a record, and returns the stored record. Fails with a conflict if a record with that
    /// name exists.
    pub async fn create_record(&self, record: &DHCPLease) -> Result<DHCPLease, CallError> {
        self.check_leadership()?;
        let api = self.records(record);
        self.count(RECORD, api.call_create(record).await)
    }

    /// Applies the merge patch `patch` to the record with the namespace and name of `record`.
    /// Returns the changed record.
    pub async fn patch_record(
        &self,
        record: &DHCPLease,
        patch: &Value,
    ) -> Result<DHCPLease, CallError> {
        self.check_leadership()?;
        let (api, name) = (self.records(record), record.name_any());
        self.count(RECORD, api.call_patch(&name, patch).await)
    }

    /// Deletes a record. Fails with a conflict if the stored UID or resourceVersion differs from
    /// that of `record`.
    pub async fn delete_record(&self, record: &DHCPLease) -> Result<(), CallError> {
        self.check_leadership()?;
        let only = Preconditions { uid: record.uid(), resource_version: record.resource_version() };
        let params = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
        let (api, name) = (self.records(record), record.name_any());
        self.count(RECORD, api.call_delete(&name, &params).await).map(drop)
    }

    fn records(&self, record: &DHCPLease) -> Api<DHCPLease> {
        Api::namespaced(self.client.clone(), &record.namespace().unwrap_or_default())
    }
}
