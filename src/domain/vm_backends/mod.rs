//! Rules for VM load balancers: their VMs and health checks, their Service and EndpointSlices. Also
//! rules for two other facts about VMs: their topology annotations, and the network of a guest
//! cluster.

pub mod backend_address;
pub mod endpoint_slices;
pub mod endpoints;
pub mod guest_network;
pub mod health;
pub mod lb_identity;
pub mod listeners;
pub mod ports;
pub mod readiness;
pub mod selector_index;
pub mod service;
pub mod topology;
pub mod vm;
