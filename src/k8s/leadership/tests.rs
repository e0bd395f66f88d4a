//! Tests of an elector's calls about its Lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use http::{Method, Request, Response};
use kube::client::{Body, ClientBuilder};
use kube::core::Status;
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
        let answer = lease(version.load(Ordering::Relaxed), "me");
        std::future::ready(Ok::<_, BoxError>(answer))
    });
    (elector_of(ClientBuilder::new(server, "kube-system").build()), writes)
}

/// Answer with the Lease in the version `version`, which `holder` holds.
fn lease(version: u64, holder: &str) -> Response<Body> {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "lease", "resourceVersion": version.to_string()},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 3},
    });
    Response::new(Body::from(lease.to_string().into_bytes()))
}

fn elector_of(client: Client) -> LeaderElector {
    let lease = ("kube-system", "lease");
    LeaderElector::new(client, lease, "me".to_owned(), ElectionPace::new(3))
}

/// Event at the first write of the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstWrite {
    /// A renewal that was sent before is stored before the write.
    Renewed,
    /// Another process takes the Lease before the write.
    Taken,
    /// The connection ends before the write is stored.
    Lost,
    /// The connection ends after the write was stored.
    Unanswered,
}

/// Lease of a server that compares versions.
struct StoredLease {
    version: u64,
    holder: String,
    writes: usize,
}

/// Answers a read or a write of the Lease.
async fn answer(
    stored: Arc<Mutex<StoredLease>>,
    event: FirstWrite,
    request: Request<Body>,
) -> Result<Response<Body>, BoxError> {
    let is_write = request.method() == Method::PUT;
    let body = request.into_body().collect_bytes().await?;
    let mut stored = lock(&stored);
    if is_write {
        let written: Lease = serde_json::from_slice(&body)?;
        stored.writes += 1;
        let event = Some(event).filter(|_| stored.writes == 1);
        match event {
            Some(FirstWrite::Renewed) => stored.version += 1,
            Some(FirstWrite::Taken) => {
                stored.version += 1;
                stored.holder = "other".to_owned();
            }
            Some(FirstWrite::Lost) => return Err("the connection ended".into()),
            Some(FirstWrite::Unanswered) | None => {}
        }
        if written.metadata.resource_version != Some(stored.version.to_string()) {
            let status = json!(Status::failure("no", "Conflict").with_code(409));
            let body = Body::from(status.to_string().into_bytes());
            return Ok(Response::builder().status(409).body(body)?);
        }
        stored.version += 1;
        stored.holder = written.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        if event == Some(FirstWrite::Unanswered) {
            return Err("the connection ended".into());
        }
    }
    Ok(lease(stored.version, &stored.holder))
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

/// The Lease may have been renewed after the leadership had expired, and lasts longer for the Go
/// controller.
#[tokio::test]
async fn a_process_whose_leadership_has_expired_releases_the_lease() {
    for state in [LeadershipState::Held, LeadershipState::Silent] {
        let (elector, writes) = elector(&Arc::new(AtomicU64::new(10)));
        let leadership = Leadership::default();
        leadership.hold_until(clock::now());
        elector.lapse(&leadership);
        leadership.set(state);
        for _ in 0..2 {
            elector.release(&leadership).await;
            assert_eq!(writes.load(Ordering::Relaxed), 1, "{state:?}");
        }
    }
}

#[tokio::test]
async fn a_process_that_never_led_releases_nothing() {
    let (elector, writes) = elector(&Arc::new(AtomicU64::new(10)));
    elector.release(&Leadership::default()).await;
    assert_eq!(writes.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_release_is_repeated_until_the_lease_is_not_held() {
    for (event, holder, writes) in [
        (FirstWrite::Renewed, "", 2),
        (FirstWrite::Taken, "other", 1),
        (FirstWrite::Lost, "", 2),
        (FirstWrite::Unanswered, "", 1),
    ] {
        let first = StoredLease { version: 10, holder: "me".to_owned(), writes: 0 };
        let stored = Arc::new(Mutex::new(first));
        let shared = stored.clone();
        let server =
            service_fn(move |request: Request<Body>| answer(shared.clone(), event, request));
        let elector = elector_of(ClientBuilder::new(server, "kube-system").build());
        let leadership = Leadership::default();
        leadership.hold_until(clock::now() + Duration::from_mins(1));
        elector.release(&leadership).await;
        assert!(!leadership.is_current());
        let stored = lock(&stored);
        assert_eq!((stored.holder.as_str(), stored.writes), (holder, writes), "{event:?}");
    }
}
