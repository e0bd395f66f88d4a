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
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause after a long attempt.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(2);

/// Result of an attempt: the value, or the reason why it is missing.
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

/// A failed attempt does not end the wait; the error after the deadline names its cause.
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

/// Pause before the next attempt: a fifth of the elapsed time, so that a short wait is exact and a
/// long one costs little. It is not shorter than the last attempt was: a long list that is read
/// again and again takes the processor from what it waits for.
fn pause(waited: Duration, attempt: Duration) -> Duration {
    (waited / 5).clamp(SHORTEST_PAUSE, LONGEST_PAUSE).max(attempt.min(LONGEST_ATTEMPT))
}

/// Repeats an attempt until it returns a value, every 10 ms at first, every 500 ms after 2.5
/// seconds, and less often when an attempt takes longer. After the deadline the error names `what`
/// and the result of the last attempt. An attempt that hangs does not extend the deadline.
pub async fn eventually<P: Probe>(
    deadline: Duration,
    what: &str,
    mut probe: impl AsyncFnMut() -> P,
) -> Result<P::Value> {
    let begin = Instant::now();
    let end = begin + deadline;
    let mut last = "no attempt has ended".to_owned();
    loop {
        let attempted = Instant::now();
        let left = end.saturating_duration_since(attempted);
        match timeout(left, probe()).await.map(Probe::settle) {
            Ok(Ok(value)) => {
                waited(what, begin.elapsed());
                return Ok(value);
            }
            Ok(Err(why)) => last = why,
            Err(_) => {}
        }
        // The timeout alone is not enough: it does not end an attempt that returns at once.
        if Instant::now() >= end {
            bail!("no {what} within {deadline:?}; last result: {last}");
        }
        sleep(pause(begin.elapsed(), attempted.elapsed())).await;
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
