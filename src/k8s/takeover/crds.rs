//! Reads and writes of the CRDs that a take-over changes.

use anyhow::Context as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::{PATIENCE, TakeoverClient};
use crate::api;
use crate::domain::takeover::crds::{ANNOTATION_FORM, adopted, restored};
use crate::domain::takeover::steps::{Crd, WayBack};
use crate::k8s::CallError;
use crate::k8s::calls::{ApiCalls as _, ApiWrites as _};

/// Annotation that makes Helm keep an object that the chart no longer contains.
const KEEP: &str = "helm.sh/resource-policy";
/// Names of the CRDs that a take-over changes. Harvester's chart installs these CRDs.
const CRDS: [&str; 2] =
    ["ippools.loadbalancer.harvesterhci.io", "loadbalancers.loadbalancer.harvesterhci.io"];

impl TakeoverClient {
    fn definitions(&self) -> Api<CustomResourceDefinition> {
        Api::all(self.client.clone())
    }

    async fn definition(&self, name: &str) -> Result<CustomResourceDefinition, CallError> {
        self.definitions().within(PATIENCE).call_get(name).await
    }

    pub(super) async fn crds(&self) -> anyhow::Result<Vec<Crd>> {
        let all = api::crds();
        let mut crds = Vec::new();
        for name in CRDS {
            let crd = self.definition(name).await;
            let crd = crd.with_context(|| format!("cannot read CRD {name} of Harvester"))?;
            let has_status = crd.spec.versions.iter().any(|version| {
                version.subresources.as_ref().is_some_and(|all| all.status.is_some())
            });
            let ours = all.iter().find(|ours| ours.name_any() == name);
            crds.push(Crd {
                name: name.to_owned(),
                is_kept: crd.annotations().get(KEEP).is_some_and(|policy| policy == "keep"),
                is_current: ours.is_some_and(|ours| ours.spec.versions == crd.spec.versions),
                way_back: match crd.annotations().contains_key(ANNOTATION_FORM) {
                    true => WayBack::Recorded,
                    false if has_status => WayBack::Closed,
                    false => WayBack::Open,
                },
            });
        }
        Ok(crds)
    }

    /// Annotates the CRD `name`, so that Helm never deletes it: neither if the chart no longer
    /// contains the CRD, nor if the chart's release is uninstalled.
    pub(super) async fn set_keep_policy(&self, name: &str) -> anyhow::Result<()> {
        self.change(name, json!({"metadata": {"annotations": {KEEP: "keep"}}})).await
    }

    /// Puts the versions of the operator's CRD into the spec of the CRD `name`. If the operator's
    /// Deployment belongs to a Helm release, this release owns the CRD afterwards.
    ///
    /// Records the former versions, and Helm's former label and annotations, in
    /// [`ANNOTATION_FORM`]. Values from the operator itself do not replace an earlier record
    /// ([`adopted`]).
    pub(super) async fn adopt(&self, name: &str) -> anyhow::Result<()> {
        let stored = serde_json::to_value(self.definition(name).await?)?;
        let operator = serde_json::to_value(self.operator().await?)?;
        let ours = api::crds().into_iter().find(|ours| ours.name_any() == name);
        let Some(ours) = ours else { return Ok(()) };
        let ours = serde_json::to_value(ours.spec.versions)?;
        self.change(name, adopted(&stored, &ours, &operator)).await
    }

    /// Restores what the annotation [`ANNOTATION_FORM`] of the CRD `name` records: the former
    /// versions, and Helm's former label and annotations. If another program has already replaced
    /// the operator's versions, the present versions stay. Does nothing if the CRD has no such
    /// annotation, because an earlier write without an answer may have restored the CRD.
    pub(super) async fn restore(&self, name: &str) -> anyhow::Result<()> {
        let stored = self.definition(name).await?;
        if !stored.annotations().contains_key(ANNOTATION_FORM) {
            return Ok(());
        }
        let stored = serde_json::to_value(stored)?;
        let patch = restored(&stored).with_context(|| {
            format!(
                "cannot restore the former form of CRD {name}, because its annotation \
                 {ANNOTATION_FORM} is unreadable: apply Harvester's CRD, and remove the annotation"
            )
        })?;
        self.change(name, patch).await
    }

    async fn change(&self, name: &str, patch: Value) -> anyhow::Result<()> {
        self.definitions().within(PATIENCE).call_patch(name, &patch).await?;
        Ok(())
    }
}
