//! Metrics of watches: how old the process's views of the cluster may be.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use prometheus::{IntCounterVec, IntGaugeVec};

use super::MetricMaker;
use crate::locks::lock;

/// Metrics of the process's watches.
#[derive(Clone)]
pub struct WatchMetrics {
    /// Failures of watches, and of the lists at their start, by kind of object.
    pub errors: IntCounterVec,
    /// Seconds since the API server last accepted a watch, by resource. If it has accepted none:
    /// seconds since the first request.
    pub(super) staleness: IntGaugeVec,
    /// Time from which `staleness` counts, by resource.
    began: Arc<Mutex<HashMap<String, Instant>>>,
}

impl WatchMetrics {
    pub(super) fn new(make: &MetricMaker<'_>) -> Result<Self, prometheus::Error> {
        Ok(Self {
            errors: make.counters("hgo_watch_errors_total", "Interrupted watches", &["kind"])?,
            staleness: make.gauges(
                "hgo_watch_staleness_seconds",
                "Time since the API server last accepted a watch, or was first asked for one",
                &["resource"],
            )?,
            began: Arc::default(),
        })
    }

    /// Records that the API server is asked for a watch of the resource. `staleness` counts from
    /// now on, even if the API server refuses the watch, for example because a right is missing.
    /// Does nothing if `staleness` already counts for this resource.
    pub fn asked(&self, resource: &str) {
        lock(&self.began).entry(resource.to_owned()).or_insert_with(Instant::now);
    }

    /// Records that the API server has accepted a watch of the resource.
    pub fn began(&self, resource: &str) {
        lock(&self.began).insert(resource.to_owned(), Instant::now());
    }

    /// Removes the series of `resource`. To be called when the resource is no longer watched, or
    /// when the API server does not serve it. The next call of [`Self::asked`] or [`Self::began`]
    /// begins a new series.
    pub fn forget(&self, resource: &str) {
        lock(&self.began).remove(resource);
    }

    /// Sets `staleness` to the seconds since the last accepted watch of each resource, or since the
    /// first request.
    pub(super) fn measure(&self) {
        self.staleness.reset();
        for (resource, began) in lock(&self.began).iter() {
            let seconds = i64::try_from(began.elapsed().as_secs()).unwrap_or(i64::MAX);
            self.staleness.with_label_values(&[resource.as_str()]).set(seconds);
        }
    }
}
