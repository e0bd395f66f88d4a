//! Plan of what the operator would do if it led now: addresses that it would allocate, objects that
//! it would write. The plan also lists credentials with their expiry.
//!
//! Invariant: this module has no rules of its own. The code that a leader runs also determines the
//! planned addresses and the planned content of objects. The plan compares them with the stored
//! objects.

pub mod credentials;
pub mod report;
pub mod unread;

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use self::credentials::ExpiringCredential;
use crate::load_balancer::facts;
use crate::load_balancer::status::{self, AddressOutcome};
use crate::pools::allocator::AllocatorPool;
use crate::pools::status::{pool_ready, pool_status};
use crate::takeover::forecast::{self, Effect, Forecast};
use crate::takeover::steps::{Leader, WebhookContent};
use crate::vm_backends::readiness::ServingStatus;
use api::{Condition, ConditionStatus, IPPool, IPPoolStatus, LoadBalancer, POOL_FINALIZER};

/// Plan of what the operator would do if it became the leader now.
#[derive(Clone, Debug, Default)]
pub struct Preview {
    /// Holder of the leader's Lease. `None`: not known.
    pub leader: Option<Leader>,
    /// Content of the validating webhook configuration: whether the API server calls the operator's
    /// webhook. `None`: not known.
    pub admission: Option<WebhookContent>,
    /// One line for each LoadBalancer, sorted by name.
    pub load_balancers: Vec<LoadBalancerLine>,
    /// One line for each pool, sorted by name.
    pub pools: Vec<PoolLine>,
    /// Writes of objects that the operator would make.
    pub changes: Vec<PlannedWrite>,
    /// Findings of the [`forecast`] of a take-over, except findings that are already in
    /// `load_balancers` or `pools` ([`further`]).
    pub findings: Vec<forecast::ForecastFinding>,
    /// Credentials whose expiry is known, in the order of their expiry.
    pub credentials: Vec<ExpiringCredential>,
    /// Sentences about facts that could not be read. Each sentence says why.
    pub unknown: Vec<String>,
}

/// Condition `Ready`, without its times, that a LoadBalancer or a pool would have if the operator
/// led. The error is a text that says why the condition is not known, or why there is none.
pub type PlannedReady = Result<Condition, &'static str>;

/// Line of the plan about a LoadBalancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadBalancerLine {
    /// Namespace and name of the LoadBalancer: `namespace/name`.
    pub name: String,
    /// Address that the LoadBalancer has now, in its status; empty if it has none.
    pub has: String,
    /// Address that the LoadBalancer would have if the operator led; empty if it would have none.
    /// If the address cannot be planned, this is the present one.
    pub gets: String,
    /// Condition `Ready` that the LoadBalancer would have.
    pub said: PlannedReady,
}

impl LoadBalancerLine {
    fn new(lb: &LoadBalancer, gets: String, said: PlannedReady) -> Self {
        let has = facts::allocated_ip(lb).unwrap_or_default().to_owned();
        Self { name: facts::name(lb), has, gets, said }
    }
}

/// Line of the plan about a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolLine {
    /// Name of the pool.
    pub name: String,
    /// Number of addresses that would be free in the pool after the planned allocations.
    pub available: i64,
    /// Condition `Ready` that the pool would have.
    pub said: PlannedReady,
}

/// A planned write of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlannedWrite {
    /// Kind and name of the object, such as `LoadBalancer namespace/name`.
    pub object: String,
    /// Content of the write, as text. Either the written fields, such as
    /// `status.address, status.conditions`, or words such as `deleted`.
    pub what: String,
}

impl PlannedWrite {
    /// Planned write of the object with this kind and name. `what`: content of the write, as in
    /// [`Self::what`].
    pub fn new(kind: &str, name: &str, what: impl Into<String>) -> Self {
        Self { object: format!("{kind} {name}"), what: what.into() }
    }

    /// Planned merge patch of the object with this kind and name. [`Self::what`] lists the fields
    /// that the patch sets.
    pub fn patch(kind: &str, name: &str, patch: &Value) -> Self {
        Self::new(kind, name, fields(patch).join(", "))
    }
}

/// Fields that a merge patch sets, down to the second level, such as `status.conditions`.
/// `metadata.resourceVersion` is left out, because it is only a precondition.
fn fields(patch: &Value) -> Vec<String> {
    let fields = patch.as_object().into_iter().flatten().flat_map(|(name, value)| {
        let inner = value.as_object().into_iter().flat_map(Map::keys);
        inner.map(move |inner| format!("{name}.{inner}"))
    });
    fields.filter(|field| field != "metadata.resourceVersion").collect()
}

/// Line of the plan about a LoadBalancer, and the planned write. `None` as the write: nothing would
/// change. `outcome`: decision about the LoadBalancer's address. `now`: time of the plan, as RFC
/// 3339.
///
/// `report`: state of the LoadBalancer's VMs and Service. `None` in these cases:
/// * The LoadBalancer is a guest load balancer.
/// * The LoadBalancer gets no address.
/// * The state is not known.
pub fn load_balancer(
    lb: &LoadBalancer,
    outcome: &AddressOutcome,
    report: Option<&ServingStatus>,
    now: &str,
) -> (LoadBalancerLine, Option<PlannedWrite>) {
    let (address, ready) = status::address_and_ready(lb, outcome, report);
    let line = LoadBalancerLine::new(lb, address.ip.unwrap_or_default(), Ok(ready));
    let patch = status::patch(lb, outcome, report, now);
    let change = patch.map(|patch| PlannedWrite::patch("LoadBalancer", &line.name, &patch));
    (line, change)
}

/// Line of the plan about a LoadBalancer that is being deleted, and the write that removes the
/// operator's finalizer. `None` as the write: the LoadBalancer does not have this finalizer.
pub fn leaving(lb: &LoadBalancer) -> (LoadBalancerLine, Option<PlannedWrite>) {
    let line = LoadBalancerLine::new(lb, String::new(), Err(forecast::LEAVING));
    let patch = status::finalize(lb);
    let change = patch.map(|patch| PlannedWrite::patch("LoadBalancer", &line.name, &patch));
    (line, change)
}

/// Line of the plan about a LoadBalancer whose address cannot be planned, because facts could not
/// be read. The line shows the present address as the planned one.
pub fn unknown(lb: &LoadBalancer) -> LoadBalancerLine {
    let said = Err("not known: see \"Not known\" below");
    let line = LoadBalancerLine::new(lb, String::new(), said);
    LoadBalancerLine { gets: line.has.clone(), ..line }
}

/// Line of the plan about a pool, and the planned write of the pool. `None` as the write: nothing
/// would be written. `stored`: the stored pool. `pool`: the pool after the planned allocations.
/// `touched`: whether the allocator has marked the pool as changed; `false` means no write. `now`:
/// time of the plan (RFC 3339).
pub fn pool(
    stored: &IPPool,
    pool: &AllocatorPool,
    touched: bool,
    now: &str,
) -> (PoolLine, Option<PlannedWrite>) {
    let IPPool { metadata: meta, status, .. } = stored;
    let line = PoolLine {
        name: meta.name.clone().unwrap_or_default(),
        available: pool.ledger.available(),
        said: Ok(pool_ready(pool)),
    };
    let status = status.clone().unwrap_or_default();
    let new = pool_status(pool, &status.conditions, None, None, status.observed_generation, now);
    let mut written = status_fields(&status, &new);
    let finalizers = meta.finalizers.as_deref().unwrap_or_default();
    if meta.deletion_timestamp.is_none() && !finalizers.iter().any(|one| one == POOL_FINALIZER) {
        written.insert(0, "metadata.finalizers".to_owned());
    }
    let is_written = touched && !written.is_empty();
    let change = is_written.then(|| PlannedWrite::new("IPPool", &line.name, written.join(", ")));
    (line, change)
}

/// Whether the planned condition is known and has the status `status`.
fn has_status(said: &PlannedReady, status: ConditionStatus) -> bool {
    said.as_ref().is_ok_and(|ready| ready.status == status)
}

fn status_fields(stored: &IPPoolStatus, new: &IPPoolStatus) -> Vec<String> {
    let fields = |status: &IPPoolStatus| match serde_json::to_value(status) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let (stored, new) = (fields(stored), fields(new));
    let names: BTreeSet<&String> = stored.keys().chain(new.keys()).collect();
    let differs = |name: &&String| stored.get(*name) != new.get(*name);
    names.into_iter().filter(differs).map(|name| format!("status.{name}")).collect()
}

/// Findings of the forecast, except those that the lines of `plan` contain already:
/// * findings about a LoadBalancer that has a line;
/// * findings with [`Effect::Stays`] about a pool whose planned condition `Ready` is False.
pub fn further(forecast: &Forecast, plan: &Preview) -> Vec<forecast::ForecastFinding> {
    let is_said = |finding: &&forecast::ForecastFinding| match finding.object.split_once(' ') {
        Some(("LoadBalancer", name)) => plan.load_balancers.iter().any(|line| line.name == name),
        Some(("IPPool", name)) => {
            let is_unready = |line: &PoolLine| {
                line.name == name && has_status(&line.said, ConditionStatus::False)
            };
            finding.effect == Effect::Stays && plan.pools.iter().any(is_unready)
        }
        _ => false,
    };
    forecast.findings.iter().filter(|finding| !is_said(finding)).cloned().collect()
}

#[cfg(test)]
mod tests;
