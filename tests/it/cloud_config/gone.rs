//! Credentials whose guest is gone: how they are identified, and how they are removed.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use testbed::eventually;

use super::{Harvester, run, who};
use crate::support::SOON;

fn vm(name: &str, labels: &Value) -> String {
    json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": "guests", "labels": labels}, "spec": {}})
    .to_string()
}

/// Row of a cluster in the list.
fn row<'a>(list: &'a str, cluster: &str) -> &'a str {
    list.lines().find(|line| line.split_whitespace().nth(1) == Some(cluster)).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_of_deleted_clusters_are_found_and_no_others() -> Result<()> {
    let harvester = Harvester::start().await?;
    let bed = &harvester.cluster.bed;
    bed.apply_yaml(&vm("one", &json!({"guestcluster.harvesterhci.io/name": "labelled"}))).await?;
    // Older node drivers write no such label.
    bed.apply_yaml(&vm(
        "older-pool1-x",
        &json!({"harvesterhci.io/creator": "docker-machine-driver-harvester"}),
    ))
    .await?;
    // A user's own VM, whose name does not count; and a guest of another name.
    bed.apply_yaml(&vm("removed-by-hand", &json!({"harvesterhci.io/creator": "harvester"})))
        .await?;
    bed.apply_yaml(&vm("removed-pool", &json!({"guestcluster.harvesterhci.io/name": "labelled", "harvesterhci.io/creator": "docker-machine-driver-harvester"}))).await?;
    let mut configs = Vec::new();
    for cluster in ["labelled", "older", "removed"] {
        configs.push(harvester.done(&["--cluster", cluster]).await?);
    }
    let narrow = harvester.done(&["--cluster", "narrow", "--csi", "narrow"]).await?;
    // The same name in another namespace is another guest.
    let elsewhere = ["--namespace", "other", "--server", bed.url(), "--cluster", "labelled"];
    let elsewhere = run(&harvester.kubeconfig, &elsewhere).await?;
    ensure!(elsewhere.ok, "{elsewhere:?}");

    // A new credential belongs to a guest that does not exist yet.
    let list = harvester.done(&["--list"]).await?;
    for (cluster, guest) in
        [("labelled", "2 VMs"), ("older", "1 VM"), ("removed", "no VMs"), ("narrow", "no VMs")]
    {
        ensure!(row(&list, cluster).contains(guest), "{cluster}: {list}");
    }
    let nothing = harvester.run(&["--revoke", "gone"]).await?;
    ensure!(nothing.ok && nothing.said.is_empty(), "{nothing:?}");
    let list = harvester.done(&["--list", "--unused-days", "0"]).await?;
    for (cluster, guest) in
        [("labelled", "2 VMs"), ("older", "1 VM"), ("removed", "gone"), ("narrow", "gone")]
    {
        ensure!(row(&list, cluster).contains(guest), "{cluster}: {list}");
    }
    let all = run(&harvester.kubeconfig, &["--list", "-A", "--unused-days", "0"]).await?;
    ensure!(all.out.lines().count() == 6 && all.out.contains("other       labelled"), "{all:?}");

    kept_by_a_rotation(&harvester).await?;
    let said = harvester
        .refused(&["--cluster", "older", "--revoke", "gone", "--unused-days", "0"])
        .await?;
    ensure!(said.contains("--revoke gone") && said.contains("1 VM"), "{said}");
    let before = harvester.everything().await?;
    let would = harvester.done(&["--revoke", "gone", "--unused-days", "0", "--dry-run"]).await?;
    ensure!(
        would.contains("would delete ServiceAccount guests/removed") && !would.contains("older"),
        "{would}"
    );
    ensure!(harvester.everything().await? == before, "the dry run deleted something");

    harvester.done(&["--revoke", "gone", "--unused-days", "0"]).await?;
    harvester.dead(&configs[2]).await?;
    harvester.dead(&narrow).await?;
    for config in &configs[..2] {
        ensure!(who(config).await?.is_some());
    }
    for cluster in ["removed", "narrow"] {
        nothing_left(&harvester, cluster).await?;
    }
    let again = harvester.run(&["--revoke", "gone", "--unused-days", "0"]).await?;
    ensure!(again.ok && again.said.is_empty(), "{again:?}");
    left_over(&harvester).await
}

/// The use of a TokenRotation's tokens is not noted, so its guest does not count as gone.
async fn kept_by_a_rotation(harvester: &Harvester) -> Result<()> {
    let rotation = json!({"apiVersion": "credentials.harvesterhci.io/v1alpha1",
        "kind": "TokenRotation", "metadata": {"name": "keeper", "namespace": "guests"},
        "spec": {"source": {"serviceAccountToken": {"serviceAccountName": "removed"}},
            "target": {"secret": {"name": "other", "key": "token"}}}});
    harvester.cluster.bed.apply_yaml(&rotation.to_string()).await?;
    let list = harvester.done(&["--list", "--unused-days", "0"]).await?;
    let kept = row(&list, "removed");
    ensure!(kept.contains("no VMs") && kept.contains("TokenRotation keeper"), "{list}");
    let gone = ["--cluster", "removed", "--revoke", "gone", "--unused-days", "0"];
    let said = harvester.refused(&gone).await?;
    ensure!(said.contains("TokenRotation keeper"), "{said}");
    let name = "tokenrotation/keeper";
    harvester.cluster.bed.kubectl(&["delete", "--namespace=guests", name]).await.map(drop)
}

/// Waits until no account, no right and no Secret of a guest is left.
async fn nothing_left(harvester: &Harvester, cluster: &str) -> Result<()> {
    eventually(SOON, &format!("end of all that {cluster} had"), async || {
        let all = ListParams::default();
        let client = harvester.client();
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "guests");
        let wide = Api::<ClusterRoleBinding>::all(client.clone()).list(&all).await?;
        let narrow = Api::<RoleBinding>::all(client).list(&all).await?;
        let subjects = wide.items.into_iter().flat_map(|b| b.subjects.unwrap_or_default());
        let mut subjects =
            subjects.chain(narrow.items.into_iter().flat_map(|b| b.subjects.unwrap_or_default()));
        let gone = accounts.get_opt(cluster).await?.is_none();
        let tokens = harvester.tokens(cluster).await?;
        anyhow::Ok(gone && tokens.is_empty() && !subjects.any(|s| s.name == cluster))
    })
    .await
}

/// A deleted account leaves a cluster-wide binding, which the garbage collector does not remove: a
/// new account of that name would have its rights.
async fn left_over(harvester: &Harvester) -> Result<()> {
    harvester.done(&["--cluster", "half"]).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(harvester.client(), "guests");
    accounts.delete("half", &DeleteParams::default()).await?;
    let bindings: Api<RoleBinding> = Api::namespaced(harvester.client(), "guests");
    eventually(SOON, "end of the account's objects", async || {
        let bound = bindings.get_opt("guests-half").await?.is_none();
        anyhow::Ok(bound && harvester.tokens("half").await?.is_empty())
    })
    .await?;
    let list = harvester.done(&["--list"]).await?;
    ensure!(
        row(&list, "half").contains("gone") && row(&list, "half").contains("left over"),
        "{list}"
    );
    harvester.done(&["--cluster", "half", "--revoke", "gone"]).await?;
    nothing_left(harvester, "half").await
}

#[tokio::test(flavor = "multi_thread")]
async fn revoking_all_takes_the_guest_as_it_is() -> Result<()> {
    let harvester = Harvester::start().await?;
    let bed = &harvester.cluster.bed;
    bed.apply_yaml(&vm("n1", &json!({"guestcluster.harvesterhci.io/name": "blue"}))).await?;
    let config = harvester.done(&["--cluster", "blue"]).await?;
    harvester.done(&["--cluster", "blue", "--rotate"]).await?;
    harvester.done(&["--cluster", "green"]).await?;
    ensure!(who(&config).await?.is_some());
    harvester.done(&["--cluster", "blue", "--revoke", "all"]).await?;
    harvester.dead(&config).await?;
    nothing_left(&harvester, "blue").await?;
    ensure!(harvester.tokens("green").await?.len() == 1);
    // After that a new credential has other tokens, because it is another account.
    let new = harvester.done(&["--cluster", "blue"]).await?;
    ensure!(who(&new).await?.is_some() && who(&config).await?.is_none());
    Ok(())
}
