//! What `make demo` and `make test` do before and around the tests: programs are built side by side
//! with progress shown, and the tests run by the clock.
//!
//! It is compiled first, in seconds, so it depends on almost nothing.

mod board;
mod cache;
mod cargo;
mod go;
mod programs;
mod prometheus;
mod report;
mod suite;

pub use board::{Board, Task};
pub use cargo::build_workspace;
pub use programs::{Missing, Program, Programs, control_plane, tools};
pub use suite::{run_suite, show_slowest};
