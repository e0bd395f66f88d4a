//! What the process serves: plain HTTP about itself, and TLS to the API server alone.
//!
//! Every replica serves all of it, whether it leads or not.

pub mod admission;
pub mod conversion;
pub mod probes;
