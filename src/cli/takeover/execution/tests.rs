//! Tests of the execution against a server that fails in the middle of the way back to the Go
//! controller.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::{Body, ClientBuilder};
use serde_json::{Value, json};
use tower::{BoxError, service_fn};

use super::*;
use crate::api::MANAGER;
use crate::domain::admission::webhook_configuration::{CONFIGURATION, REGISTERED_BY};
use crate::domain::takeover::steps::{
    ANNOTATION_REPLICAS, ANNOTATION_VALUES, SUB_CHART, TakeoverProgram,
};

const OPERATOR: &str = "/apis/apps/v1/namespaces/ns/deployments/operator";
const CONTROLLER: &str = "/apis/apps/v1/namespaces/ns/deployments/go";
const CHART: &str = "/apis/management.cattle.io/v3/namespaces/fleet/managedcharts/harvester";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/";
const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/";

/// Failure of one call.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Answer with this status. The call has no effect.
    Status(u16),
    /// End of the connection without an answer. The call has no effect.
    Silence,
    /// End of the connection without an answer. The call has its effect.
    LostAnswer,
}

/// Objects of the server, by their paths.
type Objects = Arc<Mutex<BTreeMap<String, Value>>>;

fn webhooks() -> String {
    format!("{WEBHOOKS}{CONFIGURATION}")
}

/// Objects after a take-over. The Go controller's Deployment counts as ready at once.
fn objects() -> Objects {
    let deployment = |name: &str, replicas: i32| {
        json!({
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {"replicas": replicas, "selector": {}, "template": {}},
            "status": {"readyReplicas": 1},
        })
    };
    let chart = json!({
        "apiVersion": "management.cattle.io/v3", "kind": "ManagedChart",
        "metadata": {"name": "harvester", "annotations": {ANNOTATION_VALUES: "{}"}},
        "spec": {"values": {SUB_CHART: {
            "enabled": true, "replicaCount": 0, "webhook": {"replicasCount": 0},
        }}},
    });
    let admission = json!({
        "metadata": {"name": CONFIGURATION, "labels": {REGISTERED_BY: MANAGER}},
        "webhooks": [{
            "name": "a", "failurePolicy": "Fail", "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "clientConfig": {},
        }],
    });
    let mut objects = BTreeMap::from([
        (OPERATOR.to_owned(), deployment("operator", 2)),
        (CONTROLLER.to_owned(), deployment("go", 0)),
        (CHART.to_owned(), chart),
        (webhooks(), admission),
    ]);
    for plural in ["ippools", "loadbalancers"] {
        let name = format!("{plural}.loadbalancer.harvesterhci.io");
        let names = json!({"kind": "Any", "plural": plural});
        let spec = json!({"group": "", "names": names, "scope": "Namespaced", "versions": []});
        let crd = json!({"metadata": {"name": &name}, "spec": spec});
        objects.insert(format!("{CRDS}{name}"), crd);
    }
    Arc::new(Mutex::new(objects))
}

fn answer(code: u16, body: &Value) -> Response<Body> {
    let mut answer = Response::new(Body::from(body.to_string().into_bytes()));
    *answer.status_mut() = code.try_into().unwrap();
    answer
}

fn status(code: u16) -> Response<Body> {
    let reason = if code == 404 { "NotFound" } else { "" };
    let status = json!({"kind": "Status", "code": code, "message": "no", "reason": reason});
    answer(code, &status)
}

/// Answer to a GET or PATCH. Every list is empty, except the list of Deployments.
async fn served(objects: &Objects, request: Request<Body>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let content = body.collect().await.unwrap().to_bytes();
    let path = parts.uri.path();
    let mut objects = objects.lock().unwrap();
    if let Some(object) = objects.get_mut(path) {
        if parts.method == Method::PATCH {
            json_patch::merge(object, &serde_json::from_slice(&content).unwrap());
        }
        return answer(200, object);
    }
    let items = match path.rsplit('/').next() {
        Some("deployments") => json!([objects[OPERATOR]]),
        Some("pods" | "loadbalancers") => json!([]),
        _ => return status(404),
    };
    answer(200, &json!({"metadata": {}, "items": items}))
}

/// Client of a server with `objects`. `fault` gets the method and the path of each call.
fn client(
    objects: &Objects,
    mut fault: impl FnMut(&str) -> Option<Fault> + Send + 'static,
) -> TakeoverClient {
    let objects = objects.clone();
    let server = service_fn(move |request: Request<Body>| {
        let fault = fault(&format!("{} {}", request.method(), request.uri().path()));
        let objects = objects.clone();
        async move {
            let answer = match fault {
                Some(Fault::Status(code)) => return Ok(status(code)),
                Some(Fault::Silence) => None,
                Some(Fault::LostAnswer) => {
                    served(&objects, request).await;
                    None
                }
                None => Some(served(&objects, request).await),
            };
            answer.ok_or_else(|| BoxError::from("no bytes in time"))
        }
    });
    takeover(ClientBuilder::new(server, "default").build())
}

fn takeover(client: Client) -> TakeoverClient {
    TakeoverClient {
        client,
        controller: ("ns".to_owned(), "go".to_owned()),
        chart: ("fleet".to_owned(), "harvester".to_owned()),
        lease: ("ns".to_owned(), "lease".to_owned()),
    }
}

/// Function that returns each fault once, in this order, for the next call with this end.
fn in_order(faults: Vec<(String, Fault)>) -> impl FnMut(&str) -> Option<Fault> + Send + 'static {
    let mut faults = faults.into_iter().peekable();
    move |call: &str| {
        faults.next_if(|(end, _)| call.ends_with(end.as_str())).map(|(_, fault)| fault)
    }
}

/// Goes back to the Go controller. Returns the result and the output.
async fn undo(takeover: &TakeoverClient, longest: Duration) -> (anyhow::Result<()>, String) {
    let mut output: Vec<u8> = Vec::new();
    let mut execution = PlanExecution::new(takeover, Direction::Undo, 100, &mut output);
    (execution.interval, execution.longest) = (Duration::from_millis(1), longest);
    let result = Box::pin(execution.run()).await;
    (result, String::from_utf8(output).unwrap())
}

/// Checks that the way back has ended, and that it has kept each former value.
fn assert_undone(objects: &Objects) {
    let objects = objects.lock().unwrap();
    let (operator, chart) = (&objects[OPERATOR], &objects[CHART]);
    assert_eq!(operator["spec"]["replicas"], 0);
    assert_eq!(operator["metadata"]["annotations"][ANNOTATION_REPLICAS], "2");
    assert_eq!(objects[&webhooks()]["webhooks"][0]["failurePolicy"], "Ignore");
    assert_eq!(chart["spec"]["values"][SUB_CHART], json!({"enabled": true}));
    assert_eq!(objects[CONTROLLER]["spec"]["replicas"], 1);
}

#[tokio::test]
async fn failed_calls_are_tried_again_and_said_once() {
    let objects = objects();
    let operator = format!("PATCH {OPERATOR}");
    let admission = format!("PATCH {}", webhooks());
    let list = "GET /apis/loadbalancer.harvesterhci.io/v1beta1/loadbalancers".to_owned();
    let faults = [
        (list, Fault::Status(503)),
        (operator.clone(), Fault::Status(503)),
        (operator.clone(), Fault::Status(429)),
        (admission.clone(), Fault::Silence),
        (admission.clone(), Fault::Silence),
        (format!("GET {CONTROLLER}"), Fault::Status(500)),
    ];
    let takeover = client(&objects, in_order(faults.to_vec()));
    let (result, text) = undo(&takeover, LONGEST).await;
    result.unwrap();
    assert_undone(&objects);
    let said: Vec<&str> = text.lines().filter(|line| line.contains("tried again")).collect();
    let [_, stop, open] = said.as_slice() else { panic!("{text}") };
    assert!(stop.contains(&operator), "{text}");
    assert!(open.contains(&admission) && open.contains("no bytes in time"), "{text}");
    assert_eq!(text.matches("stop the operator").count(), 1, "{text}");
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_does_no_harm() {
    let objects = objects();
    let written = [OPERATOR.to_owned(), webhooks(), CHART.to_owned(), CONTROLLER.to_owned()];
    let faults = written.map(|path| (format!("PATCH {path}"), Fault::LostAnswer));
    let (result, text) = undo(&client(&objects, in_order(faults.to_vec())), LONGEST).await;
    result.unwrap();
    assert_undone(&objects);
    assert_eq!(text.matches("tried again").count(), 4, "{text}");
}

/// A write without an answer may have its effect after the state was read again.
#[tokio::test]
async fn a_repeated_write_has_no_further_effect() {
    let objects = objects();
    let takeover = client(&objects, |_| None);
    for step in [
        TakeoverStep::KeepCrd("ippools.loadbalancer.harvesterhci.io".to_owned()),
        TakeoverStep::RestoreCrd("ippools.loadbalancer.harvesterhci.io".to_owned()),
        TakeoverStep::StopChart,
        TakeoverStep::RestoreChart,
        TakeoverStep::OpenAdmission,
        TakeoverStep::Stop(TakeoverProgram::Operator),
        TakeoverStep::Start(TakeoverProgram::GoController, 1),
    ] {
        takeover.carry_out(&step).await.unwrap();
        let once = objects.lock().unwrap().clone();
        takeover.carry_out(&step).await.unwrap();
        assert_eq!(*objects.lock().unwrap(), once, "{step:?}");
    }
    assert_undone(&objects);
}

#[tokio::test]
async fn a_refusal_ends_the_execution_at_once() {
    for (method, path, code) in [
        ("PATCH", OPERATOR.to_owned(), 403),
        ("PATCH", webhooks(), 422),
        ("GET", format!("{CRDS}ippools.loadbalancer.harvesterhci.io"), 404),
    ] {
        let (objects, call) = (objects(), format!("{method} {path}"));
        let (wanted, tries) = (call.clone(), Arc::new(AtomicUsize::new(0)));
        let count = tries.clone();
        let takeover = client(&objects, move |call| {
            let is_refused = call == wanted;
            count.fetch_add(usize::from(is_refused), Ordering::Relaxed);
            is_refused.then_some(Fault::Status(code))
        });
        let (result, text) = undo(&takeover, LONGEST).await;
        let error = format!("{:#}", result.unwrap_err());
        assert!(error.contains(&call), "{error}");
        assert!(!text.contains("tried again"), "{text}");
        assert_eq!(tries.load(Ordering::Relaxed), 1, "{call}");
    }
}

#[tokio::test]
async fn the_last_error_ends_an_execution_that_has_no_success_for_too_long() {
    let objects = objects();
    let mut faults = std::iter::once(Fault::Status(503)).chain(std::iter::repeat(Fault::Silence));
    let takeover = client(&objects, move |call| {
        (call == format!("PATCH {OPERATOR}")).then(|| faults.next()).flatten()
    });
    let (result, text) = undo(&takeover, Duration::from_millis(20)).await;
    let error = format!("{:#}", result.unwrap_err());
    assert!(error.contains("run the same command again"), "{error}");
    assert!(error.contains("no bytes in time"), "{error}");
    assert_eq!(text.matches("tried again").count(), 1, "{text}");
}

#[tokio::test]
async fn time_without_answers_is_no_part_of_a_steps_wait() {
    let takeover = client(&objects(), |_| None);
    let mut output: Vec<u8> = Vec::new();
    let mut execution = PlanExecution::new(&takeover, Direction::Undo, 100, &mut output);
    let (wait, away) = (Duration::from_secs(100), Duration::from_secs(90));
    let before = |time: Duration| Instant::now().checked_sub(time).unwrap();
    execution.current = Some((TakeoverStep::AwaitLeaseFree, before(wait + away)));
    execution.failing = Some(before(away));
    execution.succeeded();
    let waited = execution.current.unwrap().1.elapsed();
    assert!(waited > wait / 2 && waited < wait + away / 2, "{waited:?}");
}

#[test]
fn only_errors_without_a_refusal_may_pass() {
    let call = || "GET /".to_owned();
    let late = CallError::Timeout { call: call(), within: POLL_INTERVAL };
    assert!(may_pass(&anyhow::Error::new(late).context("cannot scale")));
    assert!(!may_pass(&anyhow::Error::new(CallError::NotFound(call()))));
    assert!(!may_pass(&anyhow::anyhow!("installed more than once")));
}

/// Seven calls are sent before the first of them has an answer.
#[tokio::test]
async fn the_parts_of_the_state_are_read_at_the_same_time() {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let server = service_fn(move |_: Request<Body>| {
        count.fetch_add(1, Ordering::Relaxed);
        std::future::pending::<Result<Response<Body>, BoxError>>()
    });
    let takeover = takeover(ClientBuilder::new(server, "default").build());
    let state = Box::pin(takeover.state());
    assert!(tokio::time::timeout(Duration::from_millis(200), state).await.is_err());
    assert_eq!(sent.load(Ordering::Relaxed), 7);
}
