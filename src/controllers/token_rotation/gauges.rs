//! Metrics of TokenRotations, from their last observed status.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::ResourceExt as _;
use prometheus::IntGaugeVec;
use tokio::time::{MissedTickBehavior, interval};

use super::{Context, RotationContext, lock};
use crate::api::{ConditionStatus, TokenRotation};
use crate::domain::credentials::rotation::ready::ready_condition;
use crate::domain::credentials::rotation::{due, expiry, status, watched};
use crate::domain::credentials::timestamp::{self, Seconds};
use crate::k8s::credentials::ServerClock;

/// Interval between two updates of the gauges. A credential becomes overdue by the passage of time
/// alone, without any event.
const UPDATE_INTERVAL: Duration = Duration::from_secs(5);

/// Values of one gauge, by the values of its labels.
type Rows = BTreeMap<Vec<String>, i64>;

/// Values of all gauges of TokenRotations.
#[derive(Default)]
struct GaugeValues {
    expiries: Rows,
    overdue: Rows,
    watched_expiries: Rows,
    watched_overdue: Rows,
    key_expiries: Rows,
    key_overdue: Rows,
    reasons: Rows,
}

/// Sets the gauges of TokenRotations every [`UPDATE_INTERVAL`], until dropped.
pub(super) async fn report(context: &RotationContext) {
    // Dropped at the end of the term, which removes the series.
    let _series = RotationSeries(&context.ctx);
    let gauges = &context.ctx.metrics.rotation;
    let mut known = GaugeValues::default();
    let mut tick = interval(UPDATE_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        // The API server's clock is used, or the local clock until a response has contained the
        // server's time.
        let now = lock(&context.clock).unwrap_or_else(ServerClock::local).now();
        let mut values = GaugeValues::default();
        context.store.state().iter().for_each(|rotation| add_rotation(&mut values, rotation, now));
        for (gauge, before, rows) in [
            (&gauges.expiries, &known.expiries, &values.expiries),
            (&gauges.overdue, &known.overdue, &values.overdue),
            (&gauges.watched_expiries, &known.watched_expiries, &values.watched_expiries),
            (&gauges.watched_overdue, &known.watched_overdue, &values.watched_overdue),
            (&gauges.key_expiries, &known.key_expiries, &values.key_expiries),
            (&gauges.key_overdue, &known.key_overdue, &values.key_overdue),
            (&gauges.rotations, &known.reasons, &values.reasons),
        ] {
            set_gauge(gauge, before, rows);
        }
        known = values;
    }
}

fn set_gauge(gauge: &IntGaugeVec, before: &Rows, rows: &Rows) {
    for (labels, value) in rows {
        gauge.with_label_values(&texts(labels)).set(*value);
    }
    for labels in before.keys().filter(|labels| !rows.contains_key(*labels)) {
        let _ = gauge.remove_label_values(&texts(labels));
    }
}

fn texts(labels: &[String]) -> Vec<&str> {
    labels.iter().map(String::as_str).collect()
}

/// Adds the values of one TokenRotation to the values of the gauges.
fn add_rotation(values: &mut GaugeValues, rotation: &TokenRotation, now: Seconds) {
    let plan = status::plan(rotation);
    let said = rotation.status.clone().unwrap_or_default();
    let state = status::state(rotation.status.as_ref());
    let end = status::expiry(&said);
    let (namespace, name) = (rotation.namespace().unwrap_or_default(), rotation.name_any());
    let rotated = due(&plan, &state).is_some();
    let labels = vec![namespace.clone(), name.clone(), rotated.to_string()];
    let late = expiry::alarm(&plan, &state, end).is_some_and(|at| at <= now);
    values.overdue.insert(labels.clone(), late.into());
    if let Some(end) = end {
        values.expiries.insert(labels, end);
    }
    *values.reasons.entry(vec![reason(rotation)]).or_default() += 1;
    for one in &said.watched {
        let Some(end) = watched::expiry(one) else { continue };
        let which = one.credential.clone().unwrap_or_else(|| one.user.clone());
        let near = watched::is_near(one, now + plan.schedule.minimum_left);
        let labels = vec![namespace.clone(), name.clone(), which];
        let overdue = values.watched_overdue.entry(labels.clone()).or_default();
        *overdue = i64::from(near).max(*overdue);
        let labels = [labels, vec![one.rotated.to_string()]].concat();
        let first = values.watched_expiries.entry(labels).or_insert(end);
        *first = end.min(*first);
    }
    let key = said.api_key.as_ref().zip(rotation.spec.rancher.as_ref());
    if let Some((key, there)) = key
        && let Some(end) = key.expires_at.as_deref().and_then(timestamp::parse_rfc3339)
    {
        let minter = &there.minter;
        let labels = vec![namespace, minter.secret_name.clone(), minter.key.clone()];
        let refused = said.conditions.iter().any(|condition| {
            condition.type_ == expiry::MINTER_EXPIRING && condition.status == ConditionStatus::True
        });
        let near = refused || expiry::key_alarm(&plan, key).is_some_and(|at| at <= now);
        let overdue = values.key_overdue.entry(labels.clone()).or_default();
        *overdue = i64::from(near).max(*overdue);
        let first = values.key_expiries.entry(labels).or_insert(end);
        *first = end.min(*first);
    }
}

fn reason(rotation: &TokenRotation) -> String {
    let ready = ready_condition(rotation);
    ready.and_then(|ready| ready.reason.clone()).unwrap_or_else(|| "New".to_owned())
}

struct RotationSeries<'a>(&'a Context);

impl Drop for RotationSeries<'_> {
    fn drop(&mut self) {
        self.0.metrics.rotation.reset();
    }
}
