//! Take-over from Harvester's Go controller, and the way back.
//!
//! Invariants: a plan and its execution are one function, [`steps::Direction::next`], so that a
//! plan cannot promise what the execution does not do; each step is decided from what the API
//! server has now, so that a command that was stopped anywhere goes on where it stopped; what a
//! step changes it records on the object that it changes, in the same write.

pub mod crds;
pub mod forecast;
pub mod report;
pub mod steps;
