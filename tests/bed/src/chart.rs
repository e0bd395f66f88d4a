//! Owns the Helm chart as tests and `make config` see it: rendered.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::{Helm, Version, repository};

/// The release and its namespace, as on a Harvester.
const RELEASE: [&str; 3] = ["harvester-guest-operator", "--namespace", "harvester-system"];
/// Values that turn off objects that a plain manifest does not need.
const PLAIN: [&str; 1] = ["crds.mode=never"];
/// Labels that name the installer.
const HELM_LABELS: [&str; 4] = [
    "app.kubernetes.io/instance: ",
    "app.kubernetes.io/version: ",
    "app.kubernetes.io/managed-by: Helm",
    "helm.sh/chart: ",
];

/// The chart of this repository.
#[derive(Debug)]
pub struct Chart {
    helm: Helm,
    dir: PathBuf,
}

impl Chart {
    /// Gets Helm and finds the chart.
    pub async fn locate() -> Result<Self> {
        let dir = repository().join("charts/harvester-guest-operator");
        Ok(Self { helm: Helm::new(Version::Three).await?, dir })
    }

    /// The chart's folder.
    pub fn dir(&self) -> &PathBuf {
        &self.dir
    }

    /// The chart's folder, as an argument for Helm.
    pub fn path(&self) -> Result<&str> {
        self.dir.to_str().context("the path is not UTF-8")
    }

    /// Runs a Helm command with the chart and these options as its last arguments.
    pub async fn helm(&self, command: &str, options: &[&str]) -> Result<String> {
        self.helm.run(&[&[command, self.path()?], options].concat()).await
    }

    /// Renders the chart. Keys are templates' paths below `templates`; objects of one template are
    /// one text.
    pub async fn render(&self, options: &[&str]) -> Result<BTreeMap<String, String>> {
        let version = ["--kube-version", "v1.36.3"];
        let args = [&["template"], &RELEASE[..1], &[self.path()?], &RELEASE[1..], &version];
        let text = self.helm.run(&[&args.concat()[..], options].concat()).await?;
        let mut files: BTreeMap<String, String> = BTreeMap::new();
        for part in text.split("---\n# Source: harvester-guest-operator/templates/").skip(1) {
            let (path, content) = part.split_once('\n').context("no text after a source")?;
            let file = files.entry(path.to_owned()).or_default();
            if !file.is_empty() {
                file.push_str("---\n");
            }
            file.push_str(content.trim());
            file.push('\n');
        }
        Ok(files)
    }

    /// Manifests for an install without Helm: the chart's default output without the labels of a
    /// release.
    pub async fn plain(&self) -> Result<BTreeMap<String, String>> {
        let options: Vec<&str> = PLAIN.into_iter().flat_map(|set| ["--set", set]).collect();
        let is_plain = |line: &&str| {
            let line = line.trim_start();
            !HELM_LABELS.iter().any(|label| line.starts_with(label))
        };
        let render = self.render(&options).await?;
        Ok(render
            .into_iter()
            .map(|(path, text)| {
                let plain: Vec<&str> = text.lines().filter(is_plain).collect();
                (path, plain.join("\n") + "\n")
            })
            .collect())
    }
}
