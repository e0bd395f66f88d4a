//! Tests of the ledger task's answers to late requests, and of failed writes. The API server of the
//! tests answers that a pool does not exist, and does not answer any other request.

mod contended;
mod orphans;

use std::sync::Arc;

use http::{Request, Response, StatusCode};
use kube::client::{Body, ClientBuilder};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tower::{BoxError, service_fn};

use super::mailbox::OrphanClaim;
use super::*;
use crate::api::{IPPool, POOL_FINALIZER};
use crate::controllers::second_opinion::Replica;
use crate::domain::dhcp_lease::DhcpNetworks;
use crate::domain::network::Segment;
use crate::domain::pools::allocator::{ClaimResult, LoadBalancerIndex, PoolSeen};
use crate::domain::pools::selection::PoolRequirement;
use crate::domain::pools::status::pool_status;
use crate::domain::vm_backends::health::second_opinion::ReplicaPlace;
use crate::domain::{LbFacts, Owner};
use crate::k8s::CallError;
use crate::k8s::credentials::CredentialReader;
use crate::k8s::events::EventRecorder;
use crate::k8s::leadership::Leadership;
use crate::k8s::views::{ChangeEvent, Views};
use crate::k8s::write::ApiWriter;
use crate::metrics::Metrics;

fn context() -> Context {
    let server = service_fn(async |request: Request<Body>| {
        if !request.uri().path().contains("/ippools/") {
            std::future::pending::<()>().await;
        }
        let answer = json!({"kind": "Status", "code": 404, "message": "no", "reason": "NotFound"});
        let body = Body::from(answer.to_string().into_bytes());
        Response::builder().status(StatusCode::NOT_FOUND).body(body).map_err(BoxError::from)
    });
    let client = ClientBuilder::new(server, "default").build();
    let config = kube::Config::new(http::Uri::from_static("http://none"));
    let metrics = Metrics::new().unwrap();
    let leadership = Arc::<Leadership>::default();
    let place = ReplicaPlace { replica: "me".to_owned(), node: String::new() };
    Context {
        views: Views::start(&client, "ns", DhcpNetworks::default(), &metrics),
        writer: ApiWriter::new(client.clone(), leadership.clone(), metrics.clone()),
        events: EventRecorder::start(client.clone(), "me", metrics.clone()),
        credentials: CredentialReader::new(client.clone(), config, metrics.clone()),
        credential_namespaces: Arc::default(),
        replica: Arc::new(Replica { leadership, place, lease: (String::new(), String::new()) }),
        client,
        metrics,
        release_grace: Duration::ZERO,
        began: Instant::now(),
        repair_crds: false,
        agents: None,
    }
}

/// A pool with one address.
fn pool(name: &str, ip: &str, priority: i64) -> IPPool {
    serde_json::from_value(json!({
        "metadata": {"name": name, "resourceVersion": "1", "finalizers": [POOL_FINALIZER]},
        "spec": {
            "ranges": [{"subnet": format!("{ip}/24"), "rangeStart": ip, "rangeEnd": ip}],
            "selector": {"scope": [{"namespace": "ns"}], "priority": priority},
        },
    }))
    .unwrap()
}

/// The pools `a` and `b`.
fn pools() -> [IPPool; 2] {
    [pool("a", "10.0.0.10", 2), pool("b", "10.0.1.10", 1)]
}

/// Ledger task with the pools `a` and `b`, and the handle of this task. The pools exist only in the
/// allocator's memory, so they are never written.
fn ledger() -> (LedgerTask, LedgerHandle) {
    let (mut task, handle) = LedgerTask::new(context());
    for pool in pools() {
        let seen = PoolSeen::new(&pool, Segment::Management);
        task.allocator.merge(&seen, &LoadBalancerIndex::default());
    }
    task.allocator.take_touched();
    (task, handle)
}

/// Facts of a LoadBalancer that requests an address of pool `a`.
fn lb(name: &str) -> LbFacts {
    LbFacts {
        owner: Owner { name: format!("ns/{name}"), uid: name.to_owned() },
        requirement: PoolRequirement { namespace: "ns".to_owned(), ..PoolRequirement::default() },
        named_pool: Some("a".to_owned()),
        ..LbFacts::default()
    }
}

async fn given(ledger: &LedgerHandle, facts: &LbFacts) -> String {
    match ledger.claim(facts.clone(), || true).await {
        Ok(ClaimResult::Held { claim, .. }) => claim.ip.to_string(),
        Ok(ClaimResult::Waiting(why)) => why.reason().to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Facts of a LoadBalancer that publishes its claim, after the ledger has confirmed the claim.
async fn published(ledger: &LedgerHandle) -> LbFacts {
    let Ok(ClaimResult::Held { claim, .. }) = ledger.claim(lb("gone"), || true).await else {
        panic!("no address")
    };
    let facts = LbFacts { published: Some(claim), ..lb("gone") };
    assert_eq!(given(ledger, &facts).await, "10.0.0.10");
    assert!(ledger.confirmed().answer(&facts).is_some());
    facts
}

/// A request for a claim that is in the stored pool is answered at once, although no pool can be
/// written. A request for a claim that is not stored for this owner waits in the batch.
#[tokio::test]
async fn a_stored_claim_needs_no_write() {
    let (mut task, _ledger) = ledger();
    let mut batch = RequestBatch::default();
    let mut answer = |task: &mut LedgerTask, facts: &LbFacts| {
        let (reply, mut answer) = oneshot::channel();
        task.answer_or_batch(LedgerMessage::Claim(Box::new(facts.clone()), reply), &mut batch);
        answer.try_recv().ok()
    };
    let ClaimResult::Held { claim, .. } = task.allocator.claim(&lb("web")) else {
        panic!("no address")
    };
    let facts = LbFacts { published: Some(claim), ..lb("web") };
    for (name, uid, is_answered) in
        [("", "", false), ("ns/web", "web", true), ("ns/web", "other", false)]
    {
        let status = json!({
            "allocated": {"10.0.0.10": name}, "allocatedOwners": {"10.0.0.10": uid},
        });
        let stored = json!({"metadata": {"name": "a"}, "spec": {"ranges": []}, "status": status});
        let stored = StoredPool::new(&serde_json::from_value(stored).unwrap());
        task.stored.insert("a".to_owned(), stored);
        let now = answer(&mut task, &facts);
        let is_held = matches!(now, Some(Ok(ClaimResult::Held { .. })));
        assert_eq!(is_held, is_answered, "{uid}: {now:?}");
    }
    assert_eq!(batch.claims.len(), 2);
}

#[tokio::test]
async fn a_late_request_is_not_answered_by_what_was_confirmed_before() {
    const AGAIN: &str = "the LoadBalancer must be read again";
    for (event, next, late) in [
        ("released", "10.0.0.10", "NoAvailableIP"),
        ("orphaned", "10.0.0.10", "NoAvailableIP"),
        ("moved", "10.0.0.10", AGAIN),
        ("pool gone", "IPPoolNotFound", AGAIN),
    ] {
        let (task, ledger) = ledger();
        let steps = async {
            let facts = published(&ledger).await;
            let (owner, claim) = (facts.owner.clone(), facts.published.clone().unwrap());
            match event {
                "released" => ledger.release(owner).await.unwrap(),
                "orphaned" => ledger.orphaned(OrphanClaim { claim, owner, namesake: None }),
                "moved" => {
                    let mut now = LbFacts { named_pool: Some("b".to_owned()), ..facts.clone() };
                    assert_eq!(given(&ledger, &now).await, "10.0.1.10");
                    now.published = Some(Claim { pool: "b".to_owned(), ip: [10, 0, 1, 10].into() });
                    now.fresh = true;
                    assert_eq!(given(&ledger, &now).await, "10.0.1.10");
                }
                _ => ledger.pool_changed(claim.pool, None),
            }
            assert_eq!(given(&ledger, &lb("next")).await, next, "{event}");
            assert_eq!(given(&ledger, &facts).await, late, "{event}");
        };
        tokio::select! {
            ended = task.run() => panic!("{event}: {ended:?}"),
            () = steps => {}
        }
    }
}

/// A LoadBalancer that was deleted before its request gets no address later. A LoadBalancer that
/// exists does.
#[tokio::test]
async fn a_deleted_loadbalancer_does_not_wait_for_an_address() {
    for (exists, next) in [(false, "10.0.0.10"), (true, "NoAvailableIP")] {
        let (task, ledger) = ledger();
        let steps = async {
            assert_eq!(given(&ledger, &lb("first")).await, "10.0.0.10");
            let answer = ledger.claim(lb("late"), || exists).await;
            assert!(matches!(answer, Ok(ClaimResult::Waiting(_))), "{answer:?}");
            ledger.release(lb("first").owner).await.unwrap();
            assert_eq!(given(&ledger, &lb("next")).await, next, "exists: {exists}");
        };
        tokio::select! {
            ended = task.run() => panic!("{ended:?}"),
            () = steps => {}
        }
    }
}

/// Each further reconcile would otherwise end the Service of the LoadBalancer again.
#[tokio::test]
async fn a_release_ends_what_the_sweep_found() {
    let (mut task, ledger) = ledger();
    let [web, other] = ["web", "other"].map(|name| lb(name).owner);
    ledger.set_strays([&web, &other].map(|owner| owner.uid.clone()).into());
    assert!(ledger.is_stray(&web));
    let serve = async {
        let message = task.mailbox.recv().await.unwrap();
        task.answer_or_batch(message, &mut RequestBatch::default());
    };
    let (released, ()) = tokio::join!(ledger.release(web.clone()), serve);
    released.unwrap();
    assert!(!ledger.is_stray(&web) && ledger.is_stray(&other));
}

/// The batch has already waited for the deadline of a write without an answer, and with it the
/// requests of all other pools. They do not wait either for a pool that another client keeps
/// writing.
#[tokio::test]
async fn a_write_without_an_answer_is_not_repeated_in_its_batch_and_reported_once() {
    let (mut task, _ledger) = ledger();
    let (reports, mut reported) = mpsc::unbounded_channel();
    let server = service_fn(move |request: Request<Body>| {
        let reports = reports.clone();
        async move {
            let body = request.into_body().collect_bytes().await?;
            let event: Value = serde_json::from_slice(&body)?;
            reports.send(event["regarding"]["name"].clone())?;
            let metadata = json!({"name": "event", "namespace": "default"});
            let answer = json!({"metadata": metadata, "eventTime": null});
            Ok::<_, BoxError>(Response::new(Body::from(answer.to_string().into_bytes())))
        }
    });
    let client = ClientBuilder::new(server, "default").build();
    task.ctx.events = EventRecorder::start(client, "me", task.ctx.metrics.clone());
    for (pool, is_answered, again) in [
        ("a", false, false),
        ("a", false, false),
        ("b", true, true),
        ("b", false, false),
        ("b", true, false),
        ("c", true, true),
        ("c", true, true),
        ("c", true, false),
        ("c", false, false),
        ("d", false, false),
    ] {
        let late = CallError::Timeout { call: "write".to_owned(), within: Duration::ZERO };
        let error = if is_answered { CallError::Missing("kind", "name") } else { late };
        assert_eq!(task.count_failed_write(pool, &error), again, "{pool}, {error}");
    }
    for conflicts in 1..=7 {
        let error = CallError::Conflict("write".to_owned());
        assert_eq!(task.count_failed_write("e", &error), conflicts < 5, "{conflicts} conflicts");
    }
    for pool in ["a", "b", "c", "d", "e"] {
        assert_eq!(reported.recv().await.unwrap(), pool);
    }
}

/// A write without an answer may have been stored. Then the pool that was read again needs no write,
/// and the next failed write is the first of its trouble.
#[tokio::test]
async fn a_pool_that_needs_no_write_has_no_trouble() {
    let (mut task, _ledger) = ledger();
    let pool =
        json!({"metadata": {"name": "a", "finalizers": [POOL_FINALIZER]}, "spec": {"ranges": []}});
    let mut stored = StoredPool::new(&serde_json::from_value::<IPPool>(pool).unwrap());
    let seen = task.allocator.pools().get("a").unwrap();
    stored.status =
        pool_status(seen, &[], None, None, stored.meta.generation, "2026-11-30T00:00:00Z");
    task.stored.insert("a".to_owned(), stored);
    let late = CallError::Timeout { call: "write".to_owned(), within: Duration::ZERO };
    assert!(!task.count_failed_write("a", &late));
    loop {
        task.allocator.touch("a");
        let mut failed = BTreeSet::new();
        assert!(!task.commit(&mut failed).await.unwrap());
        if failed.is_empty() {
            break;
        }
        assert_eq!(failed, ["a".to_owned()].into());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(task.count_failed_write("a", &CallError::Missing("kind", "name")));
}

/// A failed write may have been stored. Each orphan is reported once in both cases, however often
/// it is freed while its pool cannot be written.
#[tokio::test]
async fn an_orphan_is_reported_when_its_pool_is_written() {
    for (is_stored, reported) in [(true, 1), (false, 0)] {
        let (mut task, _ledger) = ledger();
        let late = CallError::Timeout { call: "write".to_owned(), within: Duration::ZERO };
        let metrics = task.ctx.metrics.clone();
        let count = || metrics.repairs.with_label_values(&["orphan"]).get();
        for _ in 0..2 {
            let ClaimResult::Held { claim, .. } = task.allocator.claim(&lb("gone")) else {
                panic!("no address")
            };
            task.count_failed_write("a", &late);
            let orphan = OrphanClaim { claim, owner: lb("gone").owner, namesake: None };
            let batch = RequestBatch { orphans: vec![orphan], ..RequestBatch::default() };
            task.serve(batch).await.unwrap();
            assert_eq!(count(), 0, "the pool is not written");
        }
        task.trouble.clear();
        if !is_stored {
            // The pool that was read again still has the claim. Harvester's CRD stores no UID.
            let mut without_uid = lb("gone");
            without_uid.owner.uid.clear();
            task.allocator.claim(&without_uid);
        }
        for _ in 0..2 {
            task.serve(RequestBatch::default()).await.unwrap();
            assert_eq!(count(), reported, "stored: {is_stored}");
        }
    }
}

/// The delay after failed reconciles is up to 30 s.
#[tokio::test]
async fn a_refused_request_is_repeated_when_the_pool_is_written() {
    let (mut task, _ledger) = ledger();
    let (woken, mut heard) = mpsc::unbounded_channel();
    let _subscription = task.ctx.views.subscribe(move |change| {
        if let ChangeEvent::LoadBalancer(lb) = change {
            woken.send(lb.name).unwrap();
        }
    });
    let late = CallError::Timeout { call: "write".to_owned(), within: Duration::ZERO };
    task.count_failed_write("a", &late);
    let (reply, answer) = oneshot::channel();
    let batch = RequestBatch { claims: vec![(lb("web"), reply)], ..RequestBatch::default() };
    task.serve(batch).await.unwrap();
    let answer = answer.await.unwrap();
    assert!(matches!(&answer, Err(LedgerError::NotWritten(pool)) if pool == "a"), "{answer:?}");
    task.serve(RequestBatch::default()).await.unwrap();
    assert!(heard.try_recv().is_err(), "the pool is not written");
    task.trouble.clear();
    for expected in [Some("web".to_owned()), None] {
        task.serve(RequestBatch::default()).await.unwrap();
        assert_eq!(heard.try_recv().ok(), expected);
    }
}
