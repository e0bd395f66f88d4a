//! Execution of the plan of the `takeover` command, step by step.
//!
//! Invariants:
//! * Each step is decided from the state of the cluster. The state is read again before a step is
//!   repeated, because a write without an answer may have had an effect.
//! * A call that fails, and may succeed later, is repeated. Such a failure ends the execution only
//!   after [`LONGEST`] without success.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::domain::takeover::report;
use crate::domain::takeover::steps::{Direction, TakeoverState, TakeoverStep};
use crate::k8s::CallError;
use crate::k8s::stored_objects;
use crate::k8s::takeover::{TakeoverClient, may_pass};

/// Interval between two reads of the state while a step waits or fails.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Longest wait of one step, and longest time without success. This time exceeds 45 s, because the
/// Lease of a killed Go controller lasts 45 s.
const LONGEST: Duration = Duration::from_mins(3);
/// Interval between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(2);

/// Execution of a plan.
pub(super) struct PlanExecution<'a> {
    takeover: &'a TakeoverClient,
    direction: Direction,
    /// Maximum rate of the removal of finalizers: number of objects per second.
    per_second: u16,
    /// Standard output, for lines of progress.
    output: &'a mut dyn Write,
    /// [`POLL_INTERVAL`], or less in tests.
    interval: Duration,
    /// [`LONGEST`], or less in tests.
    longest: Duration,
    began: Instant,
    /// Step that was decided last, and the time since which it counts as waiting.
    current: Option<(TakeoverStep, Instant)>,
    /// Time of the first failure since the last success. `None`: the last attempt succeeded.
    failing: Option<Instant>,
}

impl<'a> PlanExecution<'a> {
    pub(super) fn new(
        takeover: &'a TakeoverClient,
        direction: Direction,
        per_second: u16,
        output: &'a mut dyn Write,
    ) -> Self {
        Self {
            takeover,
            direction,
            per_second,
            output,
            interval: POLL_INTERVAL,
            longest: LONGEST,
            began: Instant::now(),
            current: None,
            failing: None,
        }
    }

    /// Carries out the remaining steps. Then prints how many LoadBalancers have the same address as
    /// before, and which addresses have changed.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        let before = self.addresses().await?;
        self.print("\n")?;
        loop {
            match Box::pin(self.turn()).await {
                Ok(is_left) => {
                    self.succeeded();
                    if !is_left {
                        break;
                    }
                }
                Err(error) => self.failed(error).await?,
            }
        }
        let after = self.addresses().await?;
        self.line("done")?;
        self.print(&format!("\n{}", compared(&before, &after)))
    }

    async fn addresses(&mut self) -> anyhow::Result<BTreeMap<String, String>> {
        loop {
            match stored_objects::addresses(&self.takeover.client).await {
                Ok(addresses) => {
                    self.succeeded();
                    return Ok(addresses);
                }
                // After a change of a CRD, its kind is not served for a moment.
                Err(error) if is_not_found(&error) => self.wait_after(error).await?,
                Err(error) => self.failed(error).await?,
            }
        }
    }

    /// Decides the next step, and carries it out. If the step only waits, or is the same as before,
    /// then sleeps for one interval. Returns `false` if no step remained to be done.
    async fn turn(&mut self) -> anyhow::Result<bool> {
        let Some((step, state)) = self.next().await? else { return Ok(false) };
        let is_news = self.announce(&step, &state)?;
        match &step {
            TakeoverStep::RemoveFinalizers(all) => self.remove_finalizers(*all).await?,
            step if step.waits() => {}
            step => self.takeover.carry_out(step).await?,
        }
        if step.waits() || !is_news {
            tokio::time::sleep(self.interval).await;
        }
        Ok(true)
    }

    /// Returns the next step, and the state from which the step was chosen. `None`: no step is
    /// left. VMs with finalizers are counted only when no other step is left.
    async fn next(&self) -> anyhow::Result<Option<(TakeoverStep, TakeoverState)>> {
        let mut state = Box::pin(self.takeover.state()).await?;
        let decide = |state: &TakeoverState| {
            self.direction.next(state).map_err(|refusal| anyhow::anyhow!("{refusal}"))
        };
        let mut step = decide(&state)?;
        if step.is_none() && self.direction != Direction::Undo {
            state.finalizers = self.takeover.finalizers().await?;
            step = decide(&state)?;
        }
        Ok(step.map(|step| (step, state)))
    }

    /// Prints `step` if it differs from the step before it, and returns whether it differs. `Err`:
    /// `step` has not ended after `longest`, although no call fails. [`Self::wait_after`] has the
    /// time limit for calls that fail.
    fn announce(&mut self, step: &TakeoverStep, state: &TakeoverState) -> anyhow::Result<bool> {
        let last = self.current.as_ref().filter(|(last, _)| last == step);
        let Some((_, since)) = last else {
            // A new step shows that the step before it has succeeded.
            self.failing = None;
            self.current = Some((step.clone(), Instant::now()));
            self.line(&report::sentence(step, state))?;
            return Ok(true);
        };
        if self.failing.is_none() && since.elapsed() > self.longest {
            bail!(
                "this step has not ended after {} s: {}. The steps before it are done. To go on \
                 from here, run the same command again",
                self.longest.as_secs(),
                report::sentence(step, state)
            );
        }
        Ok(false)
    }

    async fn remove_finalizers(&mut self, all: usize) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut last = began;
        let output = &mut *self.output;
        let progress = |done: usize| {
            if last.elapsed() >= PROGRESS {
                last = Instant::now();
                let seconds = began.elapsed().as_secs();
                // An error of this output is ignored, so that a closed terminal does not stop the
                // removal.
                drop(writeln!(output, "       {done} of {all} after {seconds} s"));
            }
        };
        self.takeover.remove_finalizers(self.per_second, progress).await
    }

    /// Notes a success. If calls have failed before it, the time since the first of these failures
    /// is not counted as waiting time of the current step.
    fn succeeded(&mut self) {
        let failing = self.failing.take();
        if let (Some(failing), Some((_, since))) = (failing, &mut self.current) {
            *since += failing.elapsed();
        }
    }

    /// Waits for one interval after calls have ended with `error`, so that the caller can repeat
    /// them. `Err`: a repetition would fail too, or there was no success for longer than `longest`.
    async fn failed(&mut self, error: anyhow::Error) -> anyhow::Result<()> {
        if may_pass(&error) { self.wait_after(error).await } else { Err(error) }
    }

    /// Waits for one interval after calls have ended with `error`. Prints `error` if it is the
    /// first one since the last success. `Err`: there was no success for longer than `longest`.
    async fn wait_after(&mut self, error: anyhow::Error) -> anyhow::Result<()> {
        let Some(since) = self.failing else {
            self.failing = Some(Instant::now());
            self.line(&format!("not done yet, and tried again: {error:#}"))?;
            tokio::time::sleep(self.interval).await;
            return Ok(());
        };
        if since.elapsed() > self.longest {
            return Err(error.context(format!(
                "without success for {} s. To go on from here, run the same command again",
                self.longest.as_secs()
            )));
        }
        tokio::time::sleep(self.interval).await;
        Ok(())
    }

    fn line(&mut self, text: &str) -> anyhow::Result<()> {
        self.print(&format!("{:>4}s  {text}\n", self.began.elapsed().as_secs()))
    }

    fn print(&mut self, text: &str) -> anyhow::Result<()> {
        write!(self.output, "{text}").context("cannot write to standard output")
    }
}

fn is_not_found(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(CallError::NotFound(_)))
}

/// Text with the number of unchanged addresses, and one line for each address that has changed.
/// `before`: map from a LoadBalancer's name to its address before the plan was carried out.
/// `after`: the same map afterwards.
fn compared(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> String {
    let lost = before.iter().filter(|(name, address)| after.get(*name) != Some(*address));
    let lines: Vec<String> = lost
        .map(|(name, address)| {
            let now = after.get(name).map_or("none", String::as_str);
            format!("  LoadBalancer {name}: {address} before, {now} now\n")
        })
        .collect();
    let same = before.len() - lines.len();
    let mut text = format!("{same} of {} addresses are as before\n", before.len());
    text.extend(lines);
    text
}

#[cfg(test)]
mod tests;
