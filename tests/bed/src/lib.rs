//! A real control plane on loopback for tests, the demo and the benchmark.
//!
//! etcd, kube-apiserver and kube-controller-manager run as they do in a cluster, with RBAC on;
//! there is no kubelet and no scheduler, so a test plays what these would do. Every [`Bed`] has
//! ports, certificates and a directory of its own, and nothing of it outlives the process that
//! owns it, however that process ends.

mod bed;
mod binaries;
mod daemons;
mod guardian;
mod kubeconfig;
mod kubectl;
mod operator;
mod pki;
mod proc_fs;
mod process;
mod proxy;
mod wait;

pub use bed::{Bed, Options};
pub use binaries::Binaries;
pub use kubeconfig::client_from;
pub use operator::{Operator, Start, install, repository};
pub use pki::{Authority, Issued};
pub use process::Managed;
pub use proxy::{Call, Proxy, Record, Verdict};
pub use wait::{Probe, eventually};
