//! Operator for guest clusters and VMs of Harvester, in the host cluster: addresses, load balancers
//! and credentials.
//!
//! Modules:
//!
//! * [`api`] has the Kubernetes types.
//! * [`domain`] makes the decisions.
//! * [`metrics`] has the Prometheus metrics.
//! * [`k8s`] calls the API server.
//! * [`prober`] calls the backends.
//! * [`rancher`] calls a Rancher.
//! * `controllers` connect these modules.
//! * [`http`] answers Prometheus, the probes of the kubelet, and the API server's requests for
//!   admission and conversion.
//! * `agent` leases addresses by DHCP.
//! * [`cli`] parses the command line, and runs the command.
//! * `tls` has the TLS settings of [`prober`] and [`rancher`].
//! * `turns` has the fair queues of [`http`] and `controllers`.
//! * `locks` locks values that several tasks share.
//!
//! Tests, benchmarks or fuzz targets use the public modules. No other crate can use the private
//! modules, so the compiler warns of dead code in these modules.

mod agent;
pub mod cli;
mod controllers;
pub mod http;
pub mod k8s;
mod locks;
pub mod metrics;
pub mod prober;
pub mod rancher;
mod tls;
mod turns;

pub use {api, domain};
