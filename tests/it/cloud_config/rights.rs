//! What the printed kubeconfig is good for: all that a guest's cloud provider and CSI driver ask of
//! Harvester, and no more; in no other namespace.

use std::path::Path;

use anyhow::{Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use testbed::{client_from, eventually};

use super::Harvester;
use crate::support::SOON;

/// Group, resource with its subresource, verbs.
type Row = (&'static str, &'static str, &'static [&'static str]);

/// What the cloud provider asks for in the guest's namespace (harvester/cloud-provider-harvester):
/// LoadBalancers in pkg/cloud-controller-manager/loadbalancer.go, VMs in instance.go, instances by a
/// watch in pkg/controller/virtualmachineinstance/controller.go.
const CLOUD_PROVIDER: &[Row] = &[
    ("loadbalancer.harvesterhci.io", "loadbalancers", &["get", "create", "update", "delete"]),
    ("kubevirt.io", "virtualmachines", &["get"]),
    ("kubevirt.io", "virtualmachineinstances", &["get", "list", "watch"]),
];

/// What the CSI driver asks for there (harvester/harvester-csi-driver, pkg/csi/controller_server.go;
/// node_server.go and manager.go ask for less): claims; pods, to see whether a volume is in use;
/// volumes of VMs; snapshots.
const CSI_HERE: &[Row] = &[
    ("", "persistentvolumeclaims", &["get", "create", "update", "delete"]),
    ("", "pods", &["list"]),
    ("kubevirt.io", "virtualmachines", &["get"]),
    ("kubevirt.io", "virtualmachineinstances", &["get", "list"]),
    ("subresources.kubevirt.io", "virtualmachines/addvolume", &["update"]),
    ("subresources.kubevirt.io", "virtualmachines/removevolume", &["update"]),
    ("subresources.kubevirt.io", "virtualmachineinstances/removevolume", &["update"]),
    ("snapshot.storage.k8s.io", "volumesnapshots", &["get", "list", "create", "delete"]),
];

/// What it asks for that is in no namespace: the same file, `validStorageClass`, `waitForVASettled`.
const CSI_CLUSTER: &[Row] = &[
    ("storage.k8s.io", "storageclasses", &["get"]),
    ("storage.k8s.io", "volumeattachments", &["list"]),
];

/// Settings by name: `getHarvCSIConfig` and `validateOnlineExpansion`.
const SETTINGS: [&str; 2] = ["csi-driver-config", "csi-online-expand-validation"];

/// Volumes for several nodes, in `harvester-system`: `createNetworkFilesystem`, `publishRWXVolume`.
const CSI_FILES: &[Row] =
    &[("harvesterhci.io", "networkfilesystems", &["get", "list", "create", "update", "delete"])];

/// In `longhorn-system`: `NewControllerServer`.
const CSI_LONGHORN: &[Row] = &[("longhorn.io", "volumes", &["list"])];

/// What neither needs.
const NEVER: &[Row] = &[
    ("", "secrets", &["get", "list", "watch", "create", "update", "patch", "delete"]),
    ("", "serviceaccounts", &["get", "list", "create", "delete"]),
    ("", "serviceaccounts/token", &["create"]),
    ("", "configmaps", &["get", "list", "create"]),
    ("", "namespaces", &["get", "list", "create", "delete"]),
    ("", "pods", &["create", "delete", "update"]),
    ("", "pods/exec", &["create"]),
    ("", "persistentvolumes", &["get", "list", "create", "delete"]),
    ("", "services", &["get", "list", "create"]),
    ("loadbalancer.harvesterhci.io", "ippools", &["get", "list", "create", "update", "delete"]),
    ("kubevirt.io", "virtualmachines", &["create", "update", "patch", "delete"]),
    ("kubevirt.io", "virtualmachineinstances", &["create", "update", "delete"]),
    ("subresources.kubevirt.io", "virtualmachines/start", &["update"]),
    ("subresources.kubevirt.io", "virtualmachines/stop", &["update"]),
    ("subresources.kubevirt.io", "virtualmachineinstances/console", &["get"]),
    ("subresources.kubevirt.io", "virtualmachineinstances/vnc", &["get"]),
    ("rbac.authorization.k8s.io", "roles", &["get", "create", "bind", "escalate"]),
    ("rbac.authorization.k8s.io", "rolebindings", &["get", "create"]),
    ("rbac.authorization.k8s.io", "clusterrolebindings", &["get", "create"]),
    ("storage.k8s.io", "storageclasses", &["create", "update", "patch", "delete"]),
    ("storage.k8s.io", "volumeattachments", &["create", "update", "patch", "delete"]),
    ("longhorn.io", "volumes", &["create", "update", "patch", "delete"]),
    ("harvesterhci.io", "settings", &["list", "update", "create"]),
    ("k8s.cni.cncf.io", "network-attachment-definitions", &["create", "delete"]),
];

/// What Harvester's CSI role gives in every namespace, because it is bound for the whole cluster.
const WIDE: &[Row] = &[
    ("harvesterhci.io", "networkfilesystems", &["get", "list", "create", "update", "delete"]),
    ("longhorn.io", "volumes", &["list"]),
    ("snapshot.storage.k8s.io", "volumesnapshots", &["get", "list", "create", "delete"]),
];

/// Whether the client may do each of it. Each answer that is not as expected is told.
async fn may(client: &Client, namespace: Option<&str>, rows: &[Row], expected: bool) -> Result<()> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let asked = rows.iter().flat_map(|(group, resource, verbs)| {
        verbs.iter().map(move |verb| (*group, *resource, *verb, None))
    });
    each(&reviews, namespace, asked.collect(), expected).await
}

type Asked = (&'static str, &'static str, &'static str, Option<&'static str>);

async fn each(
    reviews: &Api<SelfSubjectAccessReview>,
    namespace: Option<&str>,
    asked: Vec<Asked>,
    expected: bool,
) -> Result<()> {
    let check = async |(group, resource, verb, name): Asked| {
        let (kind, part) = resource.split_once('/').map_or((resource, None), |(k, p)| (k, Some(p)));
        let attributes = ResourceAttributes {
            group: Some(group.to_owned()),
            resource: Some(kind.to_owned()),
            subresource: part.map(str::to_owned),
            verb: Some(verb.to_owned()),
            name: name.map(str::to_owned),
            namespace: namespace.map(str::to_owned),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let answer = reviews.create(&PostParams::default(), &review).await?;
        let allowed = answer.status.is_some_and(|status| status.allowed);
        anyhow::Ok((allowed != expected).then(|| format!("{verb} {resource} {group}")))
    };
    let wrong: Vec<Option<String>> =
        futures::stream::iter(asked).map(check).buffered(8).try_collect().await?;
    let wrong: Vec<_> = wrong.into_iter().flatten().collect();
    ensure!(wrong.is_empty(), "in {namespace:?} not {expected}: {wrong:#?}");
    Ok(())
}

/// All that is needed, where it is needed.
async fn suffices(client: &Client) -> Result<()> {
    may(client, Some("guests"), CLOUD_PROVIDER, true).await?;
    may(client, Some("guests"), CSI_HERE, true).await?;
    may(client, None, CSI_CLUSTER, true).await?;
    may(client, Some("harvester-system"), CSI_FILES, true).await?;
    may(client, Some("longhorn-system"), CSI_LONGHORN, true).await?;
    let reviews = Api::all(client.clone());
    let settings = SETTINGS.map(|name| ("harvesterhci.io", "settings", "get", Some(name)));
    each(&reviews, None, settings.to_vec(), true).await
}

/// The API server hears of a binding a moment after it was made.
async fn soon_suffices(client: &Client) -> Result<()> {
    eventually(SOON, "rights of the guest", async || suffices(client).await.map(|()| true)).await
}

/// Nothing of that elsewhere but `wide`, and nothing of the rest anywhere.
async fn is_all(client: &Client, wide: &[Row]) -> Result<()> {
    for place in ["guests", "other", "harvester-system", "longhorn-system", "kube-system"] {
        may(client, Some(place), NEVER, false).await?;
    }
    may(client, None, NEVER, false).await?;
    let is_wide = |row: &&Row| wide.iter().any(|w| (w.0, w.1) == (row.0, row.1));
    let elsewhere = [CLOUD_PROVIDER, CSI_HERE, CSI_FILES, CSI_LONGHORN].concat();
    let elsewhere: Vec<Row> = elsewhere.iter().filter(|row| !is_wide(row)).copied().collect();
    for place in ["other", "default", "kube-system"] {
        may(client, Some(place), &elsewhere, false).await?;
        may(client, Some(place), wide, true).await?;
    }
    let reviews = Api::all(client.clone());
    let setting = ("harvesterhci.io", "settings", "get", Some("auth-secret"));
    each(&reviews, None, vec![setting], false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn it_may_do_what_guests_need_and_no_more() -> Result<()> {
    let harvester = Harvester::start().await?;
    let config = harvester.done(&["--cluster", "blue"]).await?;
    let client = client_from(&config).await?;
    soon_suffices(&client).await?;
    is_all(&client, WIDE).await?;

    let config = harvester.done(&["--cluster", "green", "--csi", "narrow"]).await?;
    let client = client_from(&config).await?;
    soon_suffices(&client).await?;
    is_all(&client, &[]).await?;

    let config = harvester.done(&["--cluster", "red", "--csi", "none"]).await?;
    let client = client_from(&config).await?;
    eventually(SOON, "rights of the cloud provider", async || {
        may(&client, Some("guests"), CLOUD_PROVIDER, true).await.map(|()| true)
    })
    .await?;
    for place in ["guests", "harvester-system", "longhorn-system"] {
        may(&client, Some(place), WIDE, false).await?;
    }
    may(&client, None, CSI_CLUSTER, false).await?;
    may(&client, Some("guests"), NEVER, false).await
}

/// The same by hand: kubectl, with the printed file.
#[tokio::test(flavor = "multi_thread")]
async fn kubectl_does_what_a_guest_does() -> Result<()> {
    let harvester = Harvester::start().await?;
    let bed = &harvester.cluster.bed;
    let node = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "spec": {},
        "metadata": {"name": "n1", "namespace": "guests"}});
    bed.apply_yaml(&node.to_string()).await?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("blue");
    let out = path.to_str().unwrap_or_default();
    harvester.done(&["--cluster", "blue", "--csi", "narrow", "--out", out]).await?;
    soon_suffices(&client_from(&std::fs::read_to_string(&path)?).await?).await?;
    let guest = async |args: &[&str], input: &str| {
        bed.kubectl_with_input(&[&["--kubeconfig", out], args].concat(), input).await
    };

    // The namespace is in the file.
    let lb = |ipam: &str| {
        json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": "web"}, "spec": {"workloadType": "cluster", "ipam": ipam}})
        .to_string()
    };
    guest(&["create", "-f", "-"], &lb("pool")).await?;
    guest(&["replace", "-f", "-"], &lb("pool")).await?;
    ensure!(guest(&["get", "loadbalancers", "-o", "name"], "").await?.contains("web"));
    guest(&["delete", "loadbalancer", "web"], "").await?;
    ensure!(guest(&["get", "vm", "n1", "-o", "name"], "").await?.contains("n1"));
    guest(&["get", "vmi"], "").await?;
    let claim = |size: &str| {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "pvc-1"},
        "spec": {"accessModes": ["ReadWriteMany"], "volumeMode": "Block", "storageClassName": "none",
            "resources": {"requests": {"storage": size}}}}).to_string()
    };
    guest(&["create", "-f", "-"], &claim("1Gi")).await?;
    guest(&["get", "pvc", "pvc-1"], "").await?;
    guest(&["delete", "pvc", "pvc-1", "--wait=false"], "").await?;
    guest(&["get", "pods"], "").await?;
    guest(&["get", "storageclasses"], "").await?;
    guest(&["get", "volumeattachments"], "").await?;

    for refused in [
        &["get", "loadbalancers", "-n", "other"][..],
        &["get", "loadbalancers", "-A"],
        &["get", "pvc", "-n", "other"],
        &["get", "vm", "-n", "other"],
        &["get", "pods", "-A"],
        &["get", "secrets"],
        &["get", "secret", "blue-token"],
        &["create", "token", "blue"],
        &["delete", "vm", "n1"],
        &["get", "ippools"],
        &[
            "create",
            "clusterrolebinding",
            "x",
            "--clusterrole=cluster-admin",
            "--serviceaccount=guests:blue",
        ],
    ] {
        let error = guest(refused, "").await.err().map(|error| format!("{error:#}"));
        ensure!(error.as_ref().is_some_and(|e| e.contains("orbidden")), "{refused:?}: {error:?}");
    }
    let elsewhere = guest(&["create", "-n", "other", "-f", "-"], &lb("pool")).await;
    ensure!(elsewhere.is_err_and(|error| error.to_string().contains("orbidden")));
    ensure!(Path::new(out).exists());
    Ok(())
}
