//! Owns waiting: a condition, a deadline and a name for the error.

use std::env;
use std::fmt::Display;
use std::fs::File;
use std::io::Write as _;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep, timeout};

const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Result of a look: the value, or the reason why it is not there yet.
pub trait Probe {
    /// Type of the value that the wait returns.
    type Value;

    /// The value, or the text for the error after the deadline.
    fn settle(self) -> Result<Self::Value, String>;
}

impl<T> Probe for Option<T> {
    type Value = T;

    fn settle(self) -> Result<T, String> {
        self.ok_or_else(|| "not there".to_owned())
    }
}

impl Probe for bool {
    type Value = ();

    fn settle(self) -> Result<(), String> {
        self.then_some(()).settle().map_err(|_| "not so".to_owned())
    }
}

/// A failed look does not end the wait; the error after the deadline names it.
impl<P: Probe, E: Display> Probe for Result<P, E> {
    type Value = P::Value;

    fn settle(self) -> Result<P::Value, String> {
        self.map_err(|e| format!("{e:#}")).and_then(Probe::settle)
    }
}

/// Appends a line to the file of the variable `HGO_TEST_WAITS`, if it is set: test, seconds, and
/// what the test waited for. `xtask` reads it.
pub(crate) fn waited(what: &str, time: Duration) {
    let Some(file) = env::var_os("HGO_TEST_WAITS").filter(|file| !file.is_empty()) else { return };
    let thread = thread::current();
    let line = format!("{}\t{:.3}\t{what}\n", thread.name().unwrap_or("-"), time.as_secs_f64());
    // A test must not fail because its time cannot be written.
    let _ = File::options()
        .create(true)
        .append(true)
        .open(file)
        .and_then(|mut file| file.write_all(line.as_bytes()));
}

/// Pause before the next look: a tenth of the elapsed time, so that a short wait is exact and a
/// long one costs little.
fn pause(waited: Duration) -> Duration {
    (waited / 10).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

/// Looks until there is a value, every 10 ms at first, every 200 ms after two seconds. After the
/// deadline the error names `what` and the result of the last look. A look that hangs does not
/// extend the deadline.
pub async fn eventually<P: Probe>(
    deadline: Duration,
    what: &str,
    mut probe: impl AsyncFnMut() -> P,
) -> Result<P::Value> {
    let begin = Instant::now();
    let end = begin + deadline;
    let mut last = "no look was finished".to_owned();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match timeout(left, probe()).await.map(Probe::settle) {
            Ok(Ok(value)) => {
                waited(what, begin.elapsed());
                return Ok(value);
            }
            Ok(Err(why)) => last = why,
            Err(_) => {}
        }
        // The timeout alone is not enough: it does not end a look that returns at once.
        if Instant::now() >= end {
            bail!("no {what} within {deadline:?}; last look: {last}");
        }
        sleep(pause(begin.elapsed())).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::eventually;

    #[tokio::test]
    async fn it_looks_until_there_is_a_value() {
        let mut looks = 0;
        let found = eventually(Duration::from_mins(1), "third look", async || {
            looks += 1;
            (looks == 3).then_some("seen")
        });
        assert_eq!(found.await.unwrap(), "seen");
    }

    #[tokio::test]
    async fn the_error_names_what_was_missing_and_the_last_look() {
        let end = Duration::from_millis(60);
        let never = async || Err::<bool, _>("the sky is grey");
        let error = eventually(end, "sunshine", never).await.unwrap_err().to_string();
        assert!(error.contains("no sunshine"), "{error}");
        assert!(error.contains("the sky is grey"), "{error}");

        let hangs = async || std::future::pending::<bool>().await;
        assert!(eventually(end, "answer", hangs).await.is_err());
    }
}
