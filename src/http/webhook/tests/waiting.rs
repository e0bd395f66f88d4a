//! Tests of requests that wait, of the memory of answers, and of what the metrics count.

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::super::*;
use crate::http::admission::tests::silent;

/// Time in which a request that does not wait is answered.
const MOMENT: Duration = Duration::from_millis(500);
/// Time after which a review no longer waits for a read that gets no answer.
const LONGER_THAN_READS: Duration = Duration::from_secs(3);

fn webhooks() -> Arc<Webhooks> {
    let username = tokio::sync::watch::channel(String::new()).1;
    Arc::new(Webhooks::new(silent(), username, false, Metrics::new().unwrap()))
}

fn source(last: u8) -> ConnectionSource {
    ConnectionSource::of([10, 0, 0, last].into())
}

fn caller() -> Caller {
    Caller { source: source(1), is_known: false, cut: CancellationToken::new() }
}

/// Number of requests that the metrics count with these labels.
fn counted(webhooks: &Webhooks, call: &str, verdict: &str) -> u64 {
    webhooks.metrics.admission.requests.with_label_values(&[call, "LoadBalancer", verdict]).get()
}

/// LoadBalancer with so many listeners. Its conversion adds two fields to each of them.
fn with_listeners(count: usize) -> Value {
    json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "metadata": {},
        "spec": {"listeners": vec![json!({}); count]},
    })
}

/// Small request for the conversion of `objects`.
fn conversion_of(objects: &[Value]) -> Body {
    let review = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "request": {
            "uid": "u-1", "desiredAPIVersion": "loadbalancer.harvesterhci.io/v1alpha1",
            "objects": objects,
        },
    });
    small(&review)
}

/// Request for the review of a new object.
fn review_of(plural: &str, object: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u-1", "operation": "CREATE", "name": "web", "namespace": "ns",
            "resource": {
                "group": "loadbalancer.harvesterhci.io", "version": "v1beta1", "resource": plural,
            },
            "userInfo": {"username": "eve"},
            "object": object,
        },
    })
}

/// Review that needs no read from the API server.
async fn mutation_of_a_load_balancer(webhooks: Arc<Webhooks>) -> Bytes {
    let object = json!({"metadata": {"name": "web"}, "spec": {}});
    let review = small(&review_of("loadbalancers", &object));
    let answer = webhooks.review(AdmissionStage::Mutation, caller(), review);
    timeout(CONVERSION_DEADLINE, Box::pin(answer)).await.unwrap().unwrap()
}

fn small(review: &Value) -> Body {
    let review = review.to_string();
    assert!(review.len() <= SMALL, "{}", review.len());
    Body::from(review)
}

#[tokio::test]
async fn a_small_request_with_a_large_answer_waits_for_its_turn() {
    let webhooks = webhooks();
    let ask = |count| webhooks.clone().convert(caller(), conversion_of(&[with_listeners(count)]));
    let turn = webhooks.conversions.turns.take(source(2)).await;
    let answer = timeout(CONVERSION_DEADLINE, ask(10)).await.unwrap().unwrap();
    assert!(answer.len() <= SMALL, "{}", answer.len());
    let mut large = Box::pin(ask(5_000));
    assert!(timeout(MOMENT, &mut large).await.is_err(), "there is no turn for it");
    drop(turn);
    let answer = timeout(CONVERSION_DEADLINE, large).await.unwrap().unwrap();
    assert!(answer.len() > SMALL, "{}", answer.len());
    assert_eq!(counted(&webhooks, "conversion", "allowed"), 2, "one small and one large");
}

/// The answer to a conversion that fails is short, but its text was long before.
#[tokio::test]
async fn a_small_answer_takes_no_more_memory_than_its_text() {
    let failing = conversion_of(&[with_listeners(5_000), json!(0)]);
    let answer = webhooks().convert(caller(), failing).await.unwrap();
    assert!(String::from_utf8_lossy(&answer).contains("objects[1]: "));
    let memory = answer.try_into_mut().unwrap().capacity();
    assert!(memory <= SMALL, "{memory} bytes");
}

#[tokio::test]
async fn a_conversion_that_fails_counts_as_refused() {
    let webhooks = webhooks();
    webhooks.clone().convert(caller(), conversion_of(&[json!(0)])).await.unwrap();
    assert_eq!(counted(&webhooks, "conversion", "refused"), 1);
    assert_eq!(counted(&webhooks, "conversion", "allowed"), 0);
}

#[tokio::test]
async fn a_small_review_does_not_wait_for_conversions() {
    let webhooks = webhooks();
    let _turn = webhooks.small_conversions.take(source(2)).await;
    let conversion = webhooks.clone().convert(caller(), conversion_of(&[with_listeners(1)]));
    assert!(timeout(MOMENT, conversion).await.is_err(), "another conversion has the turn");
    mutation_of_a_load_balancer(webhooks.clone()).await;
}

/// The mutation restores a long status. A patch is text in base64, so it is longer than the status.
#[tokio::test]
async fn a_small_review_with_a_large_answer_waits_for_its_turn() {
    let webhooks = webhooks();
    let object = |status: Value| json!({"metadata": {"name": "web"}, "spec": {}, "status": status});
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u-1", "operation": "UPDATE", "name": "web", "namespace": "ns",
            "resource": {
                "group": "loadbalancer.harvesterhci.io", "version": "v1beta1",
                "resource": "loadbalancers",
            },
            "userInfo": {"username": "eve"},
            "object": object(json!({})),
            "oldObject": object(json!({"k": "x".repeat(30_000)})),
        },
    });
    let turn = webhooks.reviews.turns.take(source(2)).await;
    let asked = webhooks.clone().review(AdmissionStage::Mutation, caller(), small(&review));
    let mut large = Box::pin(asked);
    assert!(timeout(MOMENT, &mut large).await.is_err(), "there is no turn for it");
    drop(turn);
    let answer = timeout(CONVERSION_DEADLINE, large).await.unwrap().unwrap();
    assert!(answer.len() > SMALL, "{}", answer.len());
    assert_eq!(counted(&webhooks, "mutation", "changed"), 1, "it was processed twice");
}

/// The parsed objects of a review are in memory while it waits for a read.
#[tokio::test]
async fn a_small_review_that_needs_a_read_waits_for_a_place_and_another_does_not() {
    let webhooks = webhooks();
    let mut places = Vec::new();
    for _ in 0..READERS {
        places.push(webhooks.readers.take(source(2)).await);
    }
    let pool = json!({
        "metadata": {"name": "web"}, "spec": {"ranges": [{"subnet": "10.0.0.0/24"}]},
    });
    let review = small(&review_of("ippools", &pool));
    let mut answer =
        Box::pin(webhooks.clone().review(AdmissionStage::Validation, caller(), review));
    assert!(timeout(LONGER_THAN_READS, &mut answer).await.is_err(), "there is no place for it");
    mutation_of_a_load_balancer(webhooks.clone()).await;
    drop(places);
    timeout(CONVERSION_DEADLINE, answer).await.unwrap().unwrap();
}

/// Other large reviews wait for the turn of a large review, but not for a small one.
#[tokio::test]
async fn a_read_has_less_time_in_the_turn_of_a_large_review() {
    let webhooks = webhooks();
    let waits = async |text: &str, deadline: Duration| {
        let object = json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
            "metadata": {"name": "web", "annotations": {"a": text}}, "spec": {"ipPool": "new"},
        });
        let review = Body::from(review_of("loadbalancers", &object).to_string());
        let answer = webhooks.clone().review(AdmissionStage::Validation, caller(), review);
        let answer = timeout(CONVERSION_DEADLINE, Box::pin(answer)).await.unwrap().unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.contains(&format!("no answer within {deadline:?}")), "{answer}");
    };
    let large = "x".repeat(SMALL);
    tokio::join!(waits("x", CALL_DEADLINE), waits(large.as_str(), LARGE_READS));
}
