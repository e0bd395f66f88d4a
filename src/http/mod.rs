//! What the process serves: plain HTTP about itself, and TLS to the API server alone.
//!
//! Every replica serves all of it, whether it leads or not.

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
