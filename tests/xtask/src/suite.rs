//! `make test`: format, lints, builds, tests, and the time that they took.
#![allow(clippy::print_stdout, reason = "what it prints is what it is for")]

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _, stdout};
use std::path::{Path, PathBuf};
use std::process::Stdio;
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
/// second thread only costs: a control plane takes a seventh more processor time with two.
const ONE_THREAD: (&str, &str) = ("GOMAXPROCS", "1");

/// Seed of the order of tests. By name, tests of one subject run beside each other, and while all of
/// them wait, for a DHCP server's timers say, the cores are idle.
const ORDER: &str = "--shuffle-seed=1";

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

fn run_tests() -> Result<bool> {
    let (log, waits) = (log_file(), waits_file());
    _ = fs::remove_file(&waits);
    let mut log = File::create(&log).with_context(|| format!("create {}", log.display()))?;
    let timed = ["-Z", "unstable-options", "--report-time"];
    let most = [&["--lib", "--bins", "--tests", "--"], &timed[..], &[ORDER, "--skip", MEASURED]];
    let most = most.concat();
    let measured = [&["--tests", "--"], &timed[..], &["--test-threads=1", MEASURED]].concat();
    Ok(test(&most, &[ONE_THREAD], &mut log)?
        & test(&["--doc"], &[], &mut log)?
        & test(&measured, &[], &mut log)?)
}

/// Runs `cargo test`, shows its output, and writes it to the log.
fn test(args: &[&str], env: &[(&str, &str)], log: &mut File) -> Result<bool> {
    let host = host()?.to_uppercase().replace('-', "_");
    let mut child = cargo()
        .args(["test", "--locked", "--workspace", "--no-fail-fast"])
        .args(args)
        // Only the harness has each test's time, and it prints it only with nightly compilers, or
        // with compilers that this variable makes act as one. It does not affect the compiled code.
        .env(format!("CARGO_TARGET_{host}_RUNNER"), "env RUSTC_BOOTSTRAP=1")
        .env("HGO_TEST_WAITS", fs::canonicalize("target")?.join("test-waits.tsv"))
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("start cargo")?;
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
    let output = std::process::Command::new("rustc").arg("-vV").output().context("start rustc")?;
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
