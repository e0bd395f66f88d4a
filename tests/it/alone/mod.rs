//! Measured limits: memory, time, lost calls. `make test` runs these after all others, one at a
//! time, because they would measure concurrent tests as well.

mod closing;
mod hostile;
mod orphans;
mod strangers;
mod tenant;
mod waits;
