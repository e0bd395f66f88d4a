//! Owns where the control plane's programs come from.
//!
//! They are built once per machine from the Go module beside this crate and kept in a cache folder
//! whose name holds a hash of everything that decides their content. A folder of that name is
//! always complete: the build happens in a sibling that is renamed at the very end, and a file
//! lock lets one process build while the others wait.

use std::collections::VecDeque;
use std::env;
use std::fs::{self, File, TryLockError};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

pub(crate) const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/controlplane");
/// Without these there is no bed.
const PROGRAMS: [&str; 4] = ["etcd", "kube-apiserver", "kube-controller-manager", "kubectl"];
const PROGRESS_EVERY: Duration = Duration::from_secs(15);

/// A folder that holds all programs of a control plane.
#[derive(Clone, Debug)]
pub struct Binaries {
    dir: PathBuf,
}

impl Binaries {
    /// Finds the programs: in `KUBEBUILDER_ASSETS` if that is set, else in the cache, where they
    /// are built first if they are missing.
    pub async fn locate() -> Result<Self> {
        tokio::task::spawn_blocking(Self::locate_blocking).await?
    }

    pub(crate) fn locate_blocking() -> Result<Self> {
        if let Some(dir) = env::var_os("KUBEBUILDER_ASSETS").filter(|dir| !dir.is_empty()) {
            return Self::in_dir(PathBuf::from(dir))
                .context("KUBEBUILDER_ASSETS is set, so nothing is built or taken from the cache");
        }
        let recipe = Recipe::read()?;
        let root = cache_root()?;
        let dir = root.join(format!("controlplane-{}", recipe.key()));
        if !dir.is_dir() {
            fs::create_dir_all(&root).with_context(|| format!("create {}", root.display()))?;
            let _only_builder = lock(&root.join("controlplane.lock"))?;
            // Another process may have built it while we waited for the lock.
            if !dir.is_dir() {
                recipe.build(&dir)?;
            }
        }
        Self::in_dir(dir)
    }

    fn in_dir(dir: PathBuf) -> Result<Self> {
        let missing: Vec<_> = PROGRAMS.into_iter().filter(|p| !dir.join(p).is_file()).collect();
        ensure!(missing.is_empty(), "{} does not hold {}", dir.display(), missing.join(", "));
        Ok(Self { dir })
    }

    /// The folder that holds the programs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The path of one of the programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The path of a program that only some tests need, such as kube-proxy. The cache holds all
    /// there are; a folder given by `KUBEBUILDER_ASSETS` may lack it.
    pub fn optional(&self, name: &str) -> Result<PathBuf> {
        let path = self.program(name);
        ensure!(
            path.is_file(),
            "this needs {name}, and {} does not hold it: put it there, or unset \
             KUBEBUILDER_ASSETS to have it built",
            self.dir.display()
        );
        Ok(path)
    }
}

/// Everything that decides what a build produces.
struct Recipe {
    inputs: Vec<u8>,
    ldflags: String,
}

impl Recipe {
    fn read() -> Result<Self> {
        let module = Path::new(MODULE);
        let go_mod = fs::read_to_string(module.join("go.mod")).context("read go.mod")?;
        let go_sum = fs::read(module.join("go.sum")).context("read go.sum")?;
        let ldflags = ldflags(&go_mod)?;
        let inputs = [go_mod.as_bytes(), &go_sum, ldflags.as_bytes()].concat();
        Ok(Self { inputs, ldflags })
    }

    fn key(&self) -> String {
        format!("{:016x}", fnv1a(&self.inputs))
    }

    fn build(&self, dir: &Path) -> Result<()> {
        let partial = dir.with_extension("partial");
        // What a killed build left behind; the lock says that nobody is writing to it.
        if partial.exists() {
            fs::remove_dir_all(&partial)?;
        }
        fs::create_dir_all(&partial)?;
        eprintln!(
            "testbed: building etcd, kube-apiserver, kube-controller-manager, kubectl and kube-proxy \
             with go.\n\
             testbed: this takes about 5 minutes on 2 cores when cold; the result is kept in {}",
            dir.display()
        );
        self.run_go(&partial)?;
        // etcd's main package sits in a folder called server.
        fs::rename(partial.join("server"), partial.join("etcd")).context("name etcd")?;
        fs::rename(&partial, dir).with_context(|| format!("put {} in place", dir.display()))
    }

    fn run_go(&self, out: &Path) -> Result<()> {
        let spawned = Command::new("go")
            .args(["build", "-v", "-buildvcs=false", "-trimpath", "-ldflags", &self.ldflags, "-o"])
            .arg(out)
            .arg("tool")
            .current_dir(MODULE)
            .env("CGO_ENABLED", "0")
            .env("GOWORK", "off")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut go = match spawned {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => bail!(
                "the program `go` is not on PATH: it is needed once, to build the control plane \
                 (or set KUBEBUILDER_ASSETS to a folder with {})",
                PROGRAMS.join(", ")
            ),
            other => other.context("start go")?,
        };
        // -v names every package on standard error, which is also where failures are reported.
        let stderr = go.stderr.take().context("go has no standard error")?;
        let built = Arc::new(AtomicU32::new(0));
        let counter = built.clone();
        let reader = thread::spawn(move || follow(BufReader::new(stderr), &counter));
        let start = Instant::now();
        let mut next = PROGRESS_EVERY;
        let status = loop {
            if let Some(status) = go.try_wait().context("wait for go")? {
                break status;
            }
            if start.elapsed() >= next {
                let count = built.load(Ordering::Relaxed);
                eprintln!("testbed: {} s, {count} packages so far", next.as_secs());
                next += PROGRESS_EVERY;
            }
            thread::sleep(Duration::from_millis(100));
        };
        let last = reader.join().unwrap_or_default();
        ensure!(status.success(), "go build failed ({status}):\n{}", Vec::from(last).join("\n"));
        Ok(())
    }
}

/// Counts the packages that go names and keeps the last lines it wrote.
fn follow(lines: impl BufRead, built: &AtomicU32) -> VecDeque<String> {
    let mut last = VecDeque::new();
    for line in lines.lines().map_while(Result::ok) {
        if !line.starts_with("go: ") {
            built.fetch_add(1, Ordering::Relaxed);
        }
        if last.len() == 20 {
            last.pop_front();
        }
        last.push_back(line);
    }
    last
}

/// Without these the server calls itself v0.0.0, and charts that ask for a version refuse it.
pub(crate) fn ldflags(go_mod: &str) -> Result<String> {
    let version = go_mod
        .lines()
        .filter(|line| !line.contains("=>"))
        .find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes "))
        .and_then(|rest| rest.split_whitespace().next())
        .context("go.mod names no version of k8s.io/kubernetes")?;
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) =
        numbers.next().zip(numbers.next()).context("the version has no minor number")?;
    let at = "k8s.io/component-base/version";
    Ok(format!(
        "-s -w -X {at}.gitVersion={version} -X {at}.gitMajor={major} -X {at}.gitMinor={minor}"
    ))
}

pub(crate) fn cache_root() -> Result<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(base.join("harvester-guest-operator"))
}

/// Takes the builders' lock, which is given back when the file is dropped.
pub(crate) fn lock(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(e)) => return Err(e).context("lock the cache"),
    }
    eprintln!("testbed: another process is building; waiting for it");
    file.lock().context("wait for the cache's lock")?;
    Ok(file)
}

/// FNV-1a: the name must stay the same from one toolchain to the next, which the standard
/// library's hasher does not promise.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::{fnv1a, ldflags};

    #[test]
    fn the_version_comes_from_go_mod() {
        let flags = ldflags("replace k8s.io/kubernetes => x\n\tk8s.io/kubernetes v1.36.3 // x\n");
        let flags = flags.unwrap();
        assert!(flags.contains("gitVersion=v1.36.3"), "{flags}");
        assert!(flags.ends_with("gitMinor=36"), "{flags}");
        assert!(ldflags("module x\n").is_err());
    }

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
