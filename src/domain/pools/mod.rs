//! IPPools: the meaning of their ranges, the owners of their addresses, and which pools serve a
//! LoadBalancer.

pub mod allocator;
pub mod conflict;
pub mod free_addresses;
pub mod kube_vip_import;
pub mod ledger;
pub mod manual_release;
pub mod ranges;
pub mod restored_store;
pub mod selection;
pub mod status;
pub mod write_pacing;
