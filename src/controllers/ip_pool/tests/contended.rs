//! Tests of pools whose writes conflict, beside pools whose writes do not.

use http::Method;

use super::*;
use crate::domain::leader_election::ElectionPace;
use crate::k8s::leadership::LeaderElector;

/// Ledger task that leads. Pools `a` and `b` are stored. `of_pool`: status and body of the server's
/// answer to a request for a pool, from the request's method and path. `None`: no answer.
async fn leading_task(
    mut of_pool: impl FnMut(&Method, &str) -> Option<(StatusCode, Value)> + Send + 'static,
) -> LedgerTask {
    let server = service_fn(move |request: Request<Body>| {
        let path = request.uri().path();
        let answer = if path.contains("/leases/") {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": "lease", "resourceVersion": "1"},
                "spec": {"holderIdentity": "me", "leaseDurationSeconds": 60},
            });
            Some((StatusCode::OK, lease))
        } else {
            of_pool(request.method(), path)
        };
        async move {
            let (code, body) = match answer {
                Some(answer) => answer,
                None => std::future::pending().await,
            };
            let body = Body::from(body.to_string().into_bytes());
            Response::builder().status(code).body(body).map_err(BoxError::from)
        }
    });
    let client = ClientBuilder::new(server, "default").build();
    let (mut task, _ledger) = ledger();
    for pool in pools() {
        task.stored.insert(pool.metadata.name.clone().unwrap(), StoredPool::new(&pool));
    }
    let leadership = task.ctx.replica.leadership.clone();
    let (lease, pace) = (("ns", "lease"), ElectionPace::new(60));
    let elector = LeaderElector::new(client.clone(), lease, "me".to_owned(), pace);
    let mut leading = leadership.subscribe();
    tokio::select! {
        _ = elector.run(&leadership) => {}
        _ = leading.wait_for(|leads| *leads) => {}
    }
    task.ctx.writer = ApiWriter::new(client.clone(), leadership, task.ctx.metrics.clone());
    task.ctx.client = client;
    task
}

fn conflict() -> (StatusCode, Value) {
    let status = json!({"kind": "Status", "code": 409, "message": "no", "reason": "Conflict"});
    (StatusCode::CONFLICT, status)
}

/// Adds to the batch the request of the LoadBalancer `name` for an address of the pool `pool`.
fn ask(
    task: &mut LedgerTask,
    batch: &mut RequestBatch,
    name: &str,
    pool: &str,
) -> oneshot::Receiver<Result<ClaimResult, LedgerError>> {
    let facts = LbFacts { named_pool: Some(pool.to_owned()), ..lb(name) };
    let (reply, answer) = oneshot::channel();
    task.answer_or_batch(LedgerMessage::Claim(Box::new(facts), reply), batch);
    answer
}

/// The write of pool `a` has no answer. The writes of pool `b` conflict until long after the next
/// try of pool `a` is due. The requests of both pools wait for one deadline, not for several.
#[tokio::test]
async fn a_pool_that_failed_rests_until_the_next_batch() {
    let (writes, mut written) = mpsc::unbounded_channel();
    let mut conflicts = 4;
    let mut task = leading_task(move |method, path| {
        if path.contains("/ippools/b") {
            let is_write = *method != Method::GET;
            conflicts -= i32::from(is_write);
            Some(if is_write && conflicts >= 0 {
                conflict()
            } else {
                (StatusCode::OK, json!(pool("b", "10.0.1.10", 1)))
            })
        } else {
            writes.send(path.to_owned()).unwrap();
            None
        }
    })
    .await;
    let mut batch = RequestBatch::default();
    let of_a = ask(&mut task, &mut batch, "a", "a");
    let of_b = ask(&mut task, &mut batch, "b", "b");
    task.serve(batch).await.unwrap();
    let of_a = of_a.await.unwrap();
    assert!(matches!(&of_a, Err(LedgerError::NotWritten(pool)) if pool == "a"), "{of_a:?}");
    let of_b = of_b.await.unwrap();
    assert!(matches!(&of_b, Ok(ClaimResult::Held { claim, .. }) if claim.pool == "b"), "{of_b:?}");
    let path = written.recv().await.unwrap();
    assert!(path.ends_with("/ippools/a/status"), "{path}");
    assert!(written.try_recv().is_err(), "pool `a` was written again");
    assert!(task.allocator.take_touched().contains("a"), "the next batch does not write pool `a`");
}

/// The first batch writes pool `b` five times. Each later batch in which a write of pool `b` is due
/// writes it once, and does not wait.
#[tokio::test]
async fn a_pool_that_conflicts_for_ever_holds_up_no_other_pool() {
    const LONG: Duration = Duration::from_secs(30);
    let (writes, written) = mpsc::unbounded_channel();
    let mut task = leading_task(move |method, path| {
        let [a, b] = pools();
        Some(if path.contains("/ippools/a") {
            (StatusCode::OK, json!(a))
        } else if *method == Method::GET {
            (StatusCode::OK, json!(b))
        } else {
            writes.send(()).unwrap();
            conflict()
        })
    })
    .await;
    let mut batch = RequestBatch::default();
    let of_b = ask(&mut task, &mut batch, "web", "b");
    for (name, former, writes) in [("first", None, 5), ("second", Some("first"), 6)] {
        batch.releases.extend(former.map(|gone| (lb(gone).owner, None, BTreeSet::new())));
        let of_a = ask(&mut task, &mut batch, name, "a");
        let served = tokio::time::timeout(LONG, task.serve(std::mem::take(&mut batch))).await;
        served.expect("the batch waits for pool `b`").unwrap();
        let of_a = of_a.await.unwrap();
        let is_held = matches!(&of_a, Ok(ClaimResult::Held { claim, .. }) if claim.pool == "a");
        assert!(is_held, "{name}: {of_a:?}");
        assert_eq!(written.len(), writes, "{name}");
        // The next batch reads pool `b`, whose write is due then.
        let reread = task.mailbox.recv().await.unwrap();
        task.answer_or_batch(reread, &mut batch);
        assert_eq!(batch.pools, ["b".to_owned()].into());
    }
    let of_b = of_b.await.unwrap();
    assert!(matches!(&of_b, Err(LedgerError::NotWritten(pool)) if pool == "b"), "{of_b:?}");
}

/// A reread that fails plans the next one. So the number of rereads would grow with each write that
/// conflicts while reads fail.
#[tokio::test]
async fn of_several_rereads_of_a_pool_only_the_latest_stays_planned() {
    let (mut task, _ledger) = ledger();
    let began = Instant::now();
    for delay in [100, 200, 150] {
        task.reread_later("a", Duration::from_millis(delay));
    }
    let message = task.mailbox.recv().await;
    assert!(matches!(&message, Some(LedgerMessage::PoolChanged(pool, None)) if pool == "a"));
    assert!(began.elapsed() >= Duration::from_millis(200), "an earlier reread stays planned");
    assert!(task.mailbox.try_recv().is_err(), "two rereads were planned");
}
