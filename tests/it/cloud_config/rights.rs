//! Rights of the printed kubeconfig: all requests of a guest's cloud provider and CSI driver to
//! Harvester, and no others; in no other namespace.

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
use super::roles::{RELEASES, Release};
use crate::support::SOON;

/// Group, resource with its subresource, verbs.
type Row = (&'static str, &'static str, &'static [&'static str]);

/// Requests of the cloud provider in the guest's namespace (harvester/cloud-provider-harvester):
/// LoadBalancers in pkg/cloud-controller-manager/loadbalancer.go, VMs in instance.go, instances by
/// a watch, and host names from their guest agents, in
/// pkg/controller/virtualmachineinstance/controller.go.
const CLOUD_PROVIDER: &[Row] = &[
    ("loadbalancer.harvesterhci.io", "loadbalancers", &["get", "create", "update", "delete"]),
    ("kubevirt.io", "virtualmachines", &["get"]),
    ("kubevirt.io", "virtualmachineinstances", &["get", "list", "watch"]),
    ("subresources.kubevirt.io", "virtualmachineinstances/guestosinfo", &["get"]),
];

/// Requests of the CSI driver there (harvester/harvester-csi-driver v0.2.9,
/// pkg/csi/controller_server.go; node_server.go and manager.go make fewer): claims; pods, to check
/// whether a volume is in use; volumes of VMs.
const CSI_HERE: &[Row] = &[
    ("", "persistentvolumeclaims", &["get", "create", "update", "delete"]),
    ("", "pods", &["list"]),
    ("kubevirt.io", "virtualmachines", &["get"]),
    ("kubevirt.io", "virtualmachineinstances", &["get", "list"]),
    ("subresources.kubevirt.io", "virtualmachines/addvolume", &["update"]),
    ("subresources.kubevirt.io", "virtualmachines/removevolume", &["update"]),
    ("subresources.kubevirt.io", "virtualmachineinstances/removevolume", &["update"]),
];

/// Further requests with Harvester 1.8: snapshots and backups, and volumes of VMs by a patch of the
/// VM, also in pkg/controller/node/controller.go.
const CSI_HERE_1_8: &[Row] = &[
    ("kubevirt.io", "virtualmachines", &["patch"]),
    ("snapshot.storage.k8s.io", "volumesnapshots", &["get", "list", "create", "delete"]),
    ("harvesterhci.io", "volumeremotebackups", &["get", "list", "create", "delete"]),
    ("harvesterhci.io", "volumeremoterestores", &["get", "create", "delete"]),
];

/// Requests of the CSI driver for cluster-scoped objects: `validStorageClass`, `waitForVASettled`.
const CSI_CLUSTER: &[Row] = &[
    ("storage.k8s.io", "storageclasses", &["get"]),
    ("storage.k8s.io", "volumeattachments", &["list"]),
];

/// Settings by name: `getHarvCSIConfig` and `validateOnlineExpansion`.
const SETTINGS: [&str; 2] = ["csi-driver-config", "csi-online-expand-validation"];

/// The setting without which the driver ends at once: pkg/csi/manager.go. Every account may read
/// it.
const SERVER_VERSION: &str = "server-version";

/// Volumes for several nodes, in `harvester-system`: `createNetworkFilesystem`, `publishRWXVolume`.
const CSI_FILES: &[Row] =
    &[("harvesterhci.io", "networkfilesystems", &["get", "list", "create", "update", "delete"])];

/// Requests in `longhorn-system`: `NewControllerServer`.
const CSI_LONGHORN: &[Row] = &[("longhorn.io", "volumes", &["list"])];

/// Rights that neither needs.
const NEVER: &[Row] = &[
    ("", "secrets", &["get", "list", "watch", "create", "update", "patch", "delete"]),
    ("", "serviceaccounts", &["get", "list", "create", "delete"]),
    ("", "serviceaccounts/token", &["create"]),
    ("", "nodes", &["get", "list", "watch"]),
    ("", "configmaps", &["get", "list", "create"]),
    ("", "namespaces", &["get", "list", "create", "delete"]),
    ("", "pods", &["create", "delete", "update"]),
    ("", "pods/exec", &["create"]),
    ("", "persistentvolumes", &["get", "list", "create", "delete"]),
    ("", "services", &["get", "list", "create"]),
    ("loadbalancer.harvesterhci.io", "ippools", &["get", "list", "create", "update", "delete"]),
    ("kubevirt.io", "virtualmachines", &["create", "update", "delete"]),
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

/// Rights that Harvester's CSI role gives in every namespace, where it is bound for the whole
/// cluster.
fn wide(release: &Release) -> Vec<Row> {
    match release.name {
        "1.3" => Vec::new(),
        "1.5" => [CSI_FILES, CSI_LONGHORN].concat(),
        _ => [CSI_FILES, CSI_LONGHORN, CSI_HERE_1_8].concat(),
    }
}

/// Checks whether the client may do each row. The error names each unexpected answer.
async fn may(client: &Client, namespace: Option<&str>, rows: &[Row], expected: bool) -> Result<()> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    each(&reviews, namespace, one_by_one(rows), expected).await
}

fn one_by_one(rows: &[Row]) -> Vec<Asked> {
    let verbs = |(group, resource, verbs): &Row| {
        let (group, resource) = (*group, *resource);
        verbs.iter().map(move |verb| (group, resource, *verb, None)).collect::<Vec<_>>()
    };
    rows.iter().flat_map(verbs).collect()
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

/// Checks that all needed rights are granted, as far as the release grants them to a driver.
async fn suffices(client: &Client, release: &Release, csi: &str) -> Result<()> {
    let here = if release.name == "1.8" { CSI_HERE_1_8 } else { &[] };
    may(client, Some("guests"), &[CLOUD_PROVIDER, CSI_HERE, here].concat(), true).await?;
    let is_narrow = csi == "narrow";
    let shared = is_narrow || release.name != "1.3";
    may(client, None, &CSI_CLUSTER[..if shared { 2 } else { 1 }], true).await?;
    may(client, Some("harvester-system"), CSI_FILES, shared).await?;
    may(client, Some("longhorn-system"), CSI_LONGHORN, shared).await?;
    let reviews = Api::all(client.clone());
    let setting = |name| ("harvesterhci.io", "settings", "get", Some(name));
    each(&reviews, None, vec![setting(SERVER_VERSION)], true).await?;
    let named = is_narrow || release.name == "1.8";
    each(&reviews, None, SETTINGS.map(setting).to_vec(), named).await
}

/// Waits for these rights: the API server observes a binding, or a role's rules, a moment after the
/// write.
async fn soon_suffices(client: &Client, release: &Release, csi: &str) -> Result<()> {
    let what = format!("rights of a guest, {csi}, on {}", release.name);
    eventually(SOON, &what, async || suffices(client, release, csi).await.map(|()| true)).await
}

/// Checks that no other rights are granted: elsewhere only `wide`, and none of `NEVER`.
async fn has_no_more(client: &Client, wide: &[Row]) -> Result<()> {
    for place in ["guests", "other", "harvester-system", "longhorn-system", "kube-system"] {
        may(client, Some(place), NEVER, false).await?;
    }
    may(client, None, NEVER, false).await?;
    let reviews = Api::all(client.clone());
    let elsewhere = [CLOUD_PROVIDER, CSI_HERE, CSI_HERE_1_8, CSI_FILES, CSI_LONGHORN].concat();
    let wide = one_by_one(wide);
    let mut elsewhere = one_by_one(&elsewhere);
    elsewhere.retain(|asked| !wide.contains(asked));
    for place in ["other", "default", "kube-system"] {
        each(&reviews, Some(place), elsewhere.clone(), false).await?;
        each(&reviews, Some(place), wide.clone(), true).await?;
    }
    let setting = ("harvesterhci.io", "settings", "get", Some("auth-secret"));
    each(&reviews, None, vec![setting], false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn it_may_do_what_guests_need_and_no_more() -> Result<()> {
    let [oldest, ..] = &RELEASES;
    let harvester = Harvester::of(oldest).await?;
    // A new guest gets narrow rights unless others are requested.
    let narrow = client_from(&harvester.done(&["--cluster", "green"]).await?).await?;
    let harvesters = ["--cluster", "blue", "--csi", "harvester"];
    let harvesters = client_from(&harvester.done(&harvesters).await?).await?;
    let none = ["--cluster", "red", "--csi", "none"];
    let none = client_from(&harvester.done(&none).await?).await?;
    for release in &RELEASES {
        harvester.cluster.bed.apply_yaml(&release.roles()).await?;
        for (client, csi) in [(&narrow, "narrow"), (&harvesters, "harvester")] {
            let wide = if csi == "narrow" { Vec::new() } else { wide(release) };
            soon_suffices(client, release, csi).await?;
            has_no_more(client, &wide).await?;
        }
    }
    may(&none, Some("guests"), CLOUD_PROVIDER, true).await?;
    for place in ["guests", "harvester-system", "longhorn-system"] {
        may(&none, Some(place), &wide(Release::newest()), false).await?;
    }
    may(&none, None, CSI_CLUSTER, false).await?;
    may(&none, Some("guests"), NEVER, false).await
}

/// The same requests by kubectl, with the printed file.
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
    let client = client_from(&std::fs::read_to_string(&path)?).await?;
    soon_suffices(&client, Release::newest(), "narrow").await?;
    let guest = async |args: &[&str], input: &str| {
        bed.kubectl_with_input(&[&["--kubeconfig", out], args].concat(), input).await
    };

    // The file names the namespace.
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
