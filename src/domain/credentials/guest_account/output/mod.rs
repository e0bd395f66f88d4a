//! Output of `cloud-config`: the kubeconfig, its server's URL, and the Secrets, HelmCharts and user
//! data that bring the kubeconfig into a guest.
//!
//! Invariant: every name, URL and token is quoted, so that none of them can be read as another part
//! of the text.

use std::net::{IpAddr, SocketAddr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::{GuestCluster, safe_name};

/// ConfigMap with the address of Harvester's API server. Field 0: namespace. Field 1: name. Field
/// 2: key.
pub const VIP: (&str, &str, &str) = ("harvester-system", "vip", "ip");
/// Port of Harvester's API server.
const PORT: u16 = 6443;
/// Path on a guest's node where the charts of RKE2 read the cloud config.
const RKE2_PATH: &str = "/var/lib/rancher/rke2/etc/config-files/cloud-provider-config";
/// Older path of the cloud config on a guest's node. Harvester's documentation names it for K3s and
/// for nodes that are set up by hand.
const PATH: &str = "/etc/kubernetes/cloud-config";

/// Comment above the printed Secret: Helm values with which the charts of cloud provider and CSI
/// driver mount the Secret [`SECRET`]. Without these values, the charts read a path on the node
/// instead of the Secret. Source: the charts harvester-cloud-provider 0.2.12 to 0.2.15
/// (templates/deployment.yaml: `items` of the volume) and harvester-csi-driver 0.1.31
/// (templates/daemonset.yaml: it reads the file `cloud-provider-config`).
const CHART_VALUES: &str = "\
# harvester-cloud-provider: --set cloudConfigPath= --set cloudConfig.secretName=harvester-csi-config
#                           --set cloudConfig.secretKey=cloud-provider-config
# harvester-csi-driver: --set cloudConfig.secretName=harvester-csi-config
";
/// Beginning of the guest's Secret in YAML. [`text`] appends the value of `cloud-provider-config`.
const SECRET: &str = "\
apiVersion: v1
kind: Secret
metadata:
  name: harvester-csi-config
  namespace: kube-system
type: Opaque
data:
  cloud-provider-config: ";
/// Beginning of the cloud provider's HelmChart in YAML. [`text`] appends the guest cluster's name.
/// `cloudConfigPath` is empty, so that a version of the chart that cannot use a Secret fails, with
/// an error that names this value. With `bootstrap`, K3s installs the chart before a node is ready.
/// This is necessary, because only the cloud provider makes nodes ready.
const CLOUD_PROVIDER: &str = "
---
apiVersion: helm.cattle.io/v1
kind: HelmChart
metadata:
  name: harvester-cloud-provider
  namespace: kube-system
spec:
  bootstrap: true
  targetNamespace: kube-system
  repo: https://charts.harvesterhci.io/
  chart: harvester-cloud-provider
  valuesContent: |-
    cloudConfigPath: \"\"
    cloudConfig:
      secretName: harvester-csi-config
      secretKey: cloud-provider-config
    global:
      cattle:
        clusterName: ";
const CSI_DRIVER: &str = "
---
apiVersion: helm.cattle.io/v1
kind: HelmChart
metadata:
  name: harvester-csi-driver
  namespace: kube-system
spec:
  targetNamespace: kube-system
  repo: https://charts.harvesterhci.io/
  chart: harvester-csi-driver
  valuesContent: |-
    cloudConfig:
      secretName: harvester-csi-config";

/// Format in which `cloud-config` prints the kubeconfig of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputForm {
    /// Kubeconfig alone.
    Kubeconfig,
    /// Secret for the guest. The charts of cloud provider and CSI driver mount the Secret.
    Secret,
    /// Secret for the Rancher that provisions the guest.
    RancherSecret,
    /// User data for nodes of RKE2.
    CloudInitRke2,
    /// User data for nodes of K3s.
    CloudInitK3s,
    /// Secret for the guest, and HelmCharts by which K3s installs the charts of the cloud provider
    /// and of the CSI driver. Both charts mount the Secret. For a guest without a CSI driver, the
    /// HelmChart of the CSI driver is left out.
    HelmChartK3s,
}

/// Content of a token Secret.
pub struct TokenMaterial {
    /// Token of the account.
    pub token: Zeroizing<String>,
    /// Certificate of the authority that signed the API server's certificate, in PEM.
    pub authority: Vec<u8>,
}

/// Output of `cloud-config` in the format `form`, wiped from memory when it is dropped. `server`:
/// URL of Harvester's API server. `driver`: whether the guest has a CSI driver. Only
/// [`OutputForm::HelmChartK3s`] uses `driver`.
pub fn text(
    form: OutputForm,
    guest: &GuestCluster,
    server: &str,
    material: &TokenMaterial,
    driver: bool,
) -> Zeroizing<String> {
    let config = kubeconfig(guest, server, material);
    let encoded = Zeroizing::new(STANDARD.encode(config.as_bytes()));
    match form {
        OutputForm::Kubeconfig => config,
        OutputForm::Secret => joined(&[CHART_VALUES, SECRET, &encoded, "\n"]),
        OutputForm::HelmChartK3s => {
            let driver = if driver { CSI_DRIVER } else { "" };
            joined(&[SECRET, &encoded, CLOUD_PROVIDER, &quoted(&guest.cluster), driver, "\n"])
        }
        OutputForm::RancherSecret => joined(&[
            "apiVersion: v1\nkind: Secret\nmetadata:\n  name: ",
            &quoted(&safe_name(&["harvesterconfig", &guest.cluster])),
            "\n  namespace: fleet-default\n  annotations:\n    v2prov-secret-authorized-for-cluster: ",
            &quoted(&guest.cluster),
            "\n    v2prov-authorized-secret-deletes-on-cluster-removal: \"true\"\n\
             type: Opaque\ndata:\n  credential: ",
            &encoded,
            "\n",
        ]),
        OutputForm::CloudInitRke2 => cloud_init(&encoded, [RKE2_PATH, PATH]),
        OutputForm::CloudInitK3s => cloud_init(&encoded, [PATH, RKE2_PATH]),
    }
}

/// Kubeconfig like Harvester's own: one entry of each kind, with the name `default`.
fn kubeconfig(guest: &GuestCluster, server: &str, material: &TokenMaterial) -> Zeroizing<String> {
    let token = Zeroizing::new(quoted(&material.token));
    joined(&[
        "apiVersion: v1\nkind: Config\nclusters:\n- name: default\n  cluster:\n    server: ",
        &quoted(server),
        "\n    certificate-authority-data: ",
        &STANDARD.encode(&material.authority),
        "\ncontexts:\n- name: default\n  context:\n    cluster: default\n    namespace: ",
        &quoted(&guest.namespace),
        "\n    user: default\ncurrent-context: default\nusers:\n- name: default\n  user:\n    token: ",
        &token,
        "\n",
    ])
}

/// User data that writes the cloud config to the paths `first` and `second`. Only root may read the
/// files. This is enough, because the pods of both charts run as root. `encoded`: the cloud config
/// in base64.
fn cloud_init(encoded: &str, [first, second]: [&str; 2]) -> Zeroizing<String> {
    let (file, path) = ("- encoding: b64\n  content: ", "\n  owner: root:root\n  path: ");
    let end = "\n  permissions: '0600'\n";
    let head = "#cloud-config\nwrite_files:\n";
    joined(&[head, file, encoded, path, first, end, file, encoded, path, second, end])
}

/// Joins parts in one allocation, because a text that grows would leave copies of itself in memory.
pub(crate) fn joined(parts: &[&str]) -> Zeroizing<String> {
    let length = parts.iter().map(|part| part.len()).sum();
    let mut text = Zeroizing::new(String::with_capacity(length));
    for part in parts {
        text.push_str(part);
    }
    text
}

/// The text as a JSON string. YAML parses a JSON string to the same text.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

/// Checks the URL of `--server`, and returns it without a slash at its end. The error says why the
/// URL is refused.
pub fn server(url: &str) -> Result<String, String> {
    let refuse = |why: &str| {
        Err(format!(
            "--server {url:?}: {why}: give https://HOST:PORT, at which the guest's nodes reach \
             Harvester"
        ))
    };
    let Some(rest) = url.strip_prefix("https://") else {
        return refuse("must begin with https://, because the guest sends its token there");
    };
    let (host, _) = rest.split_once('/').unwrap_or((rest, ""));
    if url.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return refuse("contains white space");
    }
    if rest.contains(['?', '#']) {
        return refuse("has a query or a fragment");
    }
    if host.contains('@') {
        return refuse("contains a user, but the guest authenticates by its token");
    }
    let (name, port) = match host.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(Some((inner, after))) => {
            if inner.parse::<std::net::Ipv6Addr>().is_err() {
                return refuse("has no IPv6 address in its brackets");
            }
            (inner, after)
        }
        Some(None) => return refuse("has no closing bracket"),
        None => host.find(':').map_or((host, ""), |at| host.split_at(at)),
    };
    if name.is_empty() {
        return refuse("names no host");
    }
    let port_is_good = port.is_empty()
        || port.strip_prefix(':').and_then(|p| p.parse::<u16>().ok()).is_some_and(|port| port > 0);
    if !port_is_good {
        return refuse("has no valid port after its host");
    }
    Ok(url.trim_end_matches('/').to_owned())
}

/// URL of the API server, as in Harvester's own cloud configs. `vip`: the address in the ConfigMap
/// [`VIP`]. `None`: the ConfigMap does not exist. The error says why there is no such URL.
pub fn default_server(vip: Option<&str>) -> Result<String, String> {
    let (namespace, name, key) = VIP;
    let give = "give --server https://HOST:PORT, at which the guest's nodes reach Harvester";
    match vip.map(|text| text.trim().parse::<IpAddr>()) {
        Some(Ok(ip)) if !ip.is_unspecified() && !ip.is_loopback() => {
            Ok(format!("https://{}", SocketAddr::new(ip, PORT)))
        }
        Some(_) => Err(format!(
            "--server is not given, and ConfigMap {namespace}/{name} holds no address under \
             {key:?}: {give}"
        )),
        None => Err(format!(
            "--server is not given, and ConfigMap {namespace}/{name}, where Harvester notes its \
             address, does not exist: {give}"
        )),
    }
}

#[cfg(test)]
mod tests;
