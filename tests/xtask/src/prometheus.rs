//! Prometheus and promtool: from PATH, or from Debian's package, unpacked in the cache and not
//! installed, because the package would start a service.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::board::Task;
use crate::cache::cache_root;
use crate::programs::run;

pub(crate) const PROGRAMS: [&str; 2] = ["prometheus", "promtool"];

/// Folder that holds both programs.
pub(crate) fn find() -> Result<Option<PathBuf>> {
    let path = env::var_os("PATH").unwrap_or_default();
    let cached = cache_root()?.join("prometheus/usr/bin");
    let mut dirs = env::split_paths(&path).chain([cached]);
    Ok(dirs.find(|dir| PROGRAMS.iter().all(|name| dir.join(name).is_file())))
}

/// Downloads and unpacks the package.
pub(crate) fn fetch(task: &Task) -> Result<PathBuf> {
    if let Some(dir) = find()? {
        return Ok(dir);
    }
    task.show("downloading Debian's package prometheus, 20 MB");
    let dir = cache_root()?.join("prometheus");
    let partial = dir.with_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    fs::create_dir_all(&partial)?;
    unpack(&partial)?;
    fs::rename(&partial, &dir).with_context(|| format!("put {} in place", dir.display()))?;
    Ok(dir.join("usr/bin"))
}

fn unpack(out: &Path) -> Result<()> {
    let apt = |args: &[&str]| run(Command::new("apt-get").args(args).current_dir(out));
    let download = || apt(&["download", "-q", "prometheus"]);
    // A newly installed machine has no lists of packages.
    download()
        .or_else(|_| apt(&["update", "-q"]).and_then(|()| download()))
        .context("no prometheus and promtool on PATH, and Debian's package cannot be had")?;
    let package = fs::read_dir(out)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .context("apt-get downloaded no package")?;
    run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(out))?;
    Ok(fs::remove_file(package)?)
}
