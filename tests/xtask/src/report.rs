//! Reads the tests' output: how many passed, how long each took, and what it waited for.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::time::Duration;

/// Number of waits that the report names for a test.
const NAMED_WAITS: usize = 3;
/// Shortest wait that the report names.
const LONG_WAIT: Duration = Duration::from_millis(500);
/// Number of lines of a failed test that are repeated: from its error on, else the last ones.
const REPEATED_LINES: usize = 30;

/// Results of a run of `cargo test`.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Results {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    /// Duration of each test.
    pub(crate) tests: Vec<(String, Duration)>,
    /// Output of each test that failed.
    pub(crate) failures: Vec<(String, Vec<String>)>,
}

impl Results {
    /// Reads the lines of `test result:` and, where the harness prints them, the times.
    pub(crate) fn read(log: &str) -> Self {
        let mut results = Self::default();
        let mut is_in_failure = false;
        for line in log.lines() {
            if let Some(name) = failure(line) {
                results.failures.push((name.to_owned(), Vec::new()));
                is_in_failure = true;
            } else if line == "failures:" {
                is_in_failure = false;
            } else if is_in_failure && let Some((_, output)) = results.failures.last_mut() {
                output.push(line.to_owned());
            } else if let Some(sum) = line.strip_prefix("test result: ") {
                results.passed += count(sum, "passed");
                results.failed += count(sum, "failed");
            } else if let Some(test) = timed(line) {
                results.tests.push(test);
            }
        }
        results.tests.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        results
    }

    /// Errors that the failed tests printed, and earlier notices of the test bed, without
    /// backtraces. Each line begins with the name of its test, so that a search for the name finds
    /// them all. The error that a test returned is shown rather than a panic of its other threads:
    /// those panic when the runtime ends under them.
    pub(crate) fn failed(&self) -> String {
        let mut text = String::new();
        for (name, output) in &self.failures {
            let said = without_backtraces(output);
            let returned = said.iter().position(|line| line.starts_with("Error:"));
            let first = returned
                .or_else(|| said.iter().position(|line| line.contains("panicked")))
                .unwrap_or(said.len().saturating_sub(REPEATED_LINES));
            let bed = said[..first].iter().filter(|line| line.starts_with("testbed: "));
            for line in bed.chain(&said[first..]).take(REPEATED_LINES) {
                let _ = writeln!(text, "test {name} ... FAILED: {line}");
            }
        }
        text
    }

    /// The slowest tests, one line each with what they waited for.
    pub(crate) fn slowest(&self, most: usize, waits: &str) -> String {
        let waits = by_test(waits);
        let mut text = String::new();
        for (name, took) in self.tests.iter().take(most) {
            let _ = write!(text, "{:>7.1} s  {name}", took.as_secs_f64());
            let mut separator = ": waited ";
            for (what, time) in waits.get(name.as_str()).into_iter().flatten().take(NAMED_WAITS) {
                let _ = write!(text, "{separator}{:.1} s for {what}", time.as_secs_f64());
                separator = ", ";
            }
            text.push('\n');
        }
        text
    }
}

/// Lines that are neither empty nor in a backtrace. The frames of a backtrace are indented.
fn without_backtraces(output: &[String]) -> Vec<&String> {
    let mut is_in_backtrace = false;
    let mut lines = Vec::new();
    for line in output.iter().filter(|line| !line.trim().is_empty()) {
        let begins = line.to_lowercase().starts_with("stack backtrace");
        is_in_backtrace = begins || (is_in_backtrace && line.starts_with(' '));
        if !is_in_backtrace {
            lines.push(line);
        }
    }
    lines
}

/// Name of the test whose output follows: `---- pools::grows stdout ----`.
fn failure(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// Number before a word: `ok. 12 passed; 0 failed`.
fn count(sum: &str, word: &str) -> u32 {
    let mut words = sum.split([' ', ';', '.']).filter(|word| !word.is_empty());
    let mut before = "";
    words
        .find_map(|next| {
            if next == word {
                Some(before)
            } else {
                before = next;
                None
            }
        })
        .and_then(|number| number.parse().ok())
        .unwrap_or_default()
}

/// Name and duration: `test pools::grows ... ok <1.234s>`.
fn timed(line: &str) -> Option<(String, Duration)> {
    let (name, _) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let seconds = line.strip_suffix("s>")?.rsplit_once('<')?.1.parse().ok()?;
    Some((name.to_owned(), Duration::try_from_secs_f64(seconds).ok()?))
}

/// Long waits of each test, the longest first; waits for the same thing are summed. A line of the
/// file is test, seconds and what was waited for, separated by tabs.
fn by_test(waits: &str) -> HashMap<&str, Vec<(&str, Duration)>> {
    let mut sums: BTreeMap<(&str, &str), Duration> = BTreeMap::new();
    for line in waits.lines() {
        let mut fields = line.splitn(3, '\t');
        let (Some(test), Some(seconds), Some(what)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let seconds = seconds.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
        *sums.entry((test, what)).or_default() += seconds.unwrap_or_default();
    }
    let mut by_test: HashMap<&str, Vec<(&str, Duration)>> = HashMap::new();
    for ((test, what), time) in sums.into_iter().filter(|(_, time)| *time >= LONG_WAIT) {
        by_test.entry(test).or_default().push((what, time));
    }
    for waits in by_test.values_mut() {
        waits.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
    }
    by_test
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
running 3 tests
test fast ... ok <0.001s>
test slow::one ... ok <12.5s>
test broken ... FAILED <2s>
test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 12.51s
test plain ... ok
test result: ok. 40 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.00s
";

    #[test]
    fn results_are_added_up_over_all_test_programs() {
        let results = Results::read(LOG);
        assert_eq!((results.passed, results.failed), (42, 1));
        let names: Vec<_> = results.tests.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["slow::one", "broken", "fast"]);
    }

    #[test]
    fn each_line_of_a_failure_names_its_test() {
        let log = "\
test pools::grows ... FAILED <2s>

failures:

---- pools::grows stdout ----
starting
testbed: a cable was cut
going on
Error: 2 of 7 failed:

test result: ok. 5 passed; 0 failed

Stack backtrace:
   0: core::future
---- pools::shrinks stdout ----
thread 'pools::shrinks' panicked

failures:
    pools::grows
    pools::shrinks

test result: FAILED. 0 passed; 2 failed; 0 ignored
";
        let results = Results::read(log);
        assert_eq!((results.passed, results.failed), (0, 2));
        assert_eq!(
            results.failed(),
            "test pools::grows ... FAILED: testbed: a cable was cut\n\
             test pools::grows ... FAILED: Error: 2 of 7 failed:\n\
             test pools::grows ... FAILED: test result: ok. 5 passed; 0 failed\n\
             test pools::shrinks ... FAILED: thread 'pools::shrinks' panicked\n"
        );
    }

    #[test]
    fn the_error_that_a_test_returned_is_shown_rather_than_a_panic_at_the_end_of_its_runtime() {
        let log = "\
---- pools::grows stdout ----
thread 'tokio-rt-worker' panicked at entry.rs:534:9:
A Tokio 1.x context was found, but it is being shutdown.
stack backtrace:
   0: core::panicking
             at ./library/core
Error: an address took 16 s

Stack backtrace:
   0: anyhow::error
";
        assert_eq!(
            Results::read(log).failed(),
            "test pools::grows ... FAILED: Error: an address took 16 s\n"
        );
    }

    #[test]
    fn only_the_last_lines_of_a_failure_are_repeated() {
        let lines: Vec<String> = (0..100).map(|n| format!("line {n}")).collect();
        let text = Results::read(&format!("---- long stdout ----\n{}", lines.join("\n"))).failed();
        assert_eq!(text.lines().count(), REPEATED_LINES);
        assert!(text.ends_with("test long ... FAILED: line 99\n"), "{text}");
    }

    #[test]
    fn the_slowest_tests_say_what_they_waited_for() {
        let waits = "slow::one\t3.0\tan address\nslow::one\t4.5\tan address\nslow::one\t0.1\tx\n\
                     fast\t9\ty\nslow::one\t1\tready operator\n";
        let text = Results::read(LOG).slowest(2, waits);
        assert_eq!(
            text,
            "   12.5 s  slow::one: waited 7.5 s for an address, 1.0 s for ready operator\n    \
             2.0 s  broken\n"
        );
    }
}
