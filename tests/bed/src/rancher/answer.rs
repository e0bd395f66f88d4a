//! Owns the form of a request and of its answer, and the bodies of errors as Rancher writes them.

use serde_json::{Value, json};

/// A request, read completely.
pub(super) struct Request {
    pub(super) method: String,
    /// The parts of the path, without empty ones.
    pub(super) path: Vec<String>,
    pub(super) query: String,
    pub(super) authorization: Option<String>,
    pub(super) content_type: String,
    pub(super) body: Vec<u8>,
}

impl Request {
    /// Body as JSON; an empty body is an empty object.
    pub(super) fn json(&self) -> Result<Value, Answer> {
        if self.body.is_empty() {
            return Ok(json!({}));
        }
        serde_json::from_slice(&self.body)
            .map_err(|e| norman(422, "InvalidBodyContent", &format!("Failed to parse body: {e}")))
    }
}

pub(super) enum Body {
    Empty,
    Text(String),
    Json(Value),
}

pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Body,
    /// Whether the answer has the header by which /v3 marks an unauthenticated request.
    pub(super) unauthenticated: bool,
}

pub(super) fn json_answer(status: u16, body: Value) -> Answer {
    Answer { status, body: Body::Json(body), unauthenticated: false }
}

pub(super) fn text(status: u16, body: &str) -> Answer {
    Answer { status, body: Body::Text(body.to_owned()), unauthenticated: false }
}

/// Error page of an ingress.
pub(super) fn page(status: u16) -> Answer {
    text(status, &crate::proxy::html(status))
}

pub(super) fn empty(status: u16) -> Answer {
    Answer { status, body: Body::Empty, unauthenticated: false }
}

/// An error of /v3.
pub(super) fn norman(status: u16, code: &str, message: &str) -> Answer {
    let body = json!({
        "baseType": "error", "type": "error", "code": code, "status": status, "message": message,
    });
    json_answer(status, body)
}

/// Answer of /v3 to an unauthenticated request. The status is a string there.
pub(super) fn must_authenticate() -> Answer {
    let body = json!({
        "type": "error", "status": "401", "message": "Unauthorized 401: must authenticate",
    });
    Answer { unauthenticated: true, ..json_answer(401, body) }
}

/// An error of the Kubernetes API.
pub(super) fn kubernetes(code: u16, reason: &str, message: &str) -> Answer {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    json_answer(code, body)
}

/// Answer of the Kubernetes API to an unauthenticated request.
pub(super) fn unauthorized() -> Answer {
    kubernetes(401, "Unauthorized", "Unauthorized")
}

/// Error of the tunnel to another cluster.
pub(super) fn tunnel(status: u16, code: &str, message: &str) -> Answer {
    let body = json!({
        "Code": {"Code": code, "Status": status}, "Message": message, "Cause": null, "FieldName": "",
    });
    json_answer(status, body)
}
