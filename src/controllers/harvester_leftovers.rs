//! Watches objects that Harvester's chart and its Go controller leave behind or put back:
//!
//! * VMs with finalizers of the Go controller are counted.
//! * The CRDs that both Harvester's chart and the operator's chart contain are checked. A form that
//!   has replaced the operator's form is reported. With the option `--repair-crds`, the operator's
//!   form is put back.
//! * The status subresource of IPPool's CRD is put back, with or without this option, if a replica
//!   of the operator has removed it. A replica removes it while another controller leads.
//!
//! Invariants:
//!
//! * The operator's form of a CRD is put back only if a take-over installed it before.
//! * In one term, a CRD is written at most once in the time [`AGAIN`], however often its form is
//!   replaced.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::PartialObjectMeta;
use kube::{Api, Resource as _, ResourceExt as _};
use tokio::time::Instant;

use super::Context;
use super::ip_pool::LedgerHandle;
use crate::api;
use crate::domain::reason;
use crate::domain::takeover::crds::{CrdForm, form, repaired, with_status};
use crate::k8s::CallError;
use crate::k8s::calls::ApiCalls as _;
use crate::k8s::takeover::finalizers;
use crate::metrics::Metrics;

/// Name of IPPool's CRD.
const IP_POOLS: &str = "ippools.loadbalancer.harvesterhci.io";
/// Names of the CRDs that are in Harvester's chart and in the operator's.
const CRDS: [&str; 2] = [IP_POOLS, "loadbalancers.loadbalancer.harvesterhci.io"];
/// Interval between two checks of a CRD. A check reads only the metadata of an unchanged CRD.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Shortest time between two writes of the same CRD.
const AGAIN: Duration = Duration::from_mins(10);

/// Interval between two counts of the VMs with finalizers of the Go controller. Field 0: while a VM
/// has such a finalizer, and after a failed count. Field 1: while no VM has such a finalizer.
const COUNT: (Duration, Duration) = (Duration::from_secs(30), Duration::from_mins(10));
/// Time from the start of a term to the first count. The count reads every VM. The delay gives
/// LoadBalancers that wait for an address the time to get one first.
const FIRST_COUNT: Duration = Duration::from_secs(5);

/// Last known state of a CRD. `version`: its resourceVersion when it was last read. `written`: time
/// of the last write in this term, even if the write failed. A conflict does not count as a write.
#[derive(Default)]
struct KnownCrd {
    version: String,
    form: Option<CrdForm>,
    written: Option<Instant>,
}

/// Guard of the gauges for replaced CRDs and for VMs with finalizers of the Go controller. Its drop
/// at the end of a term resets these gauges, so that only the leader reports them.
struct CrdGauges(Metrics);

impl Drop for CrdGauges {
    fn drop(&mut self) {
        self.0.leadership.crd_replaced.reset();
        self.0.leadership.go_finalizers.set(0);
    }
}

/// Watches the CRDs and counts the VMs with finalizers of the Go controller, until the future is
/// dropped.
pub(super) async fn run(ctx: Context, pools: LedgerHandle) {
    let _gauges = CrdGauges(ctx.metrics.clone());
    tokio::join!(count(&ctx), watch(&ctx, pools));
}

/// Counts the VirtualMachines and VirtualMachineInstances that have a finalizer of the Go
/// controller, and sets the gauge. Repeats this at the intervals [`COUNT`]. The deletion of such an
/// object is not completed unless the Go controller runs.
async fn count(ctx: &Context) {
    tokio::time::sleep(FIRST_COUNT).await;
    loop {
        let gauge = &ctx.metrics.leadership.go_finalizers;
        let pause = match finalizers::count(&ctx.client).await {
            Ok(found) => {
                gauge.set(i64::try_from(found).unwrap_or(i64::MAX));
                if found > 0 { COUNT.0 } else { COUNT.1 }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot count the VMs with finalizers of the Go controller");
                COUNT.0
            }
        };
        tokio::time::sleep(pause).await;
    }
}

async fn watch(ctx: &Context, pools: LedgerHandle) {
    let mut known: BTreeMap<&str, KnownCrd> = BTreeMap::new();
    loop {
        for name in CRDS {
            match check_crd(ctx, name, known.entry(name).or_default(), &pools).await {
                Ok(())
                | Err(CallError::NotLeader | CallError::NotFound(_) | CallError::Conflict(_)) => {}
                Err(error) => tracing::warn!(%error, crd = name, "cannot read or write the CRD"),
            }
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

async fn check_crd(
    ctx: &Context,
    name: &'static str,
    known: &mut KnownCrd,
    pools: &LedgerHandle,
) -> Result<(), CallError> {
    let metadata = Api::<PartialObjectMeta<CustomResourceDefinition>>::all(ctx.client.clone());
    let meta = metadata.call_get(name).await?;
    let may_write = known.written.is_none_or(|written| written.elapsed() >= AGAIN);
    let is_due = may_write && known.form.is_some_and(|form| repairs(ctx, form));
    if meta.resource_version().is_some_and(|version| version == known.version) && !is_due {
        return Ok(());
    }
    let crds = Api::<CustomResourceDefinition>::all(ctx.client.clone());
    let crd = crds.call_get(name).await?;
    let stored = serde_json::to_value(&crd).unwrap_or_default();
    let found = form(&stored);
    let before = known.form.replace(found);
    known.version = crd.resource_version().unwrap_or_default();
    report_form(ctx, name, found, pools);
    if found == CrdForm::Replaced && before != Some(found) {
        tracing::warn!(crd = name, "{}", reason::FORM_REPLACED);
        let note = reason::FORM_REPLACED.to_owned();
        ctx.events.warning(crd.object_ref(&()), "CRDReplaced", note);
    }
    if !may_write || !repairs(ctx, found) {
        return Ok(());
    }
    let (patch, note) = match found {
        CrdForm::Expected => return Ok(()),
        CrdForm::StatusRemoved => (with_status(&stored), reason::STATUS_BACK),
        CrdForm::Replaced => {
            let ours = api::crds().into_iter().find(|ours| ours.name_any() == name);
            let versions = ours.map(|ours| ours.spec.versions);
            let versions = serde_json::to_value(versions).unwrap_or_default();
            (repaired(&stored, &versions), reason::FORM_REPAIRED)
        }
    };
    match ctx.writer.patch::<CustomResourceDefinition>(None, name, &patch).await {
        // Another client has changed the CRD. The next check decides again whether to replace the
        // form.
        Err(CallError::Conflict(_)) => {
            known.version.clear();
            return Ok(());
        }
        written => {
            // The time is recorded after a failed write as well, so that the next write waits for
            // [`AGAIN`].
            known.written = Some(Instant::now());
            written?;
        }
    }
    known.form = Some(CrdForm::Expected);
    report_form(ctx, name, CrdForm::Expected, pools);
    tracing::warn!(crd = name, "{note}");
    ctx.metrics.leadership.crd_repairs.with_label_values(&[name]).inc();
    ctx.events.normal(crd.object_ref(&()), "CRDRestored", note.to_owned());
    Ok(())
}

/// Reports in the metrics whether another form has replaced the operator's form of a CRD. For
/// IPPool's CRD, the conditions of all pools report this too.
fn report_form(ctx: &Context, name: &str, form: CrdForm, pools: &LedgerHandle) {
    let is_replaced = form == CrdForm::Replaced;
    ctx.metrics.leadership.crd_replaced.with_label_values(&[name]).set(is_replaced.into());
    // Creates the series with the value 0, so that the first repair is an increase of the counter.
    ctx.metrics.leadership.crd_repairs.with_label_values(&[name]).inc_by(0);
    if name == IP_POOLS {
        pools.crd_replaced(is_replaced);
    }
}

/// Whether the operator repairs a CRD of this form. A removed status subresource is always
/// repaired. A replaced form is repaired only with the option `--repair-crds`.
fn repairs(ctx: &Context, form: CrdForm) -> bool {
    match form {
        CrdForm::Expected => false,
        CrdForm::StatusRemoved => true,
        CrdForm::Replaced => ctx.repair_crds,
    }
}
