//! Owns a relay agent (RFC 1542): dnsmasq, on a router of the test.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use super::{Netns, program, search_path};
use crate::{Managed, eventually};

/// Longest time until it works.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running relay. Dropping it kills it.
#[derive(Debug)]
pub struct Relay {
    _process: Managed,
    _dir: TempDir,
}

impl Relay {
    /// Starts one on a router: it forwards requests of clients on the segment of its address `here`
    /// to the server, and the server's answers to them.
    pub async fn start(router: &Netns, here: Ipv4Addr, server: Ipv4Addr) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("hgo-relay-").tempdir()?;
        let log = dir.path().join("log");
        let process = router
            .run(move || {
                let mut command = program("dnsmasq");
                command.env("PATH", search_path());
                command
                    .args(["--keep-in-foreground", "--log-facility=-", "--conf-file=/dev/null"])
                    .args(["--port=0", "--user=root", "--group=root", "--pid-file"])
                    .arg(format!("--dhcp-relay={here},{server}"));
                Managed::spawn(&mut command, log).context("start dnsmasq: `make nets` installs it")
            })
            .await?;
        eventually(PATIENCE, "relay", async || process.log().contains("DHCP relay from")).await?;
        Ok(Self { _process: process, _dir: dir })
    }
}
