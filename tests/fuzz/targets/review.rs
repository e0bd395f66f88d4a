//! An AdmissionReview of any shape, and the rules' decisions on its objects when no other object is
//! known.
#![no_main]

use harvester_guest_operator::domain::admission::{AdmissionAnswer, Operation, AdmissionRequest, load_balancer, pool};
use harvester_guest_operator::http::admission::AdmissionStage;
use harvester_guest_operator::http::admission_review;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

/// Checks that mutation is idempotent: it does not change its own result.
fn settles(object: &Value, mutate: impl Fn(&Value) -> AdmissionAnswer) {
    let answer = mutate(object);
    if let Some(changed) = answer.object {
        assert!(answer.refusals.is_empty());
        assert_eq!(mutate(&changed).object, None, "{object}\n{changed}");
    }
}

fn request<'a>(asked: &'a Value, object: Option<&'a Value>) -> AdmissionRequest<'a> {
    let operation = match asked["operation"].as_str() {
        Some("CREATE") => Operation::Create,
        Some("UPDATE") => Operation::Update,
        _ => Operation::Delete,
    };
    let text = |field: &str| asked[field].as_str().unwrap_or_default();
    let old = Some(&asked["oldObject"]);
    AdmissionRequest {
        operation,
        subresource: text("subResource"),
        namespace: text("namespace"),
        name: text("name"),
        by_operator: false,
        in_v1alpha1: asked["requestKind"]["version"] == "v1alpha1",
        object: object.filter(|_| operation != Operation::Delete),
        old: old.filter(|old| old.is_object() && operation != Operation::Create),
    }
}

fn decide(asked: &Value) {
    let object = Some(&asked["object"]).filter(|object| object.is_object());
    let known = load_balancer::LbRuleFacts::default();
    load_balancer::asks(&request(asked, object));
    load_balancer::validate(&request(asked, object), &known);
    if let pool::AnswerOrQuestion::Ask(question) = pool::answer_or_ask(&request(asked, object)) {
        question.answer(&pool::PoolRuleFacts::default());
    }
    if let Some(object) = object {
        settles(object, |object| load_balancer::mutate(&request(asked, Some(object)), &known));
        settles(object, |object| pool::mutate(&request(asked, Some(object)), Some(7)));
    }
}

fuzz_target!(|data: &[u8]| {
    if let Ok(review) = admission_review::parse(data) {
        // Skipped parts need not be text.
        let Ok(question) = serde_json::from_slice::<Value>(data) else { return };
        for stage in [AdmissionStage::Mutation, AdmissionStage::Validation] {
            let text = admission_review::render(&Ok(AdmissionAnswer::default()), &review, stage);
            let answer: Value = serde_json::from_slice(&text).unwrap();
            assert_eq!(answer["response"]["uid"], question["request"]["uid"]);
        }
        decide(&question["request"]);
    } else if let Ok(question) = serde_json::from_slice::<Value>(data) {
        decide(&question["request"]);
    }
});
