//! LoadBalancers: the facts that decisions take, the status that is written, and the bounds of both.

pub mod bounds;
pub mod facts;
pub mod status;
