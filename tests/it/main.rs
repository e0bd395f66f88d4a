//! Tests of the whole: the operator's own process on a real control plane, and the package.
// Counters are whole numbers, and measurements are printed.
#![allow(clippy::float_cmp, clippy::print_stdout)]

mod absent;
mod admission;
mod allocation;
mod alone;
mod architecture;
mod chart;
mod cloud_config;
mod crash;
mod crds;
mod datapath;
mod dhcp;
mod documents;
mod downtime;
mod forms;
mod hygiene;
mod image;
mod input;
mod kube_vip;
mod leaders;
mod leases;
mod ledger;
mod other_controller;
mod pool_facts;
mod pools;
mod preview;
mod probes;
mod restore;
mod rotation;
mod silence;
mod skew;
mod support;
mod takeover;
mod versions;
mod vms;
