//! Work that runs side by side, with one line of progress for each task.

use std::fmt::{self, Display, Formatter};
use std::io::{IsTerminal as _, Write as _, stderr};
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::cache::{last_duration, store_duration};

/// Period of the lines where the output is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(15);
/// Period of the display on a terminal.
const REDRAW_EVERY: Duration = Duration::from_millis(250);
/// Shortest work that gets a line and whose duration is stored as that of a build.
const WORTH_NOTING: Duration = Duration::from_secs(2);

/// A piece of work and its progress.
pub struct Task {
    name: &'static str,
    state: Mutex<State>,
}

struct State {
    how_far: String,
    started: Instant,
    took: Option<Duration>,
}

type Work<'a> = Box<dyn FnOnce(&Task) -> Result<()> + Send + 'a>;

/// Tasks that run at the same time.
#[derive(Default)]
pub struct Board<'a> {
    tasks: Vec<(Task, Work<'a>)>,
}

impl Task {
    fn new(name: &'static str) -> Self {
        let state = State { how_far: String::new(), started: Instant::now(), took: None };
        Self { name, state: Mutex::new(state) }
    }

    /// Sets the progress of the work, such as `12 of 345 packages`.
    pub fn show(&self, how_far: impl Into<String>) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).how_far = how_far.into();
    }

    fn end(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let took = state.started.elapsed();
        state.took = Some(took);
        if took > WORTH_NOTING {
            // If the cache cannot be written, only the duration of the last time is missing.
            let _ = store_duration(self.name, took);
        }
    }

    fn line(&self, last: Option<Duration>) -> String {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (name, how_far) = (self.name, &state.how_far);
        match (state.took, last) {
            (Some(took), _) => format!("{name}: done in {}", Span(took)),
            (None, Some(last)) => {
                format!(
                    "{name}: {how_far}, {} (last time {})",
                    Span(state.started.elapsed()),
                    Span(last)
                )
            }
            (None, None) => format!("{name}: {how_far}, {}", Span(state.started.elapsed())),
        }
    }

    fn is_done(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).took.is_some()
    }
}

impl<'a> Board<'a> {
    /// Adds a task. Its duration is stored under its name.
    #[must_use]
    pub fn with(
        mut self,
        name: &'static str,
        work: impl FnOnce(&Task) -> Result<()> + Send + 'a,
    ) -> Self {
        self.tasks.push((Task::new(name), Box::new(work)));
        self
    }

    /// Runs all tasks side by side and shows their progress on standard error.
    ///
    /// # Errors
    /// The first task that failed, in the order in which they were added. The others are finished.
    pub fn run(self) -> Result<()> {
        let last: Vec<_> = self.tasks.iter().map(|(task, _)| last_duration(task.name)).collect();
        let (tasks, work): (Vec<_>, Vec<_>) = self.tasks.into_iter().unzip();
        thread::scope(|scope| {
            let running: Vec<_> = tasks
                .iter()
                .zip(work)
                .map(|(task, work)| {
                    scope.spawn(move || {
                        let result = work(task);
                        task.end();
                        result.with_context(|| task.name.to_owned())
                    })
                })
                .collect();
            show(&tasks, &last);
            let join = |thread: thread::ScopedJoinHandle<'_, Result<()>>| {
                thread.join().unwrap_or_else(|panic| resume_unwind(panic))
            };
            let results: Vec<_> = running.into_iter().map(join).collect();
            results.into_iter().collect()
        })
    }
}

/// Shows the tasks until all are done.
fn show(tasks: &[Task], last: &[Option<Duration>]) {
    let is_terminal = stderr().is_terminal();
    let mut said = vec![false; tasks.len()];
    let mut next_line = Instant::now() + LINE_EVERY.min(WORTH_NOTING);
    let mut drawn = 0;
    loop {
        let is_end = tasks.iter().all(Task::is_done);
        if is_terminal {
            drawn = draw(tasks, last, drawn);
        } else {
            let is_time = Instant::now() >= next_line;
            for ((task, last), said) in tasks.iter().zip(last).zip(&mut said) {
                let is_done = task.is_done();
                if (is_done && !*said) || (!is_done && is_time) {
                    eprintln!("build: {}", task.line(*last));
                    *said = is_done;
                }
            }
            if is_time {
                next_line = Instant::now() + LINE_EVERY;
            }
        }
        if is_end {
            return;
        }
        thread::sleep(REDRAW_EVERY);
    }
}

/// Draws a line for each task over the lines drawn before.
fn draw(tasks: &[Task], last: &[Option<Duration>], drawn: usize) -> usize {
    let mut out = stderr().lock();
    // A terminal that cannot be written is no reason to stop the work.
    let _ = write!(out, "{}", if drawn > 0 { format!("\x1b[{drawn}A") } else { String::new() });
    for (task, last) in tasks.iter().zip(last) {
        let _ = writeln!(out, "\x1b[2Kbuild: {}", task.line(*last));
    }
    let _ = out.flush();
    tasks.len()
}

/// A duration in minutes and seconds.
pub(crate) struct Span(pub(crate) Duration);

impl Display for Span {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (self.0.as_secs() / 60, self.0.as_secs() % 60) {
            (0, seconds) => write!(f, "{seconds} s"),
            (minutes, seconds) => write!(f, "{minutes} min {seconds} s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_and_how_long_it_took_last_time() {
        let task = Task::new("operator");
        task.show("3 of 9 crates");
        let line = task.line(Some(Duration::from_secs(130)));
        assert_eq!(line, "operator: 3 of 9 crates, 0 s (last time 2 min 10 s)");
        task.end();
        assert_eq!(task.line(None), "operator: done in 0 s");
    }

    #[test]
    fn every_task_is_finished_and_the_first_error_is_returned() {
        let finished = Mutex::new(0);
        let end = |_: &Task| {
            *finished.lock().unwrap() += 1;
            Ok(())
        };
        let board = Board::default()
            .with("xtask-test-a", |_| anyhow::bail!("no"))
            .with("xtask-test-b", end);
        let error = board.run().unwrap_err();
        assert_eq!(format!("{error:#}"), "xtask-test-a: no");
        assert_eq!(*finished.lock().unwrap(), 1);
    }
}
