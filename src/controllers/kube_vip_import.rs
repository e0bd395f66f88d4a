//! Imports the addresses in the ConfigMap of kube-vip's cloud provider into IPPools.
//! [`crate::domain::pools::kube_vip_import`] decides which IPPools are created.
//!
//! The import runs once for a cluster. Then an annotation marks the ConfigMap as imported, also for
//! the Go controller. If the annotation is removed, the import runs again at the start of the next
//! term. An error during the import leaves the ConfigMap unmarked. The next run then finds the
//! pools that were created before the error.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::{Api, Resource, ResourceExt};
use serde_json::json;

use super::Context;
use crate::api::{ANNOTATION_IMPORT_REPORT, ANNOTATION_IMPORTED, IPPool};
use crate::domain::limits::backoff::backoff;
use crate::domain::load_balancer::facts;
use crate::domain::pools::kube_vip_import::{
    self, ImportFacts, ImportPlan, NAME, NAMESPACE, NewPool,
};
use crate::k8s::CallError;
use crate::k8s::calls::ApiCalls as _;

/// Longest time for which a new term waits for the import before the ledgers are read. If a pool is
/// created in this time, the former owners of its addresses are recorded before the first
/// allocation.
const FIRST_RUN: Duration = Duration::from_secs(10);
/// Pause after the first failed import from kube-vip (field 0), and longest pause (field 1). The
/// pause doubles after each further failure.
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_mins(5));

/// Runs the import for the first time in a term. Returns `false` if the import must be repeated.
pub(super) async fn first(ctx: &Context) -> bool {
    tokio::time::timeout(FIRST_RUN, run(ctx)).await.unwrap_or(false)
}

/// Repeats the import until it is done, or until the API server refuses it. Then waits to be
/// dropped. `done`: the result of [`first`]. If true, the import is not repeated.
pub(super) async fn rest(ctx: Context, mut done: bool) {
    let mut failures = 0;
    while !done {
        tokio::time::sleep(backoff(failures, RETRY.0, RETRY.1, 0.0)).await;
        failures += 1;
        done = run(&ctx).await;
    }
    std::future::pending::<()>().await;
}

async fn run(ctx: &Context) -> bool {
    match import(ctx).await {
        Ok(()) => true,
        Err(CallError::NotLeader) => false,
        Err(CallError::Conflict(_)) => {
            tracing::info!("the kube-vip ConfigMap was changed meanwhile, reading it again");
            false
        }
        Err(error) if error.refusal().is_some() => {
            tracing::warn!(%error, "the kube-vip ConfigMap is not imported");
            true
        }
        Err(error) => {
            tracing::warn!(%error, "the kube-vip ConfigMap is not imported yet, trying again");
            false
        }
    }
}

async fn import(ctx: &Context) -> Result<(), CallError> {
    let maps = Api::<ConfigMap>::namespaced(ctx.client.clone(), NAMESPACE);
    let Some(map) = maps.call_get_opt(NAME).await? else { return Ok(()) };
    if map.annotations().get(ANNOTATION_IMPORTED).is_some_and(|done| done == "true") {
        return Ok(());
    }
    let data = map.data.clone().unwrap_or_default();
    let mut import = kube_vip_import::plan(&data, &known(ctx).await?);
    let created = create(ctx, &mut import).await?;
    let report = import.report(&created);
    let patch = json!({"metadata": {
        "resourceVersion": map.resource_version(),
        "annotations": {ANNOTATION_IMPORTED: "true", ANNOTATION_IMPORT_REPORT: report},
    }});
    ctx.writer.patch::<ConfigMap>(Some(NAMESPACE), NAME, &patch).await?;
    report_import(ctx, &map, &import, created.len(), &report);
    Ok(())
}

async fn known(ctx: &Context) -> Result<ImportFacts, CallError> {
    let pools = Api::<IPPool>::all(ctx.client.clone());
    let pools = pools.call_list(&ListParams::default()).await?.items;
    let all = ctx.views.load_balancers.state();
    let load_balancers = facts::addresses(all.iter().map(AsRef::as_ref));
    Ok(ImportFacts { pools, load_balancers })
}

/// Creates the planned pools that do not exist yet. A refused pool is noted in `import`, and the
/// others are created. Records former owners in the created pools, and in the pools that an earlier
/// run created. Returns the names of the pools that this call created.
async fn create(ctx: &Context, import: &mut ImportPlan) -> Result<BTreeSet<String>, CallError> {
    let mut created = BTreeSet::new();
    for pool in &import.pools {
        if pool.there {
            let pools = Api::<IPPool>::all(ctx.client.clone());
            remember(ctx, pool, pools.call_get(&pool.name).await?).await;
            continue;
        }
        match ctx.writer.create_pool(&IPPool::new(&pool.name, pool.spec.clone())).await {
            Ok(stored) => {
                created.insert(pool.name.clone());
                remember(ctx, pool, stored).await;
            }
            // Another client created the pool first.
            Err(CallError::Conflict(_)) => import.left.push(pool.name.clone()),
            Err(error) => match error.refusal() {
                Some(why) => import.refused.push(kube_vip_import::RefusedItem {
                    key: pool.name.clone(),
                    value: String::new(),
                    why: format!("the IPPool is refused: {why}"),
                }),
                None => return Err(error),
            },
        }
    }
    Ok(created)
}

/// Records in the pool's status which LoadBalancer uses each address of the pool, so that this
/// LoadBalancer gets the same address again. Leaves out addresses that have a claim or a former
/// owner already. A failure is only logged. `stored`: the pool as last read.
async fn remember(ctx: &Context, pool: &NewPool, mut stored: IPPool) {
    let mut tries = 0;
    let error = loop {
        let before = stored.status.clone().unwrap_or_default();
        let mut after = before.clone();
        for (ip, name) in pool.history.iter().filter(|(ip, _)| !before.allocated.contains_key(*ip))
        {
            after.allocated_history.entry(ip.clone()).or_insert_with(|| name.clone());
        }
        if after == before {
            return;
        }
        let version = stored.resource_version().unwrap_or_default();
        match ctx.writer.write_pool_status(&pool.name, &version, &before, &after).await {
            Ok(_) => return,
            Err(CallError::Conflict(_)) if tries < 5 => tries += 1,
            Err(error) => break error,
        }
        let pools = Api::<IPPool>::all(ctx.client.clone());
        match pools.call_get(&pool.name).await {
            Ok(now) => stored = now,
            Err(error) => break error,
        }
    };
    tracing::warn!(pool = pool.name, %error, "cannot record the addresses in use in this IPPool");
}

fn report_import(
    ctx: &Context,
    map: &ConfigMap,
    import: &ImportPlan,
    created: usize,
    report: &str,
) {
    for line in report.lines() {
        tracing::info!("kube-vip ConfigMap: {line}");
    }
    let summary = format!(
        "{created} IPPools created, {} not changed, {} items not imported: see the annotation {ANNOTATION_IMPORT_REPORT}",
        import.left.len(),
        import.refused.len()
    );
    let object = map.object_ref(&());
    if import.refused.is_empty() {
        ctx.events.normal(object, "KubeVipImported", summary);
    } else {
        ctx.events.warning(object, "KubeVipImportIncomplete", summary);
    }
}
