//! Tests of the envelope: refused requests, and the content of answers.

use serde_json::{Map, Value, json};

use super::*;

fn asked() -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u-1", "operation": "CREATE", "name": "lb", "namespace": "ns",
            "resource": {"group": GROUP, "version": "v1beta1", "resource": "loadbalancers"},
            "userInfo": {"username": "eve"},
            "object": {"metadata": {"name": "lb", "creationTimestamp": null}, "extra": [1]},
        },
    })
}

fn parsed() -> ParsedReview {
    parse(asked().to_string().as_bytes()).unwrap()
}

fn answer(outcome: &ReviewOutcome, stage: AdmissionStage) -> Value {
    let answer: Value = serde_json::from_slice(&render(outcome, &parsed(), stage)).unwrap();
    assert_eq!(answer["kind"], "AdmissionReview");
    assert_eq!(answer["response"]["uid"], "u-1");
    answer["response"].clone()
}

#[test]
fn what_is_no_review_of_ours_is_refused_with_a_sentence() {
    type Change = fn(&mut Value);
    let cases: [(&str, Change); 13] = [
        ("kind \"Pod\"", |r| r["kind"] = json!("Pod")),
        ("of \"admission.k8s.io/v1beta1\"", |r| {
            r["apiVersion"] = json!("admission.k8s.io/v1beta1");
        }),
        ("kind \"\"", |r| *r = json!({})),
        ("request: missing", |r| drop(r.as_object_mut().unwrap().remove("request"))),
        ("request.uid: missing", |r| r["request"]["uid"] = json!("")),
        ("must be loadbalancers or ippools", |r| {
            r["request"]["resource"]["resource"] = json!("pods");
        }),
        ("of apps/v1beta1", |r| r["request"]["resource"]["group"] = json!("apps")),
        ("v1alpha1: must be", |r| r["request"]["resource"]["version"] = json!("v1alpha1")),
        ("request.operation: \"CONNECT\"", |r| r["request"]["operation"] = json!("CONNECT")),
        ("request.object: missing", |r| r["request"]["object"] = json!(null)),
        ("request.object: must be an object", |r| r["request"]["object"] = json!([])),
        ("request.oldObject: missing", |r| r["request"]["operation"] = json!("UPDATE")),
        ("not an AdmissionReview: invalid type", |r| r["request"]["name"] = json!(7)),
    ];
    for (expected, change) in cases {
        let mut review = asked();
        change(&mut review);
        let error = parse(review.to_string().as_bytes()).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let text = asked().to_string();
    for at in 0..text.len() {
        assert!(parse(&text.as_bytes()[..at]).is_err());
    }
    // The error does not repeat a long wrong value in full.
    let mut review = asked();
    review["kind"] = json!("x".repeat(10_000));
    assert!(parse(review.to_string().as_bytes()).unwrap_err().len() < 300);
}

/// The API server converts the object, and names the version that the client sent.
#[test]
fn the_version_that_the_client_sent_is_read() {
    assert!(!parsed().in_v1alpha1);
    for (kind, expected) in [
        (json!(null), false),
        (json!({"group": GROUP, "version": "v1beta1", "kind": "LoadBalancer"}), false),
        (json!({"group": GROUP, "version": "v1alpha1", "kind": "LoadBalancer"}), true),
    ] {
        let mut review = asked();
        review["request"]["requestKind"] = kind;
        assert_eq!(parse(review.to_string().as_bytes()).unwrap().in_v1alpha1, expected);
    }
}

#[test]
fn refusals_are_whole_sentences_in_every_place() {
    let mut refused = AdmissionAnswer::default();
    refused.refuse("spec.a", "is wrong");
    refused.refuse("", "as a whole");
    refused.warn("w".repeat(200));
    // The answer refuses the request and also has a changed object. The response must contain no
    // patch.
    refused.object = Some(json!({}));
    let response = answer(&Ok(refused), AdmissionStage::Mutation);
    assert_eq!(response["allowed"], false);
    assert_eq!(response.get("patch"), None);
    let status = &response["status"];
    assert_eq!((status["code"].as_i64(), status["reason"].as_str()), (Some(422), Some("Invalid")));
    assert_eq!(status["message"], "spec.a: is wrong; as a whole");
    assert_eq!(status["details"]["kind"], "LoadBalancer");
    assert_eq!(status["details"]["causes"][0]["field"], "spec.a");
    assert_eq!(status["details"]["causes"][0]["message"], "is wrong");
    let warning = response["warnings"][0].as_str().unwrap();
    assert_eq!(warning.chars().count(), LONGEST_WARNING);
}

#[test]
fn a_refusal_does_not_repeat_a_long_text() {
    let mut refused = AdmissionAnswer::default();
    for _ in 0..MOST_REFUSALS {
        refused.refuse("f".repeat(100_000), "m".repeat(100_000));
    }
    let response = answer(&Ok(refused), AdmissionStage::Validation);
    let length = response.to_string().len();
    assert!(length < MOST_REFUSALS * 5 * LONGEST_TEXT, "{length} bytes");
}

#[test]
fn a_change_is_a_patch_that_fits_what_was_sent() {
    let mut changed = AdmissionAnswer::default();
    let mut object = asked()["request"]["object"].clone();
    object["spec"] = json!({"a/b": 1});
    object["extra"][0] = json!(2);
    object["metadata"]["labels"] = json!({"a~b": "c"});
    object["metadata"].as_object_mut().unwrap().remove("creationTimestamp");
    changed.object = Some(object.clone());
    let outcome = Ok(changed);
    let response = answer(&outcome, AdmissionStage::Mutation);
    assert_eq!(response["patchType"], "JSONPatch");
    let patch: ByteString = serde_json::from_value(response["patch"].clone()).unwrap();
    let patch: Vec<json_patch::PatchOperation> = serde_json::from_slice(&patch.0).unwrap();
    let mut sent = asked()["request"]["object"].clone();
    json_patch::patch(&mut sent, &patch).unwrap();
    assert_eq!(sent, object);
    // A response to validation never contains a patch.
    assert_eq!(
        answer(&outcome, AdmissionStage::Validation),
        json!({"uid": "u-1", "allowed": true})
    );
    let same = AdmissionAnswer {
        object: Some(asked()["request"]["object"].clone()),
        ..AdmissionAnswer::default()
    };
    let response = answer(&Ok(same), AdmissionStage::Mutation);
    assert_eq!(response, json!({"uid": "u-1", "allowed": true}));
}

/// A caller chooses the names of fields. A patch that repeated a long name for each change below it
/// could have any length.
#[test]
fn a_patch_is_not_much_longer_than_the_object() {
    let name = "x".repeat(10_000);
    let review = |value: u8| {
        let fields: Map<String, Value> =
            (0..1_000).map(|n| (format!("f{n}"), json!(value))).collect();
        let mut review = asked();
        review["request"]["object"]["status"] = json!({name.as_str(): fields});
        review
    };
    let new = review(1)["request"]["object"].clone();
    let length = new.to_string().len();
    let changed = AdmissionAnswer { object: Some(new), ..AdmissionAnswer::default() };
    let review = parse(review(0).to_string().as_bytes()).unwrap();
    let answer = render(&Ok(changed), &review, AdmissionStage::Mutation);
    assert!(answer.len() < length * 2, "{} bytes", answer.len());
}

#[test]
fn without_the_facts_nothing_is_judged_and_nothing_is_changed() {
    let unknown = Err(CallError::Timeout {
        call: "GET /".to_owned(),
        within: std::time::Duration::from_secs(5),
    });
    let judged = answer(&unknown, AdmissionStage::Validation);
    assert_eq!((&judged["allowed"], &judged["status"]["code"]), (&json!(false), &json!(500)));
    let message = judged["status"]["message"].as_str().unwrap();
    assert!(message.starts_with("the object cannot be validated now: "), "{message}");
    assert_eq!(answer(&unknown, AdmissionStage::Mutation), json!({"uid": "u-1", "allowed": true}));
}

/// An object with too many values is not parsed. The parsed values would take many times the memory
/// that the text takes. An object that is too large is not parsed either.
#[test]
fn an_object_of_more_values_than_any_needs_is_refused_unread() {
    let mut review = asked();
    review["request"]["object"]["extra"] = json!(vec![0; MOST_VALUES]);
    let review = parse(review.to_string().as_bytes()).unwrap();
    assert_eq!((&review.object, review.too_large), (&None, Some("object")));
    let refused = Ok(unread(AdmissionStage::Validation, "object"));
    let response = answer(&refused, AdmissionStage::Validation);
    assert_eq!(response["allowed"], false);
    let message = response["status"]["message"].as_str().unwrap();
    let expected = "the object has more than 3 MiB, 100000 values or 15000 maps: ";
    assert!(message.starts_with(expected), "{message}");
    let passed = Ok(unread(AdmissionStage::Mutation, "object"));
    assert_eq!(answer(&passed, AdmissionStage::Mutation), json!({"uid": "u-1", "allowed": true}));
    let mut review = asked();
    review["request"]["object"]["extra"] = json!(vec![json!({}); MOST_MAPS]);
    assert_eq!(parse(review.to_string().as_bytes()).unwrap().too_large, Some("object"));
    let mut review = asked();
    review["request"]["object"]["extra"] = json!("x".repeat(LARGEST_OBJECT_MIB << 20));
    assert_eq!(parse(review.to_string().as_bytes()).unwrap().too_large, Some("object"));
    // An object within the limits is parsed.
    let mut review = asked();
    review["request"]["object"]["extra"] = json!("x".repeat((LARGEST_OBJECT_MIB << 20) - 1_000));
    assert_eq!(parse(review.to_string().as_bytes()).unwrap().too_large, None);
    let mut review = asked();
    review["request"]["object"]["extra"] = json!(vec![0; MOST_VALUES - 10]);
    assert_eq!(parse(review.to_string().as_bytes()).unwrap().too_large, None);
}
