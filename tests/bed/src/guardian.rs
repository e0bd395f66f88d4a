//! Owns start, stop and cleanup of a bed's daemons and of its directory.
//!
//! The daemons are children of a small shell script, not of this process. The script holds the
//! reading end of a pipe whose only writing end is here, so it notices every way in which this
//! process can end, `kill -9` included, and cleans up. It runs in a process group of its own, so a
//! Ctrl-C in the terminal does not reach it or the daemons before this process has acted.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};

use crate::proc_fs;

const SCRIPT: &str = include_str!("guardian.sh");
/// Go garbage collection target of the daemons, in percent of the live heap. Memory is cheaper here
/// than time: at Go's default of 100, an API server uses a sixth more processor time over its life.
const GARBAGE: (&str, &str) = ("GOGC", "400");

#[derive(Debug)]
pub(crate) struct Guardian {
    dir: PathBuf,
    child: Child,
    /// Pipe for orders; closing it is the order to stop.
    orders: Mutex<Option<ChildStdin>>,
}

impl Guardian {
    /// Makes a new directory and starts the script that will remove it.
    pub(crate) fn start() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("hgo-bed-").tempdir()?;
        let mut child = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "testbed-guardian"])
            .arg(dir.path())
            .env(GARBAGE.0, GARBAGE.1)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("start the guardian")?;
        let orders = Mutex::new(child.stdin.take());
        Ok(Self { dir: dir.keep(), child, orders })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts a daemon. Its command line is written to the directory, for the script and for
    /// readers.
    pub(crate) fn run(&mut self, name: &str, program: &Path, args: &[String]) -> Result<()> {
        let mut script = format!("exec {}", quote(&program.to_string_lossy()));
        for arg in args {
            write!(script, " \\\n  {}", quote(arg))?;
        }
        script.push('\n');
        fs::write(self.dir.join(format!("{name}.sh")), script)?;
        self.run_again(name)
    }

    /// Starts a daemon again that has ended.
    pub(crate) fn run_again(&self, name: &str) -> Result<()> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let orders = orders.as_mut().context("the bed is stopped")?;
        writeln!(orders, "{name}").with_context(|| format!("order the start of {name}"))
    }

    /// The daemon's process id; `None` before its start.
    pub(crate) fn pid(&self, name: &str) -> Option<u32> {
        let text = fs::read_to_string(self.dir.join(format!("{name}.pid"))).ok()?;
        text.trim().parse().ok()
    }

    /// Fails with the last lines of its log if the daemon has ended.
    pub(crate) fn check(&mut self, name: &str) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the guardian ended ({status}), and with it the bed");
        }
        match self.pid(name) {
            Some(pid) if !proc_fs::is_running(pid) => {
                bail!("{name} ended; the last lines of its log:\n{}", self.log_tail(name))
            }
            _ => Ok(()),
        }
    }

    /// The last lines that a daemon logged.
    pub(crate) fn log_tail(&self, name: &str) -> String {
        let log = fs::read(self.dir.join(format!("{name}.log"))).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// Closes the pipe and waits until the daemons and the directory are gone.
    pub(crate) fn stop(&mut self) -> Result<()> {
        *self.orders.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let status = self.child.wait().context("wait for the guardian")?;
        if !status.success() {
            bail!("the guardian failed: {status}");
        }
        Ok(())
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        if let Err(e) = self.stop() {
            eprintln!("testbed: {}: {e:#}", self.dir.display());
        }
    }
}

fn quote(arg: &str) -> String {
    format!("'{}'", arg.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn quoting_survives_a_shell() {
        let arg = "it's $HOME \\ \"x\"";
        let out = std::process::Command::new("/bin/sh")
            .args(["-c", &format!("printf %s {}", quote(arg))])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(out.stdout).unwrap(), arg);
    }
}
