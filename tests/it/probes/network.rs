//! A network of a test's own: the test starts itself again in a new network namespace.
//!
//! Loopback addresses are refused as targets, so tests need other addresses.

use std::any::type_name_of_val;

use anyhow::{Context as _, Result, ensure};

use super::namespace;

const INSIDE: &str = "PROBES_INSIDE";

/// Runs the body, which must be a closure written in a test function, in a namespace.
pub(super) fn isolated(body: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
    isolated_with("", body)
}

/// Runs the body in a namespace, after further shell commands.
pub(super) fn isolated_with(setup: &str, body: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
    if std::env::var_os(INSIDE).is_some() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        return runtime.enable_all().build()?.block_on(body());
    }
    // `crate::module::test::{{closure}}`: the name under which the test is started again.
    let name = type_name_of_val(&body).trim_end_matches("::{{closure}}");
    let (_, name) = name.split_once("::").context("a path")?;
    let output = namespace::this_program(setup)?
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .context("unshare, of util-linux, is missing")?;
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    print!("{out}{err}");
    let made = !err.contains("unshare failed") && !err.contains("RTNETLINK");
    ensure!(made, "{}: {err}", namespace::NEEDS);
    // A name without a test would pass, too.
    ensure!(output.status.success() && out.contains("1 passed"), "{name} failed in its namespace");
    Ok(())
}

/// Number of TCP sockets of this namespace in a state.
pub(super) fn sockets(state: TcpState) -> Result<usize> {
    let mut count = 0;
    for file in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        let text = std::fs::read_to_string(file)?;
        let wanted = format!("{:02X}", state as u8);
        count += text
            .lines()
            .skip(1)
            .filter(|line| line.split_whitespace().nth(3) == Some(wanted.as_str()))
            .count();
    }
    Ok(count)
}

#[derive(Clone, Copy)]
pub(super) enum TcpState {
    Established = 1,
    SynSent = 2,
    TimeWait = 6,
}
