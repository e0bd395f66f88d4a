//! Parses an AdmissionReview of version v1, applies the rules of admission, and writes the answer.
//!
//! Invariants:
//! * Every request is answered with a review for the same UID, or refused with a sentence that says
//!   why.
//! * An object is parsed with all the fields that were sent, so that a patch fits the object.
//! * The size of an object, and its numbers of values and maps, are checked before the object is
//!   parsed. An object above the limits is not parsed: mutation leaves it unchanged, and validation
//!   refuses it.
//! * The rules of a LoadBalancer may need a read from the API server. If this read fails,
//!   validation fails, and mutation changes nothing.

use std::time::Duration;

use json_patch::jsonptr::Pointer;
use json_patch::{AddOperation, PatchOperation, RemoveOperation, ReplaceOperation};
use k8s_openapi::ByteString;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::admission::{AdmissionStage, RuleSources, load_balancers, pools};
use super::request_body::clipped;
use crate::api::GROUP;
use crate::domain::admission::{AdmissionAnswer, AdmissionRequest, Operation, Refusal};
use crate::domain::limits::json_size::{maps, most_values};
use crate::domain::limits::text::{LONGEST_TEXT, cut};
use crate::k8s::CallError;

/// Longest warning, in characters. Kubernetes recommends this maximum. The API server may cut a
/// warning of more than 256 characters.
const LONGEST_WARNING: usize = 120;
const MOST_WARNINGS: usize = 16;
/// Maximum number of refusals in one answer.
const MOST_REFUSALS: usize = 20;
/// Maximum size of one object, in MiB. The API server accepts requests of up to 3 MiB, and etcd
/// stores objects of up to 1.5 MiB.
const LARGEST_OBJECT_MIB: usize = 3;
/// Maximum number of values in one object, with its metadata. A full ledger has 40,000 values. The
/// spec and the status of a LoadBalancer have at most 40,000 values, by the schema.
const MOST_VALUES: usize = 100_000;
/// Maximum number of maps in one object, with its metadata. The schema allows fewer than 5,000 maps
/// in the spec and the status of an object.
const MOST_MAPS: usize = 15_000;

/// Paths of the maps that a patch changes field by field. A patch replaces any other value as a
/// whole. If it changed all maps field by field, it could be much longer than the object: a long
/// key that the caller has chosen would be in the path of every field below this key.
const PATCHED: [&str; 6] =
    ["", "/metadata", "/metadata/annotations", "/metadata/labels", "/spec", "/status"];

/// Kind of the reviewed object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReviewedKind {
    LoadBalancer,
    IPPool,
}

/// Parsed AdmissionReview.
#[derive(Debug)]
pub struct ParsedReview {
    uid: String,
    kind: ReviewedKind,
    operation: Operation,
    subresource: String,
    namespace: String,
    name: String,
    user: String,
    /// Whether the client sent the request in v1alpha1.
    in_v1alpha1: bool,
    object: Option<Value>,
    old: Option<Value>,
    /// Field of the request that was not parsed, because it is too large, or has too many values or
    /// maps. `None`: every field was parsed.
    too_large: Option<&'static str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(borrow)]
    request: Option<RequestFields<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RequestFields<'a> {
    #[serde(default)]
    uid: String,
    resource: ReviewedResource,
    request_kind: Option<RequestedKind>,
    #[serde(default)]
    sub_resource: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    operation: String,
    user_info: ReviewUser,
    #[serde(borrow, default)]
    object: Option<&'a RawValue>,
    #[serde(borrow, default)]
    old_object: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
struct ReviewedResource {
    group: String,
    version: String,
    #[serde(rename = "resource")]
    plural: String,
}

/// Part of `requestKind`: the API version in which the client sent the object, before the API
/// server converted the object.
#[derive(Debug, Default, Deserialize)]
struct RequestedKind {
    #[serde(default)]
    version: String,
}

#[derive(Debug, Default, Deserialize)]
struct ReviewUser {
    #[serde(default)]
    username: String,
}

/// Parses a review. `Err` describes the fault.
pub fn parse(bytes: &[u8]) -> Result<ParsedReview, String> {
    const WANTED: &str = "must be kind AdmissionReview of admission.k8s.io/v1";
    let envelope: Envelope<'_> =
        serde_json::from_slice(bytes).map_err(|e| format!("not an AdmissionReview: {e}"))?;
    if envelope.kind != "AdmissionReview" || envelope.api_version != "admission.k8s.io/v1" {
        let (kind, version) = (clipped(&envelope.kind), clipped(&envelope.api_version));
        return Err(format!("kind {kind:?} of {version:?}: {WANTED}"));
    }
    let request = envelope.request.ok_or("request: missing")?;
    if request.uid.is_empty() {
        return Err("request.uid: missing".to_owned());
    }
    let ReviewedResource { group, version, plural } = &request.resource;
    let kind = match (group.as_str(), version.as_str(), plural.as_str()) {
        (GROUP, "v1beta1", "loadbalancers") => ReviewedKind::LoadBalancer,
        (GROUP, "v1beta1", "ippools") => ReviewedKind::IPPool,
        _ => {
            let asked = clipped(&format!("{plural} of {group}/{version}"));
            return Err(format!(
                "request.resource: {asked}: must be loadbalancers or ippools of {GROUP}/v1beta1"
            ));
        }
    };
    let operation = match request.operation.as_str() {
        "CREATE" => Operation::Create,
        "UPDATE" => Operation::Update,
        "DELETE" => Operation::Delete,
        other => {
            let other = clipped(other);
            return Err(format!("request.operation: {other:?}: must be CREATE, UPDATE or DELETE"));
        }
    };
    let (old, new) = match operation {
        Operation::Create => (false, true),
        Operation::Update => (true, true),
        Operation::Delete => (true, false),
    };
    let mut too_large = None;
    let mut read = |field, text: Option<&RawValue>, is_needed| {
        let Some(text) = text else {
            return if is_needed { Err(format!("request.{field}: missing")) } else { Ok(None) };
        };
        let text = text.get();
        if !text.starts_with('{') {
            return Err(format!("request.{field}: must be an object"));
        }
        let is_too_large = text.len() > (LARGEST_OBJECT_MIB << 20)
            || most_values(text) > MOST_VALUES
            || maps(text) > MOST_MAPS;
        if is_too_large {
            too_large = Some(field);
            return Ok(None);
        }
        let object = serde_json::from_str(text);
        object.map(Some).map_err(|e| format!("not an AdmissionReview: request.{field}: {e}"))
    };
    let object = read("object", request.object, new)?;
    let old = read("oldObject", request.old_object, old)?;
    Ok(ParsedReview {
        uid: request.uid,
        kind,
        operation,
        subresource: request.sub_resource,
        namespace: request.namespace,
        name: request.name,
        user: request.user_info.username,
        in_v1alpha1: request.request_kind.is_some_and(|kind| kind.version == "v1alpha1"),
        object,
        old,
        too_large,
    })
}

impl ParsedReview {
    /// Name of the object's kind, for metrics.
    pub fn kind(&self) -> &'static str {
        match self.kind {
            ReviewedKind::LoadBalancer => "LoadBalancer",
            ReviewedKind::IPPool => "IPPool",
        }
    }
}

/// Result of the rules of admission for one review. `Err`: error of a call that was to read a fact
/// for the rules.
pub type ReviewOutcome = Result<AdmissionAnswer, CallError>;

/// Applies the rules of admission to a review. `username`: username of this operator. `deadline`:
/// time for the reads of pools, in a review of a LoadBalancer.
pub async fn apply_rules(
    rules: &RuleSources,
    stage: AdmissionStage,
    review: &ParsedReview,
    username: &str,
    deadline: Duration,
) -> ReviewOutcome {
    if let Some(field) = review.too_large {
        return Ok(unread(stage, field));
    }
    let request = AdmissionRequest {
        operation: review.operation,
        subresource: &review.subresource,
        namespace: &review.namespace,
        name: &review.name,
        by_operator: rules.is_leader(&review.user, username),
        in_v1alpha1: review.in_v1alpha1,
        object: review.object.as_ref(),
        old: review.old.as_ref(),
    };
    match review.kind {
        ReviewedKind::LoadBalancer => {
            load_balancers::decide(rules, stage, &request, deadline).await
        }
        ReviewedKind::IPPool => Ok(pools::decide(rules, stage, &request).await),
    }
}

/// Answer for an object that is too large and was not parsed. Mutation lets the object pass
/// unchanged, because validation comes next and refuses the object.
fn unread(stage: AdmissionStage, field: &str) -> AdmissionAnswer {
    let mut answer = AdmissionAnswer::default();
    if stage == AdmissionStage::Validation {
        let which = if field == "object" { "the object" } else { "the stored object" };
        answer.refuse(
            "",
            format!("{which} has more than {LARGEST_OBJECT_MIB} MiB, {MOST_VALUES} values or {MOST_MAPS} maps: no object of this kind needs so many; shorten its texts, lists and maps"),
        );
    }
    answer
}

/// Verdict that metrics show for the review.
pub fn verdict(outcome: &ReviewOutcome) -> &'static str {
    match outcome {
        Err(_) => "failed",
        Ok(answer) if !answer.refusals.is_empty() => "refused",
        Ok(answer) if answer.object.is_some() => "changed",
        Ok(_) => "allowed",
    }
}

/// Answer to the review, as JSON.
pub fn render(outcome: &ReviewOutcome, review: &ParsedReview, stage: AdmissionStage) -> Vec<u8> {
    let mut response = json!({"uid": review.uid, "allowed": true});
    match outcome {
        Ok(answer) => {
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
        // A request for mutation lets the object pass, because a reconcile can later make the
        // change. A request for validation fails, because no later step can validate the
        // object.
        Err(error) if stage == AdmissionStage::Mutation => {
            tracing::warn!(
                %error,
                "cannot read a fact that mutation needs: the object stays unchanged"
            );
        }
        Err(error) => {
            tracing::warn!(
                %error,
                "cannot read a fact that validation needs: the request is refused"
            );
            response["allowed"] = json!(false);
            response["status"] = json!({
                "status": "Failure",
                "code": 500,
                "reason": "InternalError",
                "message": format!("the object cannot be validated now: {error}; try again"),
            });
        }
    }
    let answer = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response,
    });
    answer.to_string().into_bytes()
}

fn change(
    review: &ParsedReview,
    stage: AdmissionStage,
    answer: &AdmissionAnswer,
) -> Option<Vec<u8>> {
    let (old, new) = (review.object.as_ref()?, answer.object.as_ref()?);
    let mut patch = Vec::new();
    if stage == AdmissionStage::Mutation {
        add_changes(Pointer::root(), old, new, &mut patch);
    }
    (!patch.is_empty()).then(|| serde_json::to_vec(&patch).ok()).flatten()
}

/// Adds to `changes` the operations that change the value `old` into `new`. `at`: path of the value
/// in the object.
fn add_changes(at: &Pointer, old: &Value, new: &Value, changes: &mut Vec<PatchOperation>) {
    if old == new {
        return;
    }
    let maps = old.as_object().zip(new.as_object());
    let Some((before, after)) = maps.filter(|_| PATCHED.contains(&at.as_str())) else {
        let replace = ReplaceOperation { path: at.to_buf(), value: new.clone() };
        return changes.push(PatchOperation::Replace(replace));
    };
    for (key, value) in after {
        let path = at.with_trailing_token(key);
        match before.get(key) {
            Some(old) => add_changes(&path, old, value, changes),
            None => changes.push(PatchOperation::Add(AddOperation { path, value: value.clone() })),
        }
    }
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        let path = at.with_trailing_token(key);
        changes.push(PatchOperation::Remove(RemoveOperation { path }));
    }
}

/// Status of a refusal. kubectl shows only the causes: the field and the message of each. Other
/// clients show the message of the status. Texts of more than [`LONGEST_TEXT`] bytes are cut.
fn refusal(review: &ParsedReview, refusals: &[Refusal]) -> Value {
    let shown = refusals.iter().take(MOST_REFUSALS).map(|Refusal { field, message }| Refusal {
        field: cut(field.clone(), LONGEST_TEXT),
        message: cut(message.clone(), LONGEST_TEXT),
    });
    let shown: Vec<Refusal> = shown.collect();
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
            "group": GROUP, "kind": review.kind(), "name": review.name, "causes": causes,
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
