//! IPPool as Harvester's own chart ships it: without a status subresource, and without the newer
//! fields. The chart may restore it at any time.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harvester_guest_operator::api;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::eventually;

use crate::support::{Cluster, LATER, SOON, settled, writes};

/// Installs Harvester's form of the CRD.
pub(crate) async fn serve_as_harvester_does(cluster: &Cluster) -> Result<()> {
    serve(cluster, Form::Harvesters).await
}

pub(crate) async fn serve_as_ours(cluster: &Cluster) -> Result<()> {
    serve(cluster, Form::Ours).await
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Ours,
    Harvesters,
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_are_given_and_taken_back_on_the_crd_that_harvester_ships() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    serve(&cluster, Form::Harvesters).await?;
    let mut operator = cluster.operator().await?;
    cluster.lbs_at_once((0..30).map(|i| format!("lb-{i}"))).await?;
    cluster.addressed(30).await?;
    for i in 0..10 {
        cluster.deleted(&format!("lb-{i}")).await?;
    }
    cluster.consistent().await?;
    let status = cluster.pool_status("pool").await?;
    assert_eq!((status.total, status.available), (253, 233));
    assert_eq!((status.allocated.len(), status.allocated_history.len()), (20, 10));
    assert!(status.allocated_owners.is_empty(), "this schema has no room for them");

    settled("all objects", async || versions(&cluster).await).await?;
    operator.process.terminate(SOON).await?;
    let versions = versions(&cluster).await?;
    let operator = cluster.operator().await?;
    let dhcp = json!({"workloadType": "cluster", "ipam": "dhcp"});
    cluster.lb_with("probe", dhcp).await?;
    cluster.address("probe").await?;
    cluster.deleted("probe").await?;
    assert_eq!(self::versions(&cluster).await?, versions);
    // The probe's write, and the two that find out which form is served.
    assert!(writes(&operator).await? <= 3.0);

    cluster.pools().delete("pool", &DeleteParams::default()).await?;
    cluster.pool_says("pool", "Ready", "Deleting").await?;
    cluster.delete_all().await?;
    cluster.pool_gone("pool").await
}

/// An edit in the UI, or `kubectl replace`, replaces the ledger too in that form.
#[tokio::test(flavor = "multi_thread")]
async fn an_edit_that_wipes_the_ledger_moves_no_address_and_gives_none_twice() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    serve(&cluster, Form::Harvesters).await?;
    let mut operator = cluster.operator().await?;
    cluster.lbs_at_once((0..20).map(|i| format!("old-{i}"))).await?;
    cluster.addressed(20).await?;
    let old = cluster.addresses().await?;

    // Repeatedly, in the middle of a burst.
    let burst = async {
        for i in 0..60 {
            cluster.lb(&format!("new-{i}")).await?;
        }
        cluster.addressed(80).await
    };
    let wipes = async {
        for _ in 0..5 {
            wipe(&cluster).await?;
            eventually(SOON, "repaired ledger", async || {
                cluster.allocated("pool").await.map(|a| a.len() >= 20)
            })
            .await?;
        }
        anyhow::Ok(())
    };
    tokio::try_join!(burst, wipes)?;
    let all = cluster.addresses().await?;
    assert!(old.iter().all(|(name, ip)| all[name] == *ip), "{old:?} {all:?}");
    assert_eq!(all.values().collect::<BTreeSet<_>>().len(), 80);
    cluster.consistent().await?;

    // And without a leader.
    operator.process.kill9()?;
    cluster.free_lease().await?;
    wipe(&cluster).await?;
    cluster.lbs_at_once((0..10).map(|i| format!("late-{i}"))).await?;
    let _operator = cluster.operator().await?;
    cluster.addressed(90).await?;
    let late = cluster.addresses().await?;
    assert!(all.iter().all(|(name, ip)| late[name] == *ip), "{all:?} {late:?}");
    cluster.consistent().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_crd_under_a_running_operator_loses_nothing() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/20"})).await?;
    let _operator = cluster.operator().await?;
    let over = AtomicBool::new(false);
    let guest = async {
        let (mut kept, mut round, mut longest) = (0, 0, Duration::ZERO);
        while !over.load(Ordering::Relaxed) {
            ensure!(kept < 2_000, "the CRD never changed");
            let name = format!("lb-{round}");
            let asked = Instant::now();
            cluster.lb(&name).await?;
            cluster.address(&name).await?;
            longest = longest.max(asked.elapsed());
            // Every other one is deleted.
            if round % 2 == 0 {
                cluster.deleted(&name).await?;
            } else {
                kept += 1;
            }
            round += 1;
        }
        // Printed, not asserted: a busy machine is no fault.
        println!("{kept} addresses kept through four changes, longest wait {longest:?}");
        anyhow::Ok(kept)
    };
    let admin = async {
        for form in [Form::Harvesters, Form::Ours, Form::Harvesters, Form::Ours] {
            serve(&cluster, form).await?;
            // Until an address was claimed on this form.
            let before = cluster.allocated("pool").await?.len();
            eventually(LATER, &format!("address on {form:?}"), async || {
                cluster.allocated("pool").await.map(|a| a.len() > before + 2)
            })
            .await?;
        }
        over.store(true, Ordering::Relaxed);
        Ok(())
    };
    let (kept, ()) = tokio::try_join!(guest, admin)?;
    let all = cluster.addresses().await?;
    assert_eq!((all.len(), all.values().collect::<BTreeSet<_>>().len()), (kept, kept));
    cluster.consistent().await?;
    eventually(SOON, "the newer fields", async || {
        let owners = cluster.pool_status("pool").await.map_err(|e| e.to_string())?;
        let owners = owners.allocated_owners.len();
        if owners == kept { Ok(true) } else { Err(format!("{owners} of {kept}")) }
    })
    .await?;

    // Changes of a spec are stored after a change of form, too.
    for (form, subnet, total) in
        [(Form::Harvesters, "10.1.0.0/19", 8_189), (Form::Ours, "10.1.0.0/18", 16_381)]
    {
        serve(&cluster, form).await?;
        cluster.patch_pool("pool", json!({"spec": {"ranges": [{"subnet": subnet}]}})).await?;
        eventually(SOON, &format!("new total on {form:?}"), async || {
            let status = cluster.pool_status("pool").await.map_err(|e| e.to_string())?;
            if status.total == total { Ok(true) } else { Err(format!("{}", status.total)) }
        })
        .await?;
    }
    cluster.consistent().await
}

/// Replaces the pool by an object without status, as a client does that does not know it.
async fn wipe(cluster: &Cluster) -> Result<()> {
    eventually(SOON, "replacement of the pool", async || {
        let mut pool = cluster.pools().get("pool").await?;
        pool.status = None;
        let put = cluster.pools().replace("pool", &PostParams::default(), &pool).await?;
        assert!(put.status.is_none(), "the ledger was not wiped: {put:?}");
        Ok::<_, kube::Error>(true)
    })
    .await
}

/// Installs the CRD and waits until the server serves it.
async fn serve(cluster: &Cluster, form: Form) -> Result<()> {
    let mut crd = api::crds().remove(0);
    if form == Form::Harvesters {
        crd = as_harvester_ships_it(&crd)?;
    }
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let name = crd.name_any();
    eventually(SOON, "new CRD", async || {
        crd.metadata.resource_version = crds.get(&name).await?.resource_version();
        crds.replace(&name, &PostParams::default(), &crd).await.map(|_| true)
    })
    .await?;
    eventually(SOON, &format!("{form:?}"), async || {
        // Without the subresource this path does not exist, although the pool does.
        match cluster.pools().get_status("pool").await {
            Ok(_) => Ok(form == Form::Ours),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(form == Form::Harvesters),
            Err(error) => Err(error),
        }
    })
    .await
}

/// Makes the CRD of Harvester v1.5 and later: the same names, no subresources, no rules.
fn as_harvester_ships_it(crd: &CustomResourceDefinition) -> Result<CustomResourceDefinition> {
    let mut crd = json!(crd);
    drop_keys(
        &mut crd,
        &[
            "subresources",
            "usedPercent",
            "allocatedOwners",
            "observedGeneration",
            "exclude",
            "state",
            "quota",
            "releaseCooldownSeconds",
            "conflictProbe",
            "default",
            "nullable",
            "x-kubernetes-map-type",
            "x-kubernetes-validations",
        ],
    );
    let status = "/spec/versions/0/schema/openAPIV3Schema/properties/status";
    let status = crd.pointer_mut(status).and_then(Value::as_object_mut);
    ensure!(status.is_some(), "no status in the schema");
    if let Some(status) = status {
        status.insert("required".to_owned(), json!(["available", "lastAllocated", "total"]));
    }
    Ok(serde_json::from_value(crd)?)
}

pub(crate) fn drop_keys(value: &mut Value, keys: &[&str]) {
    match value {
        Value::Object(map) => {
            map.retain(|key, _| !keys.contains(&key.as_str()));
            map.values_mut().for_each(|v| drop_keys(v, keys));
        }
        Value::Array(list) => list.iter_mut().for_each(|v| drop_keys(v, keys)),
        _ => {}
    }
}

async fn versions(cluster: &Cluster) -> Result<Vec<(String, Option<String>)>> {
    let lbs = cluster.lbs().list(&ListParams::default()).await?;
    let mut all: Vec<_> = lbs.iter().map(|lb| (lb.name_any(), lb.resource_version())).collect();
    let pool = cluster.pools().get("pool").await?;
    all.push(("pool".to_owned(), pool.resource_version()));
    Ok(all)
}
