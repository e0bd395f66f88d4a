//! Waiting times of a tenant while another caller is hostile.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harvester_guest_operator::api::LoadBalancer;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use testbed::eventually;

use crate::support::{Cluster, SOON, address};

/// Number of measurements, of which one must be near the quiet one.
const MEASUREMENTS: u32 = 3;

/// Waiting times of another tenant: for addresses, and, as the floor, for the same number of
/// writes of an object without a controller.
#[derive(Debug)]
pub(super) struct NeighbourWaits {
    addresses: Vec<Duration>,
    floor: Vec<Duration>,
}

impl NeighbourWaits {
    /// Creates and deletes a LoadBalancer of the namespace, one after the other, 100 times and at
    /// least until `until`.
    pub(super) async fn measure(
        cluster: &Cluster,
        namespace: &str,
        until: Instant,
    ) -> Result<Self> {
        let lbs = Api::<LoadBalancer>::namespaced(cluster.client.clone(), namespace);
        let maps = Api::<ConfigMap>::namespaced(cluster.client.clone(), namespace);
        let mut lb =
            crate::support::lb("web", &json!({"workloadType": "cluster", "ipam": "pool"}))?;
        lb.metadata.namespace = Some(namespace.to_owned());
        let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "web"}}))?;
        let mut waits = Self { addresses: Vec::new(), floor: Vec::new() };
        while Instant::now() < until || waits.addresses.len() < 100 {
            let began = Instant::now();
            lbs.create(&PostParams::default(), &lb).await?;
            while address(&lbs.get("web").await?).is_none() {}
            waits.addresses.push(began.elapsed());
            lbs.delete("web", &DeleteParams::default()).await?;
            eventually(SOON, "end of web", async || {
                lbs.get_opt("web").await.map(|lb| lb.is_none())
            })
            .await?;
            // Create, claim, publish.
            let began = Instant::now();
            let mut map = maps.create(&PostParams::default(), &map).await?;
            for write in 0..2 {
                map.data = Some([("write".to_owned(), write.to_string())].into());
                map = maps.replace("web", &PostParams::default(), &map).await?;
            }
            waits.floor.push(began.elapsed());
            maps.delete("web", &DeleteParams::default()).await?;
        }
        waits.addresses.sort();
        waits.floor.sort();
        Ok(waits)
    }

    /// Measures until the waits are near those of quiet times, three times at most, and returns the
    /// last result. A burst of load on the machine slows one measurement, because the 99th
    /// percentile of 100 waits is nearly the longest one; a hostile caller slows each of them.
    pub(super) async fn measure_beside(
        cluster: &Cluster,
        namespace: &str,
        lasting: Duration,
        quiet: &Self,
    ) -> Result<Self> {
        for _ in 1..MEASUREMENTS {
            let waits = Self::measure(cluster, namespace, Instant::now() + lasting).await?;
            match waits.ensure_near(quiet) {
                Ok(()) => return Ok(waits),
                Err(e) => println!("measured again: {e}"),
            }
        }
        Self::measure(cluster, namespace, Instant::now() + lasting).await
    }

    /// Checks that the 99th percentile is at most three times that of quiet times. The cores slow a
    /// write without a controller as much as every other call, so the bound grows with the floor.
    pub(super) fn ensure_near(&self, quiet: &Self) -> Result<()> {
        let slower = Self::p99(&self.floor).as_secs_f64() / Self::p99(&quiet.floor).as_secs_f64();
        let most = (3 * Self::p99(&quiet.addresses)).mul_f64(slower.max(1.0));
        let p99 = Self::p99(&self.addresses);
        ensure!(p99 < most, "{p99:?} is over {most:?}: {self}, in quiet {quiet}");
        Ok(())
    }

    fn p99(waits: &[Duration]) -> Duration {
        waits.get((waits.len() * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or_default()
    }
}

impl std::fmt::Display for NeighbourWaits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let half = |waits: &[Duration]| waits.get(waits.len() / 2).copied().unwrap_or_default();
        write!(
            f,
            "p50 {:.1?} p99 {:.1?} of {} addresses, floor p50 {:.1?} p99 {:.1?}",
            half(&self.addresses),
            Self::p99(&self.addresses),
            self.addresses.len(),
            half(&self.floor),
            Self::p99(&self.floor)
        )
    }
}
