//! LoadBalancers of VMs: endpoints, their health, and the Service and slices that carry them.

pub mod backend_address;
pub mod endpoint_slices;
pub mod endpoints;
pub mod health;
pub mod listeners;
pub mod selector_index;
pub mod service;
pub mod topology;
pub mod vm;
