//! Programs written in Go that the demo and the tests run, and their sources.
//!
//! A program is taken from the folder `KUBEBUILDER_ASSETS`; else from PATH, if it reports the
//! wanted minor version; else from the cache folder, where `go build` puts it first if it is
//! missing. A program in the cache is complete: it is renamed into its place at the very end.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::board::{Board, Task};
use crate::cache::{cache_root, fnv1a, lock};
use crate::{go, prometheus};

/// A program and the package that it is built from.
#[derive(Debug)]
pub struct Program {
    /// Name in [`Programs`].
    pub name: &'static str,
    /// Name on PATH.
    command: &'static str,
    package: &'static str,
    /// Module in go.mod whose version is the program's.
    module: &'static str,
    version_args: &'static [&'static str],
}

const KUBERNETES: &str = "k8s.io/kubernetes";
const CONTROL_PLANE: [Program; 4] = [
    Program {
        name: "etcd",
        command: "etcd",
        package: "go.etcd.io/etcd/server/v3",
        module: "go.etcd.io/etcd/server/v3",
        version_args: &["--version"],
    },
    kubernetes("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    kubernetes("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    Program {
        version_args: &["version", "--client"],
        ..kubernetes("kubectl", "k8s.io/kubernetes/cmd/kubectl")
    },
];
/// Programs of the control plane's module that only tests need.
const NODE: [Program; 2] = [
    kubernetes("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
    kubernetes("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
];
const HELM3: [Program; 2] = [
    Program {
        name: "helm3",
        command: "helm",
        package: "helm.sh/helm/v3/cmd/helm",
        module: "helm.sh/helm/v3",
        version_args: &["version", "--short"],
    },
    Program {
        name: "kubeconform",
        command: "kubeconform",
        package: "github.com/yannh/kubeconform/cmd/kubeconform",
        module: "github.com/yannh/kubeconform",
        version_args: &["-v"],
    },
];
/// Separate from Helm 3, because both packages are called `helm`.
const HELM4: [Program; 1] = [Program {
    name: "helm4",
    command: "helm",
    package: "helm.sh/helm/v4/cmd/helm",
    module: "helm.sh/helm/v4",
    version_args: &["version", "--short"],
}];

const fn kubernetes(name: &'static str, package: &'static str) -> Program {
    Program { name, command: name, package, module: KUBERNETES, version_args: &["--version"] }
}

/// Path of each program.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    paths: BTreeMap<&'static str, PathBuf>,
}

/// Programs that were not found, and those of the set that were.
#[derive(Debug)]
pub struct Missing {
    found: Programs,
    recipes: Vec<Recipe>,
    prometheus: bool,
}

/// Programs of one Go module that one `go build` makes.
#[derive(Debug)]
struct Recipe {
    module: PathBuf,
    ldflags: String,
    dir: PathBuf,
    programs: Vec<&'static Program>,
}

/// Looks for etcd, kube-apiserver, kube-controller-manager and kubectl.
pub fn control_plane() -> Result<Missing> {
    Missing::look(&[("controlplane", &CONTROL_PLANE)])
}

/// Looks for programs of tests only: kube-proxy, kube-scheduler, Helm 3 and 4, kubeconform,
/// Prometheus.
pub fn tools() -> Result<Missing> {
    let mut missing =
        Missing::look(&[("controlplane", &NODE), ("tools", &HELM3), ("tools", &HELM4)])?;
    match prometheus::find()? {
        Some(dir) => missing.found.add_prometheus(&dir),
        None => missing.prometheus = true,
    }
    Ok(missing)
}

impl Programs {
    /// Path of a program.
    ///
    /// # Panics
    /// If the set has no program of that name.
    pub fn path(&self, name: &str) -> &Path {
        &self.paths[name]
    }

    fn add_prometheus(&mut self, dir: &Path) {
        self.paths.extend(prometheus::PROGRAMS.map(|name| (name, dir.join(name))));
    }
}

impl Missing {
    fn look(sets: &[(&str, &'static [Program])]) -> Result<Self> {
        let mut found = Programs::default();
        let mut recipes = Vec::new();
        for (module, programs) in sets {
            let module = Path::new(env!("CARGO_MANIFEST_DIR")).join(module);
            let recipe = Recipe::read(module)?;
            let mut missing = Vec::new();
            for program in *programs {
                match recipe.find(program)? {
                    Some(path) => _ = found.paths.insert(program.name, path),
                    None => missing.push(program),
                }
            }
            if !missing.is_empty() {
                recipes.push(Recipe { programs: missing, ..recipe });
            }
        }
        Ok(Self { found, recipes, prometheus: false })
    }

    /// Whether no program is missing.
    pub fn is_none(&self) -> bool {
        self.recipes.is_empty() && !self.prometheus
    }

    /// Builds missing programs, with progress on standard error.
    pub fn get(mut self, name: &'static str) -> Result<Programs> {
        if !self.is_none() {
            Board::default().with(name, |task| self.build(task)).run()?;
        }
        Ok(self.found)
    }

    /// Builds missing programs. One process builds at a time; the others wait, and take its
    /// results.
    pub fn build(&mut self, task: &Task) -> Result<()> {
        let waiting = || task.show("waiting for another process that builds");
        let _only_builder = lock(&cache_root()?.join("build.lock"), waiting)?;
        for recipe in std::mem::take(&mut self.recipes) {
            recipe.build(task)?;
            for program in &recipe.programs {
                self.found.paths.insert(program.name, recipe.path(program));
            }
        }
        if self.prometheus {
            self.found.add_prometheus(&prometheus::fetch(task)?);
        }
        Ok(())
    }
}

impl Recipe {
    fn read(module: PathBuf) -> Result<Self> {
        let go_mod = fs::read_to_string(module.join("go.mod")).context("read go.mod")?;
        let go_sum = fs::read_to_string(module.join("go.sum")).context("read go.sum")?;
        let ldflags = ldflags(&go_mod)?;
        let key = fnv1a(format!("{go_mod}{go_sum}{:?}", go::flags(&ldflags)).as_bytes());
        let name = module.file_name().unwrap_or_default().display();
        let dir = cache_root()?.join(format!("{name}-{key:016x}"));
        Ok(Self { module, ldflags, dir, programs: Vec::new() })
    }

    fn path(&self, program: &Program) -> PathBuf {
        self.dir.join(program.name)
    }

    fn find(&self, program: &Program) -> Result<Option<PathBuf>> {
        if let Some(dir) = env::var_os("KUBEBUILDER_ASSETS").filter(|dir| !dir.is_empty()) {
            let path = Path::new(&dir).join(program.name);
            if path.is_file() {
                return Ok(Some(path));
            }
        }
        if self.path(program).is_file() {
            return Ok(Some(self.path(program)));
        }
        let go_mod = fs::read_to_string(self.module.join("go.mod"))?;
        let minor = minor(&version(&go_mod, program.module)?);
        Ok(on_path(program.command).filter(|path| says_minor(path, program.version_args, &minor)))
    }

    fn build(&self, task: &Task) -> Result<()> {
        // Another process may have built it while this one waited for the lock.
        let missing: Vec<_> = self.programs.iter().filter(|p| !self.path(p).is_file()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let partial = self.dir.join("partial");
        // Files of a killed build; the lock excludes that another build writes to them.
        if partial.exists() {
            fs::remove_dir_all(&partial)?;
        }
        fs::create_dir_all(&partial)?;
        let packages: Vec<_> = missing.iter().map(|program| program.package).collect();
        go::build(&self.module, &packages, &self.ldflags, &partial, task)?;
        for program in missing {
            let built = partial.join(binary_name(program.package));
            fs::rename(built, self.path(program))
                .with_context(|| format!("name {}", program.name))?;
        }
        fs::remove_dir(&partial).context("remove the folder of the build")
    }
}

/// Name that `go build` gives to a package's program: the last part of its path that is not a major
/// version.
fn binary_name(package: &str) -> &str {
    let is_major = |part: &&str| {
        part.strip_prefix('v').is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    package.rsplit('/').find(|part| !is_major(part)).unwrap_or(package)
}

/// Linker flags. Without them a Kubernetes program reports v0.0.0, and charts that require a
/// version refuse it. A module without Kubernetes needs no version.
fn ldflags(go_mod: &str) -> Result<String> {
    let Ok(version) = version(go_mod, KUBERNETES) else { return Ok("-s -w".to_owned()) };
    let mut numbers = version.split('.');
    let (major, minor) =
        numbers.next().zip(numbers.next()).context("the version has no minor number")?;
    let at = "k8s.io/component-base/version";
    Ok(format!(
        "-s -w -X {at}.gitVersion=v{version} -X {at}.gitMajor={major} -X {at}.gitMinor={minor}"
    ))
}

/// Version of a module that a go.mod requires, without the `v`.
fn version(go_mod: &str, module: &str) -> Result<String> {
    let mut lines = go_mod.lines().filter(|line| !line.contains("=>"));
    let version = lines
        .find_map(|line| line.trim().strip_prefix(module)?.strip_prefix(" v"))
        .and_then(|rest| rest.split_whitespace().next());
    Ok(version.with_context(|| format!("go.mod requires no version of {module}"))?.to_owned())
}

fn minor(version: &str) -> String {
    version.splitn(3, '.').take(2).collect::<Vec<_>>().join(".")
}

pub(crate) fn on_path(command: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(command)).find(|file| file.is_file())
}

/// Whether a program reports a version of this minor, such as `v1.36.3` for `1.36`.
fn says_minor(program: &Path, args: &[&str], minor: &str) -> bool {
    let Ok(output) = Command::new(program).args(args).output() else { return false };
    names_minor(&String::from_utf8_lossy(&output.stdout), minor)
}

fn names_minor(said: &str, minor: &str) -> bool {
    let words = said.split(|c: char| c.is_whitespace() || c == '"');
    let mut versions = words.map(|word| word.trim_start_matches('v'));
    versions.any(|word| word.strip_prefix(minor).is_some_and(|rest| rest.starts_with('.')))
}

pub(crate) fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("start {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GO_MOD: &str =
        "replace k8s.io/kubernetes => x\n\tk8s.io/kubernetes v1.36.3 // indirect\n";

    #[test]
    fn a_version_comes_from_go_mod() {
        assert_eq!(version(GO_MOD, KUBERNETES).unwrap(), "1.36.3");
        let flags = ldflags(GO_MOD).unwrap();
        assert!(flags.contains("gitVersion=v1.36.3"), "{flags}");
        assert!(flags.ends_with("gitMinor=36"), "{flags}");
        assert_eq!(ldflags("module x\n").unwrap(), "-s -w");
        assert!(version("module x\n", "helm.sh/helm/v3").is_err());
    }

    #[test]
    fn a_program_on_the_path_must_have_the_wanted_minor_version() {
        assert_eq!(minor("1.36.3"), "1.36");
        for said in ["Kubernetes v1.36.0", "etcd Version: 1.36.9\nGit SHA: 1", "v1.36.3+g12"] {
            assert!(names_minor(said, "1.36"), "{said}");
        }
        for said in ["Kubernetes v1.3.6", "Kubernetes v1.361.0", "v11.36.0", ""] {
            assert!(!names_minor(said, "1.36"), "{said}");
        }
    }

    #[test]
    fn a_program_is_called_as_go_calls_it() {
        assert_eq!(binary_name("go.etcd.io/etcd/server/v3"), "server");
        assert_eq!(binary_name("helm.sh/helm/v4/cmd/helm"), "helm");
        assert_eq!(binary_name("k8s.io/kubernetes/cmd/kubectl"), "kubectl");
    }
}
