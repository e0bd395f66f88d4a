//! Plays the kubelets of a namespace's pods: what the scheduler has bound to a node runs as a
//! process here, with exactly the arguments and environment that its object says.
//!
//! Three things differ from a node: the account's token is in a kubeconfig (`HGO_KUBECONFIG`), a
//! listener on every address is one on the pod's own, and no image, mount or security context is
//! applied. The pod's address is one of the loopback interface's, so this only works in a network
//! namespace of the test's own, see [`isolated`](crate::net::isolated).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Container, EnvVar, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::time::sleep;

use crate::net::Netns;
use crate::operator::http_get;
use crate::{Bed, Managed, Tools};

const ROUND: Duration = Duration::from_millis(100);
const NAMESPACE: &str = "harvester-system";

/// All nodes' kubelets, and the scheduler.
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
    told_to_stop: bool,
}

impl<'a> Kubelet<'a> {
    /// Starts the scheduler. The binary stands for the image.
    pub async fn new(bed: &'a Bed, host: &Netns, binary: &Path) -> Result<Self> {
        let program = Tools::locate().await?.program("kube-scheduler");
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

    /// A node that takes pods.
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
        // A new node is tainted until somebody has seen it be ready.
        let untainted = json!({"spec": {"taints": null}});
        nodes.patch(name, &PatchParams::default(), &Patch::Merge(untainted)).await?;
        Ok(())
    }

    /// Runs pods until dropped. A process that ends by itself is an error.
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
        let account = spec.service_account_name.as_deref().unwrap_or("default");
        let kubeconfig = self.bed.service_account_kubeconfig(NAMESPACE, account, None).await?;
        let mut command = Command::new(&self.binary);
        command.args(container.args.iter().flatten()).env_clear();
        for variable in container.env.iter().flatten() {
            command.env(&variable.name, value(variable, pod, address)?);
        }
        command.env("HGO_KUBECONFIG", &kubeconfig);
        let log = self.bed.dir().join(format!("{}.log", pod.name_any()));
        let process = Managed::spawn(&mut command, log)?;
        let http = SocketAddr::new(address.into(), port(container, "http")?);
        let name = pod.name_any();
        let running = Running { name, process, http, ready: false, told_to_stop: false };
        self.tell(&running, address.into()).await?;
        self.pods.insert(uid, running);
        Ok(())
    }

    async fn step(&mut self, uid: &str, stops: bool) -> Result<()> {
        let Some(mut pod) = self.pods.remove(uid) else { return Ok(()) };
        if stops {
            if !pod.told_to_stop {
                pod.process.signal("TERM")?;
                pod.told_to_stop = true;
            }
            if !pod.process.is_running() {
                return self.remove(&pod.name).await;
            }
        } else {
            ensure!(pod.process.is_running(), "{} ended:\n{}", pod.name, pod.process.log());
        }
        let ready = http_get(pod.http, "/readyz").await.is_ok_and(|(code, _)| code == 200);
        if ready != std::mem::replace(&mut pod.ready, ready) {
            self.tell(&pod, pod.http.ip()).await?;
        }
        self.pods.insert(uid.to_owned(), pod);
        Ok(())
    }

    /// Says how the pod is.
    async fn tell(&self, pod: &Running, address: IpAddr) -> Result<()> {
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
        other => anyhow::bail!("{}: {other:?} is not played", variable.name),
    }
}
