//! Services that must be replaced, because kube-vip 1.2 does not survive the change: another
//! address, another traffic policy. User settings stay.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use testbed::kubevirt::Guest;
use testbed::{Announcer, Announcing, Proxy, Stalls, eventually};

use super::{annotation, crash, vm};
use crate::crash::{Last, cut_after};
use crate::support::{Cluster, SOON, beside_bare_writes, ready};

const ASKED: &str = "kube-vip.io/loadbalancerIPs";
const MADE_WITH_POLICY: &str = "loadbalancer.harvesterhci.io/made-with-traffic-policy";
const MADE_WITH_PORTS: &str = "loadbalancer.harvesterhci.io/made-with-ports";
const SETTINGS: &str = "loadbalancer.harvesterhci.io/service-settings";
/// Limit of the time from the change of a LoadBalancer to traffic at the new address, if the API
/// server answers at once.
const WITHIN: Duration = Duration::from_secs(5);

/// User settings, as a merge patch.
fn set() -> Value {
    json!({
        "metadata": {
            "labels": {"team": "blue"},
            "annotations": {"note": "mine", "kube-vip.io/flush-conntrack": "true"},
        },
        "spec": {
            "allocateLoadBalancerNodePorts": true,
            "internalTrafficPolicy": "Local",
            "loadBalancerSourceRanges": ["10.0.0.0/8"],
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 77}},
        },
    })
}

/// Fields that must be the same afterwards, numbers allocated by the API server included.
fn settings(service: &Service) -> Value {
    let mut all = json!(service);
    let left_out = |object: &mut Value, keys: &[&str]| {
        if let Some(object) = object.as_object_mut() {
            object.retain(|key, _| !keys.contains(&key.as_str()));
        }
    };
    left_out(&mut all["metadata"]["annotations"], &[ASKED, MADE_WITH_POLICY, MADE_WITH_PORTS]);
    let of_policy = ["externalTrafficPolicy", "healthCheckNodePort"];
    left_out(&mut all["spec"], &[&of_policy[..], &["loadBalancerIP"]].concat());
    json!([all["metadata"]["labels"], all["metadata"]["annotations"], all["spec"]])
}

/// Reason of an announced LoadBalancer here, as the user settings have source ranges.
const BYPASSED: &str = "SourceRangesBypassed";

/// A cluster with two pools, and an announcer.
async fn cluster() -> Result<(Cluster, Announcer)> {
    let cluster = Cluster::start().await?;
    for (name, third) in [("old", 1), ("new", 2)] {
        let range = json!({"subnet": format!("10.{third}.0.0/24")});
        cluster.pool_for(name, range, json!({})).await?;
    }
    let announcer = Announcer::start(cluster.client.clone(), Announcing::default());
    Guest::run(&cluster.client, vm("web", "a", "10.52.0.7"), "node-1").await?;
    Ok((cluster, announcer))
}

/// Creates a LoadBalancer that is announced at an address of the first pool. Returns its Service,
/// with user settings.
async fn announced(cluster: &Cluster) -> Result<Service> {
    let spec = json!({"backendServerSelector": {"app": ["web"]}, "ipPool": "old"});
    cluster.lb_with("web", spec).await?;
    cluster.serves("web", "Announced").await?;
    cluster.edit::<Service>("web", set()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_made_anew_has_what_users_set_and_is_announced_within_5_s() -> Result<()> {
    let (cluster, _announcer) = cluster().await?;
    let _operator = cluster.operator().await?;
    let before = announced(&cluster).await?;
    let ports = json!(before)["spec"]["ports"].clone();
    ensure!(ports[0]["nodePort"].is_number(), "node ports were asked for: {ports}");

    let stalls = Stalls::watch()?;
    let moving = async {
        let start = Instant::now();
        cluster.patch_lb("web", json!({"spec": {"ipPool": "new"}})).await?;
        cluster.is_reached_at("web", Some("10.2.0.2")).await?;
        Ok(stalls.elapsed(start))
    };
    let (took, most) = beside_bare_writes(&cluster, &stalls, WITHIN, moving).await?;
    println!("moved within {took:?}");
    ensure!(took < most, "{took:?}, more than {most:?}");
    let moved = cluster.services().get("web").await?;
    ensure!(moved.uid() != before.uid(), "kube-vip 1.2 announces no other address of a Service");
    assert_eq!(settings(&moved), settings(&before));
    cluster.serves("web", BYPASSED).await?;
    eventually(SOON, "end of the old claim", async || {
        cluster.allocated("old").await.map(|claims| claims.is_empty())
    })
    .await?;
    forgotten(&cluster).await?;

    // A policy that a user sets also needs a new Service for kube-vip.
    let local = json!({"spec": {"externalTrafficPolicy": "Local"}});
    cluster.edit::<Service>("web", local).await?;
    let anew = announced_anew(&cluster, &moved).await?;
    assert_eq!(json!(anew)["spec"]["externalTrafficPolicy"], "Local");
    assert_eq!(settings(&anew), settings(&moved));
    forgotten(&cluster).await?;

    // A further listener needs no other Service. A removed one does: kube-vip continues to admit
    // its port to the node itself.
    let old = json!(anew)["spec"]["ports"][0]["port"].clone();
    let listen = |ports: &[&Value]| {
        let listener = |port: &&Value| json!({"name": format!("p{port}"), "port": port});
        json!({"spec": {"listeners": ports.iter().map(listener).collect::<Vec<_>>()}})
    };
    let port_of = |service: &Service, n: usize| json!(service)["spec"]["ports"][n]["port"].clone();
    cluster.patch_lb("web", listen(&[&old, &json!(81)])).await?;
    let two = cluster.service_when("web", "port 81", |service| port_of(service, 1) == 81).await?;
    ensure!(two.uid() == anew.uid(), "replaced for a further listener");
    cluster.patch_lb("web", listen(&[&json!(81)])).await?;
    let anew = announced_anew(&cluster, &anew).await?;
    assert_eq!(port_of(&anew, 0), 81);
    assert_eq!(anew.labels().get("team").map(String::as_str), Some("blue"));

    // Deleted by hand: its settings go with it.
    cluster.services().delete("web", &DeleteParams::default()).await?;
    let fresh = announced_anew(&cluster, &anew).await?;
    assert_eq!(fresh.labels().get("team"), None);
    assert_eq!(json!(fresh)["spec"]["externalTrafficPolicy"], "Cluster");

    // The slices have no room for all settings: labels and annotations go, source ranges stay.
    let long = |kib: usize| json!({"metadata": {"annotations": {"long": "x".repeat(kib * 1024)}}});
    cluster.edit::<Service>("web", set()).await?;
    cluster.edit::<Service>("web", long(200)).await?;
    for slice in cluster.slices_of("default", "web").await? {
        cluster.edit::<EndpointSlice>(&slice.name_any(), long(100)).await?;
    }
    cluster.patch_lb("web", json!({"spec": {"ipPool": "old"}})).await?;
    let reduced = announced_anew(&cluster, &fresh).await?;
    let ranges = |service: &Value| service["spec"]["loadBalancerSourceRanges"].clone();
    assert_eq!(ranges(&json!(reduced)), ranges(&set()));
    assert_eq!(reduced.labels().get("team"), None);
    cluster.consistent().await
}

/// The operator dies between the end of one Service and the next, and another Service meanwhile
/// gets the numbers that the API server had allocated.
#[tokio::test(flavor = "multi_thread")]
async fn what_another_took_meanwhile_is_allotted_anew_and_the_rest_stays() -> Result<()> {
    let (cluster, _announcer) = cluster().await?;
    let mut operator = cluster.operator().await?;
    let before = announced(&cluster).await?;
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    cluster.edit::<Service>("web", hold).await?;
    cluster.patch_lb("web", json!({"spec": {"ipPool": "new"}})).await?;
    cluster
        .service_when("web", "a deletion", |service| service.metadata.deletion_timestamp.is_some())
        .await?;
    operator.process.kill9()?;
    cluster.edit::<Service>("web", json!({"metadata": {"finalizers": null}})).await?;
    let (ip, port) =
        (&json!(before)["spec"]["clusterIP"], &json!(before)["spec"]["ports"][0]["nodePort"]);
    let other = json!({
        "metadata": {"name": "other"},
        "spec": {"type": "NodePort", "clusterIP": ip, "ports": [{"port": 80, "nodePort": port}]},
    });
    cluster.services().create(&PostParams::default(), &serde_json::from_value(other)?).await?;

    cluster.free_lease().await?;
    let _operator = cluster.operator().await?;
    cluster.is_reached_at("web", Some("10.2.0.2")).await?;
    let anew = json!(cluster.services().get("web").await?);
    ensure!(anew["spec"]["clusterIP"] != *ip, "another's: {ip}");
    ensure!(anew["spec"]["ports"][0]["nodePort"] != *port, "another's: {port}");
    for field in ["loadBalancerSourceRanges", "sessionAffinityConfig", "internalTrafficPolicy"] {
        assert_eq!(anew["spec"][field], set()["spec"][field], "{field}");
    }
    assert_eq!(anew["metadata"]["annotations"]["note"], "mine");
    forgotten(&cluster).await?;
    cluster.consistent().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_survives_a_crash_after_each_write() -> Result<()> {
    let (cluster, _announcer) = cluster().await?;
    let proxy = Proxy::start(&cluster.bed).await?;
    let mut operator = crash::start(&cluster, &proxy).await?;
    let before = announced(&cluster).await?;
    let targets = [("new", "10.2.0.2", "old"), ("old", "10.1.0.2", "new")];
    for (writes, (pool, address, left)) in targets.into_iter().cycle().enumerate() {
        let cut = cut_after(&proxy, &crash::KINDS, Last::Unanswered, writes);
        cluster.patch_lb("web", json!({"spec": {"ipPool": pool}})).await?;
        let is_done = async || {
            let lb = cluster.lbs().get("web").await?;
            let slices = cluster.slices_of("default", "web").await?;
            anyhow::Ok(
                ready(&lb).1 == BYPASSED
                    && cluster.reached_at("web").await?.as_deref() == Some(address)
                    && cluster.allocated(left).await?.is_empty()
                    && !slices.iter().any(|slice| slice.annotations().contains_key(SETTINGS)),
            )
        };
        let cut_short = eventually(SOON, "end or cut of the move", async || {
            if cut.load(Ordering::SeqCst) > writes {
                return anyhow::Ok(Some(true));
            }
            Ok(is_done().await?.then_some(false))
        })
        .await?;
        operator.process.kill9()?;
        proxy.clear_rule();
        cluster.free_lease().await?;
        operator = crash::start(&cluster, &proxy).await?;
        let what = format!("end of the move to {pool} after {writes} writes");
        eventually(SOON, &what, is_done).await?;
        let now = cluster.services().get("web").await?;
        assert_eq!(settings(&now), settings(&before), "{what}");
        cluster.consistent().await?;
        if !cut_short {
            println!("crashed after each of {writes} writes");
            ensure!(
                writes >= 9,
                "claim, settings, end, Service, its status, its release, settings, status, release: {writes}"
            );
            return Ok(());
        }
    }
    unreachable!("the targets are endless")
}

/// The announcer is away, and another program's finalizer holds the Service that asks for the new
/// address. Meanwhile the status loses its address.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_is_taken_back_and_made_again_frees_no_address_early() -> Result<()> {
    let (cluster, announcer) = cluster().await?;
    let _operator = cluster.operator().await?;
    announced(&cluster).await?;
    let named = |pool: &str| json!({"spec": {"ipPool": pool}});
    announcer.away(true);
    cluster.patch_lb("web", named("new")).await?;
    let asks = |service: &Service| annotation(service, ASKED) == Some("10.2.0.2");
    cluster.service_when("web", "the new address", asks).await?;
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    cluster.edit::<Service>("web", hold).await?;

    // A claim is decided before the Service is deleted, and the condition comes after both.
    cluster.patch_lb("web", named("old")).await?;
    cluster.waits("web", "ServiceDeleting").await?;
    for pool in ["old", "new"] {
        assert_eq!(cluster.allocated(pool).await?.len(), 1, "claims of pool {pool}");
    }
    assert_eq!(cluster.reached_at("web").await?, None);

    cluster.patch_lb("web", named("new")).await?;
    cluster.edit::<Service>("web", json!({"metadata": {"finalizers": null}})).await?;
    eventually(SOON, "a Service that asks for another address than the old one", async || {
        let (_, reason, said) = ready(&cluster.lbs().get("web").await.map_err(|e| e.to_string())?);
        let is_moving = said.starts_with("the Service asks for another address than 10.1.0.2;");
        if is_moving { Ok(true) } else { Err(format!("{reason}: {said}")) }
    })
    .await?;
    assert_eq!(cluster.address("web").await?, "10.1.0.2");
    assert_eq!(cluster.allocated("old").await?.len(), 1);

    announcer.away(false);
    cluster.is_reached_at("web", Some("10.2.0.2")).await?;
    eventually(SOON, "end of the old claim", async || {
        cluster.allocated("old").await.map(|claims| claims.is_empty())
    })
    .await?;
    cluster.consistent().await
}

/// Waits for another Service that is announced.
async fn announced_anew(cluster: &Cluster, before: &Service) -> Result<Service> {
    cluster
        .service_when("web", "another UID, announced", |service| {
            let status = &json!(service)["status"];
            let is_ignored = service.annotations().contains_key("kube-vip.io/ignore");
            service.uid() != before.uid()
                && status["loadBalancer"]["ingress"][0]["ip"].is_string()
                && !is_ignored
        })
        .await
}

/// Waits until only the Service has the settings.
async fn forgotten(cluster: &Cluster) -> Result<()> {
    eventually(SOON, "end of the settings on the slice", async || {
        let slices = cluster.slices_of("default", "web").await?;
        anyhow::Ok(!slices.iter().any(|slice| slice.annotations().contains_key(SETTINGS)))
    })
    .await
}
