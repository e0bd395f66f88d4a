//! Owns the child processes that tests start beside the control plane, such as the operator.
//!
//! Such a process never outlives its owner: dropping kills it, and if the owner is itself killed,
//! a watchdog that holds a pipe from it notices and kills the process.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::time::{Instant, sleep};

use crate::proc_fs;

const POLL: Duration = Duration::from_millis(10);

/// A running program whose output goes to a file.
#[derive(Debug)]
pub struct Managed {
    child: Child,
    watchdog: Option<Child>,
    log: PathBuf,
}

impl Managed {
    /// Starts the program in a process group of its own. Standard output and standard error are
    /// appended to the log, so that a restart retains earlier output.
    pub fn spawn(command: &mut Command, log: impl Into<PathBuf>) -> Result<Self> {
        let log = log.into();
        let out = File::options().create(true).append(true).open(&log)?;
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        // From here on dropping `managed` kills the program, also if the watchdog does not start.
        let mut managed = Self { child, watchdog: None, log };
        managed.watchdog = Some(watchdog(managed.pid()).context("start the watchdog")?);
        Ok(managed)
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the program still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Path of the file with the output.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Output of the program so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Kills the program without warning, as a node's failure would, and waits for its end.
    pub fn kill9(&mut self) -> Result<ExitStatus> {
        self.child.kill()?;
        Ok(self.child.wait()?)
    }

    /// Asks the program to end, as a kubelet would, and waits for it; too late is an error.
    pub async fn terminate(&mut self, patience: Duration) -> Result<ExitStatus> {
        self.signal("TERM")?;
        self.wait(patience).await
    }

    /// Waits for the program to end by itself; too late is an error.
    pub async fn wait(&mut self, patience: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(Instant::now() < deadline, "still running after {patience:?}");
            sleep(POLL).await;
        }
    }

    /// Sends a signal by its name, such as `STOP` or `CONT`.
    pub fn signal(&mut self, name: &str) -> Result<()> {
        ensure!(self.is_running(), "the program has ended already");
        let sent = Command::new("kill").args(["-s", name, &self.pid().to_string()]).status()?;
        ensure!(sent.success(), "kill -s {name}: {sent}");
        Ok(())
    }

    /// Peak memory of the program so far, in KiB; `None` once it has ended.
    pub fn peak_rss_kib(&self) -> Option<u64> {
        proc_fs::peak_rss_kib(self.pid())
    }

    /// Lowers the peak memory of the program to its present memory.
    pub fn reset_peak_rss(&self) -> Result<()> {
        proc_fs::reset_peak_rss(self.pid()).context("reset the peak memory")
    }

    /// Soft and hard limit of a core dump of the program, in bytes, as the kernel writes them;
    /// `None` once it has ended.
    pub fn core_limit(&self) -> Option<(String, String)> {
        proc_fs::core_limit(self.pid())
    }

    /// Processor time of the program so far; `None` once it has ended.
    pub fn cpu_time(&self) -> Option<Duration> {
        proc_fs::cpu_time(self.pid())
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        // The watchdog goes first: once the program is reaped, its process id may be reused.
        if let Some(mut watchdog) = self.watchdog.take() {
            let _ = watchdog.kill();
            let _ = watchdog.wait();
        }
        let _ = self.kill9();
    }
}

/// A shell that waits for the end of a pipe from this process and then kills `pid`.
fn watchdog(pid: u32) -> std::io::Result<Child> {
    Command::new("/bin/sh")
        .args(["-c", r#"read -r _; kill -KILL "$1""#, "testbed-watchdog", &pid.to_string()])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::Managed;
    use crate::eventually;

    fn shell(script: &str, dir: &tempfile::TempDir) -> Managed {
        let mut command = Command::new("/bin/sh");
        Managed::spawn(command.args(["-c", script]), dir.path().join("log")).unwrap()
    }

    #[tokio::test]
    async fn output_is_kept_and_a_polite_end_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let script = "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.01; done";
        let mut managed = shell(script, &dir);
        let deadline = Duration::from_mins(1);
        eventually(deadline, "word", async || managed.log().contains("up")).await.unwrap();
        assert!(managed.is_running());
        assert!(managed.peak_rss_kib().unwrap() > 0);
        assert!(managed.cpu_time().is_some());
        assert_eq!(managed.terminate(deadline).await.unwrap().code(), Some(3));
        assert!(managed.log().ends_with("bye\n"), "{}", managed.log());
        assert!(managed.terminate(deadline).await.is_err());
    }

    #[tokio::test]
    async fn a_kill_is_not_survived() {
        let dir = tempfile::tempdir().unwrap();
        let mut managed = shell("trap '' TERM; while :; do sleep 0.01; done", &dir);
        assert!(managed.wait(Duration::from_millis(30)).await.is_err());
        assert!(!managed.kill9().unwrap().success());
        assert!(!managed.is_running());
    }
}
