//! Measured bounds: memory, time, lost calls. `make test` runs these after all others, one at a time,
//! because on a machine with other tests they would measure those as well.

mod closing;
mod hostile;
mod strangers;
mod tenant;
