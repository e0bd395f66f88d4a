//! An API server that falls silent: open connections stay open without a byte. New ones are
//! accepted, as by another API server of the cluster.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use testbed::{Operator, Proxy, Stalls, Start};

use crate::support::{Cluster, SERVED_AGAIN, beside_bare_writes, shows};

async fn behind(cluster: &Cluster) -> Result<(Proxy, Operator)> {
    let proxy = Proxy::start(&cluster.bed).await?;
    let via = Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    // Long enough that a slow machine does not end the term: the limit is that of an address.
    let options = ["--lease-duration", "30"].map(str::to_owned).to_vec();
    let operator = cluster.standby(Start { via, options, ..Start::default() }).await?;
    operator.leads().await?;
    Ok((proxy, operator))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_api_server_costs_fifteen_seconds_at_most() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", serde_json::json!({"subnet": "10.1.0.0/24"})).await?;
    let (proxy, operator) = behind(&cluster).await?;
    cluster.lb("before").await?;
    cluster.address("before").await?;
    let terms = operator.process.log().matches("controllers stopped").count();

    let stalls = Stalls::watch()?;
    let silences = async {
        // No call is under way: each watch, each idle connection and that of the Lease fall silent.
        proxy.freeze_all();
        let since = Instant::now();
        cluster.lb("after").await?;
        cluster.address("after").await?;
        let idle = stalls.elapsed(since);

        // In the middle of a burst: pending calls never get an answer.
        let since = Instant::now();
        let burst = cluster.lbs_at_once((0..40).map(|i| format!("lb-{i}")));
        let freeze = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            proxy.freeze_all();
            anyhow::Ok(())
        };
        tokio::try_join!(burst, freeze)?;
        cluster.addressed(42).await?;
        Ok((idle, stalls.elapsed(since)))
    };
    let ((idle, busy), most) =
        beside_bare_writes(&cluster, &stalls, SERVED_AGAIN, silences).await?;
    println!("served {idle:?} after a silence, and {busy:?} after one in a burst of 40");
    ensure!(idle < most && busy < most, "{idle:?} and {busy:?}, more than {most:?}");

    let log = operator.process.log();
    ensure!(log.matches("controllers stopped").count() == terms, "it stopped leading:\n{log}");
    // Every kind is watched again.
    let staleness = "hgo_watch_staleness_seconds";
    shows(&operator, staleness, &["loadbalancers"], |seconds| seconds <= 10.0).await?;
    shows(&operator, staleness, &["ippools"], |seconds| seconds <= 10.0).await?;
    cluster.consistent().await
}
