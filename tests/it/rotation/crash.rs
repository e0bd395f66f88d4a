//! Faults during a rotation: the operator is killed after each single write and started again, its
//! API server fails, conflicts and is slow, and two operators both lead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use testbed::{Proxy, Start, Verdict, eventually};

use super::fixture::{Consumer, behind_proxy, cluster, spec, start};
use crate::crash::{Last, cut_after};
use crate::support::{Cluster, LATER, SOON};

const KINDS: [&str; 3] = ["tokenrotations", "secrets", "serviceaccounts"];

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_survives_a_crash_after_each_write() -> Result<()> {
    enumerate(Last::Answered).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_survives_a_crash_after_each_write_whose_answer_is_lost() -> Result<()> {
    enumerate(Last::Unanswered).await
}

async fn enumerate(last: Last) -> Result<()> {
    let cluster = cluster().await?;
    let proxy = Proxy::start(&cluster.bed).await?;
    cluster.put(&cluster.kubeconfig()).await?;
    cluster.rotation(spec(&[])).await?;
    let mut operator = cluster.standby(start()).await?;
    operator.leads().await?;
    cluster.published(1).await?;
    cluster.one_is_left().await?;
    operator.process.terminate(SOON).await?;
    let mut writes = 0;
    while crashes_after(&cluster, &proxy, last, writes).await? {
        writes += 1;
    }
    assert!(writes >= 7, "a rotation took only {writes} writes: were all observed?");
    println!("{last:?}: crashed after each of {writes} writes");
    Ok(())
}

/// Crashes the operator after so many writes. Returns whether that interrupted the rotation.
async fn crashes_after(
    cluster: &Cluster,
    proxy: &Proxy,
    last: Last,
    writes: usize,
) -> Result<bool> {
    proxy.clear_rule();
    let via = Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    let mut operator = cluster.standby(Start { via, ..start() }).await?;
    operator.leads().await?;
    let before = cluster.status().await?;
    let old = cluster.token().await?;
    let request = format!("{last:?}-{writes}");
    let cut = cut_after(proxy, &KINDS, last, writes);
    cluster.annotate("rotate", &request).await?;
    let cut_short = cluster.ends_or_is_cut(&request, &cut, writes + 1).await?;
    // The token in the target works at every moment.
    cluster.works(&cluster.token().await?).await?;
    operator.process.kill9()?;
    proxy.clear_rule();
    let _ = cluster.free_lease().await;
    let mut operator = cluster.standby(start()).await?;
    operator.leads().await?;
    cluster
        .says(&format!("{request} carried out"), |status| {
            status.rotate_request.as_ref() == Some(&request) && status.serial > before.serial
        })
        .await?;
    cluster.one_is_left().await?;
    assert_ne!(cluster.token().await?, old, "{request}");
    operator.process.terminate(SOON).await?;
    Ok(cut_short)
}

/// Six of every 53 calls are refused, cut or late.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_fails_costs_nothing_but_time() -> Result<()> {
    let cluster = cluster().await?;
    let (proxy, _operator) = behind_proxy(&cluster).await?;
    let overlap = Duration::from_secs(8);
    cluster.rotation(spec(&[("overlapSeconds", json!(8))])).await?;
    cluster.published(1).await?;
    let count = AtomicU64::new(0);
    proxy.set_rule(move |call| {
        let ours = call.resource().is_some_and(|resource| KINDS.contains(&resource));
        if call.is_watch() || !ours {
            return Verdict::Pass;
        }
        let refuse = |code, reason| Verdict::Refuse { code, reason, message: "no".to_owned() };
        match count.fetch_add(1, Ordering::Relaxed) % 53 {
            1 => refuse(500, "InternalError"),
            4 => refuse(409, "Conflict"),
            11 => refuse(503, "ServiceUnavailable"),
            17 => Verdict::CutAfter,
            29 => Verdict::CutBefore,
            41 => Verdict::Delay(Duration::from_millis(700)),
            _ => Verdict::Pass,
        }
    });
    let consumer = Consumer::default();
    let rotate = async {
        for number in 1..=4 {
            let request = number.to_string();
            cluster.annotate("rotate", &request).await?;
            let is = |s: &harvester_guest_operator::api::TokenRotationStatus| {
                s.rotate_request.as_ref() == Some(&request)
            };
            cluster.says("a rotation in spite of it", is).await?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        end = consumer.run(&cluster, overlap) => end?,
        end = rotate => end?,
    }
    proxy.clear_rule();
    cluster.one_is_left().await
}

/// The restart of the workload fails once. So the condition Ready is written in the overlap, and that
/// write ends after the overlap.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_write_of_the_status_delays_no_revocation() -> Result<()> {
    let cluster = cluster().await?;
    let (proxy, _operator) = behind_proxy(&cluster).await?;
    let restart = json!([{"kind": "Deployment", "name": "ccm"}]);
    let parts = [("overlapSeconds", json!(4)), ("restartWorkloads", restart)];
    cluster.rotation(spec(&parts)).await?;
    cluster.says("first restart", |status| status.restarted_for.is_some()).await?;
    let is_refused = Arc::new(AtomicBool::new(false));
    let refused = is_refused.clone();
    proxy.set_rule(move |call| match call.resource() {
        Some("deployments") if !is_refused.swap(true, Ordering::Relaxed) => {
            let message = "no".to_owned();
            Verdict::Refuse { code: 403, reason: "Forbidden", message }
        }
        Some("tokenrotations") if call.is_write() && is_refused.load(Ordering::Relaxed) => {
            Verdict::Delay(Duration::from_secs(3))
        }
        _ => Verdict::Pass,
    });
    cluster.annotate("rotate", "1").await?;
    cluster.published(2).await?;
    cluster.one_is_left().await?;
    ensure!(refused.load(Ordering::Relaxed), "no restart failed");
    Ok(())
}

/// Two operators, each the leader by a Lease of its own.
#[tokio::test(flavor = "multi_thread")]
async fn two_leaders_leave_one_credential() -> Result<()> {
    let cluster = cluster().await?;
    let first = cluster.standby(start()).await?;
    first.leads().await?;
    let _second = cluster.second_leader(start()).await?;
    cluster.put(&cluster.kubeconfig()).await?;
    cluster.rotation(spec(&[("overlapSeconds", json!(8))])).await?;
    cluster.published(1).await?;
    let consumer = Consumer::default();
    let rotate = async {
        for number in 1..=5 {
            let request = number.to_string();
            cluster.annotate("rotate", &request).await?;
            eventually(LATER, "a rotation", async || {
                let status = cluster.status().await?;
                anyhow::Ok(status.rotate_request.as_ref() == Some(&request))
            })
            .await?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        end = consumer.run(&cluster, Duration::from_secs(8)) => end?,
        end = rotate => end?,
    }
    cluster.one_is_left().await
}
