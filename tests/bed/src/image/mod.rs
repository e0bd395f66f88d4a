//! Owns the image: an OCI archive, written without a container engine.
//!
//! Its root holds the programs, exactly the libraries that they are linked to, an account, public
//! authorities, the licences of its contents, and a bill of materials. Everything in it is a
//! function of the sources and of the machine's libraries: two builds have one digest.

mod archive;
mod materials;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::repository;
use archive::{Blobs, Entry, gzip, tar};
use materials::Materials;

const PROGRAM: &str = "harvester-guest-operator";
/// The account of `podSecurityContext` in the chart.
const USER: u32 = 65532;

/// Result of writing an image.
#[derive(Debug)]
pub struct Written {
    /// Size of the archive in bytes.
    pub bytes: u64,
    /// Digest of the manifest, by which a registry finds the image.
    pub digest: String,
    /// Files of the root, with their sizes in bytes.
    pub root: BTreeMap<String, usize>,
}

/// Writes the image of programs for this machine's architecture. Each lies in the root under its
/// file's name; the operator's is the entrypoint.
pub fn write_image(programs: &[&Path], version: &str, out: &Path) -> Result<Written> {
    let materials = Materials::read(programs)?;
    let revision = git(&["rev-parse", "HEAD"])?;
    let created = git(&["show", "-s", "--format=%cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ"])?;
    let mut files = BTreeMap::from([
        ("etc/passwd".to_owned(), Entry::file(format!("nonroot:x:{USER}:{USER}::/:/none\n"))),
        ("etc/group".to_owned(), Entry::file(format!("nonroot:x:{USER}:\n"))),
        (materials::AUTHORITIES.to_owned(), Entry::file(Materials::authorities()?)),
        ("licenses/LICENSE".to_owned(), Entry::file(fs::read(repository().join("LICENSE"))?)),
        ("licenses/THIRD-PARTY.txt".to_owned(), Entry::file(materials.licences()?)),
        ("sbom.cdx.json".to_owned(), Entry::file(materials.bill(version)?)),
    ]);
    for program in programs {
        let name = program.file_name().and_then(|name| name.to_str()).context("no name")?;
        let content = fs::read(program).with_context(|| program.display().to_string())?;
        files.insert(name.to_owned(), Entry::program(content));
    }
    for library in materials.linked() {
        let path = library.path.to_str().context("a path that is not UTF-8")?;
        let content = fs::read(&library.path).with_context(|| path.to_owned())?;
        files.insert(path.trim_start_matches('/').to_owned(), Entry::program(content));
    }
    let root = files.iter().map(|(path, entry)| (path.clone(), entry.content.len())).collect();
    let layer = tar(&files)?;
    let mut blobs = Blobs::default();
    let unpacked = archive::digest(&layer);
    let layer = blobs.add("application/vnd.oci.image.layer.v1.tar+gzip", gzip(&layer)?);
    let labels = json!({
        "org.opencontainers.image.title": PROGRAM,
        "org.opencontainers.image.description": "Load-balancer addresses for guests of Harvester",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.revision": revision,
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.licenses": "Apache-2.0",
    });
    let config = json!({
        "created": created, "architecture": architecture()?, "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"), "WorkingDir": "/", "Labels": labels,
            "Entrypoint": [format!("/{PROGRAM}")],
        },
        "rootfs": {"type": "layers", "diff_ids": [unpacked]},
        "history": [{"created": created, "created_by": "make image"}],
    });
    let config = blobs.add_json("application/vnd.oci.image.config.v1+json", &config);
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({
        "schemaVersion": 2, "mediaType": kind, "config": config, "layers": [layer],
        "annotations": labels,
    });
    let mut manifest = blobs.add_json(kind, &manifest);
    let digest = manifest["digest"].as_str().unwrap_or_default().to_owned();
    manifest["platform"] = json!({"architecture": architecture()?, "os": "linux"});
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": version});
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });
    let bytes = blobs.write(&index, out)?;
    Ok(Written { bytes, digest, root })
}

fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => anyhow::bail!("no image for {other}"),
    }
}

fn git(args: &[&str]) -> Result<String> {
    let mut command = Command::new("git");
    run(command.args(args).env("TZ", "UTC").current_dir(repository()))
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("start {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}: {}", output.status, said.trim());
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Unpacks an archive's only layer, as a container engine would, and returns the image
/// configuration.
pub fn unpack_image(archive: &Path, root: &Path) -> Result<Value> {
    let image = root.with_extension("image");
    for dir in [root, &image] {
        fs::create_dir_all(dir)?;
    }
    let extract = |file: &Path, to: &Path| {
        run(Command::new("tar").arg("-xf").arg(file).arg("-C").arg(to)).map(drop)
    };
    extract(archive, &image)?;
    let blob = |digest: &Value| -> Result<PathBuf> {
        let digest = digest.as_str().context("no digest")?;
        let path = image.join("blobs").join(digest.replace(':', "/"));
        let content = fs::read(&path)?;
        ensure!(archive::digest(&content) == digest, "{digest} is another blob's");
        Ok(path)
    };
    let read = |path: PathBuf| -> Result<Value> { Ok(serde_json::from_slice(&fs::read(path)?)?) };
    let index = read(image.join("index.json"))?;
    let manifest = read(blob(&index["manifests"][0]["digest"])?)?;
    extract(&blob(&manifest["layers"][0]["digest"])?, root)?;
    let config = read(blob(&manifest["config"]["digest"])?)?;
    fs::remove_dir_all(&image)?;
    Ok(config)
}
