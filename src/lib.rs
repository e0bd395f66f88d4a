//! Load-balancer addresses for guests of Harvester: one operator in the host cluster.

pub mod api;
pub mod domain;
