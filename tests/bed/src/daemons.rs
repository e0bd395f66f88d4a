//! Owns the daemons' command lines and the files these name.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

use anyhow::Result;

use crate::bed::Options;
use crate::pki::{self, Authority};
use crate::store;

pub(crate) const ETCD: &str = "etcd";
pub(crate) const API_SERVER: &str = "kube-apiserver";
pub(crate) const CONTROLLER_MANAGER: &str = "kube-controller-manager";

/// Address that the API server advertises. By default it advertises the address of the default
/// route, and does not start on a machine without one. This one is reserved for documentation, and
/// no client follows it.
const ADVERTISED: &str = "192.0.2.1";

/// The ports of one bed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    pub(crate) etcd: u16,
    pub(crate) peer: u16,
    pub(crate) api: u16,
}

impl Ports {
    /// Finds three ports that are free now. Another process may take one before a daemon does; the
    /// start must then be repeated.
    pub(crate) fn free() -> Result<Self> {
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let held = [bind()?, bind()?, bind()?];
        let port = |at: usize| held[at].local_addr().map(|addr| addr.port());
        Ok(Self { etcd: port(0)?, peer: port(1)?, api: port(2)? })
    }
}

/// Writes the certificates, the keys and the token file.
pub(crate) fn write_secrets(dir: &Path, authority: &Authority, token: &str) -> Result<()> {
    let server = authority.issue(&["kubernetes.default.svc", ADVERTISED, "10.96.0.1"])?;
    let (private, public) = pki::signing_key()?;
    fs::write(dir.join("ca.crt"), authority.pem())?;
    fs::write(dir.join("server.crt"), server.cert_pem)?;
    fs::write(dir.join("server.key"), server.key_pem)?;
    fs::write(dir.join("tokens.key"), private)?;
    fs::write(dir.join("tokens.pub"), public)?;
    fs::write(dir.join("tokens.csv"), format!("{token},admin,admin,\"system:masters\"\n"))?;
    Ok(())
}

pub(crate) fn etcd_args(ports: Ports) -> Vec<String> {
    let client = format!("http://127.0.0.1:{}", ports.etcd);
    let peer = format!("http://127.0.0.1:{}", ports.peer);
    vec![
        "--data-dir=etcd.data".to_owned(),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        // The data is deleted at the end, so waiting for the disk gains nothing.
        "--unsafe-no-fsync".to_owned(),
        // Allows removing all objects that a test has left in one transaction.
        format!("--max-txn-ops={}", store::MOST),
        "--max-request-bytes=33554432".to_owned(),
    ]
}

pub(crate) fn api_server_args(ports: Ports, options: &Options) -> Vec<String> {
    let mut args = vec![
        format!("--etcd-servers=http://127.0.0.1:{}", ports.etcd),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={}", ports.api),
        format!("--advertise-address={ADVERTISED}"),
        "--tls-cert-file=server.crt".to_owned(),
        "--tls-private-key-file=server.key".to_owned(),
        "--cert-dir=.".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        "--service-account-key-file=tokens.pub".to_owned(),
        "--service-account-signing-key-file=tokens.key".to_owned(),
        "--service-cluster-ip-range=10.96.0.0/16,fd96::/112".to_owned(),
        "--authorization-mode=RBAC".to_owned(),
        "--token-auth-file=tokens.csv".to_owned(),
        "--allow-privileged".to_owned(),
    ];
    args.extend(options.api_server_args.iter().cloned());
    args
}

pub(crate) fn controller_manager_args() -> Vec<String> {
    [
        "--kubeconfig=admin.kubeconfig",
        "--use-service-account-credentials",
        "--service-account-private-key-file=tokens.key",
        "--root-ca-file=ca.crt",
        "--leader-elect=false",
        "--secure-port=0",
        // No kubelet sends heartbeats for the nodes that tests create, and pods may name nodes that
        // do not exist: the first three would declare such nodes dead and delete such pods. A bed
        // has no use for the others, which take half of the processor time of a control plane's
        // controllers at rest; that of quotas also watches every kind.
        "--controllers=*,-node-lifecycle-controller,-taint-eviction-controller,\
         -pod-garbage-collector-controller,\
         -certificatesigningrequest-approving-controller,\
         -certificatesigningrequest-cleaner-controller,\
         -certificatesigningrequest-signing-controller,-device-taint-eviction-controller,\
         -ephemeral-volume-controller,-horizontal-pod-autoscaler-controller,\
         -legacy-serviceaccount-token-cleaner-controller,\
         -persistentvolume-attach-detach-controller,-persistentvolume-binder-controller,\
         -persistentvolume-expander-controller,-persistentvolume-protection-controller,\
         -persistentvolumeclaim-protection-controller,-podcertificaterequest-cleaner-controller,\
         -replicationcontroller-controller,-resourceclaim-controller,-resourcequota-controller,\
         -storage-version-migrator-controller,-ttl-controller,\
         -volumeattributesclass-protection-controller",
        // With the default of 20 a second, creating its controllers' accounts alone takes 5 s.
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    ]
    .map(str::to_owned)
    .to_vec()
}
