//! cargo, with progress.

use std::env;
use std::ffi::OsString;
use std::io::{BufReader, Read};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::board::Task;

/// The cargo that runs this program, or the one on PATH.
pub(crate) fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
}

/// Runs a cargo command on the whole workspace, so that every command builds dependencies with the
/// same features.
///
/// # Errors
/// Output of cargo without its progress.
pub fn build_workspace(task: &Task, args: &[&str], after: &[&str]) -> Result<()> {
    let mut child = cargo()
        .args(args)
        .args(["--locked", "--workspace"])
        .args(after)
        .env("CARGO_TERM_PROGRESS_WHEN", "always")
        .env("CARGO_TERM_PROGRESS_WIDTH", "120")
        .env("CARGO_TERM_COLOR", "never")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("start cargo")?;
    task.show(args.join(" "));
    let mut said = Vec::new();
    for line in pieces(child.stderr.take().context("cargo without standard error")?) {
        match progress(&line) {
            Some(how_far) => task.show(how_far),
            None if is_news(&line) => said.push(line),
            None => {}
        }
    }
    let status = child.wait().context("wait for cargo")?;
    ensure!(status.success(), "cargo {} failed ({status}):\n{}", args.join(" "), said.join("\n"));
    Ok(())
}

/// Splits at line feeds and, as progress uses them, at carriage returns.
fn pieces(from: impl Read) -> impl Iterator<Item = String> {
    let mut bytes = BufReader::new(from).bytes().map_while(Result::ok);
    std::iter::from_fn(move || {
        let mut piece = Vec::new();
        for byte in bytes.by_ref() {
            if matches!(byte, b'\n' | b'\r') {
                return Some(String::from_utf8_lossy(&piece).into_owned());
            }
            piece.push(byte);
        }
        (!piece.is_empty()).then(|| String::from_utf8_lossy(&piece).into_owned())
    })
}

/// Progress of cargo: `    Building [====>  ] 12/345: serde, syn`.
fn progress(piece: &str) -> Option<String> {
    let (_, rest) = piece.split_once("] ")?;
    let (count, crates) = rest.split_once(": ").unwrap_or((rest, ""));
    let (done, total) = count.trim().split_once('/')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(done) || !is_number(total) {
        return None;
    }
    let first = crates.split(", ").next().unwrap_or_default().trim();
    let first = first.split('(').next().unwrap_or_default();
    Some(match first {
        "" => format!("{done} of {total} crates"),
        name => format!("{done} of {total} crates, now {name}"),
    })
}

/// Whether a line is more than the name of a crate that is built.
fn is_news(line: &str) -> bool {
    let first = line.split_whitespace().next().unwrap_or_default();
    !matches!(first, "Compiling" | "Checking" | "Downloaded" | "Downloading" | "Blocking" | "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_is_read_and_other_lines_are_kept() {
        let bar = "    Building [=======>     ] 12/345: serde, syn(build)   ";
        assert_eq!(progress(bar).unwrap(), "12 of 345 crates, now serde");
        assert_eq!(progress("    Building [==] 1/2: a(test)").unwrap(), "1 of 2 crates, now a");
        assert_eq!(progress("error[E0425]: cannot find value `a/b`"), None);
        assert!(is_news("error: x"));
        assert!(!is_news("   Compiling serde v1.0.0"));
        let all: Vec<_> = pieces("a\rb\nc".as_bytes()).collect();
        assert_eq!(all, ["a", "b", "c"]);
    }
}
