//! Take-over from Harvester's Go controller, and the way back.
//!
//! Invariants: a plan and its execution are one function, [`steps::Direction::next`], so that a
//! plan cannot promise what the execution does not do; each step is decided from the current state
//! in the API server, so that a command that was stopped anywhere goes on where it stopped; a step
//! that changes an object records the former state on the same object, in the same write.

pub mod crds;
pub mod forecast;
pub mod report;
pub mod steps;
