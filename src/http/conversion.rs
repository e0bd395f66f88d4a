//! Conversion between the versions of `LoadBalancer`: the review's envelope. What becomes of an
//! object is decided in the domain.
