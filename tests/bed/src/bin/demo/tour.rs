//! Counts and times the steps, and sums them up on one screen.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

const STEPS: usize = 11;

/// The steps so far.
pub(crate) struct Tour {
    rows: Vec<Row>,
}

struct Row {
    name: &'static str,
    seen: String,
    /// `None`: the step was skipped.
    took: Option<Duration>,
}

impl Tour {
    pub(crate) fn begin() -> Self {
        Self { rows: Vec::new() }
    }

    /// Runs a step and returns its value. The text beside the value is the step's line of the
    /// summary.
    pub(crate) async fn step<T>(
        &mut self,
        name: &'static str,
        title: &str,
        work: impl Future<Output = Result<(T, String)>>,
    ) -> Result<T> {
        let number = self.announce(title);
        let begun = Instant::now();
        let (value, seen) =
            work.await.with_context(|| format!("step {number}, {name}, did not hold"))?;
        let took = begun.elapsed();
        println!("      held, in {}", seconds(took));
        self.rows.push(Row { name, seen, took: Some(took) });
        Ok(value)
    }

    /// Skips a step, for a reason that the summary repeats.
    pub(crate) fn skip(&mut self, name: &'static str, title: &str, why: &str) {
        self.announce(title);
        let seen = format!("skipped: {why}");
        println!("      {seen}");
        self.rows.push(Row { name, seen, took: None });
    }

    /// Prints the title of the next step, and returns its number.
    fn announce(&self, title: &str) -> usize {
        let number = self.rows.len() + 1;
        println!("\n[{number}/{STEPS}] {title}");
        number
    }

    /// A line for all steps, and one for each.
    pub(crate) fn summary(&self, end: &str) -> String {
        let all = self.rows.iter().filter_map(|row| row.took).sum();
        let is_whole = self.rows.iter().all(|row| row.took.is_some());
        let which = if is_whole { "Every step" } else { "Every step that was not skipped" };
        let mut text = format!("{which} held, in {}{end}:\n", seconds(all));
        for Row { name, seen, took } in &self.rows {
            let took = took.map(seconds).unwrap_or_default();
            // A write to a string does not fail.
            let _ = writeln!(text, "  {name:<15} {seen:<70} {took:>8}");
        }
        text
    }
}

/// A time for people, to a tenth of a second.
pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
