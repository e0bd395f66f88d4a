//! Long runs of the tests that send calls. `make soak` says how many calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{env, thread};

use anyhow::{Context as _, Result};

/// Environment variable with the number of calls of a long run.
const CALLS: &str = "ADMISSION_CALLS";

/// Every core, busy until it is dropped.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn start() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let cores = thread::available_parallelism().map_or(2, usize::from);
        for _ in 0..cores {
            let over = over.clone();
            thread::spawn(move || while !over.load(Ordering::Relaxed) {});
        }
        Self(over)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A long run: it has so many calls, and every core is busy until it is dropped.
pub(super) struct LongRun {
    pub(super) calls: u64,
    _busy: Busy,
}

impl LongRun {
    /// Begins a long run. `None`: the environment asks for none.
    pub(super) fn begin() -> Result<Option<Self>> {
        let Ok(text) = env::var(CALLS) else { return Ok(None) };
        let calls = text.parse().with_context(|| format!("{CALLS}={text}"))?;
        Ok(Some(Self { calls, _busy: Busy::start() }))
    }
}
