//! Rewrites every LoadBalancer in the current storage version. After that, removes the old version
//! from the CRD's `storedVersions`. As long as `storedVersions` contains the old version, the CRD
//! must contain it too.
//!
//! Invariants:
//!
//! * `storedVersions` is shortened only if every listed object was written after the list, by this
//!   task or by another client, or is gone.
//! * `storedVersions` is shortened only if the CRD has not changed since it was read, before the
//!   list. So the storage version has not changed either, and no object was stored in the old
//!   version after its rewrite.
//! * If an object cannot be converted, the list fails, and nothing is written.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::PartialObjectMeta;
use kube::{Api, Resource, ResourceExt};
use serde_json::json;

use super::Context;
use crate::api::LoadBalancer;
use crate::domain::limits::backoff::backoff;
use crate::k8s::CallError;
use crate::k8s::calls::ApiCalls as _;

const CRD: &str = "loadbalancers.loadbalancer.harvesterhci.io";
const STORED: &str = "v1beta1";
/// Pause between the rewrites of two LoadBalancers.
const PACE: Duration = Duration::from_millis(10);
/// Time after which every API server has applied a change of the CRD. An API server itself waits
/// 5 s for the other API servers before it establishes a CRD (apiextensions-apiserver,
/// `EstablishingController`).
const SETTLED: Duration = Duration::from_secs(10);
/// Pause after the first attempt that did not finish (field 0), and longest pause (field 1). The
/// pause doubles after each further attempt.
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_mins(5));

/// Repeats the migration to the current storage version until nothing is left to do, then waits to
/// be dropped.
pub(super) async fn run(ctx: Context) {
    let mut logged = String::new();
    for failures in 0.. {
        match attempt(&ctx).await {
            Ok(None) => break,
            Ok(Some(why)) if why == logged => {}
            Ok(Some(why)) => {
                tracing::warn!(
                    why,
                    "LoadBalancers are still stored in the old version, trying again"
                );
                logged = why;
            }
            Err(CallError::NotLeader) => {}
            Err(error) => {
                tracing::warn!(crd = CRD, %error, "cannot read the stored versions, trying again");
            }
        }
        tokio::time::sleep(backoff(failures, RETRY.0, RETRY.1, 0.0)).await;
    }
    std::future::pending::<()>().await;
}

/// Attempts once to rewrite all LoadBalancers in the current storage version. Returns the reason
/// why the attempt must be repeated. `None`: nothing is left to do in this term. Either each object
/// is stored in the current storage version, or the CRD does not exist, or the API server refuses
/// to show the CRD.
async fn attempt(ctx: &Context) -> Result<Option<String>, CallError> {
    let crds = Api::<CustomResourceDefinition>::all(ctx.client.clone());
    let crd = match crds.call_get(CRD).await {
        Ok(crd) => crd,
        Err(error) if matches!(error, CallError::NotFound(_)) || error.refusal().is_some() => {
            tracing::info!(%error, "cannot change the stored versions of LoadBalancer");
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let stored = crd.status.as_ref().and_then(|status| status.stored_versions.clone());
    let old: Vec<String> =
        stored.unwrap_or_default().into_iter().filter(|version| version != STORED).collect();
    if old.is_empty() {
        return Ok(None);
    }
    if !crd.spec.versions.iter().any(|version| version.storage && version.name == STORED) {
        return Ok(Some(format!("the CRD's storage version is not {STORED}")));
    }
    // With the conversion strategy `None`, the API server drops the fields that exist only in the
    // version in which an object is stored.
    let conversion = crd.spec.conversion.as_ref().filter(|c| c.strategy == "Webhook");
    let config = conversion.and_then(|c| c.webhook.as_ref()?.client_config.as_ref());
    if config.and_then(|config| config.ca_bundle.as_ref()).is_none_or(|ca| ca.0.is_empty()) {
        return Ok(Some("the CRD has no conversion webhook with a CA bundle".to_owned()));
    }
    tokio::time::sleep(SETTLED).await;
    let objects = match list(ctx).await {
        Ok(objects) => objects,
        Err(error) => return Ok(Some(format!("LoadBalancers cannot be listed: {error}"))),
    };
    for (namespace, name, version) in &objects {
        let patch = json!({"metadata": {"resourceVersion": version}});
        match ctx.writer.patch::<LoadBalancer>(Some(namespace), name, &patch).await {
            // Another client has changed or removed the object, so the object is no longer stored
            // in the old version.
            Ok(_) | Err(CallError::Conflict(_) | CallError::NotFound(_)) => {}
            Err(CallError::NotLeader) => return Err(CallError::NotLeader),
            Err(error) => {
                return Ok(Some(format!("cannot write LoadBalancer {namespace}/{name}: {error}")));
            }
        }
        tokio::time::sleep(PACE).await;
    }
    let patch = json!({
        "metadata": {"resourceVersion": crd.resource_version()},
        "status": {"storedVersions": [STORED]},
    });
    match ctx.writer.patch_status::<CustomResourceDefinition>(None, CRD, &patch).await {
        Ok(_) => {}
        Err(CallError::Conflict(_)) => return Ok(Some("the CRD was changed meanwhile".to_owned())),
        Err(error) => return Err(error),
    }
    let note = format!(
        "{} LoadBalancers are stored in {STORED}; {} is not stored any more",
        objects.len(),
        old.join(", ")
    );
    tracing::info!("{note}");
    ctx.events.normal(crd.object_ref(&()), "StorageMigrated", note);
    Ok(None)
}

/// Namespace, name and resourceVersion of every LoadBalancer.
async fn list(ctx: &Context) -> Result<Vec<(String, String, String)>, CallError> {
    let api = Api::<PartialObjectMeta<LoadBalancer>>::all(ctx.client.clone());
    let mut objects = Vec::new();
    api.list_each(|lb: PartialObjectMeta<LoadBalancer>| {
        let version = lb.resource_version().unwrap_or_default();
        objects.push((lb.namespace().unwrap_or_default(), lb.name_any(), version));
    })
    .await?;
    Ok(objects)
}
