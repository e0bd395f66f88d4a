//! LoadBalancers: the facts that decisions use, the status that is written, and the limits of both.

pub mod bounds;
pub mod facts;
pub mod status;
