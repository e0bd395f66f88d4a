//! `make test`: format, lints, builds, tests, and the time that they took.
#![allow(clippy::print_stdout, reason = "what it prints is what it is for")]

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _, stdout};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::board::{Board, Span};
use crate::cache::{last_duration, store_duration};
use crate::cargo::{build_workspace, cargo};
use crate::programs::{control_plane, run, tools};
use crate::report::Results;

/// Budget of the tests in minutes on 2 cores, without builds. A run fails at twice the budget.
const BUDGET: &str = include_str!("../budget-minutes");
/// Name under which the duration of the tests is stored.
const SUITE: &str = "tests";
const LISTED: usize = 10;
/// Module of the tests that measure: they run after all others, one at a time.
const MEASURED: &str = "alone::";
/// Limits each Go program of a test to one thread of execution. Four tests share each core, so a
/// second thread only costs: a control plane takes a sixth more processor time with two.
const ONE_THREAD: (&str, &str) = ("GOMAXPROCS", "1");
/// Go garbage collection target of these programs, in percent of the live heap. Helm, kubectl and
/// promtool end within seconds. The test bed sets the same for the daemons.
const GARBAGE: (&str, &str) = ("GOGC", "400");

/// Programs of unit tests, and of the test bed's own tests.
const UNIT: [&str; 4] = ["--lib", "--bins", "--test", "testbed"];
/// Program of the integration tests.
const INTEGRATION: [&str; 2] = ["--test", "it"];
/// Modules of integration tests that wait for timers most of their time, of a DHCP server for
/// example. They run beside the others, so that the cores are busy while they wait.
const WAITING: [&str; 2] = ["dhcp::", "rotation::rancher::trouble::"];
/// Number of waiting tests that run at the same time: so many that they end before the others. Their
/// timers do not go faster on faster cores.
const WAITING_THREADS: &str = "--test-threads=3";

/// Runs format, lints and every test.
///
/// # Errors
/// A step that failed, a test that failed, or a run over twice the budget.
pub fn run_suite() -> Result<()> {
    let begin = Instant::now();
    println!("test 1/3: format");
    run(cargo().args(["fmt", "--all", "--check"]))?;
    println!("test 2/3: lints, and builds beside them: some minutes when cold, seconds later");
    build()?;
    println!("test 3/3: tests, after {}", Span(begin.elapsed()));
    let tested = Instant::now();
    let is_ok = run_tests()?;
    report(is_ok, tested.elapsed(), begin.elapsed())
}

/// Shows the slowest tests of the last run, and what they waited for.
pub fn show_slowest(most: usize) -> Result<()> {
    let log = fs::read_to_string(log_file()).context("read the log of the last `make test`")?;
    print!("{}", Results::read(&log).slowest(most, &waits()));
    Ok(())
}

fn build() -> Result<()> {
    let (mut plane, mut tools) = (control_plane()?, tools()?);
    let mut board = Board::default().with("lints and test programs", |task| {
        build_workspace(task, &["clippy"], &["--all-targets", "--", "-D", "warnings"])?;
        build_workspace(task, &["test", "--no-run"], &[])
    });
    if !plane.is_none() || !tools.is_none() {
        // One after the other: they compile the same packages.
        board = board.with("control plane and test tools", |task| {
            plane.build(task)?;
            tools.build(task)
        });
    }
    board.run()
}

/// Runs the tests that measure after all others. Runs the unit tests and the tests that wait beside
/// the other integration tests, and shows their output afterwards.
fn run_tests() -> Result<bool> {
    _ = fs::remove_file(waits_file());
    let log = log_file();
    let mut log = File::create(&log).with_context(|| format!("create {}", log.display()))?;
    let waiting = [&[WAITING_THREADS], &WAITING[..]].concat();
    let skipped = WAITING.iter().chain(&[MEASURED]).flat_map(|module| ["--skip", module]);
    let beside = [
        Beside::start("unit", timed(&UNIT, &[])?)?,
        Beside::start("doc", test(&["--doc"])?)?,
        Beside::start("waiting", timed(&INTEGRATION, &waiting)?)?,
    ];
    let shown = show(timed(&INTEGRATION, &skipped.collect::<Vec<_>>())?, &mut log);
    let finished = beside.map(|tests| tests.finish(&mut log));
    let mut is_ok = shown?;
    for is_one_ok in finished {
        is_ok &= is_one_ok?;
    }
    let mut measured = timed(&INTEGRATION, &["--test-threads=1", MEASURED])?;
    measured.env_remove(ONE_THREAD.0);
    Ok(is_ok & show(measured, &mut log)?)
}

/// Tests that run beside others, with their output in a file.
struct Beside {
    child: Child,
    output: PathBuf,
}

impl Beside {
    fn start(name: &str, mut command: Command) -> Result<Self> {
        let output = Path::new("target").join(format!("test-{name}.log"));
        command.stdout(File::create(&output)?);
        Ok(Self { child: command.spawn().context("start cargo")?, output })
    }

    /// Waits for the end, shows the output, and appends it to the log. Returns whether every test
    /// passed.
    fn finish(mut self, log: &mut File) -> Result<bool> {
        let is_ok = self.child.wait()?.success();
        let output = fs::read(&self.output)?;
        log.write_all(&output)?;
        stdout().write_all(&output)?;
        Ok(is_ok)
    }
}

/// Command that runs tests of some programs of the workspace, and shows the time of each. Only the
/// harness has these times, and it shows them only with nightly compilers, or with compilers that a
/// variable makes act as one. The variable does not affect the compiled code.
fn timed(programs: &[&str], args: &[&str]) -> Result<Command> {
    let host = host()?.to_uppercase().replace('-', "_");
    let mut command = test(programs)?;
    command
        .args(["--", "-Z", "unstable-options", "--report-time"])
        .args(args)
        .env(format!("CARGO_TARGET_{host}_RUNNER"), "env RUSTC_BOOTSTRAP=1");
    Ok(command)
}

fn test(programs: &[&str]) -> Result<Command> {
    let mut command = cargo();
    command
        .args(["test", "--locked", "--workspace", "--no-fail-fast"])
        .args(programs)
        .env("HGO_TEST_WAITS", fs::canonicalize("target")?.join("test-waits.tsv"))
        .env(ONE_THREAD.0, ONE_THREAD.1)
        .env(GARBAGE.0, GARBAGE.1)
        .stdin(Stdio::null());
    Ok(command)
}

/// Runs a command, shows its output as it comes, and appends it to the log. Returns whether every
/// test passed.
fn show(mut command: Command, log: &mut File) -> Result<bool> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("start cargo")?;
    let lines = BufReader::new(child.stdout.take().context("cargo without standard output")?);
    for line in lines.split(b'\n') {
        let mut line = line?;
        line.push(b'\n');
        log.write_all(&line)?;
        stdout().write_all(&line)?;
    }
    Ok(child.wait()?.success())
}

fn report(is_ok: bool, took: Duration, total: Duration) -> Result<()> {
    let results = Results::read(&fs::read_to_string(log_file())?);
    let budget = Duration::from_secs(60 * BUDGET.trim().parse::<u64>().context("budget-minutes")?);
    let last =
        last_duration(SUITE).map_or_else(String::new, |t| format!("{} last time, ", Span(t)));
    println!("\nslowest {LISTED} tests:");
    print!("{}", results.slowest(LISTED, &waits()));
    println!(
        "tests took {} ({last}budget {}), everything {}",
        Span(took),
        Span(budget),
        Span(total)
    );
    let failed = results.failed();
    print!("{failed}");
    fs::write(failures_file(), &failed)?;
    println!("{} passed, {} failed", results.passed, results.failed);
    store_duration(SUITE, took)?;
    ensure!(is_ok, "tests failed; their output is in {}", log_file().display());
    if took > 2 * budget {
        bail!("the tests took more than twice their budget, tests/xtask/budget-minutes");
    }
    Ok(())
}

fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("start rustc")?;
    let said = String::from_utf8(output.stdout)?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc names no host")?.to_owned())
}

fn waits() -> String {
    fs::read_to_string(waits_file()).unwrap_or_default()
}

fn log_file() -> PathBuf {
    Path::new("target").join("test.log")
}

/// File with the errors of failed tests, for readers who have only the end of a run's output.
fn failures_file() -> PathBuf {
    Path::new("target").join("test-failures.log")
}

fn waits_file() -> PathBuf {
    Path::new("target").join("test-waits.tsv")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn each_test_program_is_run() {
        let metadata = ["metadata", "--locked", "--offline", "--no-deps", "--format-version=1"];
        let output = cargo().args(metadata).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let programs: Vec<&str> = text
            .split(r#"{"kind":["test"],"#)
            .skip(1)
            .map(|target| target.split(r#""name":""#).nth(1).unwrap().split('"').next().unwrap())
            .collect();
        let run = [UNIT.as_slice(), &INTEGRATION].concat();
        assert!(!programs.is_empty(), "{text}");
        for program in programs {
            assert!(run.contains(&program), "{program} is not among {run:?}");
        }
    }
}
