//! The CRD as installed, before the operator has written its caBundle.

use anyhow::Result;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use testbed::repository;

use super::{CRD, crds};
use crate::support::Cluster;

#[tokio::test(flavor = "multi_thread")]
async fn v1beta1_needs_no_conversion_and_v1alpha1_is_refused_rather_than_cut() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let _operator = cluster.operator().await?;
    cluster.lbs_at_once((0..5).map(|n| format!("lb-{n}"))).await?;
    cluster.addressed(5).await?;
    cluster.deleted("lb-0").await?;

    let old = "loadbalancers.v1alpha1.loadbalancer.harvesterhci.io";
    let refused = cluster.bed.kubectl(&["get", old, "-A"]).await.unwrap_err().to_string();
    assert!(refused.contains("conversion webhook"), "{refused}");
    let manifest = "apiVersion: loadbalancer.harvesterhci.io/v1alpha1\nkind: LoadBalancer\n\
        metadata: {name: old, namespace: default}\nspec: {ipam: pool}\n";
    let refused = cluster.bed.apply_yaml(manifest).await.unwrap_err().to_string();
    assert!(refused.contains("conversion webhook"), "{refused}");
    assert!(cluster.lbs().get_opt("old").await?.is_none());

    // A namespace can be deleted, whatever versions its objects are served in.
    cluster.bed.kubectl(&["create", "namespace", "short"]).await?;
    cluster.bed.kubectl(&["delete", "namespace", "short", "--timeout=180s"]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn applying_the_crds_again_keeps_the_authority_that_was_put_in() -> Result<()> {
    let cluster = Cluster::start().await?;
    let crds = crds(&cluster);
    let folder = repository().join("crds");
    let folder = folder.to_str().unwrap_or_default();
    // As in docs/contributing.md, then with kubectl's record of the last apply.
    cluster.bed.kubectl(&["apply", "-f", folder]).await?;
    let bundle = k8s_openapi::ByteString(cluster.bed.ca_pem().into());
    let patch =
        json!({"spec": {"conversion": {"webhook": {"clientConfig": {"caBundle": bundle}}}}});
    crds.patch(CRD, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    for apply in [
        &["apply", "-f", folder][..],
        &["apply", "--server-side", "--force-conflicts", "-f", folder],
    ] {
        cluster.bed.kubectl(apply).await?;
        let conversion = crds.get(CRD).await?.spec.conversion;
        let config = conversion.and_then(|c| c.webhook).and_then(|w| w.client_config);
        assert_eq!(config.and_then(|c| c.ca_bundle), Some(bundle.clone()), "{apply:?}");
    }
    Ok(())
}
