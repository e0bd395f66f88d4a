//! Every command that a page shows is run against a control plane, on a Harvester as far as a test has
//! one. What would change an object is a dry run, but what `cloud-config` makes: it is made. The commands
//! that turn admission off are run for real by `admission::outage`.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Parser as _;
use harvester_guest_operator::cli::{Cli, LeaseAgent};
use harvester_guest_operator::domain::credentials::rancher_secret::checksum;
use tempfile::TempDir;
use testbed::kubevirt::install_kubevirt;
use testbed::rancher::Version as RancherVersion;
use testbed::{Bed, Helm, Rancher, Shared, Version, tools};
use tokio::process::Command;
use tokio::time::timeout;

use super::blocks::{Block, of_pages};
use super::steps;
use crate::chart::monitoring_crds;
use crate::cloud_config::roles::Release;
use crate::hygiene::{read, root};

/// The objects that commands are about.
const SCENE: &str = include_str!("scene.yaml");
/// Scripts that are run in place of each program.
const STAND_INS: [(&str, &str); 8] = [
    ("kubectl", include_str!("stand_ins/kubectl.sh")),
    ("helm", include_str!("stand_ins/helm.sh")),
    ("harvester-guest-operator", include_str!("stand_ins/operator.sh")),
    ("make", include_str!("stand_ins/make.sh")),
    // A registry, the repository of another project, and a release with its key, are not here.
    ("skopeo", "#!/bin/sh\nexit 0\n"),
    ("git", "#!/bin/sh\nexit 0\n"),
    ("sha256sum", "#!/bin/sh\nexit 0\n"),
    ("ssh-keygen", "#!/bin/sh\nexit 0\n"),
];
/// Time for one block.
const BLOCK: Duration = Duration::from_mins(2);

#[tokio::test(flavor = "multi_thread")]
async fn every_command_that_is_shown_runs() -> Result<()> {
    let bed = Shared::take_bare().await?;
    install_kubevirt(&bed).await?;
    let helm = Helm::on(&bed, Version::Three).await?;
    let chart = root().join("charts/harvester-guest-operator");
    let chart = chart.to_str().context("the path is not UTF-8")?;
    let to = ["--namespace", "harvester-system", "--create-namespace"];
    helm.run(&[&["install", "harvester-guest-operator", chart], &to[..]].concat()).await?;
    bed.apply_yaml(&monitoring_crds()).await?;
    bed.crds_established().await?;
    bed.apply_yaml(SCENE).await?;
    bed.apply_yaml(&Release::newest().roles()).await?;
    // Its token is asked for, and `kubectl apply` changes nothing here.
    bed.apply_yaml(&read("config/preview/rbac.yaml")).await?;

    let rancher = Rancher::start(RancherVersion::V2_11).await?;
    let user = rancher.user(false);
    let key = rancher.api_key(&user, 0, "by hand");
    rancher.cluster("c-m-prod", "prod", &[&user]);
    let content = rancher.kubeconfig(&user, "c-m-prod");
    let cc = rancher.credential(&user, "prod", "c-m-prod", &content)?;
    let desk = Desk::new(&bed, &rancher, &key, &cc).await?;
    let mut faults = Vec::new();
    let mut count = 0;
    for block in of_pages() {
        let Some(script) = script(&block) else { continue };
        count += 1;
        if let Err(error) = desk.run(&script, false).await {
            faults.push(format!("{}: {error:#}\n{script}", block.place));
        }
    }
    ensure!(faults.is_empty(), "{} of {count} blocks:\n\n{}", faults.len(), faults.join("\n"));
    ensure!(count > 30, "{count} blocks");
    steps::renew_all(&desk, &bed, [&user, &cc]).await?;
    Ok(())
}

/// Script of a block's commands. `None`: it has no commands.
fn script(block: &Block) -> Option<String> {
    match block.language.as_str() {
        "sh" => Some(block.text.clone()),
        "console" => {
            let lines = block.text.lines().filter_map(|line| line.strip_prefix("$ "));
            Some(lines.collect::<Vec<_>>().join("\n"))
        }
        _ => None,
    }
}

/// A folder with the files of the repository that commands name, and with programs.
pub(super) struct Desk {
    dir: TempDir,
    variables: Vec<(&'static str, PathBuf)>,
}

impl Desk {
    async fn new(bed: &Bed, rancher: &Rancher, api_key: &str, cc: &str) -> Result<Self> {
        let dir = TempDir::new()?;
        let programs = dir.path().join("bin");
        fs::create_dir_all(&programs)?;
        for (name, text) in STAND_INS {
            let file = programs.join(name);
            fs::write(&file, text)?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        }
        // kubectl reads no folder by a link.
        let copied = std::process::Command::new("cp")
            .args(["-r", "charts", "crds", "config"])
            .arg(dir.path())
            .current_dir(root())
            .status()?;
        ensure!(copied.success(), "cp: {copied}");
        fs::create_dir_all(dir.path().join("target/debug"))?;
        let operator = "harvester-guest-operator";
        symlink(programs.join(operator), dir.path().join("target/debug").join(operator))?;
        fs::write(dir.path().join("SHA256SUMS"), "")?;
        // A guest's API server is the bed's.
        fs::copy(bed.kubeconfig(), dir.path().join("k3s-guest-01.yaml"))?;
        let api_key_file = dir.path().join("api-key");
        fs::write(&api_key_file, api_key)?;
        let url = PathBuf::from(bed.url());
        let variables = vec![
            ("KUBECONFIG", bed.kubeconfig().to_owned()),
            ("REAL_KUBECTL", bed.programs().path("kubectl").to_owned()),
            ("REAL_HELM", tools().await?.path("helm3").to_owned()),
            ("REAL_OPERATOR", PathBuf::from(env!("CARGO_BIN_EXE_harvester-guest-operator"))),
            ("REPOSITORY", root().to_owned()),
            ("SERVER", url),
            ("RANCHER", PathBuf::from(rancher.url())),
            ("RANCHER_CHECKSUM", PathBuf::from(checksum(rancher.ca_pem()))),
            ("RANCHER_API_KEY", api_key_file),
            ("RANCHER_CREDENTIAL", PathBuf::from(cc)),
            ("HELM_CACHE_HOME", dir.path().join("helm")),
            ("HELM_CONFIG_HOME", dir.path().join("helm")),
            ("HELM_DATA_HOME", dir.path().join("helm")),
        ];
        Ok(Self { dir, variables })
    }

    /// Runs a script and returns what it writes to the screen. `for_real`: what it changes is changed.
    pub(super) async fn run(&self, script: &str, for_real: bool) -> Result<String> {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("bash");
        command
            .args(["-e", "-u", "-o", "pipefail", "-c", &format!("exec 2>&1\n{script}")])
            .current_dir(self.dir.path())
            .env("PATH", format!("{}:{path}", self.dir.path().join("bin").display()))
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .envs(for_real.then_some(("FOR_REAL", "1")))
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true);
        let output = timeout(BLOCK, command.output()).await.context("no end")??;
        let screen = String::from_utf8_lossy(&output.stdout).into_owned();
        let last = screen.floor_char_boundary(screen.len().saturating_sub(4_000));
        ensure!(output.status.success(), "{}: {}", output.status, &screen[last..]);
        Ok(screen)
    }
}

/// The real command line parses each command that a stand-in runs: `controller` has no end.
#[test]
fn every_command_line_of_the_programs_is_understood() {
    let mut subcommands = BTreeSet::new();
    for block in of_pages() {
        let Some(script) = script(&block) else { continue };
        for line in script.replace("\\\n", " ").lines() {
            let line = line.split([';', '|', '>', '&', '#']).next().unwrap_or_default();
            let mut words = line.split_whitespace().peekable();
            let Some(program) = words.peek().and_then(|word| Path::new(word).file_name()) else {
                continue;
            };
            let read = match program.to_str().unwrap() {
                "harvester-guest-operator" => Cli::try_parse_from(words.clone()).map(drop),
                "lease-agent" => LeaseAgent::try_parse_from(words.clone()).map(drop),
                _ => continue,
            };
            // Help is an answer, not a fault.
            if let Err(error) = read.or_else(|e| if e.use_stderr() { Err(e) } else { Ok(()) }) {
                panic!("{}: {line}: {error}", block.place);
            }
            subcommands.extend(words.nth(1).map(str::to_owned));
        }
    }
    for subcommand in
        ["controller", "cloud-config", "preview", "rancher-secret", "support", "takeover"]
    {
        assert!(subcommands.contains(subcommand), "no page shows {subcommand}: {subcommands:?}");
    }
}
