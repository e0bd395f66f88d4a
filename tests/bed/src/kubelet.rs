//! Plays the kubelets of a namespace's pods: each pod that the scheduler has bound to a node runs
//! as a process here, with exactly the arguments, environment, user and mounted account of its
//! object, without capabilities, and with a read-only root.
//!
//! Three things differ from a node: the root is this machine's instead of an image's, a listener on
//! every address is one on the pod's own address, and no resource limit is applied. The pod's
//! address is on the loopback interface, so this only works in a network namespace of the test's
//! own, see [`isolated`](crate::net::isolated).

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Container, EnvVar, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::time::sleep;

use crate::net::Netns;
use crate::operator::http_get;
use crate::{Bed, Managed, tools};

const ROUND: Duration = Duration::from_millis(100);
/// Script that makes the pod's mounts in a mount namespace of its own, then drops all privileges.
/// Arguments: binary, account's folder, its mount point, user, group, and the program's arguments.
const SCRIPT: &str = r#"set -e
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /etc
touch /run/operator && mount --bind "$1" /run/operator
mkdir -p "$3" && mount --bind "$2" "$3"
mount -o remount,bind,ro /
user=$4 group=$5 && shift 5
exec setpriv --reuid "$user" --regid "$group" --clear-groups --inh-caps=-all --bounding-set=-all \
    --no-new-privs /run/operator "$@"
"#;
const NAMESPACE: &str = "harvester-system";

/// Kubelets of all nodes, and the scheduler.
#[derive(Debug)]
pub struct Kubelet<'a> {
    bed: &'a Bed,
    host: Netns,
    binary: PathBuf,
    pods: BTreeMap<String, Running>,
    started: u8,
    scheduler: Managed,
}

#[derive(Debug)]
struct Running {
    name: String,
    process: Managed,
    http: SocketAddr,
    ready: bool,
    stopping: bool,
}

impl<'a> Kubelet<'a> {
    /// Starts the scheduler. The binary replaces the image.
    pub async fn new(bed: &'a Bed, host: &Netns, binary: &Path) -> Result<Self> {
        let program = tools().await?.path("kube-scheduler").to_owned();
        let mut command = Command::new(program);
        command
            .arg("--kubeconfig")
            .arg(bed.kubeconfig())
            .args(["--leader-elect=false", "--secure-port=0"]);
        let mut scheduler = Managed::spawn(&mut command, bed.dir().join("kube-scheduler.log"))?;
        sleep(ROUND).await;
        ensure!(scheduler.is_running(), "kube-scheduler ended:\n{}", scheduler.log());
        let pods = BTreeMap::new();
        let (host, binary) = (host.clone(), binary.to_owned());
        Ok(Self { bed, host, binary, pods, started: 0, scheduler })
    }

    /// Creates a ready node.
    pub async fn node(&self, name: &str) -> Result<()> {
        let nodes = Api::<Node>::all(self.bed.admin());
        let labels = json!({"kubernetes.io/hostname": name});
        let node = json!({"metadata": {"name": name, "labels": labels}});
        nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
        let room = json!({"cpu": "4", "memory": "8Gi", "pods": "50"});
        let status = json!({"status": {
            "capacity": room, "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True"}],
        }});
        nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?;
        // A new node is tainted until a controller has observed it ready.
        let untainted = json!({"spec": {"taints": null}});
        nodes.patch(name, &PatchParams::default(), &Patch::Merge(untainted)).await?;
        Ok(())
    }

    /// Runs pods until dropped. A process that ends on its own is an error.
    pub async fn run(&mut self) -> Result<()> {
        loop {
            ensure!(self.scheduler.is_running(), "the scheduler ended:\n{}", self.scheduler.log());
            self.round().await?;
            sleep(ROUND).await;
        }
    }

    fn api(&self) -> Api<Pod> {
        Api::namespaced(self.bed.admin(), NAMESPACE)
    }

    async fn round(&mut self) -> Result<()> {
        let stored = self.api().list(&ListParams::default()).await?.items;
        for pod in &stored {
            let uid = pod.uid().context("a pod without UID")?;
            let bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
            let stops = pod.metadata.deletion_timestamp.is_some();
            match self.pods.get(&uid) {
                None if bound && !stops => self.start(uid, pod).await?,
                None if stops => self.remove(&pod.name_any()).await?,
                None => {}
                Some(_) => self.step(&uid, stops).await?,
            }
        }
        Ok(())
    }

    async fn start(&mut self, uid: String, pod: &Pod) -> Result<()> {
        self.started += 1;
        let address = Ipv4Addr::new(10, 244, 0, self.started);
        self.host.ip(&format!("address add {address}/32 dev lo")).await?;
        let spec = pod.spec.as_ref().context("a pod without a spec")?;
        let container = spec.containers.first().context("a pod without a container")?;
        let (folder, at) = self.account(pod, container).await?;
        let (user, group) = restricted(pod, container)?;
        let mut command = Command::new("/usr/bin/unshare");
        command.args(["--mount", "/bin/sh", "-c", SCRIPT, "kubelet"]);
        command.arg(&self.binary).arg(folder).arg(at).args([user, group].map(|id| id.to_string()));
        command.args(container.args.iter().flatten()).env_clear();
        for variable in container.env.iter().flatten() {
            command.env(&variable.name, value(variable, pod, address)?);
        }
        // Address of the API server, which a node gives to each pod.
        let (server, server_port) =
            self.bed.url().trim_start_matches("https://").split_once(':').unwrap_or_default();
        command
            .envs([("KUBERNETES_SERVICE_HOST", server), ("KUBERNETES_SERVICE_PORT", server_port)]);
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let log = self.bed.dir().join(format!("{}.log", pod.name_any()));
        let process = Managed::spawn(&mut command, log)?;
        let http = SocketAddr::new(address.into(), port(container, "http")?);
        let name = pod.name_any();
        let running = Running { name, process, http, ready: false, stopping: false };
        self.write_status(&running, address.into()).await?;
        self.pods.insert(uid, running);
        Ok(())
    }

    /// Folder with the files of the pod's account, and the path of its mount.
    async fn account(&self, pod: &Pod, container: &Container) -> Result<(PathBuf, String)> {
        let mounts = container.volume_mounts.as_deref().unwrap_or_default();
        let [mount] = mounts else { bail!("only the account's mount is played: {mounts:?}") };
        let spec = pod.spec.as_ref().context("a pod without a spec")?;
        let volume = spec.volumes.iter().flatten().find(|volume| volume.name == mount.name);
        let projected = volume.and_then(|volume| volume.projected.as_ref());
        let sources = projected.and_then(|projected| projected.sources.as_ref());
        let account = spec.service_account_name.as_deref().unwrap_or("default");
        let folder = self.bed.dir().join(format!("{}.account", pod.name_any()));
        fs::create_dir_all(&folder)?;
        for source in sources.context("the account's volume is not projected")? {
            let (path, text) = if let Some(token) = &source.service_account_token {
                let text = self.bed.service_account_token(NAMESPACE, account).await?;
                (token.path.as_str(), text)
            } else if source.config_map.is_some() {
                ("ca.crt", self.bed.ca_pem().to_owned())
            } else {
                ("namespace", NAMESPACE.to_owned())
            };
            fs::write(folder.join(path), text)?;
        }
        Ok((folder, mount.mount_path.clone()))
    }

    async fn step(&mut self, uid: &str, stops: bool) -> Result<()> {
        let Some(mut pod) = self.pods.remove(uid) else { return Ok(()) };
        if stops {
            if !pod.stopping {
                pod.process.signal("TERM")?;
                pod.stopping = true;
            }
            if !pod.process.is_running() {
                return self.remove(&pod.name).await;
            }
        } else {
            ensure!(pod.process.is_running(), "{} ended:\n{}", pod.name, pod.process.log());
        }
        let ready = http_get(pod.http, "/readyz").await.is_ok_and(|(code, _)| code == 200);
        if ready != std::mem::replace(&mut pod.ready, ready) {
            self.write_status(&pod, pod.http.ip()).await?;
        }
        self.pods.insert(uid.to_owned(), pod);
        Ok(())
    }

    /// Writes the pod's status.
    async fn write_status(&self, pod: &Running, address: IpAddr) -> Result<()> {
        let is = if pod.ready { "True" } else { "False" };
        let status = json!({"status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [
                {"type": "Ready", "status": is}, {"type": "ContainersReady", "status": is},
            ],
        }});
        let patch = Patch::Merge(status);
        match self.api().patch_status(&pod.name, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            other => other.map(drop).map_err(Into::into),
        }
    }

    async fn remove(&self, name: &str) -> Result<()> {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        match self.api().delete(name, &now).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            other => other.map(drop).map_err(Into::into),
        }
    }
}

/// User and group of a container; fails unless its security context drops what [`SCRIPT`] drops.
fn restricted(pod: &Pod, container: &Container) -> Result<(i64, i64)> {
    let ours = container.security_context.as_ref().context("no security context")?;
    let drops = ours.capabilities.as_ref().and_then(|all| all.drop.as_deref());
    ensure!(drops.is_some_and(|drops| drops == ["ALL"]), "capabilities are not played");
    ensure!(ours.read_only_root_filesystem == Some(true), "a root to write is not played");
    ensure!(ours.allow_privilege_escalation == Some(false), "privileges are not played");
    let all = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let ids = all.and_then(|all| all.run_as_user.zip(all.run_as_group));
    ids.context("the pod names no user and group")
}

fn port(container: &Container, name: &str) -> Result<u16> {
    let mut ports = container.ports.iter().flatten();
    let port = ports.find(|port| port.name.as_deref() == Some(name));
    let port = port.with_context(|| format!("no port {name}"))?;
    Ok(u16::try_from(port.container_port)?)
}

fn value(variable: &EnvVar, pod: &Pod, address: Ipv4Addr) -> Result<String> {
    if let Some(value) = &variable.value {
        return Ok(value.replace("0.0.0.0:", &format!("{address}:")));
    }
    let source = variable.value_from.as_ref().and_then(|from| from.field_ref.as_ref());
    match source.map(|field| field.field_path.as_str()) {
        Some("metadata.name") => Ok(pod.name_any()),
        Some("metadata.namespace") => Ok(pod.namespace().unwrap_or_default()),
        Some("spec.nodeName") => {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            node.context("a pod that is bound to no node")
        }
        other => anyhow::bail!("{}: {other:?} is not played", variable.name),
    }
}
