//! Tests of the testbed itself: what stands in for something real does what the real one does.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

mod announcer;
mod datapath;
mod dhcp;
mod kubevirt;
mod lifecycle;
mod proxy;
mod rancher;
