//! Conversion between the versions of `LoadBalancer`: the review's envelope. What becomes of an
//! object is decided in [`crate::domain::convert`].
//!
//! Invariants: one review may hold every object of a cluster, so objects are read, converted and
//! written one after the other, and never lie here all at once as trees of values. The answer has
//! as many objects as the question, in their order.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::domain::convert::{Version, convert};

const API_VERSION: &str = "apiextensions.k8s.io/v1";
const KIND: &str = "ConversionReview";

#[derive(Deserialize)]
struct Question<'a> {
    #[serde(rename = "apiVersion", default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(borrow)]
    request: Option<Request<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    uid: String,
    #[serde(rename = "desiredAPIVersion")]
    desired_api_version: String,
    #[serde(borrow, default)]
    objects: Vec<&'a RawValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: Response<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    result: Outcome,
    converted_objects: Vec<Box<RawValue>>,
}

#[derive(Serialize)]
struct Outcome {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

/// Answers a ConversionReview. The error is for whoever sent something else.
pub fn review(body: &[u8]) -> Result<Vec<u8>, String> {
    let question: Question<'_> =
        serde_json::from_slice(body).map_err(|error| format!("not a {KIND}: {error}"))?;
    if (question.api_version.as_str(), question.kind.as_str()) != (API_VERSION, KIND) {
        return Err(format!(
            "{} {} was sent: only {API_VERSION} {KIND} is understood here",
            short(&question.api_version),
            short(&question.kind)
        ));
    }
    let Some(request) = question.request else {
        return Err(format!("the {KIND} has no request"));
    };
    let (outcome, converted_objects) = match all(&request) {
        Ok(converted) => (Outcome { status: "Success", message: None }, converted),
        Err(message) => {
            tracing::warn!(message, "objects cannot be converted");
            (Outcome { status: "Failure", message: Some(message) }, Vec::new())
        }
    };
    let response = Response { uid: &request.uid, result: outcome, converted_objects };
    let answer = Answer { api_version: API_VERSION, kind: KIND, response };
    serde_json::to_vec(&answer).map_err(|error| error.to_string())
}

fn all(request: &Request<'_>) -> Result<Vec<Box<RawValue>>, String> {
    let to = Version::parse(&request.desired_api_version).map_err(|error| error.to_string())?;
    let each = |(index, object): (usize, &&RawValue)| {
        one(object, to).map_err(|error| format!("objects[{index}]: {error}"))
    };
    request.objects.iter().enumerate().map(each).collect()
}

fn one(object: &RawValue, to: Version) -> Result<Box<RawValue>, String> {
    let object: Value = serde_json::from_str(object.get()).map_err(|error| error.to_string())?;
    let converted = convert(object, to).map_err(|error| error.to_string())?;
    serde_json::value::to_raw_value(&converted).map_err(|error| error.to_string())
}

fn short(text: &str) -> String {
    text.chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ALPHA: &str = "loadbalancer.harvesterhci.io/v1alpha1";
    const BETA: &str = "loadbalancer.harvesterhci.io/v1beta1";

    fn lb(version: &str, name: &str) -> Value {
        json!({
            "apiVersion": version, "kind": "LoadBalancer", "metadata": {"name": name},
            "spec": {"ipam": "pool", "listeners": [{"name": "a", "port": 80, "protocol": "TCP"}]},
        })
    }

    fn ask(desired: &str, objects: &[Value]) -> Value {
        let question = json!({
            "apiVersion": API_VERSION, "kind": KIND,
            "request": {"uid": "u-1", "desiredAPIVersion": desired, "objects": objects},
        });
        serde_json::from_slice(&review(question.to_string().as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn as_many_objects_in_their_order_in_the_version_asked_for() {
        let objects = [lb(BETA, "a"), lb(ALPHA, "b"), lb(BETA, "c")];
        let answer = ask(ALPHA, &objects);
        assert_eq!((&answer["apiVersion"], &answer["kind"]), (&json!(API_VERSION), &json!(KIND)));
        assert_eq!(answer["response"]["uid"], "u-1");
        assert_eq!(answer["response"]["result"], json!({"status": "Success"}));
        let expected = [lb(ALPHA, "a"), lb(ALPHA, "b"), lb(ALPHA, "c")];
        assert_eq!(answer["response"]["convertedObjects"], json!(expected));
        assert_eq!(ask(BETA, &[])["response"]["convertedObjects"], json!([]));
    }

    #[test]
    fn one_that_is_no_load_balancer_fails_the_review_and_is_named() {
        let strange = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}});
        let answer = ask(BETA, &[lb(ALPHA, "a"), strange]);
        assert_eq!(answer["response"]["result"]["status"], "Failure");
        let message = answer["response"]["result"]["message"].as_str().unwrap();
        assert!(message.starts_with("objects[1]: \"v1\" is no version"), "{message}");
        assert_eq!(answer["response"]["convertedObjects"], json!([]));
        let answer = ask("loadbalancer.harvesterhci.io/v2", &[lb(ALPHA, "a")]);
        assert_eq!(answer["response"]["result"]["status"], "Failure");
    }

    #[test]
    fn what_is_no_review_is_refused() {
        let review_of = |text: &str| review(text.as_bytes()).unwrap_err();
        for text in ["", "{", "[]", "null", "\"x\"", "{\"request\":5}", "\u{feff}{}"] {
            review_of(text);
        }
        assert!(review(&[0xff, 0xfe]).is_err());
        let older = json!({"apiVersion": "apiextensions.k8s.io/v1beta1", "kind": KIND});
        assert!(review_of(&older.to_string()).contains("only apiextensions.k8s.io/v1"));
        let empty = json!({"apiVersion": API_VERSION, "kind": KIND});
        assert!(review_of(&empty.to_string()).contains("no request"));
    }

    /// Time is measured, not asserted: a busy machine is no fault.
    #[test]
    fn a_list_of_ten_thousand_is_answered() {
        for count in [1_000, 10_000] {
            let objects: Vec<Value> = (0..count).map(|n| lb(BETA, &format!("lb-{n}"))).collect();
            let began = std::time::Instant::now();
            let answer = ask(ALPHA, &objects);
            let converted = answer["response"]["convertedObjects"].as_array().unwrap();
            assert_eq!(converted.len(), count);
            assert_eq!(converted[count - 1]["metadata"]["name"], format!("lb-{}", count - 1));
            eprintln!("{count} objects in {:?}", began.elapsed());
        }
    }
}
