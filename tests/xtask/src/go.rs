//! `go build`, with progress.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::board::Task;

/// Number of lines of a failed build that are shown.
const SHOWN_LINES: usize = 20;
/// Flag without debug information, which test programs do not need: a tenth of the compiler's time.
const COMPILE: &str = "-gcflags=all=-dwarf=false";
/// Settings without garbage collection, which is another tenth of the compiler's time; 1 GiB bounds
/// it.
const COMPILER_MEMORY: [(&str, &str); 2] = [("GOGC", "off"), ("GOMEMLIMIT", "1GiB")];

/// Flags that determine the result of a build.
pub(crate) fn flags(ldflags: &str) -> [String; 5] {
    let (no_vcs, no_paths) = ("-buildvcs=false".to_owned(), "-trimpath".to_owned());
    [no_vcs, no_paths, COMPILE.to_owned(), "-ldflags".to_owned(), ldflags.to_owned()]
}

/// Builds the packages of a module into a folder. Each program gets the name of its package's
/// folder.
pub(crate) fn build(
    module: &Path,
    packages: &[&str],
    ldflags: &str,
    out: &Path,
    task: &Task,
) -> Result<()> {
    task.show("downloading modules");
    let total = count_dependencies(module, packages)?;
    task.show(format!("0 of {total} packages"));
    let mut child = go(module)
        .args(["build", "-v"])
        .args(flags(ldflags))
        .arg("-o")
        .arg(out.join(""))
        .args(packages)
        .envs(COMPILER_MEMORY)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("start go")?;
    // With -v each compiled package is named on standard error, where failures are too.
    let mut last = VecDeque::new();
    let mut built = 0;
    let lines = BufReader::new(child.stderr.take().context("go without standard error")?).lines();
    for line in lines.map_while(Result::ok) {
        built += usize::from(!line.starts_with("go: "));
        task.show(format!("{built} of {total} packages"));
        if last.len() == SHOWN_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
    let status = child.wait().context("wait for go")?;
    ensure!(status.success(), "go build failed ({status}):\n{}", Vec::from(last).join("\n"));
    Ok(())
}

fn count_dependencies(module: &Path, packages: &[&str]) -> Result<usize> {
    let output = go(module).args(["list", "-deps"]).args(packages).output();
    let output = match output {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "the program `go` is not on PATH. It builds the programs once: install Go 1.26 or newer"
        ),
        other => other.context("start go")?,
    };
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "go list failed ({}):\n{said}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).lines().count())
}

fn go(module: &Path) -> Command {
    let mut command = Command::new("go");
    command.current_dir(module).env("CGO_ENABLED", "0").env("GOWORK", "off").stdin(Stdio::null());
    command
}
