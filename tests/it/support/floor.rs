//! Limits of times that grow with the time of a bare write, so that a busy machine does not break
//! them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use testbed::Stalls;
use tokio::task::JoinHandle;

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

/// Begin of a write, and its end once it has ended.
type Write = (Instant, Option<Instant>);

/// Writes of an object that has no controller, again and again until it is dropped.
pub(crate) struct BareWrites {
    writes: Arc<Mutex<Vec<Write>>>,
    writing: JoinHandle<()>,
}

impl BareWrites {
    pub(crate) fn start(client: &Client) -> Self {
        let maps = Api::<ConfigMap>::namespaced(client.clone(), "default");
        let writes = Arc::new(Mutex::new(Vec::new()));
        let made = writes.clone();
        let writing = tokio::spawn(async move {
            for number in 0_u64.. {
                lock(&made).push((Instant::now(), None));
                let map = json!({
                    "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "bare"},
                    "data": {"number": number.to_string()},
                });
                // A write that fails has taken its time as well.
                drop(maps.patch("bare", &PatchParams::apply("bare"), &Patch::Apply(&map)).await);
                if let Some(last) = lock(&made).last_mut() {
                    last.1 = Some(Instant::now());
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
        Self { writes, writing }
    }

    /// Time of the longest write that was under way between the two moments.
    pub(crate) fn longest(&self, from: Instant, to: Instant) -> Duration {
        let now = Instant::now();
        let writes = lock(&self.writes);
        let ended = writes.iter().map(|(begin, end)| (*begin, end.unwrap_or(now)));
        let meanwhile = ended.filter(|(begin, end)| *begin < to && *end > from);
        meanwhile.map(|(begin, end)| end.duration_since(begin)).max().unwrap_or_default()
    }
}

impl Drop for BareWrites {
    fn drop(&mut self) {
        self.writing.abort();
    }
}

fn lock(writes: &Mutex<Vec<Write>>) -> MutexGuard<'_, Vec<Write>> {
    writes.lock().unwrap_or_else(PoisonError::into_inner)
}
