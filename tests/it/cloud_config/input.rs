//! Wrong options: each is named with its fault, before any request to a server.

use std::path::Path;

use anyhow::{Result, ensure};

use super::run;

const URL: &str = "https://192.168.7.10:6443";

#[tokio::test(flavor = "multi_thread")]
async fn each_option_is_refused_by_its_name() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    std::fs::write(path("empty.pem"), "")?;
    std::fs::write(path("text.pem"), "no certificate")?;
    std::fs::write(
        path("key.pem"),
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    )?;
    std::fs::write(
        path("bad.pem"),
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    )?;
    let (empty, text, key, bad, none) =
        (path("empty.pem"), path("text.pem"), path("key.pem"), path("bad.pem"), path("none.pem"));
    let (here, nowhere) = (path(""), path("no/such/file"));
    let long = "a".repeat(254);
    let guest = ["--cluster", "blue", "--namespace", "guests"];
    let blue = |more: &[&'static str]| [&guest[..], more].concat();
    let own = |args: Vec<&str>| args.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let with = |option: &str, value: &str| own([&guest[..], &[option, value]].concat());

    let rows: Vec<(Vec<String>, &str, &str)> = vec![
        (own(vec![]), "--cluster", "must be given"),
        (own(vec!["--cluster", "blue"]), "--namespace", "must be given"),
        (own(vec!["--namespace", "guests"]), "--cluster", "must be given"),
        (own(vec!["--cluster", "Blue", "--namespace", "guests"]), "--cluster", "lower-case"),
        (own(vec!["--cluster", "", "--namespace", "guests"]), "--cluster", "lower-case"),
        (own(vec!["--cluster=-blue", "--namespace", "guests"]), "--cluster", "lower-case"),
        (own(vec!["--cluster", "a/b", "--namespace", "guests"]), "--cluster", "lower-case"),
        (own(vec!["--cluster", "blue..x", "--namespace", "guests"]), "--cluster", "lower-case"),
        (own(vec!["--cluster", &long, "--namespace", "guests"]), "--cluster", "lower-case"),
        (own(vec!["--cluster", "default", "--namespace", "guests"]), "--cluster", "every pod"),
        (own(vec!["--cluster", "blue", "--namespace", "a.b"]), "--namespace", "namespace"),
        (own(vec!["--cluster", "blue", "--namespace", ""]), "--namespace", "namespace"),
        (own(vec!["--list", "--namespace", "A"]), "--namespace", "namespace"),
        (own(vec!["--list"]), "--namespace", "--all-namespaces"),
        (own(vec!["--list", "-A", "-n", "guests"]), "--all-namespaces", "as well"),
        (own(blue(&["--list", "--rotate"])), "--list", "--rotate"),
        (own(blue(&["--list", "--revoke", "old"])), "--list", "--revoke"),
        (own(blue(&["--list", "--dry-run"])), "--dry-run", "--list"),
        (own(blue(&["--rotate", "--revoke", "all"])), "--rotate", "--revoke old"),
        (own(blue(&["--rotate", "--revoke", "gone"])), "--rotate", "--revoke old"),
        (own(blue(&["--list", "--skip-check"])), "--skip-check", "no cloud config is printed"),
        (own(blue(&["--revoke", ""])), "--revoke", "old, all, gone"),
        (own(blue(&["--output", "yaml"])), "--output", "cloud-init-rke2"),
        (own(blue(&["--csi", "wide"])), "--csi", "narrow"),
        (own(blue(&["--unused-days=-1"])), "--unused-days", "-1"),
        (own(vec!["--cluster", "blue", "-A"]), "--all-namespaces", "--list"),
        (with("--server", "http://192.168.7.10:6443"), "--server", "https"),
        (with("--server", "192.168.7.10"), "--server", "https"),
        (with("--server", "https://"), "--server", "host"),
        (with("--server", "https://h:port"), "--server", "port"),
        (with("--server", "https://h:0"), "--server", "port"),
        (with("--server", "https://[::1"), "--server", "bracket"),
        (with("--server", "https://user:pw@h"), "--server", "user"),
        (with("--server", "https://h?a=b"), "--server", "query"),
        (with("--server", "https://h\n"), "--server", "white space"),
        (with("--out", &here), "--out", "name of a file"),
        (with("--out", &nowhere), "--out", "no folder"),
        (own([&guest[..], &["--out", "f", "--dry-run"]].concat()), "--out", "--dry-run"),
        (
            own([&guest[..], &["--out", "f", "--revoke", "old"]].concat()),
            "--out",
            "no cloud config is printed",
        ),
        (with("--certificate-authority", &empty), "--certificate-authority", "no certificate"),
        (with("--certificate-authority", &text), "--certificate-authority", "text.pem"),
        (with("--certificate-authority", &key), "--certificate-authority", "PRIVATE KEY"),
        (with("--certificate-authority", &bad), "--certificate-authority", "bad.pem"),
        (with("--certificate-authority", &none), "--certificate-authority", "none.pem"),
    ];
    let nothing = Path::new("/nonexistent/kubeconfig");
    for (args, option, wrong) in &rows {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let ran = run(nothing, &args).await?;
        ensure!(!ran.ok && ran.out.is_empty(), "{args:?}: {ran:?}");
        ensure!(ran.said.contains(option) && ran.said.contains(wrong), "{args:?}: {}", ran.said);
        ensure!(!ran.said.contains("/nonexistent"), "{args:?}: it went on: {}", ran.said);
    }
    // All faults are reported at once.
    let ran =
        run(nothing, &["--cluster", "B", "--namespace", "N", "--server", "h", "--out", &here])
            .await?;
    for option in ["--cluster", "--namespace", "--server", "--out"] {
        ensure!(ran.said.contains(option), "{option}: {}", ran.said);
    }
    // Valid options are not refused.
    let ran = run(nothing, &[&guest[..], &["--server", URL]].concat()).await?;
    ensure!(!ran.ok && ran.said.contains("/nonexistent"), "{ran:?}");
    Ok(())
}
