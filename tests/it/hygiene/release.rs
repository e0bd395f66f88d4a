//! One version, wherever a release is named.

use super::{files, has_extension, read};

/// The chart's default tag of the image is its appVersion, so one that lags behind installs an image
/// that does not exist.
#[test]
fn crates_chart_changelog_and_documents_have_one_version() {
    let version = env!("CARGO_PKG_VERSION");
    let chart = read("charts/harvester-guest-operator/Chart.yaml");
    for field in ["version", "appVersion"] {
        let line = format!("{field}: {version}");
        assert!(chart.lines().any(|found| found == line), "Chart.yaml: no line `{line}`");
    }
    let changelog = read("docs/changelog.md");
    let newest = changelog.lines().find_map(|line| line.strip_prefix("## ")).unwrap();
    assert!(
        newest.split(' ').next() == Some(version),
        "docs/changelog.md begins with {newest}, the version is {version}"
    );
    let image = "registry.example.com/harvester-guest-operator:";
    let mut count = 0;
    for file in files().iter().filter(|file| has_extension(file, "md")) {
        for part in read(file).split(image).skip(1) {
            assert!(part.starts_with(version), "{file}: {image} is not followed by {version}");
            count += 1;
        }
    }
    assert!(count > 0, "no document names {image}{version}");
}
