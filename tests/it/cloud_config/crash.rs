//! Writes that fail: the same command completes the work of a failed run.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::domain::credentials::guest_account::{
    KindAndName, ObjectKind, ObjectRemoval,
};
use harvester_guest_operator::k8s::CallError;
use harvester_guest_operator::k8s::cloud_config::GuestCredentials;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::{Proxy, Verdict};

use super::{Harvester, Ran, run, who, yaml};

/// Kubeconfig of the administrator through the proxy.
fn through(harvester: &Harvester, proxy: &Proxy) -> Result<PathBuf> {
    let kubeconfig = std::fs::read_to_string(&harvester.kubeconfig)?;
    let token = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("token: "));
    let token = token.unwrap_or_default().trim_matches(['"', '\'']);
    harvester.cluster.bed.kubeconfig_for(token, proxy.url(), proxy.ca_pem())
}

/// Runs the command; the proxy applies the verdict to its write number `at`. Returns also the
/// number of writes.
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

/// Verdicts of a write that was not carried out, and of one whose answer was lost.
fn verdicts() -> [Verdict; 2] {
    let message = "not now".to_owned();
    [Verdict::Refuse { code: 500, reason: "InternalError", message }, Verdict::CutAfter]
}

#[tokio::test(flavor = "multi_thread")]
async fn each_write_may_fail() -> Result<()> {
    let harvester = Harvester::start().await?;
    let proxy = Proxy::start(&harvester.cluster.bed).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(harvester.client(), "guests");
    let mut rounds = 0;
    for verdict in verdicts() {
        for at in 0.. {
            rounds += 1;
            let cluster = format!("c{rounds}");
            let make = ["--cluster", &cluster];
            let (ran, writes) = failing(&harvester, &proxy, at, verdict.clone(), &make).await?;
            ensure!(ran.ok == (writes <= at), "{at} {verdict:?}: {ran:?}");
            // Only a token that is made with its account has the first name. Without a token
            // Secret, an account that exists looks as if its first one had been deleted by hand.
            let is_new = accounts.get_opt(&cluster).await?.is_none();
            let is_made = !harvester.tokens(&cluster).await?.is_empty();
            let config = harvester.done(&make).await?;
            ensure!(who(&config).await?.is_some(), "{at} {verdict:?}: {config}");
            let tokens = harvester.tokens(&cluster).await?;
            ensure!(tokens.len() == 1, "{at} {verdict:?}: {} tokens", tokens.len());
            let has_first_name = tokens[0].name_any() == format!("{cluster}-token");
            ensure!(has_first_name == (is_new || is_made), "{at} {verdict:?}");
            let token = harvester.token_for_the_ui(&cluster).await?;
            ensure!(yaml(&config)?["users"][0]["user"]["token"] == token, "{at} {verdict:?}");
            ensure!(harvester.done(&make).await? == config);
            // After every failed run, a new guest has narrow rights.
            let wide = Api::<ClusterRoleBinding>::all(harvester.client());
            let role = wide.get(&format!("guests-{cluster}")).await?.role_ref.name;
            ensure!(role.ends_with(":csi-cluster"), "{at} {verdict:?}: {role}");
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

/// A conflict makes the command read the object again.
#[tokio::test(flavor = "multi_thread")]
async fn a_concurrent_change_is_read_again() -> Result<()> {
    let harvester = Harvester::start().await?;
    let proxy = Proxy::start(&harvester.cluster.bed).await?;
    let message = "changed".to_owned();
    let conflict = Verdict::Refuse { code: 409, reason: "Conflict", message };
    let mut rounds = 0;
    loop {
        let cluster = format!("c{rounds}");
        let make = ["--cluster", &cluster, "--csi", "harvester", "--skip-check"];
        let (ran, creations) = failing(&harvester, &proxy, rounds, conflict.clone(), &make).await?;
        ensure!(ran.ok && who(&ran.out).await?.is_some(), "{rounds}: {ran:?}");
        let revoke = ["--cluster", &cluster, "--revoke", "all"];
        let (ran, deletions) =
            failing(&harvester, &proxy, rounds, conflict.clone(), &revoke).await?;
        ensure!(ran.ok, "{rounds}: {ran:?}");
        let list = harvester.done(&["--list"]).await?;
        ensure!(!list.contains(&format!(" {cluster} ")), "{rounds}: {list}");
        if creations.max(deletions) <= rounds {
            ensure!(rounds >= 4, "only {rounds} writes were refused");
            return Ok(());
        }
        rounds += 1;
    }
}

/// A deletion does not remove another object of the name, or a changed one.
#[tokio::test(flavor = "multi_thread")]
async fn only_what_was_seen_is_deleted() -> Result<()> {
    let harvester = Harvester::start().await?;
    harvester.done(&["--cluster", "blue"]).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(harvester.client(), "guests");
    let account = accounts.get("blue").await?;
    let (namespace, name) = (Some("guests".to_owned()), "blue".to_owned());
    let seen = ObjectRemoval {
        object: KindAndName { kind: ObjectKind::ServiceAccount, namespace, name },
        uid: account.uid().unwrap_or_default(),
        version: account.resource_version().unwrap_or_default(),
    };
    let hand = GuestCredentials::new(harvester.client());
    let another =
        ObjectRemoval { uid: "00000000-0000-4000-8000-000000000000".to_owned(), ..seen.clone() };
    for removal in [another, ObjectRemoval { version: "1".to_owned(), ..seen.clone() }] {
        let answer = hand.remove(&removal).await;
        ensure!(matches!(answer, Err(CallError::Conflict(_))), "{removal:?}: {answer:?}");
        ensure!(accounts.get_opt("blue").await?.is_some(), "{removal:?}");
    }
    hand.remove(&seen).await?;
    ensure!(accounts.get_opt("blue").await?.is_none());
    Ok(())
}

/// Kubernetes fills a token's Secret a moment after its creation.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_filled_yet_has_no_token() -> Result<()> {
    let harvester = Harvester::start().await?;
    let hand = GuestCredentials::new(harvester.client());
    let put = async |data: Value| {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "stringData": data,
            "metadata": {"name": "slow", "namespace": "guests"}});
        harvester.cluster.bed.apply_yaml(&secret.to_string()).await
    };
    ensure!(hand.material("guests", "slow").await?.is_none(), "there is no Secret");
    for data in [json!({}), json!({"ca.crt": "authority"})] {
        put(data.clone()).await?;
        ensure!(hand.material("guests", "slow").await?.is_none(), "{data}");
    }
    put(json!({"ca.crt": "authority", "token": "t"})).await?;
    let material = hand.material("guests", "slow").await?.context("it is filled")?;
    ensure!(material.token.as_str() == "t" && material.authority == b"authority");
    Ok(())
}

/// A working token exists at every moment of a rotation, whichever write failed.
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
                ensure!(who(&first).await?.is_some(), "{at} {verdict:?}: no token works");
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
