//! Access to values that several tasks share.
//!
//! Invariant: a panic of the task that holds a lock leaves a usable value, because each entry of a
//! shared value is changed by one statement.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a value, also after a panic of a task that held the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
