//! Owns the image: an OCI archive, written without a container engine.
//!
//! Its root holds the programs, exactly the libraries that they are linked to, an account, public
//! authorities, the licences of its contents, and a bill of materials. Everything in it is a
//! function of the sources and of the machine's libraries: two builds have one digest.

mod architecture;
mod archive;
mod materials;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::repository;
pub use architecture::Architecture;
use archive::{Blobs, Entry, gzip, tar};
use materials::Materials;

const PROGRAM: &str = "harvester-guest-operator";
/// The account of `podSecurityContext` in the chart.
const USER: u32 = 65532;
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Result of writing an image.
#[derive(Debug)]
pub struct Written {
    /// Size of the archive in bytes.
    pub bytes: u64,
    /// Digest of the index, by which a registry finds the image for every architecture.
    pub digest: String,
    /// The image of each architecture.
    pub images: Vec<ArchitectureImage>,
}

/// Image of one architecture.
#[derive(Debug)]
pub struct ArchitectureImage {
    /// Architecture that its programs are for.
    pub architecture: Architecture,
    /// Files of the root, with their sizes in bytes.
    pub root: BTreeMap<String, usize>,
    /// Bill of materials, in the CycloneDX format. The root holds it too.
    pub bill: String,
}

/// Writes the image of programs, one for each architecture that they are built for. Each program
/// lies in the root under its file's name; the operator's is the entrypoint.
pub fn write_image(programs: &[&Path], version: &str, out: &Path) -> Result<Written> {
    let mut by_architecture: BTreeMap<Architecture, Vec<&Path>> = BTreeMap::new();
    for program in programs {
        by_architecture.entry(Architecture::of(program)?).or_default().push(program);
    }
    let revision = git(&["rev-parse", "HEAD"])?;
    let created = git(&["show", "-s", "--format=%cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ"])?;
    let labels = json!({
        "org.opencontainers.image.title": PROGRAM,
        "org.opencontainers.image.description": "Load-balancer addresses for guests of Harvester",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.revision": revision,
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.licenses": "Apache-2.0",
    });
    let (mut roots, mut images) = (BTreeMap::new(), Vec::new());
    for (architecture, programs) in by_architecture {
        let (files, bill) = root(architecture, &programs, version)?;
        let root = files.iter().map(|(path, entry)| (path.clone(), entry.content.len())).collect();
        images.push(ArchitectureImage { architecture, root, bill });
        roots.insert(architecture, files);
    }
    let (digest, bytes) = write_roots(&roots, &labels, out)?;
    Ok(Written { bytes, digest, images })
}

/// Writes an archive with the image of each architecture. Returns the digest of their index, and the
/// archive's size in bytes.
///
/// The archive's own index names the index of the images and nothing else: what a registry gets is
/// one name for all architectures.
fn write_roots(
    roots: &BTreeMap<Architecture, BTreeMap<String, Entry>>,
    labels: &Value,
    out: &Path,
) -> Result<(String, u64)> {
    let mut blobs = Blobs::default();
    let mut manifests = Vec::new();
    for (architecture, files) in roots {
        manifests.push(add_image(&mut blobs, *architecture, files, labels)?);
    }
    let index =
        |manifests: Value| json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
    let mut all = blobs.add_json(INDEX, &index(Value::Array(manifests)));
    let digest = all["digest"].as_str().unwrap_or_default().to_owned();
    let version = &labels["org.opencontainers.image.version"];
    all["annotations"] = json!({"org.opencontainers.image.ref.name": version});
    let bytes = blobs.write(&index(json!([all])), out)?;
    Ok((digest, bytes))
}

/// Files of the root of one architecture's image, and the bill of materials among them.
fn root(
    architecture: Architecture,
    programs: &[&Path],
    version: &str,
) -> Result<(BTreeMap<String, Entry>, String)> {
    let materials = Materials::read(architecture, programs)?;
    let bill = materials.bill(version)?;
    let mut files = BTreeMap::from([
        ("etc/passwd".to_owned(), Entry::file(format!("nonroot:x:{USER}:{USER}::/:/none\n"))),
        ("etc/group".to_owned(), Entry::file(format!("nonroot:x:{USER}:\n"))),
        (materials::AUTHORITIES.to_owned(), Entry::file(Materials::authorities()?)),
        ("licenses/LICENSE".to_owned(), Entry::file(fs::read(repository().join("LICENSE"))?)),
        ("licenses/THIRD-PARTY.txt".to_owned(), Entry::file(materials.licences()?)),
        ("sbom.cdx.json".to_owned(), Entry::file(bill.clone())),
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
    Ok((files, bill))
}

/// Adds layer, configuration and manifest of one architecture. Returns the manifest's descriptor.
fn add_image(
    blobs: &mut Blobs,
    architecture: Architecture,
    files: &BTreeMap<String, Entry>,
    labels: &Value,
) -> Result<Value> {
    let layer = tar(files)?;
    let unpacked = archive::digest(&layer);
    let layer = blobs.add("application/vnd.oci.image.layer.v1.tar+gzip", gzip(&layer)?);
    let created = &labels["org.opencontainers.image.created"];
    let config = json!({
        "created": created, "architecture": architecture.name(), "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"), "WorkingDir": "/", "Labels": labels,
            "Entrypoint": [format!("/{PROGRAM}")],
        },
        "rootfs": {"type": "layers", "diff_ids": [unpacked]},
        "history": [{"created": created, "created_by": "make image"}],
    });
    let config = blobs.add_json("application/vnd.oci.image.config.v1+json", &config);
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer],
        "annotations": labels,
    });
    let mut manifest = blobs.add_json(MANIFEST, &manifest);
    manifest["platform"] = json!({"architecture": architecture.name(), "os": "linux"});
    Ok(manifest)
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

/// Unpacks the only layer of this machine's architecture, as a container engine would, and returns
/// the image configuration.
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
    let archive = read(image.join("index.json"))?;
    let index = read(blob(&archive["manifests"][0]["digest"])?)?;
    let here = Architecture::here()?.name();
    let is_for_here = |manifest: &&Value| manifest["platform"]["architecture"] == here;
    let manifest = index["manifests"].as_array().into_iter().flatten().find(is_for_here);
    let manifest =
        read(blob(&manifest.with_context(|| format!("no image for {here}"))?["digest"])?)?;
    extract(&blob(&manifest["layers"][0]["digest"])?, root)?;
    let config = read(blob(&manifest["config"]["digest"])?)?;
    fs::remove_dir_all(&image)?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Archive with one file, the architecture's name, in each root.
    fn archive(architectures: &[Architecture], out: &Path) -> (String, u64) {
        let root = |architecture: Architecture| {
            BTreeMap::from([("name".to_owned(), Entry::file(architecture.name()))])
        };
        let roots = architectures.iter().map(|each| (*each, root(*each))).collect();
        let labels = json!({
            "org.opencontainers.image.version": "1.2.3",
            "org.opencontainers.image.created": "2026-01-01T00:00:00Z",
        });
        write_roots(&roots, &labels, out).unwrap()
    }

    #[test]
    fn of_several_architectures_a_machine_gets_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let (amd64, arm64) = (Architecture::Amd64, Architecture::Arm64);
        let here = Architecture::here().unwrap();
        let other = if here == amd64 { arm64 } else { amd64 };

        let both = dir.path().join("both.tar");
        archive(&[amd64, arm64], &both);
        let root = dir.path().join("root");
        let config = unpack_image(&both, &root).unwrap();
        assert_eq!(config["architecture"], here.name());
        assert_eq!(fs::read_to_string(root.join("name")).unwrap(), here.name());

        let foreign = dir.path().join("foreign.tar");
        archive(&[other], &foreign);
        let error = unpack_image(&foreign, &dir.path().join("none")).unwrap_err().to_string();
        assert_eq!(error, format!("no image for {}", here.name()));
    }
}
