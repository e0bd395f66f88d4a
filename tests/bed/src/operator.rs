//! Owns a running operator, installed as on a real cluster, with its own account.

use std::env;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::net::Netns;
use crate::{Bed, Managed, eventually};

pub(crate) const START: Duration = Duration::from_mins(2);
const HTTP: Duration = Duration::from_mins(1);
/// Namespace and name of the operator's account.
const ACCOUNT: (&str, &str) = ("harvester-system", "harvester-guest-operator");

/// Sample right of each role that the account is bound to: namespace, group, resource, name, verb.
const RIGHTS: [[&str; 5]; 6] = [
    ["", "loadbalancer.harvesterhci.io", "ippools", "", "list"],
    ["kube-system", "coordination.k8s.io", "leases", "", "create"],
    ["kube-system", "", "configmaps", "kubevip", "get"],
    ["harvester-system", "", "secrets", "harvester-guest-operator-admission", "patch"],
    ["harvester-system", "apps", "deployments", "", "create"],
    ["default", "k8s.cni.cncf.io", "network-attachment-definitions", "", "patch"],
];

/// Installs like an administrator: namespace, CRDs and rights, from the repository's folders.
pub async fn install(bed: &Bed) -> Result<()> {
    let root = repository();
    let namespace = format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {}\n", ACCOUNT.0);
    bed.apply_yaml(&namespace).await?;
    bed.apply_file(root.join("crds")).await?;
    bed.apply_file(root.join("config/rbac")).await?;
    bed.apply_file(root.join("config/manager/flow-schemas.yaml")).await?;
    bed.crds_established().await?;
    for right in RIGHTS {
        let what = format!("right to {right:?}");
        eventually(START, &what, async || is_granted(bed, right).await).await?;
    }
    Ok(())
}

/// Whether the API server has read the role by now: it decides by a cache.
async fn is_granted(bed: &Bed, right: [&str; 5]) -> Result<bool> {
    let [namespace, group, resource, name, verb] = right;
    let review = json!({"metadata": {}, "spec": {
        "user": format!("system:serviceaccount:{}:{}", ACCOUNT.0, ACCOUNT.1),
        "resourceAttributes": {
            "namespace": namespace, "group": group, "resource": resource, "name": name, "verb": verb,
        },
    }});
    let review: SubjectAccessReview = serde_json::from_value(review)?;
    let answer = Api::all(bed.admin()).create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// Root of the repository.
pub fn repository() -> PathBuf {
    let bed = Path::new(env!("CARGO_MANIFEST_DIR"));
    bed.ancestors().nth(2).unwrap_or(bed).to_owned()
}

/// Options of an operator's start.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// URL and authority of another route to the API server, such as a proxy.
    pub via: Option<(String, String)>,
    /// Lease for leader election, if not the default.
    pub lease: Option<String>,
    /// Holder identity in the Lease.
    pub identity: Option<String>,
    /// Log filter, if not the default.
    pub log: Option<String>,
    /// URL that the API server calls for admission, `https://127.0.0.1:0` for the operator itself.
    /// Without it, admission is off.
    pub admission: Option<String>,
    /// Further options. `--admission` among them replaces `admission`.
    pub options: Vec<String>,
    /// Further environment variables.
    pub variables: Vec<(String, String)>,
    /// Network namespace of the process and its sockets, if not the caller's.
    pub within: Option<Netns>,
}

/// Address in a field of a log line.
pub(crate) fn logged(log: &str, field: &str) -> Option<SocketAddr> {
    log.split(field).nth(1)?.split_whitespace().next()?.parse().ok()
}

/// Removes variables that the user has set for an operator of their own.
pub fn clear_options(command: &mut Command) {
    let is_ours = |name: &OsString| name.to_str().is_some_and(|name| name.starts_with("HGO_"));
    for name in env::vars_os().map(|(name, _)| name).filter(is_ours) {
        command.env_remove(name);
    }
}

/// An operator process.
#[derive(Debug)]
pub struct Operator {
    /// The process, to kill, stop or measure.
    pub process: Managed,
    /// Address of its metrics and probes.
    pub http: SocketAddr,
    /// Address of admission; `None` if it is off.
    pub admission: Option<SocketAddr>,
}

impl Operator {
    /// Starts the binary and waits until it listens.
    pub async fn start(bed: &Bed, binary: &Path, start: Start) -> Result<Self> {
        let via = start.via.as_ref().map(|(url, ca)| (url.as_str(), ca.as_str()));
        let kubeconfig = bed.service_account_kubeconfig(ACCOUNT.0, ACCOUNT.1, via).await?;
        let mut command = match &start.within {
            Some(network) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net={}", network.path().display())).arg(binary);
                command
            }
            None => Command::new(binary),
        };
        clear_options(&mut command);
        command
            .arg("controller")
            .args(["--http-addr", "127.0.0.1:0"])
            .arg("--kubeconfig")
            .arg(&kubeconfig);
        for (option, value) in
            [("--lease", &start.lease), ("--identity", &start.identity), ("--log", &start.log)]
        {
            if let Some(value) = value {
                command.args([option, value]);
            }
        }
        let chosen = start.options.iter().any(|option| option == "--admission");
        match &start.admission {
            None if chosen => {}
            None => drop(command.args(["--admission", "off"])),
            Some(url) => drop(
                command
                    .args(["--admission", "url", "--admission-url", url])
                    .args(["--admission-addr", "127.0.0.1:0"]),
            ),
        }
        command.args(&start.options).envs(start.variables.iter().cloned());
        let process = Managed::spawn(&mut command, kubeconfig.with_extension("log"))?;
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut operator = Self { process, http: nowhere, admission: None };
        operator.http = eventually(START, "listening operator", async || {
            let log = operator.process.log();
            match logged(&log, "address=") {
                Some(address) => {
                    operator.admission = logged(&log, "admission=");
                    Some(Some(address))
                }
                None if !operator.process.is_running() => Some(None),
                None => None,
            }
        })
        .await?
        .with_context(|| format!("the operator ended at once:\n{}", operator.process.log()))?;
        Ok(operator)
    }

    /// Waits until `/readyz` answers 200.
    pub async fn ready(&self) -> Result<()> {
        eventually(START, "ready operator", async || {
            self.get("/readyz").await.map(|(code, _)| code == 200)
        })
        .await
        .with_context(|| self.recent_log())
    }

    /// Waits until the operator leads and its ledgers are loaded.
    pub async fn leads(&self) -> Result<()> {
        self.ready().await?;
        eventually(START, "leading operator", async || {
            self.process.log().contains("ledgers loaded")
        })
        .await
        .with_context(|| self.recent_log())
    }

    /// Last lines of its log, for the error of a wait.
    pub fn recent_log(&self) -> String {
        let log = self.process.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    /// Sum of a metric's series whose line contains all the given parts.
    pub async fn metric(&self, name: &str, parts: &[&str]) -> Result<f64> {
        let (_, text) = self.get("/metrics").await?;
        let lines = text.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
                && parts.iter().all(|part| line.contains(part))
        });
        Ok(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }

    /// Sends one plain HTTP request to the operator. Returns status code and body.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        http_get(self.http, path).await
    }
}

/// Sends one plain HTTP request. Returns status code and body.
pub async fn http_get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n");
    http(address, &request).await
}

/// Sends one plain HTTP request with a body. Returns status code and body. HTTP/1.0 keeps the
/// answer unchunked.
pub async fn http_post(address: SocketAddr, path: &str, body: &str) -> Result<(u16, String)> {
    let length = body.len();
    http(address, &format!("POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}")).await
}

async fn http(address: SocketAddr, request: &str) -> Result<(u16, String)> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = timeout(HTTP, exchange).await??;
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { bail!("not HTTP: {answer:?}") };
    let code = head.split(' ').nth(1).context("no status code")?.parse()?;
    Ok((code, body.to_owned()))
}
