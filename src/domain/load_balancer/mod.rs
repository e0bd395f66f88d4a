//! LoadBalancers: the facts that decisions use, the status that is written, and the limits on the
//! data about each of them.

pub mod bounds;
pub mod facts;
pub mod status;
