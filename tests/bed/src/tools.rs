//! Owns the programs that only some tests need: Helm, kubeconform, kube-scheduler, Prometheus.
//!
//! They come from package registries and are kept in the same cache as the control plane: the Go
//! programs at the versions of `tools/go.mod`, the scheduler at the control plane's, Prometheus as
//! Debian packages it, unpacked and not installed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::binaries::{MODULE as CONTROL_PLANE, cache_root, fnv1a, ldflags, lock};

const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tools");
/// Name and package.
const PROGRAMS: [(&str, &str); 3] = [
    ("helm3", "helm.sh/helm/v3/cmd/helm"),
    ("helm4", "helm.sh/helm/v4/cmd/helm"),
    ("kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform"),
];
const SCHEDULER: (&str, &str) = ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler");
const PROMETHEUS: [&str; 2] = ["prometheus", "promtool"];

/// Where the programs are.
#[derive(Clone, Debug)]
pub struct Tools {
    dir: PathBuf,
    prometheus: PathBuf,
}

impl Tools {
    /// Finds the programs in the cache, where they are put first if they are missing.
    pub async fn locate() -> Result<Self> {
        tokio::task::spawn_blocking(Self::locate_blocking).await?
    }

    fn locate_blocking() -> Result<Self> {
        let read = |module: &str| -> Result<String> {
            let go_mod = fs::read_to_string(Path::new(module).join("go.mod"))?;
            Ok(go_mod + &fs::read_to_string(Path::new(module).join("go.sum"))?)
        };
        let (ours, plane) = (read(MODULE)?, read(CONTROL_PLANE)?);
        let key = fnv1a(format!("{PROGRAMS:?}{SCHEDULER:?}{ours}{plane}").as_bytes());
        let root = cache_root()?;
        let dir = root.join(format!("tools-{key:016x}"));
        let prometheus = root.join("prometheus");
        let on_path = on_path(&PROMETHEUS);
        if !dir.is_dir() || (on_path.is_none() && !prometheus.is_dir()) {
            fs::create_dir_all(&root)?;
            let _only_builder = lock(&root.join("tools.lock"))?;
            if !dir.is_dir() {
                complete(&dir, |partial| build(partial, &ldflags(&plane)?))?;
            }
            if on_path.is_none() && !prometheus.is_dir() {
                complete(&prometheus, unpack_prometheus)?;
            }
        }
        let prometheus = on_path.unwrap_or_else(|| prometheus.join("usr/bin"));
        Ok(Self { dir, prometheus })
    }

    /// The path of one of the programs.
    pub fn program(&self, name: &str) -> PathBuf {
        let dir = if PROMETHEUS.contains(&name) { &self.prometheus } else { &self.dir };
        dir.join(name)
    }
}

/// Makes a folder that is either complete or not there.
fn complete(dir: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let partial = dir.with_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    fs::create_dir_all(&partial)?;
    fill(&partial)?;
    fs::rename(&partial, dir).with_context(|| format!("put {} in place", dir.display()))
}

fn build(out: &Path, version: &str) -> Result<()> {
    eprintln!(
        "testbed: building Helm 3 and 4, kubeconform and kube-scheduler with go: 3 to 5 minutes on \
         2 cores when cold"
    );
    for (name, package) in PROGRAMS {
        go_build(MODULE, out, name, package, "-s -w")?;
    }
    go_build(CONTROL_PLANE, out, SCHEDULER.0, SCHEDULER.1, version)
}

fn go_build(module: &str, out: &Path, name: &str, package: &str, flags: &str) -> Result<()> {
    let output = Command::new("go")
        .args(["build", "-buildvcs=false", "-trimpath", "-ldflags", flags, "-o"])
        .arg(out.join(name))
        .arg(package)
        .current_dir(module)
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off")
        .output()
        .context("start go, which builds the test programs")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "go build {package}: {}\n{said}", output.status);
    Ok(())
}

/// Not installed, because the package would start a service.
fn unpack_prometheus(out: &Path) -> Result<()> {
    eprintln!("testbed: fetching Debian's package prometheus, 20 MB");
    let apt = |args: &[&str]| run(Command::new("apt-get").args(args).current_dir(out));
    let download = || apt(&["download", "-q", "prometheus"]);
    // A machine that was installed a moment ago has no lists of packages.
    download()
        .or_else(|_| apt(&["update", "-q"]).and_then(|()| download()))
        .context("no prometheus and promtool on PATH, and Debian's package cannot be had")?;
    let package = fs::read_dir(out)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|e| e == "deb"))
        .context("apt-get downloaded no package")?;
    run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(out))?;
    fs::remove_file(package)?;
    Ok(())
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("start {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    Ok(())
}

/// The folder on PATH that has all of the programs.
fn on_path(names: &[&str]) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).find(|dir| names.iter().all(|name| dir.join(name).is_file()))
}
