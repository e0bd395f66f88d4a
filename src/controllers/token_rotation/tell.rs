//! What is told of TokenRotations by metrics, from what was last seen of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::Utc;
use kube::ResourceExt as _;
use kube_runtime::reflector::Store;
use tokio::time::{MissedTickBehavior, interval};

use super::Context;
use crate::api::{READY, TokenRotation};
use crate::domain::rotation::{self, Seconds, status};

/// How often. That time passes is no event.
const EVERY: Duration = Duration::from_secs(5);

type Labels = [String; 3];

/// Tells until dropped.
pub(super) async fn tell(ctx: Context, store: Store<TokenRotation>) {
    // The series end with the term.
    let _series = Series(&ctx);
    let mut known: [BTreeSet<Labels>; 2] = Default::default();
    let mut tick = interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let told = &ctx.metrics.rotation;
        let (mut ends, mut overdue) = (BTreeSet::new(), BTreeSet::new());
        let mut reasons: BTreeMap<String, i64> = BTreeMap::new();
        let now = Utc::now().timestamp();
        for rotation in store.state() {
            let (labels, end, late) = seen(&rotation, now);
            let text = labels.each_ref().map(String::as_str);
            told.overdue.with_label_values(&text).set(late.into());
            if let Some(end) = end {
                told.ends.with_label_values(&text).set(end);
                ends.insert(labels.clone());
            }
            overdue.insert(labels);
            *reasons.entry(reason(&rotation)).or_default() += 1;
        }
        for (gauge, before, now) in
            [(&told.ends, &known[0], &ends), (&told.overdue, &known[1], &overdue)]
        {
            for labels in before.difference(now) {
                let _ = gauge.remove_label_values(&labels.each_ref().map(String::as_str));
            }
        }
        known = [ends, overdue];
        told.rotations.reset();
        for (reason, count) in &reasons {
            told.rotations.with_label_values(&[reason]).set(*count);
        }
    }
}

/// Which it is, when its credential ends, and whether that is near.
fn seen(rotation: &TokenRotation, now: Seconds) -> (Labels, Option<Seconds>, bool) {
    let plan = status::plan(rotation);
    let said = rotation.status.as_ref();
    let record = status::record(said);
    let end = said.and_then(|said| said.expires_at.as_deref()).and_then(status::seconds);
    let late = status::alarm(&plan, &record, end).is_some_and(|at| at <= now);
    let namespace = rotation.namespace().unwrap_or_default();
    let rotated = rotation::due(&plan, &record).is_some();
    ([namespace, rotation.name_any(), rotated.to_string()], end, late)
}

fn reason(rotation: &TokenRotation) -> String {
    let conditions = rotation.status.iter().flat_map(|status| &status.conditions);
    let ready = conditions.clone().find(|condition| condition.type_ == READY);
    ready.and_then(|ready| ready.reason.clone()).unwrap_or_else(|| "New".to_owned())
}

struct Series<'a>(&'a Context);

impl Drop for Series<'_> {
    fn drop(&mut self) {
        self.0.metrics.rotation.reset();
    }
}
