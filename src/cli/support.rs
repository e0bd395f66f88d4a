//! The `support` command: a report for maintainers, in one text. The command reads with the rights
//! of the user who runs it. The rights that the operator has are enough. The report names the
//! objects that could not be read, and is complete for all others.

use std::fmt::Debug;
use std::io::Write as _;

use chrono::Utc;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion,
};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::ConnectionOptions;
use crate::api::{IPPool, LoadBalancer, TokenRotation};
use crate::domain::admission::webhook_configuration::{CONFIGURATION, CRD};
use crate::domain::object_fields::rfc3339;
use crate::domain::support_report;
use crate::k8s::calls::{ApiCalls as _, run_call};
use crate::k8s::{CALL_DEADLINE, CallError, client, stored_objects};
use crate::metrics::Metrics;

/// Writes the report to standard output.
pub(super) async fn run(reach: &ConnectionOptions) -> anyhow::Result<()> {
    let (namespace, name) = reach.lease()?;
    let config = client::config(reach.kubeconfig.as_deref(), client::CONNECT).await?;
    let client = client::through(config, &Metrics::new()?)?;
    let report = Box::pin(report(&client, namespace, name)).await;
    write!(std::io::stdout(), "{}", serde_saphyr::to_string(&report)?)?;
    Ok(())
}

async fn report(client: &Client, namespace: &str, name: &str) -> Value {
    let leases = Api::<Lease>::namespaced(client.clone(), namespace);
    let mut not_read = Vec::new();
    let pools = list::<IPPool>(client, &mut not_read).await;
    let lbs = list::<LoadBalancer>(client, &mut not_read).await;
    let rotations = list::<TokenRotation>(client, &mut not_read).await;
    let lease = leases.call_get(name).await;
    let version = || "GET /version".to_owned();
    let version = run_call(CALL_DEADLINE, version, client.apiserver_version()).await;
    json!({
        "time": rfc3339::to_second(Utc::now()),
        "operator": env!("CARGO_PKG_VERSION"),
        "apiServer": said(version.map(|version| version.git_version)),
        "lease": said(lease.map(|lease| lease.spec)),
        "customResourceDefinition": crd(client).await,
        "validation": configuration::<ValidatingWebhookConfiguration>(client).await,
        "mutation": configuration::<MutatingWebhookConfiguration>(client).await,
        "notRead": not_read,
        "pools": pools.iter().map(support_report::pool).collect::<Vec<_>>(),
        "loadBalancers": support_report::counts(&lbs),
        "waiters": support_report::waiters(&lbs),
        "credentials": support_report::credentials(&rotations),
        "lastDecisions": support_report::decisions(&pools, &lbs),
    })
}

/// Lists the objects of a kind. Returns the readable objects. Adds to `not_read` an error for each
/// unreadable object, and one if the list failed.
async fn list<K>(client: &Client, not_read: &mut Vec<String>) -> Vec<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let mut unreadable = Vec::new();
    let listed = stored_objects::list::<K>(client, &mut unreadable).await;
    not_read.extend(unreadable.into_iter().map(|(object, why)| format!("{object}: {why}")));
    listed.unwrap_or_else(|error| {
        not_read.push(format!("{}: {error}", K::plural(&())));
        Vec::new()
    })
}

/// Report of the LoadBalancer CRD: its versions and its conversion, but not its schema.
async fn crd(client: &Client) -> Value {
    let crds = Api::<CustomResourceDefinition>::all(client.clone());
    let crd = crds.call_get(CRD).await.map(|crd| {
        let version = |v: &CustomResourceDefinitionVersion| {
            json!({"name": v.name, "served": v.served, "storage": v.storage,
            "status": v.subresources.as_ref().is_some_and(|s| s.status.is_some())})
        };
        json!({
            "metadata": crd.metadata,
            "versions": crd.spec.versions.iter().map(version).collect::<Vec<_>>(),
            "storedVersions": crd.status.and_then(|status| status.stored_versions),
            "conversion": crd.spec.conversion,
        })
    });
    support_report::registration(&said(crd))
}

async fn configuration<K>(client: &Client) -> Value
where
    K: Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>
        + Clone
        + DeserializeOwned
        + Serialize
        + Debug,
{
    let all = Api::<K>::all(client.clone());
    support_report::registration(&said(all.call_get(CONFIGURATION).await))
}

fn said(answer: Result<impl Serialize, CallError>) -> Value {
    match answer {
        Ok(value) => json!(value),
        Err(error) => json!({"error": error.to_string()}),
    }
}
