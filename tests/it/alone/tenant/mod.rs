//! A hostile tenant with the rights of `edit` in its namespace makes every request that it may, as
//! fast as the API server accepts them, while another tenant creates and deletes LoadBalancers.
//!
//! The requests are in `requests.rs`, the checks in `gains.rs`.

mod gains;
mod requests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::LoadBalancer;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use testbed::kubevirt::{Guest, Nic, Vm};
use testbed::{Announcer, Announcing, eventually};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::gains::{endpoints, is_put_right, let_go, nothing_gained, victims_service};
use self::requests::{APPLY, AttackedNames, LBS, OLD, Request, requests};
use super::waits::NeighbourWaits;
use crate::admission::itself;
use crate::admission::said::{Said, ask, send};
use crate::support::{Cluster, LATER, SOON};
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
/// Address of the tenant's VM on its second network.
const ON_LAN: &str = "10.3.0.7";
/// Addresses that no VM may have on that network. All but the last are in the network's range, so
/// that each is refused by a rule of its own.
const API_SERVER: &str = "10.96.0.1";
const NODE: &str = "10.0.0.11";
const OUTSIDE: &str = "192.168.2.5";
/// Address that the announcer leases for Services that ask for none.
const LEASED: &str = "10.9.0.9";
/// Annotation by which a Service asks kube-vip for an address.
const ASKED: &str = "kube-vip.io/loadbalancerIPs";
/// Host name of the endpoints that the tenant writes into the operator's EndpointSlices.
const MINE: &str = "mine";
/// Finalizer of the tenant.
const HELD: &str = "hostile.example.com/held";
/// UID that no object has.
const GUESS: &str = "00000000-0000-0000-0000-000000000000";
/// Pause between two reports of the guest's agent. With a shorter one, each report of two networks
/// would make the operator write more slices than reports of one network did.
const BETWEEN_LIES: Duration = Duration::from_millis(40);
/// Longest wait of the tenant for an answer about a LoadBalancer in the version [`OLD`]. Conversion
/// makes the write slow, and the operator writes the status each time the guest reports another
/// address. So the write loses each race, and the API server repeats it for 34 s
/// (`GuaranteedUpdate`).
const PATIENCE: Duration = Duration::from_secs(2);

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
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata:
  name: lan
  namespace: default
  annotations: {network.harvesterhci.io/route: '{"cidr": "10.0.0.0/8", "gateway": "10.0.0.1"}'}
spec: {config: '{"cniVersion": "0.3.1", "name": "lan", "type": "bridge", "bridge": "mgmt-br", "vlan": 100, "ipam": {}}'}
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

/// Sends requests until the end, a different one each time. Counts the accepted ones in `done`;
/// returns the number of all. `victim`: UID of the victim.
async fn attack(
    client: Client,
    worker: u64,
    victim: String,
    over: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
) -> Result<u64> {
    let (mut sent, mut step, mut uid) = (0, 0, String::new());
    // A power of two, so that an odd factor gives each round an order with every place in it.
    let places = requests(AttackedNames::default(), 0).len().next_power_of_two();
    let places = u64::try_from(places)?;
    while !over.load(Ordering::Relaxed) {
        // All requests for one name, then for the next, in another order each time. The first is
        // always the creation.
        let round = step / places;
        let at = step % places * (2 * round + 1) % places;
        if at == 0 {
            GUESS.clone_into(&mut uid);
        }
        step += 1;
        let name = format!("h-{}", (round * WORKERS + worker) % NAMES);
        let names = AttackedNames { name: &name, uid: &uid, victim: &victim };
        // The last places have no request.
        let Some(request) = requests(names, sent).into_iter().nth(usize::try_from(at)?) else {
            continue;
        };
        let Some(said) = answer(&client, &request).await? else { continue };
        let (method, path, _) = &request;
        ensure!(said.code < 500, "{method} {path}: {said:?}");
        if said.accepted() && path.starts_with(LBS) {
            said.body["metadata"]["uid"].as_str().unwrap_or(GUESS).clone_into(&mut uid);
        }
        done.fetch_add(u64::from(said.accepted()), Ordering::Relaxed);
        sent += 1;
    }
    Ok(sent)
}

/// Sends a request, and returns the answer. `None`: no answer came within [`PATIENCE`].
async fn answer(client: &Client, (method, path, body): &Request) -> Result<Option<Said>> {
    if *method == APPLY {
        let apply = [("content-type", "application/apply-patch+yaml")];
        return send(client, "PATCH", path, &apply, body).await.map(Some);
    }
    let asked = ask(client, method, path, body);
    if path.contains(OLD) {
        return timeout(PATIENCE, asked).await.ok().transpose();
    }
    asked.await.map(Some)
}

/// Reports false addresses as the guest's agent, on both networks: root in the guest chooses them.
async fn lie(mut guest: Guest, over: Arc<AtomicBool>) -> Result<()> {
    let of_pod = [LIAR, HONEST, API_SERVER, VICTIM, "127.0.0.1", "not an address"];
    let on_lan = [ON_LAN, VICTIM, API_SERVER, NODE, HONEST, OUTSIDE, "fe80::7"];
    // The lengths have no common factor, so each address meets each of the other network.
    for reported in of_pod.iter().cycle().zip(on_lan.iter().cycle()) {
        if over.load(Ordering::Relaxed) {
            break;
        }
        guest.report(|vm| report(vm, reported.0, reported.1)).await?;
        tokio::time::sleep(BETWEEN_LIES).await;
    }
    Ok(())
}

/// Sets the addresses that the VM reports on the pod network and on its second network.
fn report(vm: &mut Vm, of_pod: &str, on_lan: &str) {
    for (nic, address) in vm.nics.iter_mut().zip([of_pod, on_lan]) {
        nic.addresses = vec![address.to_owned()];
    }
}

/// Creates a vm LoadBalancer for the VMs with this label `app`, and returns its UID.
async fn vm_lb(cluster: &Cluster, namespace: &str, name: &str, app: &str) -> Result<String> {
    let mut lb = crate::support::lb(name, &json!({"backendServerSelector": {"app": [app]}}))?;
    lb.metadata.namespace = Some(namespace.to_owned());
    let lbs = Api::<LoadBalancer>::namespaced(cluster.client.clone(), namespace);
    lbs.create(&PostParams::default(), &lb).await?.uid().context("a LoadBalancer without UID")
}

/// Runs the VMs of both tenants. Returns the hostile tenant's, which has a second network.
async fn vms(cluster: &Cluster) -> Result<Guest> {
    let vm = |namespace: &str, name: &str, ip: &str| {
        Vm::new(namespace, name).label("app", name).nic(Nic::pod("default", &[ip]))
    };
    Guest::run(&cluster.client, vm("theirs", "honest", HONEST), "node-1").await?;
    let lan = Nic::attached("lan", "default/lan", &[ON_LAN]);
    Guest::run(&cluster.client, vm("hostile", "liar", LIAR).nic(lan), "node-1").await
}

/// Waits until the tenant's VM is an endpoint by its address on the second network, so that lies
/// about this network meet the operator's rules.
async fn serves_on_lan(cluster: &Cluster, guest: &mut Guest) -> Result<()> {
    guest.report(|vm| report(vm, "127.0.0.1", ON_LAN)).await?;
    eventually(SOON, "endpoint on the second network", async || {
        let found = endpoints(cluster, "hostile").await?;
        ensure!(found.iter().eq([ON_LAN]), "{found:?}");
        anyhow::Ok(true)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_tenant_gains_nothing_and_delays_none() -> Result<()> {
    let seconds = std::env::var(SECONDS.0).map_or(Ok(SECONDS.1), |text| text.parse())?;
    let cluster = Cluster::start().await?;
    cluster.bed.apply_yaml(SCENE).await?;
    cluster.infrastructure(NODE, "10.0.0.10", "10.0.0.50").await?;
    let operator = cluster.standby(itself()).await?;
    operator.leads().await?;
    cluster.registered().await?;
    converts(&cluster).await?;
    let how = Announcing { leased: Some(LEASED.to_owned()), ..Announcing::default() };
    let _announcer = Announcer::start(cluster.client.clone(), how);
    let mut liar = vms(&cluster).await?;
    let victim = vm_lb(&cluster, "theirs", "victim", "honest").await?;
    // A LoadBalancer that stays, so that each lie meets one.
    vm_lb(&cluster, "hostile", "steady", "liar").await?;
    let is_there =
        async || nothing_gained(&cluster).await.map(|()| true).map_err(|e| format!("{e:#}"));
    eventually(SOON, "the victim's address and endpoint", is_there).await?;

    let lasting = Duration::from_secs(seconds);
    let quiet = NeighbourWaits::measure(&cluster, "theirs", Instant::now() + lasting / 4).await?;
    // The operator knows the address that the victim is announced at before the first lie about it.
    let service = eventually(SOON, "the victim's announcement", async || {
        victims_service(&cluster).await.map(Some)
    })
    .await?;
    serves_on_lan(&cluster, &mut liar).await?;
    let token = cluster.bed.service_account_token("hostile", "tenant").await?;
    let tenant = cluster.bed.client_for(&token).await?;
    let (over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut attacking = JoinSet::new();
    for worker in 0..WORKERS {
        attacking.spawn(attack(tenant.clone(), worker, victim.clone(), over.clone(), done.clone()));
    }
    let lying = lie(liar, over.clone());
    let (began, used) = (Instant::now(), operator.process.cpu_time().context("no CPU time")?);
    let watching = async {
        while !over.load(Ordering::Relaxed) {
            nothing_gained(&cluster).await?;
            ensure!(victims_service(&cluster).await? == service, "another Service");
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        anyhow::Ok(())
    };
    let measuring = async {
        let waits = NeighbourWaits::measure_beside(&cluster, "theirs", lasting, &quiet).await;
        let many = eventually(LATER, "accepted requests", async || {
            done.load(Ordering::Relaxed) > 10 * seconds
        })
        .await;
        over.store(true, Ordering::Relaxed);
        many.and(waits)
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
    let_go(&cluster).await?;
    cluster.consistent().await?;
    nothing_gained(&cluster).await?;
    let is_over =
        async || is_put_right(&cluster).await.map(|()| true).map_err(|e| format!("{e:#}"));
    eventually(SOON, "the operator's own Services and slices", is_over).await?;
    nothing_gained(&cluster).await?;
    ensure!(victims_service(&cluster).await? == service, "another Service");
    ensure!(rss < MOST_RSS, "RSS {rss} KiB");
    loud.ensure_near(&quiet)?;
    Ok(())
}
