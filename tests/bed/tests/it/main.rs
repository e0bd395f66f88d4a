//! Tests of the testbed itself: each stand-in behaves like the real program.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

mod announcer;
mod datapath;
mod dhcp;
mod kubevirt;
mod lifecycle;
mod proxy;
mod rancher;
