//! A real control plane on loopback for tests, the demo and the benchmark.
//!
//! etcd, kube-apiserver and kube-controller-manager run as they do in a cluster, with RBAC on;
//! there is no kubelet and no scheduler, so a test plays these. Every [`Bed`] has ports,
//! certificates and a directory of its own, and no part of it outlives the process that owns it,
//! however that process ends.
//!
//! A test asks for further parts of a cluster: [`kubevirt`] plays VMs, [`Announcer`] plays
//! kube-vip, [`CloudProvider`] a guest's cloud provider, [`net`] with [`KubeProxy`] makes Services carry packets, in networks of their own, and
//! [`rancher`] stands in for a Rancher server.

mod announcer;
mod audit;
mod balancer;
mod bed;
mod chart;
mod cloud_provider;
mod credentials;
mod daemons;
mod guardian;
mod helm;
mod image;
mod kube_proxy;
mod kubeconfig;
mod kubectl;
mod kubelet;
pub mod kubevirt;
mod lease_agent;
mod listen;
pub mod net;
mod operator;
mod pki;
mod proc_fs;
mod process;
mod programs;
mod proxy;
pub mod rancher;
mod shared;
mod stalls;
mod store;
mod wait;

pub use announcer::{Announcer, Announcing};
pub use audit::Asked;
pub use balancer::Balancer;
pub use bed::{Backup, Bed, Options};
pub use chart::Chart;
pub use cloud_provider::CloudProvider;
pub use credentials::{CREDENTIAL_RIGHTS, GUEST_ACCOUNT, install_credentials};
pub use helm::{Helm, Version};
pub use image::{Architecture, ArchitectureImage, Written, unpack_image, write_image};
pub use kube_proxy::{KubeProxy, Mode as ProxyMode};
pub use kubeconfig::client_from;
pub use kubelet::Kubelet;
pub use lease_agent::{LeaseAgent, agent_template};
pub use operator::{Operator, Start, clear_options, http_get, http_post, install, repository};
pub use pki::{Authority, Issued};
pub use process::Managed;
pub use programs::{control_plane, tools};
pub use proxy::{Call, Proxy, Record, Verdict};
pub use rancher::Rancher;
pub use shared::Shared;
pub use stalls::Stalls;
pub use wait::{Probe, eventually};
pub use xtask::Programs;
