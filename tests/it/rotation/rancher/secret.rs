//! The `rancher-secret` command: it tries an API key before it prints the Secret for a TokenRotation of
//! all. With that Secret all are renewed: see documents/steps.rs.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::domain::credentials::rancher_secret::checksum;
use testbed::Rancher;
use testbed::rancher::Version;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// Outcome of a run of the command.
pub(super) struct Ran {
    pub(super) ok: bool,
    pub(super) out: String,
    pub(super) said: String,
}

/// Runs the command with this API key.
pub(super) async fn run(args: &[&str], key: &str) -> Result<Ran> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_harvester-guest-operator"))
        .args(["--log", "trace", "rancher-secret"])
        .args(args)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut input = command.stdin.take().context("no input")?;
    input.write_all(key.as_bytes()).await?;
    drop(input);
    let output = command.wait_with_output().await?;
    let said = String::from_utf8(output.stderr)?;
    let secret = key.trim().split_once(':').map_or(key, |(_, secret)| secret);
    ensure!(secret.is_empty() || !said.contains(secret), "the key is in the messages of {args:?}");
    Ok(Ran { ok: output.status.success(), out: String::from_utf8(output.stdout)?, said })
}

/// Runs the command, which must fail with these words and print nothing to stdout.
pub(super) async fn refused(args: &[&str], key: &str, words: &[&str]) -> Result<String> {
    let Ran { ok, out, said } = run(args, key).await?;
    ensure!(!ok && out.is_empty(), "{args:?}: not refused: {out}");
    for word in words {
        ensure!(said.contains(word), "{args:?}: {word:?} is not in {said}");
    }
    Ok(said)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_key_is_tried_out_before_its_secret_is_printed() -> Result<()> {
    let there = Rancher::start(Version::V2_11).await?;
    let (user, admin) = (there.user(false), there.user(true));
    there.cluster("c-m-prod", "prod", &[&user]);
    let sum = checksum(there.ca_pem());
    let (url, of_it) = (["--url", there.url()], ["--ca-checksum", sum.as_str()]);
    let right = [&url[..], &of_it[..]].concat();
    let good = there.api_key(&user, 0, "by hand");

    // The key is not sent to a server whose certificate is not verified.
    let said = refused(&url, &good, &["--ca-checksum", &sum, "compare it with"]).await?;
    ensure!(!said.contains("standard input"), "{said}");
    let other = checksum("another");
    let wrong = [&url[..], &["--ca-checksum", &other]].concat();
    refused(&wrong, &good, &["--ca-checksum", &sum, "another server"]).await?;
    let calls = there.calls();
    ensure!(!calls.is_empty() && calls.iter().all(|one| one.call.path == "/cacerts"), "{calls:#?}");

    refused(&["--url", "http://rancher"], &good, &["--url", "must be https://"]).await?;
    refused(&right, "", &["standard input", "Bearer Token"]).await?;
    let halves = good.split_once(':').context("no key")?;
    refused(&right, halves.1, &["standard input", "Bearer Token"]).await?;
    let not_accepted = "the API key is not accepted";
    refused(&right, &format!("{}:{}", halves.0, "x".repeat(54)), &[not_accepted]).await?;
    let scoped = there.scoped_key(&user, 0, "c-m-prod");
    refused(&right, &scoped, &[not_accepted, "one cluster only"]).await?;
    let closed = refused(&["--url", "https://127.0.0.1:1"], &good, &["--url", "no answer"]).await?;
    ensure!(!closed.contains("--ca-checksum"), "{closed}");

    // The key works, and its user is not the owner of the credentials.
    let content = there.kubeconfig(&user, "c-m-prod");
    there.credential(&user, "prod", "c-m-prod", &content)?;
    let ran = run(&right, &there.api_key(&admin, 0, "by hand")).await?;
    ensure!(ran.ok, "{}", ran.said);
    for words in
        [&admin, "made: 0", "others made, which are only watched: 1", "none can be renewed"]
    {
        ensure!(ran.said.contains(words), "{words}: {}", ran.said);
    }
    let ran = run(&right, &good).await?;
    ensure!(
        ran.ok && ran.said.contains("made: 1") && ran.said.contains("expires on "),
        "{}",
        ran.said
    );
    Ok(())
}
