//! A copy of a control plane's etcd, and its restore, as an administrator does it after a loss:
//! resourceVersions go back with everything else.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::net::TcpStream;

use super::{Bed, answers_ok};
use crate::daemons::{API_SERVER, CONTROLLER_MANAGER, ETCD};
use crate::{eventually, proc_fs};

/// Longest time that a daemon may take to start or to end.
const PATIENCE: Duration = Duration::from_mins(5);
const DATA: &str = "etcd.data";

/// A copy of etcd's data.
#[derive(Debug)]
pub struct Backup(PathBuf);

impl Bed {
    /// Copies etcd's data while etcd is stopped by a signal: the data that it would find after a
    /// power loss.
    pub fn back_up(&self) -> Result<Backup> {
        let copy = Backup(self.dir().join("etcd.backup"));
        self.signal(ETCD, "STOP")?;
        let copied = Command::new("cp").arg("-a").arg(self.dir().join(DATA)).arg(&copy.0).status();
        self.signal(ETCD, "CONT")?;
        ensure!(copied?.success(), "etcd's data cannot be copied");
        Ok(copy)
    }

    /// Stops the control plane, replaces etcd's data by the copy, and starts it again.
    pub async fn restore(&self, backup: Backup) -> Result<()> {
        for name in [CONTROLLER_MANAGER, API_SERVER, ETCD] {
            let pid = self.pid(name)?;
            self.signal(name, "KILL")?;
            eventually(PATIENCE, &format!("end of {name}"), async || {
                anyhow::Ok(!proc_fs::is_running(pid))
            })
            .await?;
        }
        let data = self.dir().join(DATA);
        fs::remove_dir_all(&data)?;
        fs::rename(backup.0, data)?;

        self.guardian.run_again(ETCD)?;
        let etcd = ("127.0.0.1", self.etcd);
        eventually(PATIENCE, ETCD, async || anyhow::Ok(TcpStream::connect(etcd).await.is_ok()))
            .await?;
        self.guardian.run_again(API_SERVER)?;
        let client = self.admin();
        eventually(PATIENCE, API_SERVER, async || anyhow::Ok(answers_ok(&client, "/readyz").await))
            .await
            .with_context(|| self.guardian.log_tail(API_SERVER))?;
        self.guardian.run_again(CONTROLLER_MANAGER)
    }

    fn signal(&self, name: &str, signal: &str) -> Result<()> {
        let pid = self.pid(name)?.to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status()?;
        ensure!(sent.success(), "kill -s {signal} {name}: {sent}");
        Ok(())
    }

    fn pid(&self, name: &str) -> Result<u32> {
        self.guardian.pid(name).with_context(|| format!("{name} does not run"))
    }
}
