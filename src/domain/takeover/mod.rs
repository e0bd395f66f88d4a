//! Take-over of load balancers from Harvester's Go controller, and the way back to that controller.
//!
//! Invariants:
//!
//! * A plan and its execution use one function, [`steps::Direction::next`]. So both take the same
//!   next step from the same state.
//! * Each step follows from the current state in the API server. So a command that was stopped at
//!   any step continues from this step when the command is run again.
//! * A step that replaces settings of Harvester records the former settings on the same object, in
//!   the same write. Such settings are a number of replicas, values of the ManagedChart, and the
//!   form of a CRD.

pub mod crds;
pub mod forecast;
pub mod report;
pub mod steps;
