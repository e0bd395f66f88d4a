//! HTTP servers of the process: plain HTTP for health and metrics, and TLS for the API server.
//!
//! Every replica serves all of it, leader or not.

pub mod admission;
pub mod authority;
pub mod conversion;
pub mod keeper;
pub mod listener;
pub mod operator;
pub mod probes;
pub mod review;
pub mod tls;
pub mod turns;
pub mod webhook;
