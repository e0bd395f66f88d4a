//! VMs that the leader does not reach, and another replica does, or does not either.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};

use anyhow::Result;
use harvester_guest_operator::api::{ANNOTATION_LEASE_ANSWER, ANNOTATION_LEASE_QUESTION};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use testbed::kubevirt::Guest;
use testbed::net::{Netns, isolated};
use testbed::{Announcer, Announcing, Start, eventually};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use super::{SINK, version, vm};
use crate::support::{Cluster, SOON, ready, shows};

const LBS: [&str; 4] = ["a", "b", "c", "d"];
/// Addresses of VMs. In each network this host answers for them, on its listening ports.
const VMS: &str = "local 10.210.0.0/16 dev lo";
const PORT: u16 = 8080;
const DOUBTED: &str = "hgo_probe_targets_doubted";

/// The leader's node loses its route to the VMs: another replica reports them healthy. Then they
/// die, and it reports that.
#[test]
fn vms_that_another_replica_reaches_stay_in_and_those_that_it_does_not_go_out() -> Result<()> {
    isolated(async |here: Netns| {
        let away = Netns::new("away").await?;
        here.ip(&format!("route add {VMS}")).await?;
        away.ip(&format!("route add {VMS}")).await?;
        let backends = [listen(&here).await?, listen(&away).await?];
        let cluster = Cluster::start().await?;
        let _way = way_to_the_api_server(&cluster, &away).await?;
        cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
        let _announcer = Announcer::start(cluster.client.clone(), Announcing::default());
        let start = |identity: &str, node: &str| Start {
            identity: Some(identity.to_owned()),
            options: ["--node", node].map(str::to_owned).to_vec(),
            ..Start::default()
        };
        let leader = cluster.standby(start("one", "node-1")).await?;
        leader.leads().await?;
        for (number, lb) in LBS.into_iter().enumerate() {
            for at in 1..=2 {
                let address = format!("10.210.{number}.{at}");
                let vm = vm(lb, &format!("{lb}-{at}"), &address);
                Guest::run(&cluster.client, vm, "node-1").await?;
            }
            let spec = json!({
                "backendServerSelector": {"app": [lb]},
                "listeners": [{"name": "http", "port": 80, "backendPort": PORT}],
                "healthCheck": {"port": PORT, "periodSeconds": 1, "timeoutSeconds": 1},
            });
            cluster.lb_with(lb, spec).await?;
        }
        for lb in LBS {
            cluster.waits_for_endpoints(lb, (2, 2)).await?;
            cluster.serves(lb, "Announced").await?;
        }
        let follower = Start { within: Some(away.clone()), ..start("two", "node-2") };
        let follower = cluster.standby(follower).await?;
        eventually(SOON, "ready follower", async || is_ready(&away, follower.http).await).await?;
        let before = slices(&cluster).await?;

        here.ip(&format!("route del {VMS}")).await?;
        for lb in LBS {
            let expected =
                "two on node node-2 reaches them and the leader, one on node node-1, does not";
            eventually(SOON, &format!("second opinion of {lb}"), async || {
                let is = ready(&cluster.lbs().get(lb).await.map_err(|e| e.to_string())?);
                let is_reported =
                    is.0 == "True" && is.1 == "ProberDoubted" && is.2.contains(expected);
                if is_reported { Ok(true) } else { Err(format!("{is:?}")) }
            })
            .await?;
        }
        shows(&leader, DOUBTED, &["reached"], |count| count == 8.0).await?;
        noted(&cluster, "ProberContradicted", "two on node node-2 reaches them").await?;
        assert_eq!(slices(&cluster).await?, before, "a slice has changed");

        here.ip(&format!("route add {VMS}")).await?;
        for lb in LBS {
            cluster.serves(lb, "Announced").await?;
        }
        shows(&leader, DOUBTED, &[], |count| count == 0.0).await?;
        noted(&cluster, "ProberTrusted", "answer again").await?;
        assert_eq!(slices(&cluster).await?, before);
        let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), "kube-system");
        eventually(SOON, "Lease without notes", async || {
            let lease = leases.get("harvester-load-balancer").await?;
            let notes = [ANNOTATION_LEASE_QUESTION, ANNOTATION_LEASE_ANSWER];
            anyhow::Ok(!notes.iter().any(|note| lease.annotations().contains_key(*note)))
        })
        .await?;

        drop(backends);
        for lb in LBS {
            cluster.waits(lb, "BackendsUnhealthy").await?;
            let endpoints = cluster.endpoints(lb).await?;
            let states: Vec<&str> = endpoints.values().map(|seen| seen.state.as_str()).collect();
            assert_eq!(states, ["not ready", "not ready", "serving, terminating"], "{endpoints:?}");
            assert!(endpoints.contains_key(SINK));
        }
        noted(&cluster, "OutageConfirmed", "two on node node-2 does not reach them either").await?;
        shows(&leader, DOUBTED, &[], |count| count == 0.0).await?;
        // Only Events of the Lease, and none of a LoadBalancer.
        let doubts =
            events(&cluster).await?.into_iter().filter(|(_, why, _)| why == "ProberDoubted");
        assert_eq!(doubts.map(|(of, ..)| of).collect::<BTreeSet<_>>(), ["Lease".to_owned()].into());
        Ok(())
    })
}

/// Accepts and closes connections to the VMs in a network.
async fn listen(network: &Netns) -> Result<AbortOnDropHandle<()>> {
    let listener = bound(network, ([0, 0, 0, 0], PORT).into()).await?;
    Ok(AbortOnDropHandle::new(tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            drop(stream);
        }
    })))
}

async fn bound(network: &Netns, at: SocketAddr) -> Result<TcpListener> {
    let listener = network.run(move || Ok(StdListener::bind(at)?)).await?;
    listener.set_nonblocking(true)?;
    Ok(TcpListener::from_std(listener)?)
}

/// Makes the API server reachable in a network at its own address.
async fn way_to_the_api_server(cluster: &Cluster, from: &Netns) -> Result<AbortOnDropHandle<()>> {
    let at = cluster.bed.address()?;
    let listener = bound(from, at).await?;
    Ok(AbortOnDropHandle::new(tokio::spawn(async move {
        let mut open = tokio::task::JoinSet::new();
        while let Ok((mut client, _)) = listener.accept().await {
            open.spawn(async move {
                let mut server = TcpStream::connect(at).await?;
                copy_bidirectional(&mut client, &mut server).await
            });
        }
    })))
}

/// Whether an operator that listens in another network reports ready.
async fn is_ready(network: &Netns, at: SocketAddr) -> Result<bool> {
    let ask = move || {
        let mut stream = StdStream::connect(at)?;
        stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.contains(" 200 "))
    };
    network.run(ask).await
}

/// Versions of all EndpointSlices.
async fn slices(cluster: &Cluster) -> Result<BTreeMap<String, String>> {
    let slices = cluster.slices().list(&ListParams::default()).await?;
    Ok(slices.iter().map(|slice| (slice.name_any(), version(&slice.metadata))).collect())
}

/// Kind of the object, reason and note of all Events.
async fn events(cluster: &Cluster) -> Result<Vec<(String, String, String)>> {
    let all: Api<Event> = Api::all(cluster.client.clone());
    let events = all.list(&ListParams::default()).await?.items.into_iter();
    let notes = events.map(|event| {
        let of = event.regarding.and_then(|object| object.kind).unwrap_or_default();
        (of, event.reason.unwrap_or_default(), event.note.unwrap_or_default())
    });
    Ok(notes.collect())
}

/// Waits for an Event of the Lease.
async fn noted(cluster: &Cluster, reason: &str, note: &str) -> Result<()> {
    eventually(SOON, &format!("Event {reason}: {note}"), async || {
        let events = events(cluster).await?;
        anyhow::Ok(
            events
                .iter()
                .any(|(of, why, said)| of == "Lease" && why == reason && said.contains(note)),
        )
    })
    .await
}
