//! Materials of a binary: crates, and the system's libraries that it is linked to.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{Architecture, PROGRAM, run};
use crate::repository;

/// Path where programs look for authorities, and the package and folder that these are copied from.
/// Authorities that only this machine trusts are not included.
pub(super) const AUTHORITIES: &str = "etc/ssl/certs/ca-certificates.crt";
const PACKAGE: &str = "ca-certificates";
const PUBLIC: &str = "/usr/share/ca-certificates/mozilla";

/// Depth in a crate at which licences of bundled code lie: `aws-lc-sys/aws-lc/LICENSE`.
const DEPTH: usize = 2;

pub(super) struct Materials {
    crates: Vec<Crate>,
    libraries: Vec<Library>,
}

struct Crate {
    name: String,
    version: String,
    licence: String,
    dir: PathBuf,
}

/// A shared library at the path where the loader looks for it, or another file of a package.
pub(super) struct Library {
    pub(super) path: PathBuf,
    package: String,
    version: String,
}

impl Materials {
    pub(super) fn read(architecture: Architecture, programs: &[&Path]) -> Result<Self> {
        let mut libraries = libraries(architecture, programs)?;
        let (path, package) = (PathBuf::from(PUBLIC), PACKAGE.to_owned());
        libraries.push(Library { version: version(&package)?, path, package });
        Ok(Self { crates: crates(architecture)?, libraries })
    }

    /// Libraries that the loader looks for: all but the authorities' package.
    pub(super) fn linked(&self) -> impl Iterator<Item = &Library> {
        self.libraries.iter().filter(|library| library.package != PACKAGE)
    }

    /// All public authorities in one PEM text.
    pub(super) fn authorities() -> Result<Vec<u8>> {
        let entries = fs::read_dir(PUBLIC).with_context(|| PUBLIC.to_owned())?;
        let mut paths: Vec<PathBuf> =
            entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        let mut all = Vec::new();
        for path in paths {
            all.extend(fs::read(path)?);
        }
        Ok(all)
    }

    /// Bill of materials in the CycloneDX format.
    pub(super) fn bill(&self, version: &str) -> Result<String> {
        let mut components = Vec::new();
        for Crate { name, version, licence, .. } in &self.crates {
            components.push(json!({
                "type": "library", "name": name, "version": version,
                "purl": format!("pkg:cargo/{name}@{version}"),
                "licenses": [{"expression": licence}],
            }));
        }
        let packages: BTreeSet<_> =
            self.libraries.iter().map(|library| (&library.package, &library.version)).collect();
        for (name, version) in packages {
            components.push(json!({
                "type": "library", "name": name, "version": version,
                "purl": format!("pkg:deb/debian/{name}@{version}"),
            }));
        }
        let bill = json!({
            "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
            "metadata": {"component": {
                "type": "application", "name": PROGRAM, "version": version,
                "licenses": [{"expression": "Apache-2.0"}],
            }},
            "components": components,
        });
        Ok(serde_json::to_string_pretty(&bill)?)
    }

    /// Text of every licence once, with the crates and packages that it applies to.
    pub(super) fn licences(&self) -> Result<String> {
        let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut list = String::new();
        for Crate { name, version, licence, dir } in &self.crates {
            writeln!(list, "{name} {version}: {licence}")?;
            for file in licence_files(dir, DEPTH) {
                let text = String::from_utf8_lossy(&fs::read(file)?).into_owned();
                texts.entry(text).or_default().insert(format!("{name} {version}"));
            }
        }
        for Library { package, version, .. } in &self.libraries {
            let file = Path::new("/usr/share/doc").join(package).join("copyright");
            let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            texts.entry(text).or_default().insert(format!("{package} {version}"));
        }
        let mut all = format!("What is linked into {PROGRAM}\n\n{list}");
        for (text, of) in texts {
            let of: Vec<String> = of.into_iter().collect();
            write!(all, "\n{}\n\n{}\n\n{}\n", "=".repeat(80), of.join(", "), text.trim())?;
        }
        Ok(all)
    }
}

/// Crates that the operator is linked with, without build tools and other platforms' crates.
fn crates(architecture: Architecture) -> Result<Vec<Crate>> {
    let target = architecture.target();
    let args = ["metadata", "--locked", "--offline", "--format-version", "1"];
    let text = run(cargo().args(args).args(["--filter-platform", target]))?;
    let metadata: Value = serde_json::from_str(&text)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut known = BTreeMap::new();
    for package in metadata["packages"].as_array().context("no packages")? {
        let dir = Path::new(package["manifest_path"].as_str().unwrap_or_default()).parent();
        let dir = dir.context("a manifest without a folder")?.to_owned();
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        let licence = text(&package["license"]).replace('/', " OR ");
        known.insert((name.clone(), version.clone()), Crate { name, version, licence, dir });
    }
    let args = ["tree", "--locked", "--offline", "--edges", "normal", "--prefix", "none"];
    let tree = run(cargo()
        .args(args)
        .args(["--format", "{p}", "--target", target])
        .args(["--package", PROGRAM]))?;
    let linked: BTreeSet<(String, String)> = tree
        .lines()
        .filter(|line| !line.contains("(proc-macro)"))
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
        })
        .filter(|(name, _)| name != PROGRAM)
        .collect();
    linked
        .into_iter()
        .map(|id| known.remove(&id).with_context(|| format!("no package {id:?}")))
        .collect()
}

/// Shared libraries that the loader looks for, and the loader.
///
/// The loader itself would say which, but runs on its own architecture only.
fn libraries(architecture: Architecture, programs: &[&Path]) -> Result<Vec<Library>> {
    let mut paths = BTreeSet::new();
    let mut unread: Vec<PathBuf> = programs.iter().map(|program| (*program).to_owned()).collect();
    while let Some(file) = unread.pop() {
        let mut read = Command::new("readelf");
        read.args(["--wide", "--program-headers", "--dynamic"]).arg(&file).env("LC_ALL", "C");
        let Links { loader, needed } = links(&run(&mut read)?);
        paths.extend(loader.map(PathBuf::from));
        // A library needs the loader by its name alone; its path is the program's word.
        for name in needed.into_iter().filter(|name| !name.starts_with("ld-linux")) {
            let path = architecture.libraries().join(name);
            if paths.insert(path.clone()) {
                unread.push(path);
            }
        }
    }
    let mut libraries = Vec::new();
    for path in &paths {
        // A package lists a file by its path with or without /usr, whatever has been merged since:
        // where /lib is a link, the real path has /usr.
        let real = fs::canonicalize(path).with_context(|| {
            let (path, name) = (path.display(), architecture.name());
            format!(
                "{path}: this machine lacks it: install the Debian package for {name} that has it"
            )
        })?;
        let search = |name| run(Command::new("dpkg-query").arg("--search").arg(name)).ok();
        let owner = [path, &real].into_iter().find_map(search);
        let owner = owner.with_context(|| format!("no package has {}", path.display()))?;
        let package = owner.split([':', ',']).next().unwrap_or_default().to_owned();
        let version = version(&package)?;
        libraries.push(Library { path: path.clone(), package, version });
    }
    Ok(libraries)
}

/// Files that an ELF file asks for: the loader by its path, libraries by their names.
struct Links {
    loader: Option<String>,
    needed: Vec<String>,
}

/// Reads the output of readelf.
fn links(said: &str) -> Links {
    let after = |line: &str, label: &str| {
        let (_, rest) = line.split_once(label)?;
        Some(rest.split_once(']')?.0.to_owned())
    };
    let loader = said.lines().find_map(|line| after(line, "[Requesting program interpreter: "));
    let needed = said.lines().filter_map(|line| after(line, " Shared library: ["));
    Links { loader, needed: needed.collect() }
}

/// Version of an installed package of this machine. An architecture's package has the same version
/// as every other's: Debian installs them together.
fn version(package: &str) -> Result<String> {
    let show = ["--show", "--showformat=${Version}\n", package];
    let version = run(Command::new("dpkg-query").args(show))?;
    Ok(version.lines().next().unwrap_or_default().to_owned())
}

fn licence_files(dir: &Path, depth: usize) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        let is_licence = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"]
            .iter()
            .any(|start| name.starts_with(start));
        if path.is_file() && is_licence {
            found.push(path);
        } else if path.is_dir() && depth > 1 {
            found.extend(licence_files(&path, depth - 1));
        }
    }
    found
}

/// The cargo that runs this process, else the one on PATH.
fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(repository());
    cargo
}

#[cfg(test)]
mod tests {
    use super::links;

    #[test]
    fn loader_and_libraries_are_read_from_readelf() {
        let said = "  INTERP         0x000318 0x0000000000000318 0x00001c R   0x1
      [Requesting program interpreter: /lib/ld-linux-aarch64.so.1]
 0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x000000000000000e (SONAME)             Library soname: [libx.so.1]
";
        let links = links(said);
        assert_eq!(links.loader.as_deref(), Some("/lib/ld-linux-aarch64.so.1"));
        assert_eq!(links.needed, ["libgcc_s.so.1", "libc.so.6"]);
    }
}
