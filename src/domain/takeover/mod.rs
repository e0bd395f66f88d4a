//! Take-over of load balancers from Harvester's Go controller, and the way back to that controller.
//!
//! Invariants:
//!
//! * A plan and its execution use one function, [`steps::Direction::next`], so that a plan cannot
//!   promise a step that the execution does not do.
//! * Each step follows from the current state in the API server. So a command that was stopped at
//!   any step continues from this step when the command is run again.
//! * A step that replaces settings of Harvester (a number of replicas, values of the ManagedChart,
//!   or the form of a CRD) records the former settings on the same object, in the same write.

pub mod crds;
pub mod forecast;
pub mod report;
pub mod steps;
