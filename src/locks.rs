//! Access to values that several tasks share.
//!
//! If a task panics while it holds a lock, the value may lack a part of the task's change. The
//! other tasks continue with the value, because they would otherwise all panic too.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a value, even if a task panicked while it held the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
