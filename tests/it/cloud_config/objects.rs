//! Created objects, and that a second run changes none of them.

use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use testbed::{Proxy, Verdict};

use super::{Harvester, decoded, run, who, yaml};

const USER: &str = "system:serviceaccount:guests:blue";

#[tokio::test(flavor = "multi_thread")]
async fn the_objects_are_those_of_harvesters_own_call() -> Result<()> {
    let harvester = Harvester::start().await?;
    let url = harvester.cluster.bed.url();

    let before = harvester.everything().await?;
    let harvesters = ["--cluster", "blue", "--csi", "harvester"];
    let would = harvester.done(&[&harvesters[..], &["--dry-run"]].concat()).await?;
    let named = [
        "ServiceAccount guests/blue",
        "RoleBinding guests/guests-blue",
        "ClusterRoleBinding guests-blue",
        "Secret guests/blue-token",
    ];
    let lines: Vec<_> =
        would.lines().filter_map(|line| line.strip_prefix("would create ")).collect();
    ensure!(lines == named, "{would}");
    ensure!(harvester.everything().await? == before, "the dry run wrote something");

    let config = harvester.done(&harvesters).await?;
    ensure!(who(&config).await?.as_deref() == Some(USER), "{config}");
    let parsed = yaml(&config)?;
    ensure!(parsed["clusters"][0]["cluster"]["server"] == url, "{config}");
    ensure!(
        parsed["contexts"][0]["context"]
            == json!({"cluster": "default", "user": "default", "namespace": "guests"})
    );
    ensure!(parsed["current-context"] == "default" && parsed["clusters"][0]["name"] == "default");
    check_objects(&harvester).await?;

    // The use of the token is noted on its Secret once a day; the command does not write that.
    harvester.used(&config, "blue-token").await?;
    let made = harvester.everything().await?;
    let again = harvester.done(&["--cluster", "blue"]).await?;
    ensure!(again == config, "another config");
    let nothing = harvester.done(&["--cluster", "blue", "--dry-run"]).await?;
    ensure!(!nothing.contains("create") && nothing.contains("blue-token"), "{nothing}");
    forms(&harvester, &config).await?;
    ensure!(harvester.everything().await? == made, "a second run changed something");
    file(&harvester, &config).await?;
    authority(&harvester, &config).await?;
    tried_out(&harvester, &config).await?;
    server(&harvester).await
}

/// Checks names, annotations, owners, roles and subjects.
async fn check_objects(harvester: &Harvester) -> Result<()> {
    let client = harvester.client();
    let account = Api::<ServiceAccount>::namespaced(client.clone(), "guests").get("blue").await?;
    let owner = json!([{"apiVersion": "v1", "kind": "ServiceAccount", "name": "blue",
        "uid": account.uid()}]);
    let subject = json!([{"kind": "ServiceAccount", "namespace": "guests", "name": "blue"}]);
    let role = |name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});

    let narrow =
        Api::<RoleBinding>::namespaced(client.clone(), "guests").get("guests-blue").await?;
    ensure!(json!(narrow.metadata.owner_references) == owner, "{narrow:?}");
    ensure!(json!(narrow.role_ref) == role("harvesterhci.io:cloudprovider"), "{narrow:?}");
    ensure!(json!(narrow.subjects) == subject, "{narrow:?}");
    let wide = Api::<ClusterRoleBinding>::all(client).get("guests-blue").await?;
    ensure!(json!(wide.metadata.owner_references) == owner, "{wide:?}");
    ensure!(json!(wide.role_ref) == role("harvesterhci.io:csi-driver"), "{wide:?}");
    ensure!(json!(wide.subjects) == subject, "{wide:?}");

    let tokens = harvester.tokens("blue").await?;
    let [token] = &tokens[..] else { anyhow::bail!("{} tokens", tokens.len()) };
    ensure!(token.name_any() == "blue-token" && json!(token.metadata.owner_references) == owner);
    let uid = token.annotations().get("kubernetes.io/service-account.uid");
    ensure!(uid == account.uid().as_ref(), "{:?}", token.annotations());
    for labels in [account.labels(), narrow.labels(), wide.labels()] {
        ensure!(labels.is_empty(), "{labels:?}");
    }
    Ok(())
}

/// Each output format carries the same kubeconfig.
async fn forms(harvester: &Harvester, config: &str) -> Result<()> {
    let form = async |name: &str| harvester.done(&["--cluster", "blue", "--output", name]).await;
    let secret = yaml(&form("secret").await?)?;
    ensure!(decoded(&secret["data"]["cloud-provider-config"])? == config, "{secret}");
    harvester.cluster.bed.dry_run(&secret.to_string()).await?;
    let charts = form("helm-chart-k3s").await?;
    let kinds: Vec<_> = charts.lines().filter(|line| line.starts_with("kind: ")).collect();
    ensure!(kinds == ["kind: Secret", "kind: HelmChart", "kind: HelmChart"], "{charts}");
    ensure!(yaml(charts.split("---\n").next().unwrap_or_default())? == secret, "{charts}");
    let rancher = yaml(&form("rancher-secret").await?)?;
    ensure!(decoded(&rancher["data"]["credential"])? == config, "{rancher}");
    ensure!(
        rancher["metadata"]["annotations"]
            == json!({
                "v2prov-secret-authorized-for-cluster": "blue",
                "v2prov-authorized-secret-deletes-on-cluster-removal": "true",
            }),
        "{rancher}"
    );
    for (name, first) in [
        ("cloud-init-rke2", "/var/lib/rancher/rke2/etc/config-files/cloud-provider-config"),
        ("cloud-init-k3s", "/etc/kubernetes/cloud-config"),
    ] {
        let text = form(name).await?;
        ensure!(text.starts_with("#cloud-config\n"), "{text}");
        let files = yaml(&text)?["write_files"].as_array().cloned().unwrap_or_default();
        ensure!(files.len() == 2 && files[0]["path"] == first, "{text}");
        for file in files {
            ensure!(decoded(&file["content"])? == config, "{text}");
            let is = |key: &str, value: &str| file[key] == value;
            ensure!(
                is("encoding", "b64") && is("owner", "root:root") && is("permissions", "0600"),
                "{text}"
            );
        }
    }
    Ok(())
}

/// The file is readable by its owner only, whatever existed before.
async fn file(harvester: &Harvester, config: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("config");
    let elsewhere = folder.path().join("elsewhere");
    std::fs::write(&elsewhere, "before")?;
    std::os::unix::fs::symlink(&elsewhere, &path)?;
    let out = path.to_str().unwrap_or_default();
    let printed = harvester.done(&["--cluster", "blue", "--out", out]).await?;
    ensure!(printed.is_empty(), "{printed}");
    ensure!(std::fs::read_to_string(&path)? == config);
    ensure!(std::fs::symlink_metadata(&path)?.permissions().mode() & 0o7777 == 0o600);
    ensure!(std::fs::read_to_string(&elsewhere)? == "before", "a link was followed");
    ensure!(std::fs::read_dir(folder.path())?.count() == 2, "something was left behind");
    Ok(())
}

/// The authority is the cluster's own, or the given one; no other field changes with it.
async fn authority(harvester: &Harvester, config: &str) -> Result<()> {
    let of = |config: &str| -> Result<String> {
        decoded(&yaml(config)?["clusters"][0]["cluster"]["certificate-authority-data"])
    };
    ensure!(of(config)? == harvester.cluster.bed.ca_pem(), "{config}");
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("other.pem");
    let other = testbed::Authority::new("other")?.pem();
    std::fs::write(&path, &other)?;
    let path = path.to_str().unwrap_or_default();
    let with = ["--cluster", "blue", "--certificate-authority", path, "--skip-check"];
    let printed = harvester.done(&with).await?;
    ensure!(of(&printed)? == other, "{printed}");
    ensure!(yaml(&printed)?["users"] == yaml(config)?["users"], "{printed}");
    Ok(())
}

/// The printed kubeconfig works at the server that it names, or the refusal names the fault.
async fn tried_out(harvester: &Harvester, config: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("proxy.pem");
    let proxy = Proxy::start(&harvester.cluster.bed).await?;
    std::fs::write(&path, proxy.ca_pem())?;
    let authority = ["--certificate-authority", path.to_str().unwrap_or_default()];
    let at = async |server: &str, more: &[&str]| {
        let blue = ["--namespace", "guests", "--cluster", "blue", "--server", server];
        run(&harvester.kubeconfig, &[&blue, more].concat()).await
    };
    let refused = async |server: &str, more: &[&str], why: &str| {
        let ran = at(server, more).await?;
        let said = [server, why, "--skip-check"].iter().all(|word| ran.said.contains(word));
        ensure!(!ran.ok && ran.out.is_empty() && said, "{why}: {ran:?}");
        anyhow::Ok(())
    };
    refused(proxy.url(), &[], "UnknownIssuer").await?;
    refused("https://127.0.0.1:1", &authority, "Connection refused").await?;
    let below = format!("{}/k8s/clusters/local", harvester.cluster.bed.url());
    refused(&below, &["--rotate", "--revoke", "old"], "not").await?;
    ensure!(who(config).await?.is_some(), "a token was revoked for one that does not work");
    ensure!(at(proxy.url(), &authority).await?.ok);
    // Kubernetes 1.27 has no such review; any other answer that accepts the token is enough.
    proxy.set_rule(|call| match call.resource() {
        Some("selfsubjectreviews") => {
            let message = "the server could not find the requested resource".to_owned();
            Verdict::Refuse { code: 404, reason: "NotFound", message }
        }
        _ => Verdict::Pass,
    });
    ensure!(at(proxy.url(), &authority).await?.ok);
    Ok(())
}

/// The command takes the address that Harvester noted if no URL is given; without either it is
/// refused.
async fn server(harvester: &Harvester) -> Result<()> {
    let args = ["--namespace", "guests", "--cluster", "blue", "--skip-check"];
    let ran = run(&harvester.kubeconfig, &args).await?;
    ensure!(
        !ran.ok && ran.said.contains("--server") && ran.said.contains("harvester-system/vip"),
        "{ran:?}"
    );
    let vip = |ip: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"ip": ip},
        "metadata": {"name": "vip", "namespace": "harvester-system"}})
    };
    harvester.cluster.bed.apply_yaml(&vip("192.168.7.10").to_string()).await?;
    let ran = run(&harvester.kubeconfig, &args).await?;
    ensure!(
        ran.ok
            && yaml(&ran.out)?["clusters"][0]["cluster"]["server"] == "https://192.168.7.10:6443",
        "{ran:?}"
    );
    let maps: Api<ConfigMap> = Api::namespaced(harvester.client(), "harvester-system");
    let spoiled = Patch::Merge(json!({"data": {"ip": "soon"}}));
    maps.patch("vip", &PatchParams::default(), &spoiled).await?;
    let ran = run(&harvester.kubeconfig, &args).await?;
    ensure!(
        !ran.ok && ran.said.contains("--server") && ran.said.contains("holds no address"),
        "{ran:?}"
    );
    Ok(())
}
