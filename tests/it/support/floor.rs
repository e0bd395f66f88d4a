//! Limits of times that grow with the time of a bare write, so that a busy machine does not break
//! them.

use std::time::{Duration, Instant};

use anyhow::Result;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use testbed::Stalls;

use super::Cluster;

/// Longest time to an address while the leader changes, or lists and watches anew, if the API server
/// answers at once.
pub(crate) const SERVED_AGAIN: Duration = Duration::from_secs(15);
/// Calls that follow each other from a change of a LoadBalancer to its address, if a leader starts or
/// lists anew meanwhile (the Lease, the lists, the claim, the address), or if its Service is made anew.
const CALLS: u32 = 20;
/// Pause between two bare writes.
const PAUSE: Duration = Duration::from_millis(200);

/// Runs `work`, and beside it writes an object that has no controller, again and again. Returns the
/// result of `work`, and the limit for the time to an address: `most`, and for each of [`CALLS`] the
/// longest time of such a write. `most`: the limit if the API server answers at once.
pub(crate) async fn beside_bare_writes<T>(
    cluster: &Cluster,
    stalls: &Stalls,
    most: Duration,
    work: impl Future<Output = Result<T>>,
) -> Result<(T, Duration)> {
    let maps = Api::<ConfigMap>::namespaced(cluster.client.clone(), "default");
    // A test that measures twice has the object already.
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "floor"}});
    maps.patch("floor", &PatchParams::apply("floor"), &Patch::Apply(&map)).await?;
    let mut longest = Duration::ZERO;
    let writes = async {
        for number in 0_u64.. {
            let since = Instant::now();
            let patch = Patch::Merge(json!({"data": {"number": number.to_string()}}));
            // A write that fails has taken its time as well.
            drop(maps.patch("floor", &PatchParams::default(), &patch).await);
            longest = longest.max(stalls.elapsed(since));
            tokio::time::sleep(PAUSE).await;
        }
    };
    let done = tokio::select! {
        done = work => done?,
        () = writes => unreachable!("the writes do not end"),
    };
    println!("the longest bare write took {longest:?}");
    Ok((done, most + CALLS * longest))
}
