//! A tenant whose requests take all seats that the API server has for tenants: API Priority and
//! Fairness gives the operator seats of its own, by the chart's FlowSchemas.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use testbed::eventually;
use tokio::io::AsyncWriteExt as _;
use tokio::time::{interval, sleep, timeout};

use crate::admission::wire::connect;
use crate::support::{BareWrites, Cluster, SOON};

/// Time from one request of the tenant to the next. After some seconds they have all seats: by its
/// defaults the API server has 600, of which 245 are for ServiceAccounts and 121 are lent to them
/// by other priority levels.
const EACH: Duration = Duration::from_millis(20);
/// Connections that the tenant opens at the same time: one after the other, the first would end before
/// the last is open when a machine is slow.
const LANES: u32 = 4;
/// Time of a bare write beyond which the machine explains a lapse of the Lease: a renewal is two calls,
/// which have 4 s (two fifths of the Lease's duration).
const SLOW: Duration = Duration::from_secs(2);
/// Time without an answer after which a request counts as waiting for a seat.
const NO_ANSWER: Duration = Duration::from_secs(3);
/// Duration of the attack: the API server lends seats after 10 s, and the operator's lease duration
/// is 10 s. The API server ends a request whose body does not arrive after 60 s.
const ATTACK: Duration = Duration::from_secs(25);
/// Time between two LoadBalancers.
const BETWEEN: Duration = Duration::from_secs(1);

/// Begins requests whose bodies never arrive, until it is dropped. Every account may send requests
/// of this kind, by Kubernetes' ClusterRole `system:basic-user`.
async fn slow_requests(cluster: &Cluster, token: &str) -> Result<Infallible> {
    let head = format!(
        "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews HTTP/1.1\r\n\
         Host: kubernetes\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
    );
    let (mut pace, mut open) = (interval(LANES * EACH), Vec::new());
    loop {
        pace.tick().await;
        let mut stream = connect(cluster.bed.address()?, cluster.bed.ca_pem(), None).await?;
        stream.write_all(head.as_bytes()).await?;
        stream.flush().await?;
        open.push(stream);
    }
}

/// A client with a new account's token.
async fn account(cluster: &Cluster, name: &str) -> Result<(Client, String)> {
    let account = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    Api::<ServiceAccount>::namespaced(cluster.client.clone(), "default")
        .create(&PostParams::default(), &account)
        .await?;
    let token = cluster.bed.service_account_token("default", name).await?;
    Ok((cluster.bed.client_for(&token).await?, token))
}

async fn waits_for_a_seat(client: &Client) -> bool {
    timeout(NO_ANSWER, client.apiserver_version()).await.is_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_takes_all_seats_of_tenants_delays_no_address() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let operator = cluster.operator().await?;
    let (_, token) = account(&cluster, "slow").await?;
    let (other, _) = account(&cluster, "other").await?;
    other.apiserver_version().await.context("a request before the attack")?;

    let (test_start, bare) = (Instant::now(), BareWrites::start(&cluster.client));
    let served = async {
        let begin = Instant::now();
        eventually(SOON, "requests of other tenants that wait", async || {
            anyhow::Ok(waits_for_a_seat(&other).await)
        })
        .await?;
        let mut slowest = Duration::ZERO;
        for i in 0.. {
            let since = Instant::now();
            cluster.lb(&format!("lb-{i}")).await?;
            cluster.address(&format!("lb-{i}")).await?;
            slowest = slowest.max(since.elapsed());
            if begin.elapsed() > ATTACK {
                break;
            }
            sleep(BETWEEN).await;
        }
        ensure!(waits_for_a_seat(&other).await, "the attack ended before the last address");
        Ok(slowest)
    };
    let attack = try_join_all((0..LANES).map(|_| slow_requests(&cluster, &token)));
    tokio::select! {
        slowest = served => println!("an address came after {:?} at most", slowest?),
        failed = attack => drop(failed?),
    }

    let (slowest, log) = (bare.longest(test_start, Instant::now()), operator.process.log());
    let lapsed = log.contains("controllers stopped");
    ensure!(!lapsed || slowest > SLOW, "it stopped leading, bare writes took {slowest:?}:\n{log}");
    cluster.consistent().await
}
