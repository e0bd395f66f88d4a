//! Tests of an elector's calls about its Lease.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use http::{Method, Request, Response};
use kube::client::{Body, ClientBuilder};
use serde_json::json;
use tower::{BoxError, service_fn};

use super::*;

/// Elector (field 0), and the number of its writes (field 1). The server answers every request with
/// a Lease that the elector holds, in the version `version`.
fn elector(version: &Arc<AtomicU64>) -> (LeaderElector, Arc<AtomicUsize>) {
    let writes = Arc::new(AtomicUsize::new(0));
    let (version, count) = (version.clone(), writes.clone());
    let server = service_fn(move |request: Request<Body>| {
        if request.method() != Method::GET {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "lease", "resourceVersion": version.load(Ordering::Relaxed).to_string()},
            "spec": {"holderIdentity": "me", "leaseDurationSeconds": 3},
        });
        let answer = Response::new(Body::from(lease.to_string().into_bytes()));
        std::future::ready(Ok::<_, BoxError>(answer))
    });
    let client = ClientBuilder::new(server, "kube-system").build();
    let lease = ("kube-system", "lease");
    (LeaderElector::new(client, lease, "me".to_owned(), ElectionPace::new(3)), writes)
}

#[tokio::test]
async fn a_lease_that_went_back_is_not_written_any_more() {
    let version = Arc::new(AtomicU64::new(10));
    let (elector, writes) = elector(&version);
    let leadership = Leadership::default();
    let mut leading = leadership.subscribe();
    let restore = async {
        leading.wait_for(|leads| *leads).await.unwrap();
        let renewals = writes.load(Ordering::Relaxed);
        version.store(9, Ordering::Relaxed);
        renewals
    };
    let (back, renewals) = tokio::join!(elector.run(&leadership), restore);
    assert_eq!(back, StoreWentBack { from: 10, to: 9 });
    assert!(!leadership.is_current());
    elector.release(&leadership).await;
    assert_eq!((renewals, writes.load(Ordering::Relaxed)), (1, 1));
}

#[tokio::test]
async fn a_leader_that_ends_releases_the_lease() {
    let (elector, writes) = elector(&Arc::new(AtomicU64::new(10)));
    let leadership = Leadership::default();
    let mut leading = leadership.subscribe();
    tokio::select! {
        _ = elector.run(&leadership) => {}
        _ = leading.wait_for(|leads| *leads) => {}
    }
    elector.release(&leadership).await;
    assert_eq!(writes.load(Ordering::Relaxed), 2, "one renewal, one release");
}
