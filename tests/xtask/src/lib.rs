//! Steps of `make demo` and `make test` before and around the tests: it builds programs side by
//! side with progress shown, and measures the tests' time.
//!
//! It is compiled first, in seconds, so it has few dependencies.

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
