//! The envelope of admission: an AdmissionReview of version v1 in, one out.
//!
//! Invariants: whatever comes in is answered with a review for the same UID, or refused with a
//! sentence. The object is kept as it was sent, to the last field, so that a patch fits it. A
//! fact that cannot be had stops a judgement, and leaves a change out.

use k8s_openapi::ByteString;
use serde::Deserialize;
use serde_json::{Value, json};

use super::admission::{Admission, Stage};
use crate::api::GROUP;
use crate::domain::admission::{Answer, Operation, Refusal, Request};
use crate::k8s::CallError;

/// The API server takes 4,096 characters of warnings in all, and cuts each of more than 256.
const LONGEST_WARNING: usize = 120;
const MOST_WARNINGS: usize = 16;
/// More than these nobody reads.
const MOST_REFUSALS: usize = 20;

/// Whose request is reviewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    LoadBalancer,
    IPPool,
}

/// A review that can be answered.
#[derive(Debug)]
pub struct Review {
    request: Asked,
    kind: Kind,
    operation: Operation,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<Asked>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
    #[serde(default)]
    uid: String,
    resource: Resource,
    #[serde(default)]
    sub_resource: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    operation: String,
    user_info: User,
    #[serde(default)]
    object: Option<Value>,
    #[serde(default)]
    old_object: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
struct Resource {
    group: String,
    version: String,
    #[serde(rename = "resource")]
    plural: String,
}

#[derive(Debug, Default, Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

/// Reads a review. The error says what is wrong with it.
pub fn parse(bytes: &[u8]) -> Result<Review, String> {
    const WANTED: &str = "want kind AdmissionReview of admission.k8s.io/v1";
    let envelope: Envelope =
        serde_json::from_slice(bytes).map_err(|e| format!("not an AdmissionReview: {e}"))?;
    if envelope.kind != "AdmissionReview" || envelope.api_version != "admission.k8s.io/v1" {
        let (kind, version) = (clipped(&envelope.kind), clipped(&envelope.api_version));
        return Err(format!("kind {kind:?} of {version:?}: {WANTED}"));
    }
    let request = envelope.request.ok_or("request: missing")?;
    if request.uid.is_empty() {
        return Err("request.uid: missing".to_owned());
    }
    let Resource { group, version, plural } = &request.resource;
    let kind = match (group.as_str(), version.as_str(), plural.as_str()) {
        (GROUP, "v1beta1", "loadbalancers") => Kind::LoadBalancer,
        (GROUP, "v1beta1", "ippools") => Kind::IPPool,
        _ => {
            let asked = clipped(&format!("{plural} of {group}/{version}"));
            return Err(format!(
                "request.resource: {asked}: want loadbalancers or ippools of {GROUP}/v1beta1"
            ));
        }
    };
    let operation = match request.operation.as_str() {
        "CREATE" => Operation::Create,
        "UPDATE" => Operation::Update,
        "DELETE" => Operation::Delete,
        other => {
            let other = clipped(other);
            return Err(format!("request.operation: {other:?}: want CREATE, UPDATE or DELETE"));
        }
    };
    let (old, new) = match operation {
        Operation::Create => (false, true),
        Operation::Update => (true, true),
        Operation::Delete => (true, false),
    };
    for (field, object, needed) in
        [("object", &request.object, new), ("oldObject", &request.old_object, old)]
    {
        match object {
            Some(object) if !object.is_object() => {
                return Err(format!("request.{field}: not an object"));
            }
            None if needed => return Err(format!("request.{field}: missing")),
            _ => {}
        }
    }
    Ok(Review { request, kind, operation })
}

fn clipped(text: &str) -> String {
    text.chars().take(100).collect()
}

impl Review {
    /// For metrics.
    pub fn kind(&self) -> &'static str {
        match self.kind {
            Kind::LoadBalancer => "LoadBalancer",
            Kind::IPPool => "IPPool",
        }
    }
}

/// What came of a review.
#[derive(Debug)]
pub enum Outcome {
    /// The rules' answer.
    Answered(Answer),
    /// A fact could not be had.
    Unknown(CallError),
}

/// Asks the rules.
pub async fn judge(rules: &Admission, stage: Stage, review: &Review, me: &str) -> Outcome {
    let asked = &review.request;
    let request = Request {
        operation: review.operation,
        subresource: &asked.sub_resource,
        namespace: &asked.namespace,
        name: &asked.name,
        user: &asked.user_info.username,
        by_operator: rules.is_leader(&asked.user_info.username, me),
        object: asked.object.as_ref(),
        old: asked.old_object.as_ref(),
    };
    let answer = match review.kind {
        Kind::LoadBalancer => rules.load_balancer(stage, &request).await,
        Kind::IPPool => rules.pool(stage, &request).await,
    };
    answer.map_or_else(Outcome::Unknown, Outcome::Answered)
}

impl Outcome {
    /// The verdict on what was converted, for metrics.
    pub const CONVERTED: &'static str = "allowed";

    /// For metrics.
    pub fn verdict(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "failed",
            Self::Answered(answer) if !answer.refusals.is_empty() => "refused",
            Self::Answered(answer) if answer.object.is_some() => "changed",
            Self::Answered(_) => "allowed",
        }
    }

    /// The review that is sent back.
    pub fn render(&self, review: &Review, stage: Stage) -> Vec<u8> {
        let mut response = json!({"uid": review.request.uid, "allowed": true});
        match self {
            Self::Answered(answer) => {
                if !answer.refusals.is_empty() {
                    response["allowed"] = json!(false);
                    response["status"] = refusal(review, &answer.refusals);
                } else if let Some(patch) = change(review, stage, answer) {
                    response["patchType"] = json!("JSONPatch");
                    response["patch"] = json!(ByteString(patch));
                }
                let warnings: Vec<String> =
                    answer.warnings.iter().take(MOST_WARNINGS).map(|w| shortened(w)).collect();
                if !warnings.is_empty() {
                    response["warnings"] = json!(warnings);
                }
            }
            // A change can be made later, or was not needed; a judgement cannot.
            Self::Unknown(error) if stage == Stage::Mutation => {
                tracing::warn!(%error, "an object passes as it is: it cannot be looked into now");
            }
            Self::Unknown(error) => {
                tracing::warn!(%error, "a request cannot be judged now");
                response["allowed"] = json!(false);
                response["status"] = json!({
                    "status": "Failure",
                    "code": 500,
                    "reason": "InternalError",
                    "message": format!("cannot be judged now: {error}; try again"),
                });
            }
        }
        let answer = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response,
        });
        answer.to_string().into_bytes()
    }
}

fn change(review: &Review, stage: Stage, answer: &Answer) -> Option<Vec<u8>> {
    let (old, new) = (review.request.object.as_ref()?, answer.object.as_ref()?);
    let patch = json_patch::diff(old, new);
    (stage == Stage::Mutation && !patch.0.is_empty())
        .then(|| serde_json::to_vec(&patch).ok())
        .flatten()
}

/// kubectl shows the causes alone, each as field and message; other clients the message as a whole.
fn refusal(review: &Review, refusals: &[Refusal]) -> Value {
    let shown = &refusals[..refusals.len().min(MOST_REFUSALS)];
    let mut sentences: Vec<String> = shown.iter().map(ToString::to_string).collect();
    let cause = |Refusal { field, message }: &Refusal| json!({"reason": "FieldValueInvalid", "field": field, "message": message});
    let causes: Vec<Value> = shown.iter().map(cause).collect();
    if shown.len() < refusals.len() {
        sentences.push(format!("and {} more", refusals.len() - shown.len()));
    }
    json!({
        "status": "Failure",
        "code": 422,
        "reason": "Invalid",
        "message": sentences.join("; "),
        "details": {
            "group": GROUP, "kind": review.kind(), "name": review.request.name, "causes": causes,
        },
    })
}

fn shortened(warning: &str) -> String {
    if warning.chars().count() <= LONGEST_WARNING {
        return warning.to_owned();
    }
    let mut short: String = warning.chars().take(LONGEST_WARNING - 1).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests;
