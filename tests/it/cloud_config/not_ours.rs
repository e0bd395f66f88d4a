//! Existing objects: taken over if they belong to the guest, refused by name and not changed if
//! not.

use anyhow::{Result, ensure};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::roles::Release;
use super::{Harvester, who, yaml};

const PROVIDER: &str = "harvesterhci.io:cloudprovider";
const DRIVER: &str = "harvesterhci.io:csi-driver";

fn account(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "guests"}})
}

fn binding(namespace: Option<&str>, name: &str, role: &str, accounts: &[&str]) -> Value {
    let kind = if namespace.is_some() { "RoleBinding" } else { "ClusterRoleBinding" };
    let subject =
        |name: &&str| json!({"kind": "ServiceAccount", "namespace": "guests", "name": name});
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": accounts.iter().map(subject).collect::<Vec<_>>()})
}

async fn apply(harvester: &Harvester, objects: &[Value]) -> Result<()> {
    let texts: Vec<_> = objects.iter().map(Value::to_string).collect();
    harvester.cluster.bed.apply_yaml(&texts.join("\n---\n")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_objects_are_refused_by_name_and_left_alone() -> Result<()> {
    let harvester = Harvester::start().await?;
    let ours = |name: &str| {
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name,
        "namespace": "guests", "annotations": {"credentials.harvesterhci.io/guest-cluster": name}}})
    };
    apply(&harvester, &[
        // A powerful account that has no relation to guests.
        account("backup"),
        binding(None, "backup", "cluster-admin", &["backup"]),
        // Names of the command with other roles, or with further subjects.
        binding(Some("guests"), "guests-role", "view", &["role"]),
        binding(None, "guests-shared", DRIVER, &["shared", "another"]),
        binding(None, "guests-wrong", PROVIDER, &["wrong"]),
        // The name of the token, taken by another account's Secret and by a Secret of another type.
        ours("stolen"), account("thief"), ours("opaque"),
        json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": {"name": "stolen-token", "namespace": "guests",
                "annotations": {"kubernetes.io/service-account.name": "thief"}}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "opaque-token", "namespace": "guests"},
            "stringData": {"token": "mine", "ca.crt": "mine"}}),
    ])
    .await?;
    harvester.filled("stolen-token").await?;
    for (cluster, named) in [
        ("backup", "ServiceAccount guests/backup"),
        ("role", "RoleBinding guests/guests-role"),
        ("shared", "ClusterRoleBinding guests-shared"),
        ("wrong", "ClusterRoleBinding guests-wrong"),
        ("stolen", "Secret guests/stolen-token"),
        ("opaque", "Secret guests/opaque-token"),
        ("default", "--cluster"),
    ] {
        let before = harvester.everything().await?;
        let said = harvester.refused(&["--cluster", cluster]).await?;
        ensure!(said.contains(named), "{cluster}: {said}");
        ensure!(harvester.everything().await? == before, "{cluster}: an object was written");
    }
    let before = harvester.everything().await?;
    let said = harvester.refused(&["--cluster", "backup", "--revoke", "all"]).await?;
    ensure!(said.contains("ServiceAccount guests/backup"), "{said}");
    ensure!(harvester.everything().await? == before);
    // A binding with further subjects blocks the revocation, and the command names it.
    let ran = harvester.run(&["--cluster", "shared", "--revoke", "all"]).await?;
    ensure!(
        !ran.ok && ran.said.contains("ClusterRoleBinding guests-shared has other subjects"),
        "{ran:?}"
    );
    ensure!(harvester.everything().await? == before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_ui_and_the_script_made_is_taken_over() -> Result<()> {
    let harvester = Harvester::start().await?;
    // The script: no owners, and the cloud provider's role for the whole cluster.
    apply(&harvester, &[
        account("script"),
        binding(None, "script", PROVIDER, &["script"]),
        json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": {"name": "script-token", "namespace": "guests",
                "annotations": {"kubernetes.io/service-account.name": "script"}}}),
        account("ui"),
        binding(Some("guests"), "guests-ui", PROVIDER, &["ui"]),
        binding(None, "guests-ui", DRIVER, &["ui"]),
        json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": {"name": "ui-token", "namespace": "guests",
                "annotations": {"kubernetes.io/service-account.name": "ui"}}}),
    ])
    .await?;
    harvester.filled("ui-token").await?;
    harvester.filled("script-token").await?;
    let before = harvester.everything().await?;
    let config = harvester.done(&["--cluster", "ui"]).await?;
    ensure!(harvester.everything().await? == before, "something was written");
    ensure!(who(&config).await?.as_deref() == Some("system:serviceaccount:guests:ui"));
    narrowed(&harvester, &config).await?;

    let ran = harvester.run(&["--cluster", "script"]).await?;
    ensure!(ran.ok && ran.said.contains("ClusterRoleBinding script gives the guest"), "{ran:?}");
    // It had no rights for a CSI driver, and gets none unless requested.
    let wide: Api<ClusterRoleBinding> = Api::all(harvester.client());
    ensure!(ran.said.contains("--csi narrow"), "{ran:?}");
    ensure!(wide.get_opt("guests-script").await?.is_none());
    let list = harvester.done(&["--list"]).await?;
    ensure!(
        list.lines().any(|l| l.contains("script-token") && l.contains("ClusterRoleBinding script")),
        "{list}"
    );
    // It goes with the rest.
    harvester.done(&["--cluster", "script", "--revoke", "all"]).await?;
    ensure!(
        wide.get_opt("script").await?.is_none() && wide.get_opt("guests-script").await?.is_none()
    );
    Ok(())
}

/// Cluster-wide rights from the UI are named each time, and go only by hand. Then narrow rights
/// replace them, and the token stays.
async fn narrowed(harvester: &Harvester, config: &str) -> Result<()> {
    let wide: Api<ClusterRoleBinding> = Api::all(harvester.client());
    for args in [&["--cluster", "ui"][..], &["--cluster", "ui", "--csi", "narrow"]] {
        let ran = harvester.run(args).await?;
        ensure!(ran.ok && ran.said.contains("ClusterRoleBinding guests-ui gives"), "{ran:?}");
        ensure!(wide.get("guests-ui").await?.role_ref.name == DRIVER, "{args:?}");
    }
    wide.delete("guests-ui", &DeleteParams::default()).await?;
    // From here on it has narrow rights, whether they are requested or not.
    for _ in 0..2 {
        let ran = harvester.run(&["--cluster", "ui"]).await?;
        ensure!(ran.ok && ran.out == config && !ran.said.contains("gives the guest"), "{ran:?}");
    }
    let role = wide.get("guests-ui").await?.role_ref.name;
    ensure!(role == "harvester-guest-operator:csi-cluster", "{role}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_in_the_cluster_is_named() -> Result<()> {
    let harvester = Harvester::start().await?;
    let roles: Api<k8s_openapi::api::rbac::v1::ClusterRole> = Api::all(harvester.client());
    roles.delete(DRIVER, &DeleteParams::default()).await?;
    let before = harvester.everything().await?;
    let said = harvester.refused(&["--cluster", "blue"]).await?;
    ensure!(said.contains("--csi") && said.contains(DRIVER), "{said}");
    ensure!(harvester.everything().await? == before, "something was written");
    let config = harvester.done(&["--cluster", "blue", "--csi", "none"]).await?;
    ensure!(yaml(&config)?["kind"] == "Config");
    roles.delete(PROVIDER, &DeleteParams::default()).await?;
    let said = harvester.refused(&["--cluster", "red", "--csi", "none"]).await?;
    ensure!(said.contains(PROVIDER) && said.contains("rbac.guestRole"), "{said}");
    let ran = super::run(&harvester.kubeconfig, &["--namespace", "nowhere", "--list"]).await?;
    ensure!(!ran.ok && ran.said.contains("--namespace \"nowhere\""), "{ran:?}");
    // The account may be right while its role belongs to another.
    let foreign = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "harvester-guest-operator:csi-cluster"}, "rules": []});
    apply(&harvester, &[foreign]).await?;
    harvester.cluster.bed.apply_yaml(&Release::newest().roles()).await?;
    let said = harvester.refused(&["--cluster", "red", "--csi", "narrow"]).await?;
    ensure!(said.contains("harvester-guest-operator:csi-cluster"), "{said}");
    // A Harvester without this operator serves no TokenRotations.
    let crd = "tokenrotations.credentials.harvesterhci.io";
    harvester.cluster.bed.kubectl(&["delete", "crd", crd]).await?;
    ensure!(harvester.done(&["--list"]).await?.contains("blue-token"));
    Ok(())
}
