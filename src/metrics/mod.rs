//! All metrics of the process, in Prometheus's format. Names, units and labels must not change,
//! because alerts and dashboards of users contain them. A label has a small fixed set of values, or
//! it names an object. A series whose label names an object is removed with the object.

/// Declares a set of metrics: a struct with one metric in each field, and the struct's function
/// `new`, which registers the metrics. Each field has a type, and then the call of a method of
/// [`MetricMaker`] that makes the metric.
macro_rules! metric_set {
    ($(#[$about:meta])* pub struct $set:ident {
        $(
            $(#[$doc:meta])*
            $vis:vis $field:ident: $kind:ident = $method:ident($($given:expr),+ $(,)?);
        )+
    }) => {
        $(#[$about])*
        #[derive(Clone)]
        pub struct $set {
            $($(#[$doc])* $vis $field: $kind,)+
        }

        impl $set {
            pub(super) fn new(make: &MetricMaker<'_>) -> Result<Self, prometheus::Error> {
                Ok(Self { $($field: make.$method($($given),+)?,)+ })
            }
        }
    };
}

mod admission;
mod dhcp_agents;
mod dhcp_leases;
mod health_checks;
mod leadership;
mod rotation;
mod watches;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use kube::ResourceExt;
use prometheus::core::Collector;
use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramTimer, HistogramVec, IntCounter, IntCounterVec,
    IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

pub use self::{
    admission::AdmissionMetrics, dhcp_agents::DhcpMetrics, dhcp_leases::LeasingMetrics,
    health_checks::ProbeMetrics, leadership::LeadershipMetrics, rotation::RotationMetrics,
    watches::WatchMetrics,
};
use crate::api::LoadBalancer;
use crate::locks::lock;

/// The metrics and their registry. Clones share both.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    /// Gauges of pools. Only the leader sets these gauges.
    pub pools: PoolGauges,
    /// Number of LoadBalancers that wait for an address, by reason. Only the leader sets this
    /// gauge.
    pub waiters: IntGaugeVec,
    /// Number of addresses that two LoadBalancers have on one network. If more than two have an
    /// address, each pair of them counts. Only the leader sets this gauge.
    pub shared_addresses: IntGauge,
    /// Number of LoadBalancers, by status and reason of their condition Ready. Only the leader sets
    /// this gauge.
    pub load_balancers: IntGaugeVec,
    /// Seconds from the first observation of a LoadBalancer until its status shows an address, or
    /// says that the announcer leases the address. If the LoadBalancer is older than 2 s at the
    /// first observation, the time counts from its creation.
    pub time_to_address: Histogram,
    /// Number of endpoints of vm load balancers, by state. Only the leader sets this gauge.
    pub endpoints: IntGaugeVec,
    /// Seconds from the observation of a change of a VM or pod to the write of the EndpointSlice.
    pub endpoint_latency: Histogram,
    /// Writes to the API server, by kind of object and outcome.
    pub api_writes: IntCounterVec,
    /// Batches of requests that the ledger task decided again, because the write of a pool failed
    /// or met a conflict.
    pub ledger_retries: IntCounter,
    /// Number of requests that the ledger task decided together, in one batch.
    pub batch_size: Histogram,
    /// Repairs of ledgers. The label `kind` says what was wrong:
    /// * `restored`: a published address was missing from the ledger.
    /// * `corrected`: the ledger named another owner than the one that publishes the address.
    /// * `double`: a LoadBalancer published an address that belongs to another LoadBalancer.
    /// * `unreadable`: a key of the ledger was not an IP address.
    /// * `orphan`: the LoadBalancer of a claim was gone.
    pub repairs: IntCounterVec,
    /// Metrics of the process's watches: their interruptions, and the seconds since the API server
    /// last accepted a watch of each resource.
    pub watches: WatchMetrics,
    /// Objects from the API server that do not fit the type of their kind, by kind.
    pub unreadable: IntCounterVec,
    /// Calls to the API server, by method and status.
    pub api_requests: IntCounterVec,
    /// Failed reconciles that will be repeated, by controller and kind of error. Conflicts are
    /// not counted for TokenRotations and DHCP agents. Missing objects are not counted for DHCP
    /// agents.
    pub reconcile_errors: IntCounterVec,
    reconciles: IntGauge,
    reconcile_seconds: Histogram,
    /// Kubernetes Events that were dropped, or whose write failed.
    pub events_dropped: IntCounter,
    /// Incoming connections that were closed because too many connections were open, by port.
    pub evicted: IntCounterVec,
    /// Metrics of the probes and verdicts of health checks.
    pub probes: ProbeMetrics,
    /// Admission reviews and certificates.
    pub admission: AdmissionMetrics,
    /// Metrics of the addresses that the host leases. Only the leader sets these metrics.
    pub leasing: LeasingMetrics,
    /// Metrics of the credentials that are replaced or watched. Only the leader sets these metrics.
    pub rotation: RotationMetrics,
    /// Metrics of leadership, of CRDs, and of the Go controller's finalizers on VMs.
    pub leadership: LeadershipMetrics,
    seen: Arc<Mutex<HashMap<String, Instant>>>,
}

/// Gauges of pools, by the name of the pool.
#[derive(Clone)]
pub struct PoolGauges {
    /// Number of addresses in the ranges of the pool.
    pub addresses: IntGaugeVec,
    /// Number of addresses that can be allocated from the pool.
    pub available: IntGaugeVec,
    /// Number of claims in the ledger of the pool.
    pub allocated: IntGaugeVec,
    /// Number of LoadBalancers that wait because the pool is full. A LoadBalancer that waits for
    /// several full pools counts for each of them.
    pub waiters: IntGaugeVec,
}

impl PoolGauges {
    fn new(make: &MetricMaker<'_>) -> Result<Self, prometheus::Error> {
        let gauges = |name, help| make.gauges(name, help, &["pool"]);
        Ok(Self {
            addresses: gauges("hgo_pool_addresses", "Addresses in the pool's ranges")?,
            available: gauges("hgo_pool_addresses_available", "Addresses that can be allocated")?,
            allocated: gauges("hgo_pool_addresses_allocated", "Claims in the pool's ledger")?,
            waiters: gauges(
                "hgo_pool_waiters",
                "LoadBalancers that wait because the pool is full",
            )?,
        })
    }

    fn all(&self) -> [&IntGaugeVec; 4] {
        [&self.addresses, &self.available, &self.allocated, &self.waiters]
    }

    /// Removes the series of a deleted pool.
    pub fn forget(&self, pool: &str) {
        for gauge in self.all() {
            let _ = gauge.remove_label_values(&[pool]);
        }
    }

    /// Removes the series of all pools.
    pub fn reset(&self) {
        self.all().into_iter().for_each(IntGaugeVec::reset);
    }
}

impl Metrics {
    /// Registers all metrics of the operator.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let make = MetricMaker { registry: &registry };
        let metrics = Self {
            pools: PoolGauges::new(&make)?,
            shared_addresses: make.gauge(
                "hgo_shared_addresses",
                "Addresses that two LoadBalancers have on one network",
            )?,
            waiters: make.gauges(
                "hgo_waiters",
                "LoadBalancers waiting for an address",
                &["reason"],
            )?,
            load_balancers: make.gauges(
                "hgo_load_balancers",
                "LoadBalancers by Ready status and reason",
                &["ready", "reason"],
            )?,
            time_to_address: make.histogram(
                "hgo_time_to_address_seconds",
                "Time from observing a LoadBalancer to publishing its address",
                &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0],
            )?,
            endpoints: make.gauges(
                "hgo_endpoints",
                "Endpoints of vm load balancers by state",
                &["state"],
            )?,
            endpoint_latency: make.histogram(
                "hgo_endpoint_latency_seconds",
                "Time from observing a change of a VM or its pod to writing the EndpointSlice",
                &[0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0],
            )?,
            api_writes: make.counters(
                "hgo_api_writes_total",
                "Writes by kind and outcome",
                &["kind", "outcome"],
            )?,
            ledger_retries: make.counter(
                "hgo_ledger_retries_total",
                "Batches of requests decided again after a failed write of a ledger",
            )?,
            batch_size: make.histogram(
                "hgo_ledger_batch_requests",
                "Requests decided by one ledger write",
                &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 5000.0],
            )?,
            repairs: make.counters(
                "hgo_ledger_repairs_total",
                "Ledger entries corrected",
                &["kind"],
            )?,
            watches: WatchMetrics::new(&make)?,
            unreadable: make.counters(
                "hgo_unreadable_objects_total",
                "Objects that do not fit their type",
                &["kind"],
            )?,
            api_requests: make.counters(
                "hgo_api_requests_total",
                "Calls of the API server by method and status",
                &["method", "code"],
            )?,
            reconciles: make
                .gauge("hgo_reconciles_pending", "LoadBalancers whose reconcile runs or waits")?,
            reconcile_seconds: make.histogram(
                "hgo_reconcile_seconds",
                "Time that a reconcile of a LoadBalancer took, waiting included",
                &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0],
            )?,
            reconcile_errors: reconcile_errors(&make)?,
            events_dropped: make.counter("hgo_events_dropped_total", "Events not written")?,
            evicted: make.counters(
                "hgo_connections_evicted_total",
                "Connections closed because there were too many, each of the largest source",
                &["port"],
            )?,
            probes: ProbeMetrics::new(&make)?,
            admission: AdmissionMetrics::new(&make)?,
            leasing: LeasingMetrics::new(&make)?,
            rotation: RotationMetrics::new(&make)?,
            leadership: LeadershipMetrics::new(&make)?,
            seen: Arc::default(),
            registry: registry.clone(),
        };
        make.process()?;
        Ok(metrics)
    }

    /// Registers the metrics of an agent: those that only agents have, and those that agents and
    /// the operator have.
    pub fn agent() -> Result<(Self, DhcpMetrics), prometheus::Error> {
        let all = Self::new()?;
        let registry = Registry::new();
        for shared in [&all.api_writes, &all.watches.errors, &all.unreadable, &all.api_requests] {
            registry.register(Box::new(shared.clone()))?;
        }
        registry.register(Box::new(all.watches.staleness.clone()))?;
        registry.register(Box::new(all.events_dropped.clone()))?;
        registry.register(Box::new(all.evicted.clone()))?;
        let make = MetricMaker { registry: &registry };
        make.process()?;
        let dhcp = DhcpMetrics::new(&make)?;
        Ok((Self { registry, ..all }, dhcp))
    }

    /// Renders the text that Prometheus reads.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        self.watches.measure();
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Measures a reconcile of a LoadBalancer, from this call until the returned guard is dropped.
    pub fn reconciling(&self) -> impl Drop + use<> {
        self.reconciles.inc();
        ReconcileTurn {
            pending: self.reconciles.clone(),
            _timer: self.reconcile_seconds.start_timer(),
        }
    }

    /// Starts to measure how long the LoadBalancer waits for its first address. To be called when
    /// the LoadBalancer is observed for the first time. Does nothing if the LoadBalancer has an
    /// address or is being deleted.
    pub fn start_wait(&self, lb: &LoadBalancer) {
        let has_address = lb.status.as_ref().is_some_and(|s| s.allocated_address.is_some());
        if has_address || lb.metadata.deletion_timestamp.is_some() {
            return;
        }
        let (Some(uid), Some(created)) = (lb.uid(), lb.creation_timestamp()) else { return };
        // The wait begins at the creation time of an object that is older than 2 s. For a younger
        // object, the wait begins now, because the creation time has only whole seconds.
        let age = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let age = age.saturating_sub(u64::try_from(created.0.as_second()).unwrap_or(0));
        let now = Instant::now();
        let old = (age > 2).then(|| now.checked_sub(std::time::Duration::from_secs(age)));
        lock(&self.seen).insert(uid, old.flatten().unwrap_or(now));
    }

    /// Records how long the LoadBalancer `uid` has waited for its address since
    /// [`Self::start_wait`], and ends this measurement. To be called when the address is published,
    /// or when the status says that the announcer leases it. Does nothing if no measurement runs.
    /// So only the first call for a LoadBalancer counts.
    pub fn addressed(&self, uid: &str) {
        let began = lock(&self.seen).remove(uid);
        if let Some(began) = began {
            self.time_to_address.observe(began.elapsed().as_secs_f64());
        }
    }

    /// Ends the measurement that [`Self::start_wait`] started for the LoadBalancer `uid`, and
    /// records nothing. To be called when the LoadBalancer is gone, or when another process has
    /// published its address.
    pub fn forget(&self, uid: &str) {
        lock(&self.seen).remove(uid);
    }
}

/// Values of the label `error` of the counter `hgo_reconcile_errors_total`.
pub const ERROR_KINDS: [&str; 7] =
    ["conflict", "failed", "ledger", "missing", "no_answer", "not_found", "refused"];

/// Registers the counter of failed reconciles, with each of its series at 0. Prometheus's `rate`
/// counts the first failure only if the series existed before the failure.
fn reconcile_errors(make: &MetricMaker<'_>) -> Result<IntCounterVec, prometheus::Error> {
    let errors = make.counters(
        "hgo_reconcile_errors_total",
        "Reconciles that failed and will be repeated, by controller and kind of error",
        &["controller", "error"],
    )?;
    for controller in ["dhcp_agent", "dhcp_lease", "load_balancer", "token_rotation"] {
        for error in ERROR_KINDS {
            errors.with_label_values(&[controller, error]);
        }
    }
    Ok(errors)
}

struct ReconcileTurn {
    pending: IntGauge,
    /// Timer that records the duration of the reconcile when it is dropped.
    _timer: HistogramTimer,
}

impl Drop for ReconcileTurn {
    fn drop(&mut self) {
        self.pending.dec();
    }
}

struct MetricMaker<'a> {
    registry: &'a Registry,
}

impl MetricMaker<'_> {
    /// Registers the metrics that every process has.
    fn process(&self) -> Result<(), prometheus::Error> {
        let build = self.gauges(
            "hgo_build_info",
            "Always 1; the label is the running version",
            &["version"],
        )?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let process = prometheus::process_collector::ProcessCollector::for_self();
        self.registry.register(Box::new(process))
    }

    fn register<M: Collector + Clone + 'static>(
        &self,
        metric: prometheus::Result<M>,
    ) -> prometheus::Result<M> {
        let metric = metric?;
        self.registry.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
        self.register(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.register(IntGauge::new(name, help))
    }

    fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        self.register(IntCounterVec::new(Opts::new(name, help), labels))
    }

    /// Registers a counter with one series for each of the label's `values`. Each series starts
    /// at 0.
    fn counters_from_zero(
        &self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = &'static str>,
    ) -> prometheus::Result<IntCounterVec> {
        let counters = self.counters(name, help, &[label])?;
        for value in values {
            let _ = counters.with_label_values(&[value]);
        }
        Ok(counters)
    }

    fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.register(IntCounter::new(name, help))
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> prometheus::Result<Histogram> {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.register(Histogram::with_opts(options))
    }

    fn histograms(
        &self,
        name: &str,
        help: &str,
        buckets: &[f64],
        labels: &[&str],
    ) -> prometheus::Result<HistogramVec> {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.register(HistogramVec::new(options, labels))
    }
}
