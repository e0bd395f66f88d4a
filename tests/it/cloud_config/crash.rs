//! Writes that fail: whatever was done before, the same command goes on from there.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use kube::ResourceExt as _;
use testbed::{Proxy, Verdict};

use super::{Harvester, Ran, run, who};

/// The administrator's way through the proxy.
fn through(harvester: &Harvester, proxy: &Proxy) -> Result<PathBuf> {
    let kubeconfig = std::fs::read_to_string(&harvester.kubeconfig)?;
    let token = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("token: "));
    let token = token.unwrap_or_default().trim_matches(['"', '\'']);
    harvester.cluster.bed.kubeconfig_for(token, proxy.url(), proxy.ca_pem())
}

/// Runs the command; its write of that number meets the verdict.
async fn failing(
    harvester: &Harvester,
    proxy: &Proxy,
    at: usize,
    verdict: Verdict,
    args: &[&str],
) -> Result<(Ran, usize)> {
    let writes = Arc::new(AtomicUsize::new(0));
    let count = writes.clone();
    proxy.set_rule(move |call| {
        let this = if call.is_write() { count.fetch_add(1, Ordering::SeqCst) } else { usize::MAX };
        if this == at { verdict.clone() } else { Verdict::Pass }
    });
    let all = [&["--namespace", "guests", "--server", harvester.cluster.bed.url()], args].concat();
    let ran = run(&through(harvester, proxy)?, &all).await?;
    Ok((ran, writes.load(Ordering::SeqCst)))
}

/// A write that was not carried out, and one whose answer was lost.
fn verdicts() -> [Verdict; 2] {
    let message = "not now".to_owned();
    [Verdict::Refuse { code: 500, reason: "InternalError", message }, Verdict::CutAfter]
}

#[tokio::test(flavor = "multi_thread")]
async fn each_write_may_fail() -> Result<()> {
    let harvester = Harvester::start().await?;
    let proxy = Proxy::start(&harvester.cluster.bed).await?;
    let mut rounds = 0;
    for verdict in verdicts() {
        for at in 0.. {
            rounds += 1;
            let cluster = format!("c{rounds}");
            let make = ["--cluster", &cluster, "--csi", "narrow"];
            let (ran, writes) = failing(&harvester, &proxy, at, verdict.clone(), &make).await?;
            ensure!(ran.ok == (writes <= at), "{at} {verdict:?}: {ran:?}");
            let config = harvester.done(&make).await?;
            ensure!(who(&config).await?.is_some(), "{at} {verdict:?}: {config}");
            let tokens = harvester.tokens(&cluster).await?;
            ensure!(
                tokens.len() == 1 && tokens[0].name_any() == format!("{cluster}-token"),
                "{at} {verdict:?}"
            );
            ensure!(harvester.done(&make).await? == config);
            if ran.ok {
                ensure!(at >= 7, "only {at} writes failed");
                break;
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_deletion_may_fail() -> Result<()> {
    let harvester = Harvester::start().await?;
    let proxy = Proxy::start(&harvester.cluster.bed).await?;
    let mut rounds = 0;
    for verdict in verdicts() {
        for at in 0.. {
            rounds += 1;
            let cluster = format!("c{rounds}");
            let make = ["--cluster", &cluster];
            let revoke = ["--cluster", &cluster, "--revoke", "all"];
            let config = harvester.done(&make).await?;
            let (ran, writes) = failing(&harvester, &proxy, at, verdict.clone(), &revoke).await?;
            ensure!(ran.ok == (writes <= at), "{at} {verdict:?}: {ran:?}");
            harvester.done(&revoke).await?;
            ensure!(harvester.tokens(&cluster).await?.is_empty(), "{at} {verdict:?}");
            let list = harvester.done(&["--list"]).await?;
            ensure!(!list.contains(&format!(" {cluster} ")), "{at} {verdict:?}: {list}");
            if ran.ok {
                ensure!(at >= 3, "only {at} deletions failed");
                harvester.dead(&config).await?;
                break;
            }
        }
    }
    Ok(())
}

/// After a rotation that failed somewhere there is never a moment without a token that works.
#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_may_fail() -> Result<()> {
    let harvester = Harvester::start().await?;
    let proxy = Proxy::start(&harvester.cluster.bed).await?;
    let mut rounds = 0;
    for verdict in verdicts() {
        for at in 0.. {
            rounds += 1;
            let cluster = format!("c{rounds}");
            let first = harvester.done(&["--cluster", &cluster]).await?;
            ensure!(who(&first).await?.is_some());
            let leaked = ["--cluster", &cluster, "--rotate", "--revoke", "old"];
            let (ran, writes) = failing(&harvester, &proxy, at, verdict.clone(), &leaked).await?;
            ensure!(ran.ok == (writes <= at), "{at} {verdict:?}: {ran:?}");
            if ran.out.is_empty() {
                ensure!(who(&first).await?.is_some(), "{at} {verdict:?}: nothing works");
            } else {
                ensure!(
                    who(&ran.out).await?.is_some(),
                    "{at} {verdict:?}: the new one does not work"
                );
            }
            let last = harvester.done(&leaked).await?;
            ensure!(who(&last).await?.is_some() && harvester.tokens(&cluster).await?.len() == 1);
            if ran.ok {
                ensure!(at >= 3, "only {at} writes failed");
                harvester.dead(&first).await?;
                break;
            }
        }
    }
    Ok(())
}
