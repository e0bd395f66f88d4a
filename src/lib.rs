//! Load-balancer addresses for guests of Harvester: one operator in the host cluster.
//!
//! Rooms, in the order data flows: [`api`] holds the types, [`domain`] decides, `k8s` talks to
//! the API server, [`rancher`] to a Rancher, `controllers` join them, `http` shows what goes on, `cli`
//! starts it all.

pub mod agent;
pub mod cli;
pub mod controllers;
pub mod http;
pub mod k8s;
pub mod metrics;
pub mod prober;
pub mod rancher;

pub use {api, domain};
