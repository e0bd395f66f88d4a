//! Certificates and replicas are replaced, and no call is refused: the API server sends up to 200
//! calls a second meanwhile. A long run replaces certificates again and again.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::domain::admission::certificates::{AUTHORITY_LIFE, SERVING_LIFE};
use harvester_guest_operator::http::certificates::CertificateMaterial;
use kube::api::DeleteParams;
use testbed::{Balancer, Operator, eventually};
use tokio::time::sleep;

use super::{Load, SECRET, answered, itself, names, now, through};
use crate::support::{Cluster, LATER, SOON};

const RATE: u32 = 200;

/// Two registered replicas behind one address.
async fn pair(cluster: &Cluster) -> Result<(Balancer, [Operator; 2])> {
    let balancer = Balancer::start().await?;
    let operators = [replica(cluster, &balancer).await?, replica(cluster, &balancer).await?];
    cluster.registered().await?;
    Ok((balancer, operators))
}

async fn replica(cluster: &Cluster, balancer: &Balancer) -> Result<Operator> {
    let operator = cluster.standby(through(balancer)).await?;
    let traffic = operator.admission.context("no admission")?;
    balancer.add(traffic, operator.http);
    operator.ready().await?;
    eventually(SOON, "traffic to it", async || anyhow::Ok(balancer.leads_to(traffic))).await?;
    Ok(operator)
}

/// Replaces a replica as a Deployment does: its pod is deleted, and another one becomes ready.
async fn replace(cluster: &Cluster, balancer: &Balancer, operator: &mut Operator) -> Result<()> {
    balancer.delete(operator.admission.context("no admission")?);
    let ended = operator.process.terminate(SOON).await?;
    ensure!(ended.success(), "{ended}");
    *operator = replica(cluster, balancer).await?;
    Ok(())
}

/// Waits until an operator serves a certificate that ends no sooner than that.
async fn serves(operator: &Operator, end: Duration) -> Result<()> {
    eventually(LATER, "new certificate", async || {
        let name = "hgo_certificate_expiration_timestamp_seconds";
        let found = operator.metric(name, &["serving"]).await?;
        anyhow::Ok(found >= end.as_secs_f64())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_serving_certificate_is_renewed_without_a_refused_call() -> Result<()> {
    let cluster = Cluster::start().await?;
    let (_balancer, operators) = pair(&cluster).await?;
    let load = Load::start(&cluster.client, RATE)?;
    let mut renewals = 0;
    while renewals < 3 || load.goes_on() {
        sleep(Duration::from_secs(1)).await;
        // A certificate that is about to end, by the same authority.
        let near = (now() + Duration::from_mins(2)).saturating_sub(SERVING_LIFE);
        let stored = cluster.material().await?;
        cluster.store(stored.renewed(near, &names())?.data()).await?;
        for operator in &operators {
            serves(operator, now() + SERVING_LIFE / 2).await?;
        }
        renewals += 1;
    }
    let sent = load.end().await?;
    let passed = f64::from(u32::try_from(sent.passed())?);
    // A replica may count an answer a moment after the API server has it.
    let asked = eventually(SOON, "count of all answers", async || {
        let asked = answered(&operators[0]).await? + answered(&operators[1]).await?;
        ensure!(asked >= passed, "{asked} answered, {passed} passed");
        anyhow::Ok(Some(asked))
    })
    .await?;
    println!("serving certificate renewed {renewals} times: {sent}, {asked} answered");
    Ok(())
}

/// An authority that ends in some minutes, and a certificate that it signed.
fn near_its_end() -> Result<CertificateMaterial> {
    let near = (now() + Duration::from_secs(200)).saturating_sub(AUTHORITY_LIFE);
    Ok(CertificateMaterial::start(near, &names(), "")?.renewed(now(), &names())?)
}

/// Waits until the authority in the Secret is a new one.
async fn authority_is_new(cluster: &Cluster) -> Result<()> {
    eventually(LATER, "new authority", async || {
        let (end, _) = cluster.material().await?.expiries();
        anyhow::Ok(end > now() + AUTHORITY_LIFE / 2)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_is_replaced_without_a_refused_call() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.store(near_its_end()?.data()).await?;
    let (_balancer, operators) = pair(&cluster).await?;
    let load = Load::start(&cluster.client, RATE)?;
    for operator in &operators {
        serves(operator, now() + SERVING_LIFE / 2).await?;
    }
    let switched = cluster.material().await?;
    ensure!(switched.bundle().matches("BEGIN").count() == 2, "the old one is no longer trusted");
    let mut changes = 1;
    while load.goes_on() {
        cluster.store(near_its_end()?.data()).await?;
        authority_is_new(&cluster).await?;
        for operator in &operators {
            serves(operator, now() + SERVING_LIFE / 2).await?;
        }
        changes += 1;
    }
    sleep(Duration::from_secs(5)).await;
    let sent = load.end().await?;
    println!("authority replaced {changes} times: {sent}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_replaced_without_a_refused_call() -> Result<()> {
    let cluster = Cluster::start().await?;
    let (balancer, mut operators) = pair(&cluster).await?;
    let load = Load::start(&cluster.client, RATE)?;
    for operator in &mut operators {
        sleep(Duration::from_secs(1)).await;
        replace(&cluster, &balancer, operator).await?;
    }
    let sent = load.end().await?;
    println!("both replicas replaced: {sent}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_is_lost_or_spoiled_comes_back_without_a_refused_call() -> Result<()> {
    let cluster = Cluster::start().await?;
    let (balancer, mut operators) = pair(&cluster).await?;
    let load = Load::start(&cluster.client, RATE)?;
    let before = cluster.stored().await?;
    let back = async || {
        eventually(SOON, "Secret", async || {
            Ok::<_, anyhow::Error>(cluster.stored().await? == before)
        })
        .await
    };
    // Emptied; then deleted, which only the installation can repair.
    cluster.store(harvester_guest_operator::http::certificates::Data::default()).await?;
    back().await?;
    cluster.secrets().delete(SECRET, &DeleteParams::default()).await?;
    for operator in &operators {
        let word = "Secret harvester-guest-operator-admission is missing";
        eventually(SOON, "log of it", async || operator.process.log().contains(word)).await?;
    }
    cluster.reinstalled().await?;
    back().await?;
    for spoiled in ["", "rubbish"] {
        let mut data = before.clone();
        data.insert("ca.crt".to_owned(), spoiled.as_bytes().to_vec());
        cluster.store(data).await?;
        back().await?;
    }
    // A Secret by a foreign authority: served certificates stay trusted while replicas switch to
    // it. Then an old content, as from a backup.
    let foreign = CertificateMaterial::start(now(), &names(), "")?;
    for (what, data) in [("foreign", foreign.data()), ("old", before.clone())] {
        let adopted = |operator: &Operator| {
            operator.process.log().matches("admission serves a new certificate").count()
        };
        let so_far = [adopted(&operators[0]), adopted(&operators[1])];
        cluster.store(data).await?;
        for (operator, so_far) in operators.iter().zip(so_far) {
            eventually(SOON, &format!("{what} certificate in use"), async || {
                if adopted(operator) > so_far { Ok(true) } else { Err(operator.recent_log()) }
            })
            .await?;
        }
        cluster.registered().await?;
    }
    // And one replica without state.
    replace(&cluster, &balancer, &mut operators[0]).await?;
    let sent = load.end().await?;
    println!("Secret lost, spoiled, foreign and old: {sent}");
    Ok(())
}

/// libfaketime plays the clock. `make test` installs it; without it the test is skipped.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_a_year_ahead_renews_everything() -> Result<()> {
    let library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
    if !Path::new(library).exists() {
        println!("skipped: there is no {library}");
        return Ok(());
    }
    let cluster = Cluster::start().await?;
    let mut operator = cluster.standby(itself()).await?;
    operator.ready().await?;
    cluster.registered().await?;
    operator.process.terminate(SOON).await?;
    let old = cluster.material().await?;

    let balancer = Balancer::start().await?;
    let mut start = through(&balancer);
    start.variables =
        [("LD_PRELOAD", library), ("FAKETIME", "+366d"), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec();
    let operator = cluster.standby(start).await?;
    balancer.add(operator.admission.context("no admission")?, operator.http);
    operator.ready().await?;
    let load_starts_when_called = super::Probe::new(&cluster.client)?;
    eventually(SOON, "answer of admission", async || load_starts_when_called.once().await.is_ok())
        .await?;
    // The API server's clock is right: it accepts the old certificates and the new ones.
    let load = Load::start(&cluster.client, 50)?;
    serves(&operator, now() + AUTHORITY_LIFE + SERVING_LIFE / 2).await?;
    let new = cluster.material().await?;
    ensure!(new.expiries().0 > old.expiries().0, "the authority is the old one");
    sleep(Duration::from_secs(2)).await;
    let sent = load.end().await?;
    println!("clock a year ahead: everything renewed, {sent}");
    Ok(())
}
