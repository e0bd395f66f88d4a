//! Load-balancer addresses for guests of Harvester: one operator in the host cluster.
//!
//! Rooms, in the order in which data flows: [`api`] holds the types, [`domain`] decides, `k8s`
//! calls the API server, [`rancher`] calls a Rancher, `controllers` connect them, `http` serves
//! metrics, probes and admission, `cli` starts all of them.

pub mod agent;
pub mod cli;
pub mod controllers;
pub mod http;
pub mod k8s;
pub mod metrics;
pub mod prober;
pub mod rancher;

pub use {api, domain};
