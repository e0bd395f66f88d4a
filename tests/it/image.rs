//! The image: a second build is the same, and its root holds all that the operator needs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use testbed::{Managed, eventually, unpack_image, write_image};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;

use crate::support::{Cluster, SOON, address};

const PROGRAM: &str = "harvester-guest-operator";

/// The image's entry point with only the image in its root, as the image's user.
fn inside(root: &Path, config: &Value) -> Result<Command> {
    let text = |value: &Value| value.as_str().map(str::to_owned).context("not in the image");
    let mut command = Command::new("/usr/sbin/chroot");
    command
        .arg(format!("--userspec={}", text(&config["config"]["User"])?))
        .arg(root)
        .arg(text(&config["config"]["Entrypoint"][0])?)
        .env_clear();
    Ok(command)
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().context("start chroot")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}: {said}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// The test runs in a network of its own, because the image listens at its default addresses.
#[test]
fn the_image_is_reproducible_complete_and_runs_with_nothing_else_in_its_root() -> Result<()> {
    testbed::net::isolated(async |_| {
        let dir = TempDir::new()?;
        let programs = [
            stripped(dir.path(), env!("CARGO_BIN_EXE_harvester-guest-operator"))?,
            stripped(dir.path(), env!("CARGO_BIN_EXE_lease-agent"))?,
        ];
        let programs = programs.each_ref().map(PathBuf::as_path);
        let archives = ["first.tar", "second.tar"].map(|name| dir.path().join(name));
        let first = write_image(&programs, "1.2.3", &archives[0])?;
        let second = write_image(&programs, "1.2.3", &archives[1])?;
        ensure!(first.digest == second.digest, "two builds, two digests");
        ensure!(fs::read(&archives[0])? == fs::read(&archives[1])?);

        let root = dir.path().join("root");
        let config = unpack_image(&archives[0], &root)?;
        let labels = &config["config"]["Labels"];
        ensure!(labels["org.opencontainers.image.version"] == "1.2.3", "{labels}");
        ensure!(config["config"]["User"] == "65532:65532");
        let [image] = &first.images[..] else { bail!("{:?}", first.images) };
        ensure!(image.bill == fs::read_to_string(root.join("sbom.cdx.json"))?);
        materials(&root)?;
        let version = output(inside(&root, &config)?.arg("--version"))?;
        ensure!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
        let mut agent = config.clone();
        agent["config"]["Entrypoint"] = json!(["/lease-agent"]);
        let version = output(inside(&root, &agent)?.arg("--version"))?;
        ensure!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
        let crds = output(inside(&root, &config)?.arg("crds"))?;
        ensure!(crds.contains("kind: CustomResourceDefinition"), "{crds}");

        // It serves, and finds the API server by name. The test adds the kubelet's part: names, and
        // the server's address.
        let cluster = Cluster::start().await?;
        fs::write(root.join("etc/hosts"), "127.0.0.1 kubernetes.default.svc\n")?;
        let url = cluster.bed.url().replace("127.0.0.1", "kubernetes.default.svc");
        let via = Some((url.as_str(), cluster.bed.ca_pem()));
        let account = ("harvester-system", PROGRAM);
        let kubeconfig = cluster.bed.service_account_kubeconfig(account.0, account.1, via).await?;
        fs::copy(kubeconfig, root.join("kubeconfig"))?;
        let mut command = inside(&root, &config)?;
        command.args(["controller", "--kubeconfig", "/kubeconfig", "--admission", "off"]);
        let operator = Managed::spawn(&mut command, dir.path().join("log"))?;
        cluster.pool("p", json!({"subnet": "10.1.0.0/24", "gateway": "10.1.0.1"})).await?;
        cluster.lb("a").await?;
        eventually(SOON, "address", async || {
            let lb = cluster.lbs().get("a").await.map_err(|e| e.to_string())?;
            address(&lb).ok_or_else(|| operator.log()).map(Some)
        })
        .await?;
        Ok(())
    })
}

/// Copies a program without its debug information, which a release build has not: compressing it
/// takes a minute.
fn stripped(dir: &Path, program: &str) -> Result<PathBuf> {
    let name = Path::new(program).file_name().context("a program without a name")?;
    let copy = dir.join(name);
    output(Command::new("strip").arg("-o").arg(&copy).arg(program))?;
    Ok(copy)
}

/// Checks that the bill names every linked crate, and that each has a licence and its text.
fn materials(root: &Path) -> Result<()> {
    let bill: Value = serde_json::from_slice(&fs::read(root.join("sbom.cdx.json"))?)?;
    ensure!(bill["bomFormat"] == "CycloneDX");
    let components = bill["components"].as_array().context("no components")?;
    let names: BTreeSet<&str> = components.iter().filter_map(|c| c["name"].as_str()).collect();
    for name in ["kube-client", "tokio", "aws-lc-sys", "libc6", "ca-certificates"] {
        ensure!(names.contains(name), "{name} is not in the bill");
    }
    for name in ["proptest", "testbed"] {
        ensure!(!names.contains(name), "{name} is in the bill, and not in the image");
    }
    let texts = fs::read_to_string(root.join("licenses/THIRD-PARTY.txt"))?;
    for component in components {
        let name = component["name"].as_str().context("no name")?;
        ensure!(texts.contains(&format!("{name} ")), "no licence of {name}");
    }
    let trusted = fs::read(root.join("etc/ssl/certs/ca-certificates.crt"))?;
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(&trusted).collect::<Result<_, _>>()?;
    ensure!(certificates.len() > 100, "{} public authorities", certificates.len());
    // Only the expected entries.
    let mut top: Vec<String> = Vec::new();
    for entry in fs::read_dir(root)? {
        top.push(entry?.file_name().to_string_lossy().into_owned());
    }
    top.sort();
    let expected = ["etc", PROGRAM, "lease-agent", "lib", "lib64", "licenses", "sbom.cdx.json"];
    ensure!(top == expected, "{top:?}");
    Ok(())
}
