//! Admission at scale: the time of one call with 10,000 LoadBalancers and 100 pools, and the time
//! that admission adds to a request.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use harvester_guest_operator::api::IPPool;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use testbed::{Bed, Operator, Start, eventually};

use crate::{guests, wire};

const LBS: usize = 10_000;
const POOLS: usize = 100;
/// Second octet of the subnet of pool 0; the global pool has 64.
const FIRST_SUBNET: usize = 100;
const CALLS: usize = 1_000;
/// Sizes of the converted lists, and number of conversions of each.
const LISTS: [usize; 3] = [100, 1_000, 10_000];
const LIST_ROUNDS: usize = 5;
const CONVERSION: &str = "/v1/webhook/conversion";
/// Longest time until an operator with admission has ended: it takes ten seconds.
pub(crate) const END: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_mins(5);
/// Time without conversions before calls are measured.
const QUIET: Duration = Duration::from_secs(3);
const CONFIGURATION: &str = "harvester-load-balancer-webhook";
const GROUP: &str = "loadbalancer.harvesterhci.io";

/// Times and memory of admission.
pub(crate) struct Calls {
    /// Times of calls by kind; the first is the floor, a review that decides nothing.
    pub(crate) by_question: Vec<(&'static str, Vec<Duration>)>,
    /// Times of a dry-run creation through the API server: without admission, and with it.
    pub(crate) without: Vec<Duration>,
    pub(crate) with: Vec<Duration>,
    /// Conversion of lists: number of objects, and time in all, answer read.
    pub(crate) lists: Vec<(usize, Duration)>,
    pub(crate) peak_rss_mib: f64,
}

pub(crate) async fn measure(bed: &Bed, binary: &Path) -> Result<Calls> {
    let client = bed.admin();
    println!("{LBS} load balancers, {POOLS} pools (a minute)");
    guests::pool(&client, "bench", "10.64.0.0/16").await?;
    for index in 1..POOLS {
        let pool = pool(&format!("net-{index}"), index);
        pools(&client).create(&PostParams::default(), &serde_json::from_value(pool)?).await?;
    }
    futures::stream::iter(0..LBS)
        .map(Ok)
        .try_for_each_concurrent(guests::AT_ONCE, |index| spread(&client, index))
        .await?;
    let without = dry_runs(&client).await?;

    let mut operator = operator(bed, binary).await?;
    eventually(PATIENCE, "addresses", async || {
        operator.metric("hgo_load_balancers", &["Allocated"]).await.map(|n| n >= LBS as f64)
    })
    .await?;
    let bundle = registered(&client).await?;

    // The API server converts each change for its cache of v1alpha1, which may be behind.
    eventually(PATIENCE, "end of conversions", async || {
        let asked = async || operator.metric("hgo_admission_requests_total", &["conversion"]).await;
        let before = asked().await?;
        tokio::time::sleep(QUIET).await;
        asked().await.map(|after| after <= before)
    })
    .await?;

    let address = operator.admission.context("admission does not listen")?;
    let mut stream = wire::connect(address, &bundle, None).await?;
    let mut calls = Vec::new();
    for (what, path, requests) in questions() {
        let mut times = Vec::new();
        for call in 0..CALLS {
            let body = requests(call).to_string();
            let began = Instant::now();
            let (code, _, said) = wire::post(&mut stream, path, body.as_bytes()).await?;
            times.push(began.elapsed());
            ensure!(code == 200 && !said.contains("\"allowed\":false"), "{what}: {code} {said}");
        }
        calls.push((what, times));
    }
    let with = dry_runs(&client).await?;
    let mut lists = Vec::new();
    for count in LISTS {
        let body = list(count).to_string();
        let mut times = Vec::new();
        for _ in 0..LIST_ROUNDS {
            let began = Instant::now();
            let (code, _, said) = wire::post(&mut stream, CONVERSION, body.as_bytes()).await?;
            times.push(began.elapsed());
            let converted = said.matches("v1alpha1\"").count();
            ensure!(code == 200 && converted == count, "{count}: {code}, {converted} converted");
        }
        times.sort_unstable();
        lists.push((count, times[LIST_ROUNDS / 2]));
    }
    let peak_rss_mib = operator.process.peak_rss_kib().unwrap_or(0) as f64 / 1024.0;

    guests::delete_all(&client, LBS).await?;
    guests::wait_until_gone(&client).await?;
    let all = DeleteParams::default();
    pools(&client).delete_collection(&all, &ListParams::default()).await?;
    eventually(PATIENCE, "deletion of the pools", async || {
        pools(&client).list(&ListParams::default()).await.map(|list| list.items.is_empty())
    })
    .await?;
    operator.process.terminate(END).await?;
    unregister(&client).await?;
    Ok(Calls { by_question: calls, without, with, lists, peak_rss_mib })
}

/// Starts an operator with admission, and waits until it leads.
pub(crate) async fn operator(bed: &Bed, binary: &Path) -> Result<Operator> {
    let admission = Some("https://127.0.0.1:0".to_owned());
    let operator = Operator::start(bed, binary, Start { admission, ..Start::default() }).await?;
    operator.leads().await?;
    Ok(operator)
}

/// Waits until the operator has registered its webhooks, and returns their CA bundle.
pub(crate) async fn registered(client: &Client) -> Result<String> {
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let bundle = eventually(PATIENCE, "registration", async || {
        let stored = configurations.get_opt(CONFIGURATION).await?;
        let webhook = stored.and_then(|c| c.webhooks).and_then(|list| list.into_iter().next());
        anyhow::Ok(webhook.and_then(|w| w.client_config.ca_bundle))
    })
    .await?;
    Ok(String::from_utf8(bundle.0)?)
}

/// Creates a LoadBalancer that names one pool of many: one pool's ledger has no room for all.
async fn spread(client: &Client, index: usize) -> Result<()> {
    let mut lb = guests::lb(index)?;
    lb.spec.ip_pool = Some(format!("net-{}", index % (POOLS - 1) + 1));
    guests::lbs(client).create(&PostParams::default(), &lb).await?;
    Ok(())
}

fn pools(client: &Client) -> Api<IPPool> {
    Api::all(client.clone())
}

/// Removes the webhooks: no call may go to them once the operator is gone.
async fn unregister(client: &Client) -> Result<()> {
    use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
    let (params, none) = (PatchParams::default(), Patch::Merge(json!({"webhooks": null})));
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    validating.patch(CONFIGURATION, &params, &none).await?;
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    mutating.patch(CONFIGURATION, &params, &none).await?;
    Ok(())
}

fn pool(name: &str, index: usize) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1beta1"),
        "kind": "IPPool",
        "metadata": {"name": name},
        "spec": {
            // Apart from the global pool's range, and from all others.
            "ranges": [{"subnet": format!("10.{}.0.0/20", FIRST_SUBNET + index)}],
            "selector": {
                "network": format!("default/net-{index}"),
                "priority": index,
                "scope": [{"project": "*", "namespace": "default", "guestCluster": "*"}],
            },
        },
    })
}

async fn dry_runs(client: &Client) -> Result<Vec<Duration>> {
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let lbs = guests::lbs(client);
    let mut times = Vec::new();
    for index in 0..CALLS {
        let lb = guests::lb(LBS + index)?;
        let began = Instant::now();
        lbs.create(&dry, &lb).await?;
        times.push(began.elapsed());
    }
    Ok(times)
}

type Requests = fn(usize) -> Value;

/// Measured calls: name, path, and the n-th request.
fn questions() -> [(&'static str, &'static str, Requests); 6] {
    const VALIDATION: &str = "/v1/webhook/validation";
    const MUTATION: &str = "/v1/webhook/mutation";
    [
        ("floor: a review that decides nothing", CONVERSION, |_| nothing()),
        ("mutation of a new LoadBalancer", MUTATION, |n| create_lb(n, None)),
        ("validation of a new LoadBalancer", VALIDATION, |n| create_lb(n, None)),
        ("the same, naming a pool", VALIDATION, |n| create_lb(n, Some("bench"))),
        ("mutation of a new IPPool", MUTATION, create_pool),
        ("validation of a new IPPool", VALIDATION, create_pool),
    ]
}

/// A conversion review of one object that needs no conversion.
fn nothing() -> Value {
    conversion("v1beta1", 1)
}

fn list(count: usize) -> Value {
    conversion("v1alpha1", count)
}

/// A conversion review of objects of v1beta1 as the operator writes them.
fn conversion(to: &str, count: usize) -> Value {
    let object = |index: usize| {
        json!({
            "apiVersion": format!("{GROUP}/v1beta1"), "kind": "LoadBalancer",
            "metadata": {"name": format!("web-{index}"), "namespace": "default",
                "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
                "annotations": {"loadbalancer.harvesterhci.io/namespace": "default"}},
            "spec": {"workloadType": "vm", "ipam": "pool",
                "listeners": [{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 8080}],
                "backendServerSelector": {"app": ["web"]}},
            "status": {"address": "10.64.0.2",
                "allocatedAddress": {"ipPool": "bench", "ip": "10.64.0.2",
                    "mask": "255.255.0.0", "gateway": "10.64.0.1"},
                "conditions": [{"type": "Ready", "status": "True", "reason": "Announced"}]},
        })
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "desiredAPIVersion": format!("{GROUP}/{to}"),
            "objects": (0..count).map(object).collect::<Vec<_>>(),
        },
    })
}

fn create_lb(index: usize, named: Option<&str>) -> Value {
    let mut lb = json!({
        "apiVersion": format!("{GROUP}/v1beta1"), "kind": "LoadBalancer",
        "metadata": {"name": format!("new-{index}"), "namespace": "default",
            "labels": {"cloudprovider.harvesterhci.io/cluster": "guest"}},
        "spec": {"workloadType": "cluster", "ipam": "pool"},
    });
    if let Some(named) = named {
        lb["spec"]["ipPool"] = json!(named);
    }
    review("LoadBalancer", "loadbalancers", "default", &lb)
}

fn create_pool(index: usize) -> Value {
    let mut pool = pool(&format!("new-{index}"), POOLS);
    pool["spec"]["selector"]["priority"] = json!(1_000 + index);
    review("IPPool", "ippools", "", &pool)
}

fn review(kind: &str, resource: &str, namespace: &str, object: &Value) -> Value {
    let name = object["metadata"]["name"].clone();
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800003",
            "kind": {"group": GROUP, "version": "v1beta1", "kind": kind},
            "resource": {"group": GROUP, "version": "v1beta1", "resource": resource},
            "name": name, "namespace": namespace, "operation": "CREATE",
            "userInfo": {"username": "tenant", "groups": ["system:authenticated"]},
            "object": object, "oldObject": null, "dryRun": true, "options": {},
        },
    })
}
