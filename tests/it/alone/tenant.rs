//! A hostile tenant with the rights of `edit` in its namespace makes every request that it may, as
//! fast as the API server accepts them, while another tenant creates and deletes LoadBalancers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::{LABEL_SERVICE_LB, LABEL_SERVICE_NAME, LoadBalancer};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use testbed::kubevirt::{Guest, Nic, Vm, create_node};
use testbed::{Announcer, Announcing, eventually};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::waits::NeighbourWaits;
use crate::admission::itself;
use crate::admission::said::{ask, send};
use crate::support::{Cluster, SOON, address};
use crate::versions::converts;

/// Duration of the attack in seconds, by an environment variable for long runs.
const SECONDS: (&str, u64) = ("TENANT_SECONDS", 10);
/// Concurrent requests of the hostile tenant.
const WORKERS: u64 = 2;
/// LoadBalancers of the hostile tenant, by name.
const NAMES: u64 = 24;
/// Limit of the operator's peak RSS, in KiB.
const MOST_RSS: u64 = 80 * 1024;
const VICTIM: &str = "10.2.0.2";
const LIAR: &str = "10.52.0.7";
const HONEST: &str = "10.52.0.8";
/// Address that the announcer leases for Services that ask for none.
const LEASED: &str = "10.9.0.9";
/// Annotation by which a Service asks kube-vip for an address.
const ASKED: &str = "kube-vip.io/loadbalancerIPs";
/// Host name of the endpoints that the tenant writes into the operator's EndpointSlices.
const MINE: &str = "mine";
/// Version that the API server converts, with the operator's webhook.
const OLD: &str = "/v1alpha1/";
/// Longest wait of the tenant for an answer about a LoadBalancer in that version. Conversion makes
/// the write slow, and the operator writes the status each time the guest reports another address.
/// So the write loses each race, and the API server repeats it for 34 s (`GuaranteedUpdate`).
const PATIENCE: Duration = Duration::from_secs(2);
/// Method of a request that is a server-side apply.
const APPLY: &str = "APPLY";

const SCENE: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: hostile}
---
apiVersion: v1
kind: Namespace
metadata: {name: theirs}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: tenant, namespace: hostile}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: tenant, namespace: hostile}
rules:
  - {apiGroups: [loadbalancer.harvesterhci.io], resources: [loadbalancers], verbs: ["*"]}
  - {apiGroups: [kubevirt.io], resources: ["*"], verbs: ["*"]}
  - {apiGroups: [""], resources: [services], verbs: ["*"]}
  - {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: tenant, namespace: hostile}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: tenant}
subjects: [{kind: ServiceAccount, name: tenant, namespace: hostile}]
---
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: IPPool
metadata: {name: hostile}
spec: {ranges: [{subnet: 10.1.0.0/28}], selector: {scope: [{project: "*", namespace: hostile, guestCluster: "*"}]}}
---
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: IPPool
metadata: {name: theirs}
spec: {ranges: [{subnet: 10.2.0.0/24}], selector: {scope: [{project: "*", namespace: theirs, guestCluster: "*"}]}}
"#;

/// A request of the hostile tenant: method, path, body.
type Request = (&'static str, String, Value);

/// A request of each kind that the role allows, for one name.
#[allow(clippy::too_many_lines)] // A list.
fn requests(name: &str, round: u64) -> Vec<Request> {
    let lbs = "/apis/loadbalancer.harvesterhci.io/v1beta1/namespaces/hostile/loadbalancers";
    let slices = "/apis/discovery.k8s.io/v1/namespaces/hostile/endpointslices";
    let services = "/api/v1/namespaces/hostile/services";
    let (lb, service, slice) =
        (format!("{lbs}/{name}"), format!("{services}/{name}"), format!("{slices}/{name}-mine"));
    let group = "loadbalancer.harvesterhci.io";
    let new = |spec: Value| {
        json!({"apiVersion": format!("{group}/v1beta1"), "kind": "LoadBalancer",
            "metadata": {"name": name}, "spec": spec})
    };
    // The operator's first slice for IPv4 has the name of its Service.
    let (own, theirs) = (format!("{services}/{name}-own"), format!("{slices}/{name}"));
    let instance = "/apis/kubevirt.io/v1/namespaces/hostile/virtualmachineinstances/liar";
    let vm = json!({"workloadType": "vm", "ipam": "pool",
        "listeners": [{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 8080}],
        "backendServerSelector": {"app": ["liar"]}});
    let annotated = |key: &str, value: &str| {
        let key = format!("{group}/{key}");
        ("PATCH", lb.clone(), json!({"metadata": {"annotations": {key: value}}}))
    };
    let claim = json!({"ipPool": "theirs", "ip": VICTIM});
    let old = |patch: Value| ("PATCH", lb.replace("/v1beta1/", OLD), patch);
    let carried = json!({"spec": {"ipPool": "theirs"}, "status": {"allocatedAddress": claim}});
    let status = |status: Value| ("PATCH", lb.clone(), json!({"status": status}));
    let spec = |spec: Value| ("PATCH", lb.clone(), json!({"spec": spec}));
    let applied = |fields: Value| {
        let mut body = new(vm.clone());
        for (field, value) in fields.as_object().into_iter().flatten() {
            body[field] = value.clone();
        }
        (APPLY, format!("{lb}?fieldManager=mine&force=true"), body)
    };
    let labelled =
        |pairs: Value| ("PATCH", instance.to_owned(), json!({"metadata": {"labels": pairs}}));
    let mine = json!([{"addresses": [HONEST], "hostname": MINE}]);
    let labels = json!({
        "kubernetes.io/service-name": name,
        "endpointslice.kubernetes.io/managed-by": "harvester-guest-operator",
    });
    vec![
        ("POST", lbs.to_owned(), new(vm.clone())),
        ("POST", lbs.to_owned(), new(json!({"workloadType": "cluster", "ipam": "pool"}))),
        annotated("allocated-address", &format!("theirs/{VICTIM}")),
        annotated("namespace", "theirs"),
        annotated("network", "theirs/vlan1"),
        annotated("project", "*"),
        annotated("cluster", &"x".repeat(60_000)),
        old(json!({"spec": {"description": round.to_string()}})),
        old(json!({"metadata": {"annotations": {
            format!("{group}/v1beta1-fields"): carried.to_string(),
        }}})),
        status(json!({"allocatedAddress": claim})),
        status(json!({"address": VICTIM})),
        status(Value::Null),
        spec(json!({"ipPool": "theirs"})),
        spec(json!({"ipPool": null, "ipam": "dhcp"})),
        spec(json!({"ipam": "pool"})),
        spec(json!({"backendServerSelector": {"app": ["honest"]}})),
        spec(json!({"backendServerSelector": {"app": ["liar"]}})),
        spec(json!({"healthCheck": {"port": 1 + round % 60_000, "periodSeconds": 1}})),
        spec(json!({"listeners": [
            {"name": "http", "port": 1 + round % 60_000, "protocol": "TCP", "backendPort": 8080},
        ]})),
        ("PATCH", lb.clone(), json!({"metadata": {"finalizers": []}})),
        ("PATCH", lb.clone(), json!({"metadata": {"labels": {"round": round.to_string()}}})),
        ("PATCH", service.clone(), json!({"spec": {"loadBalancerIP": VICTIM}})),
        ("PATCH", service.clone(), json!({"spec": {"externalIPs": [VICTIM]}})),
        ("PATCH", service.clone(), json!({"spec": {"selector": {"app": "mine"}}})),
        ("PATCH", service.clone(), json!({"spec": {"type": "ClusterIP"}})),
        (
            "PATCH",
            service.clone(),
            json!({"metadata": {
                "annotations": {ASKED: VICTIM}, "ownerReferences": [], "labels": null,
            }}),
        ),
        (
            "PATCH",
            service.clone(),
            json!({"status": {"loadBalancer": {"ingress": [{"ip": VICTIM}]}}}),
        ),
        (
            "POST",
            services.to_owned(),
            json!({
                "metadata": {"name": name}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
            }),
        ),
        ("PATCH", service.clone(), json!({"metadata": {"annotations": {ASKED: VICTIM}}})),
        ("DELETE", service, json!({})),
        (
            "POST",
            services.to_owned(),
            json!({
                "metadata": {"name": format!("{name}-own"), "annotations": {
                    ASKED: VICTIM, "kube-vip.io/allow-reconcile-without-endpoints": "true",
                }},
                "spec": {"type": "LoadBalancer", "loadBalancerIP": VICTIM, "ports": [{"port": 80}]},
            }),
        ),
        ("DELETE", own, json!({})),
        (
            "POST",
            slices.to_owned(),
            json!({
                "metadata": {"name": format!("{name}-mine"), "labels": labels},
                "addressType": "IPv4", "endpoints": [{"addresses": [HONEST]}], "ports": [{"port": 8080}],
            }),
        ),
        ("PATCH", slice.clone(), json!({"endpoints": [{"addresses": ["10.96.0.1"]}]})),
        ("DELETE", slice, json!({})),
        ("PATCH", theirs.clone(), json!({"endpoints": mine})),
        ("PATCH", theirs.clone(), json!({"ports": [{"port": 22}]})),
        (
            "PUT",
            theirs,
            json!({
                "metadata": {"name": name, "labels": labels},
                "addressType": "IPv4", "endpoints": mine, "ports": [{"port": 8080}],
            }),
        ),
        ("DELETE", format!("{slices}?labelSelector=kubernetes.io/service-name={name}"), json!({})),
        applied(json!({})),
        applied(json!({"status": {"allocatedAddress": claim}})),
        labelled(json!({"app": "honest", "harvesterhci.io/vmName": "honest"})),
        labelled(json!({"app": "liar", "harvesterhci.io/vmName": null})),
        ("DELETE", lb, json!({})),
    ]
}

/// Sends requests until the end, a different one each time. Counts the accepted ones in `done`;
/// returns the number of all.
async fn attack(
    client: Client,
    worker: u64,
    over: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
) -> Result<u64> {
    let (mut sent, mut step) = (0, 0);
    // A power of two, so that an odd factor gives each round an order with every place in it.
    let places = u64::try_from(requests("", 0).len().next_power_of_two())?;
    let apply = [("content-type", "application/apply-patch+yaml")];
    while !over.load(Ordering::Relaxed) {
        // All requests for one name, then for the next, in another order each time.
        let round = step / places;
        let at = step % places * (2 * round + 1) % places;
        step += 1;
        let requests = requests(&format!("h-{}", (round * WORKERS + worker) % NAMES), sent);
        // The last places have no request.
        let Some((method, path, body)) = requests.get(usize::try_from(at)?) else { continue };
        let said = if *method == APPLY {
            send(&client, "PATCH", path, &apply, body).await?
        } else if path.contains(OLD) {
            let Ok(said) = timeout(PATIENCE, ask(&client, method, path, body)).await else {
                continue;
            };
            said?
        } else {
            ask(&client, method, path, body).await?
        };
        ensure!(said.code < 500, "{method} {path}: {said:?}");
        done.fetch_add(u64::from(said.accepted()), Ordering::Relaxed);
        sent += 1;
    }
    Ok(sent)
}

/// Reports false addresses as the guest's agent: root in the guest chooses them.
async fn lie(mut guest: Guest, over: Arc<AtomicBool>) -> Result<()> {
    for address in [LIAR, HONEST, "10.96.0.1", VICTIM, "127.0.0.1", "not an address"].iter().cycle()
    {
        if over.load(Ordering::Relaxed) {
            break;
        }
        guest.report(|vm| vm.nics[0].addresses = vec![(*address).to_owned()]).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Whether the tenant wrote this endpoint into a slice of the operator.
fn is_mine(endpoint: &Endpoint) -> bool {
    endpoint.hostname.as_deref() == Some(MINE)
}

/// Endpoint addresses of the operator's slices in a namespace, without the placeholder's.
/// The tenant's own slices and endpoints are left out: who may write EndpointSlices may name any
/// address in them, with or without this operator (CVE-2021-25740), so they show nothing about the
/// operator. [`is_put_right`] says what becomes of the endpoints.
async fn endpoints(cluster: &Cluster, namespace: &str) -> Result<BTreeSet<String>> {
    let api = Api::<EndpointSlice>::namespaced(cluster.client.clone(), namespace);
    let mut found = BTreeSet::new();
    for slice in api.list(&ListParams::default()).await? {
        let is_ours = !slice.name_any().ends_with("-mine");
        let endpoints = slice.endpoints.into_iter().flatten().filter(|_| is_ours);
        let endpoints = endpoints.filter(|endpoint| !is_mine(endpoint));
        found.extend(endpoints.flat_map(|endpoint| endpoint.addresses));
    }
    found.remove("192.0.2.1");
    Ok(found)
}

/// Checks that no tenant has an address or endpoint of another.
async fn nothing_gained(cluster: &Cluster) -> Result<()> {
    let mut holders = BTreeMap::new();
    for lb in Api::<LoadBalancer>::all(cluster.client.clone()).list(&ListParams::default()).await? {
        let Some(ip) = address(&lb) else { continue };
        // The address of an object in deletion is free before its finalizer is removed.
        if lb.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let namespace = lb.namespace().unwrap_or_default();
        let own = if namespace == "hostile" { "10.1.0." } else { "10.2.0." };
        ensure!(ip == "0.0.0.0" || ip.starts_with(own), "{namespace}/{} has {ip}", lb.name_any());
        let other = holders.insert(ip.clone(), lb.name_any());
        ensure!(ip == "0.0.0.0" || other.is_none(), "{ip}: {other:?} and {}", lb.name_any());
    }
    ensure!(holders.get(VICTIM).is_some_and(|name| name == "victim"), "{holders:?}");
    let theirs = endpoints(cluster, "theirs").await?;
    ensure!(theirs.iter().eq([HONEST]), "the victim's endpoints: {theirs:?}");
    let hostile = endpoints(cluster, "hostile").await?;
    ensure!(hostile.iter().all(|address| address == LIAR), "endpoints: {hostile:?}");
    Ok(())
}

/// Checks that the operator's own Services and slices in the tenant's namespace have nothing of
/// what the tenant wrote into them, and that no LoadBalancer there publishes the victim's address.
///
/// The operator guarantees this only some time after the attack. A tenant who may write Services
/// can have kube-vip announce any address, by a Service of its own or, until the operator corrects
/// it, by the operator's Service. Until then, the operator may publish what kube-vip has announced.
/// A Service or slice whose owner the tenant has removed is the tenant's own: the operator leaves
/// it.
async fn is_put_right(cluster: &Cluster) -> Result<()> {
    let (client, all) = (cluster.client.clone(), ListParams::default());
    let lbs = Api::<LoadBalancer>::namespaced(client.clone(), "hostile").list(&all).await?;
    let is_owned = |meta: &ObjectMeta| {
        let mut owners = meta.owner_references.iter().flatten();
        owners.any(|owner| lbs.iter().any(|lb| lb.metadata.uid.as_ref() == Some(&owner.uid)))
    };
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), "hostile").list(&all).await?;
    for lb in &lbs {
        let published = lb.status.as_ref().and_then(|status| status.address.as_deref());
        ensure!(published != Some(VICTIM), "{} publishes {VICTIM}", lb.name_any());
    }
    let labelled = ListParams::default().labels(&format!("{LABEL_SERVICE_LB}=true"));
    let services = Api::<Service>::namespaced(client, "hostile").list(&labelled).await?;
    let mut checked = BTreeSet::new();
    for service in services.iter().filter(|service| is_owned(&service.metadata)) {
        let name = service.name_any();
        let field = service.spec.as_ref().and_then(|spec| spec.load_balancer_ip.as_deref());
        let asked = service.annotations().get(ASKED).map(String::as_str);
        let asks = field == Some(VICTIM) || asked == Some(VICTIM);
        ensure!(!asks, "Service {name} asks for {VICTIM}");
        let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        let ingress = status.and_then(|balancer| balancer.ingress.as_ref());
        let mut ingress = ingress.into_iter().flatten();
        let has = ingress.any(|ingress| ingress.ip.as_deref() == Some(VICTIM));
        ensure!(!has, "Service {name} has {VICTIM}");
        checked.insert(name);
    }
    // The slices of a LoadBalancer that has no Service lead no traffic.
    for slice in slices.iter().filter(|slice| is_owned(&slice.metadata)) {
        let service = slice.labels().get(LABEL_SERVICE_NAME);
        let is_checked = service.is_some_and(|name| checked.contains(name));
        let has = is_checked && slice.endpoints.iter().flatten().any(is_mine);
        ensure!(!has, "EndpointSlice {} is the tenant's", slice.name_any());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_tenant_gains_nothing_and_delays_none() -> Result<()> {
    let seconds = std::env::var(SECONDS.0).map_or(Ok(SECONDS.1), |text| text.parse())?;
    let cluster = Cluster::start().await?;
    cluster.bed.apply_yaml(SCENE).await?;
    create_node(&cluster.client, "node-1", &[], "10.0.0.11").await?;
    let operator = cluster.standby(itself()).await?;
    operator.leads().await?;
    cluster.registered().await?;
    converts(&cluster).await?;
    let how = Announcing { leased: Some(LEASED.to_owned()), ..Announcing::default() };
    let _announcer = Announcer::start(cluster.client.clone(), how);
    let guest = |namespace, name, ip: &str| {
        let vm = Vm::new(namespace, name).label("app", name).nic(Nic::pod("default", &[ip]));
        let client = cluster.client.clone();
        async move { Guest::run(&client, vm, "node-1").await }
    };
    let _honest = guest("theirs", "honest", HONEST).await?;
    let liar = guest("hostile", "liar", LIAR).await?;
    let mut victim =
        crate::support::lb("victim", &json!({"backendServerSelector": {"app": ["honest"]}}))?;
    victim.metadata.namespace = Some("theirs".to_owned());
    let theirs = Api::<LoadBalancer>::namespaced(cluster.client.clone(), "theirs");
    theirs.create(&PostParams::default(), &victim).await?;
    let is_there =
        async || nothing_gained(&cluster).await.map(|()| true).map_err(|e| format!("{e:#}"));
    eventually(SOON, "the victim's address and endpoint", is_there).await?;

    let lasting = Duration::from_secs(seconds);
    let quiet = NeighbourWaits::measure(&cluster, "theirs", Instant::now() + lasting / 4).await?;
    let token = cluster.bed.service_account_token("hostile", "tenant").await?;
    let tenant = cluster.bed.client_for(&token).await?;
    let (over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut attacking = JoinSet::new();
    for worker in 0..WORKERS {
        attacking.spawn(attack(tenant.clone(), worker, over.clone(), done.clone()));
    }
    let lying = lie(liar, over.clone());
    let (began, used) = (Instant::now(), operator.process.cpu_time().context("no CPU time")?);
    let watching = async {
        while !over.load(Ordering::Relaxed) {
            nothing_gained(&cluster).await?;
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        anyhow::Ok(())
    };
    let measuring = async {
        let waits = NeighbourWaits::measure(&cluster, "theirs", Instant::now() + lasting).await;
        over.store(true, Ordering::Relaxed);
        waits
    };
    let (watched, loud, lied) = tokio::join!(watching, measuring, lying);
    let (loud, mut sent) = (loud?, 0);
    for worker in attacking.join_all().await {
        sent += worker?;
    }
    lied?;
    watched?;
    let used = operator.process.cpu_time().context("no CPU time")?.saturating_sub(used);
    let took = began.elapsed();
    let rss = operator.process.peak_rss_kib().context("no RSS")?;
    println!(
        "quiet: {quiet}; among {sent} requests, {} of them done: {loud}; peak RSS {} MiB, {used:.1?} of CPU in {took:.1?}",
        done.load(Ordering::Relaxed),
        rss / 1024
    );
    cluster.consistent().await?;
    nothing_gained(&cluster).await?;
    let is_over =
        async || is_put_right(&cluster).await.map(|()| true).map_err(|e| format!("{e:#}"));
    eventually(SOON, "the operator's own Services and slices", is_over).await?;
    nothing_gained(&cluster).await?;
    ensure!(done.load(Ordering::Relaxed) > 10 * seconds, "few requests were done");
    ensure!(rss < MOST_RSS, "RSS {rss} KiB");
    loud.ensure_near(&quiet)?;
    Ok(())
}
