//! Client of the API server: informers, guarded writes, Events, the Lease. Other modules may also
//! read from the API server, but every write goes through this module.
//!
//! Invariants:
//! * Every call has a deadline, and its error names the call ([`calls`]). The lists and watches of
//!   informers have the limit [`SILENCE`] instead.
//! * This module sends no write while this process does not lead. Exceptions:
//!   * the writes of the Lease and of Events, and the writes for admission;
//!   * the writes of the `cloud-config` and `takeover` commands;
//!   * the writes of [`other_controller`], which runs while another controller leads;
//!   * the claims that the operator adds to pools after a restore of etcd from a backup.
//! * Writes to a Rancher have the same check of the leadership:
//!   [`write::ApiWriter::check_leadership`].
//! * Each change carries the resourceVersion of the object that the decision was based on. Each
//!   deletion carries the resourceVersion or the UID of that object. So the API server refuses a
//!   decision from a stale view. Exceptions, which carry neither:
//!   * the restart of a workload, and the annotation that keeps a CRD, because each sets one
//!     annotation;
//!   * the deletion of a bound Secret, because its name is never used again;
//!   * the count of a repeated Event, which kube's `Recorder` writes.

/// Items of the trait `Resource` for a wrapper type. The items name the kind of the wrapped type
/// `$wrapped`.
macro_rules! kind_of {
    ($wrapped:ident) => {
        type DynamicType = <$wrapped as Resource>::DynamicType;
        type Scope = <$wrapped as Resource>::Scope;

        fn kind(dt: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
            $wrapped::kind(dt)
        }

        fn group(dt: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
            $wrapped::group(dt)
        }

        fn version(dt: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
            $wrapped::version(dt)
        }

        fn plural(dt: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
            $wrapped::plural(dt)
        }
    };
}
use kind_of;

pub mod agent_records;
pub mod calls;
pub mod client;
pub mod clock;
pub mod cloud_config;
pub mod credentials;
pub mod events;
pub mod guard;
pub mod informer;
mod lazy_object;
pub mod leadership;
pub mod other_controller;
mod paging;
pub mod read;
pub mod read_only;
mod request_path;
pub mod store;
pub mod stored_objects;
pub mod takeover;
pub mod trimmed;
pub mod views;
pub mod webhook_objects;
pub mod write;

use std::time::Duration;

use self::calls::FailedCall;
use crate::metrics::Metrics;

/// Deadline of one call. When the deadline has passed without an answer, it is unknown whether the
/// call had an effect. A page of several objects has this deadline for each try, because a page
/// that is late is requested again with fewer objects ([`paging`]).
pub const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// Largest number of objects in one page of a list. The number is limited, because the API server
/// may have to convert all objects of the page within the call's deadline. [`paging`] requests
/// fewer objects if they are large, or if a page was late.
pub const PAGE: u32 = 200;

/// Longest time for which the API server may send nothing while an answer is due. After this time,
/// the connection and its calls fail. This is the only limit of the lists and watches of informers.
/// Each other call also has a deadline.
pub const SILENCE: Duration = Duration::from_secs(10);

/// Reason why a call to the API server failed. Most of the reasons contain the name of the call.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// A conflict: another client changed or created the object first (409).
    #[error("{0}: the object was changed by another client")]
    Conflict(String),
    /// Any 404: the object, its subresource or its kind does not exist.
    #[error("{0}: not found")]
    NotFound(String),
    /// An object that is installed with the operator is missing. Field 0: the object's kind. Field
    /// 1: its name.
    #[error("{0} {1} is missing: helm upgrade, or kubectl apply -f config/rbac, restores it")]
    Missing(&'static str, &'static str),
    /// Refusal of a write, because this process does not lead.
    #[error("this process is not the leader")]
    NotLeader,
    /// Any other failure: the call was refused or not sent, or it is unknown whether the call had
    /// an effect.
    #[error(transparent)]
    Other(Box<FailedCall>),
    /// The API server gave no answer before the deadline. It is unknown whether the call had an
    /// effect.
    #[error("{call}: no answer within {within:?}")]
    Timeout {
        /// The call without an answer.
        call: String,
        /// Deadline of the call.
        within: Duration,
    },
}

impl CallError {
    /// Kind of the error in one word, for a label of metrics. The word `refused` means that
    /// [`Self::refusal`] is not `None`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Conflict(_) => "conflict",
            Self::NotFound(_) => "not_found",
            Self::Missing(..) => "missing",
            Self::NotLeader => "not_leader",
            Self::Other(_) if self.refusal().is_some() => "refused",
            Self::Timeout { .. } => "no_answer",
            Self::Other(_) => "failed",
        }
    }

    /// Converts an error of kube's client into the reason why `call` failed.
    fn new(call: String, error: kube::Error) -> Self {
        match &error {
            // The reasons "Conflict" and "AlreadyExists" have the same code, 409.
            kube::Error::Api(status) if status.is_conflict() || status.is_already_exists() => {
                Self::Conflict(call)
            }
            // The code is compared, because kube recognizes a 404 only by the reason "NotFound"
            // (kube-core 5.0, `reason_or_code` looks up the wrong reason). An API server that
            // serves no kind of the group gives no reason.
            kube::Error::Api(status) if status.code == 404 => Self::NotFound(call),
            _ => Self::Other(Box::new(FailedCall { call, error })),
        }
    }

    /// Error of a call that was not sent, because its request could not be made. `what` names the
    /// call in the text of the error, for example by the kind of the object.
    fn not_sent(what: &str, error: kube::Error) -> Self {
        Self::new(format!("{what} not sent"), error)
    }

    /// Message with which the API server refused the call with status 400, 403 or 422. The same
    /// call would be refused again. `None`: the error is not such a refusal.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Self::Other(failed) => match &failed.error {
                kube::Error::Api(status) if matches!(status.code, 400 | 403 | 422) => {
                    Some(&status.message)
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the same call may succeed later. True if the call had no answer, or an answer with
    /// status 408, 429 or 5xx. Also true for other errors of kube's client, except errors of JSON
    /// and of authentication.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Timeout { .. } => true,
            Self::Other(failed) => match &failed.error {
                kube::Error::Api(status) => matches!(status.code, 408 | 429 | 500..),
                kube::Error::SerdeError(_) | kube::Error::Auth(_) => false,
                _ => true,
            },
            Self::Conflict(_) | Self::NotFound(_) | Self::Missing(..) | Self::NotLeader => false,
        }
    }
}

/// Counts a write to the API server in the metrics, by the kind of the written object and by the
/// outcome in `answer`. Returns `answer` unchanged.
fn count_write<T>(
    metrics: &Metrics,
    kind: &str,
    answer: Result<T, CallError>,
) -> Result<T, CallError> {
    let outcome = match &answer {
        Ok(_) => "ok",
        Err(CallError::Conflict(_)) => "conflict",
        Err(CallError::NotFound(_)) => "not_found",
        Err(_) => "error",
    };
    metrics.api_writes.with_label_values(&[kind, outcome]).inc();
    answer
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use k8s_openapi::api::core::v1::{Namespace, Service};
    use kube::api::ListParams;
    use kube::client::{Body, ClientBuilder};
    use kube::core::Status;
    use kube::{Api, Client, Config};
    use serde_json::json;
    use tower::{BoxError, service_fn};

    use super::calls::{ApiCalls as _, ApiWrites as _, run_call};
    use super::credentials::CredentialReader;
    use super::*;
    use crate::metrics::Metrics;

    /// Client of a server that answers each request with the status `code` and `reason`. Code 0:
    /// the server never answers.
    fn client(code: u16, reason: &'static str) -> Client {
        changing_client(code, code, reason)
    }

    /// Client as [`client`] makes it, but the first request is answered with `first`, and the
    /// others with `later`.
    pub(super) fn changing_client(first: u16, later: u16, reason: &'static str) -> Client {
        let mut codes = std::iter::once(first).chain(std::iter::repeat(later));
        let server = service_fn(move |_: Request<Body>| {
            let code = codes.next().unwrap_or(later);
            async move {
                if code == 0 {
                    std::future::pending::<()>().await;
                }
                let status = Status::failure("no", reason).with_code(code);
                let body = Body::from(json!(status).to_string().into_bytes());
                Response::builder().status(code).body(body).map_err(BoxError::from)
            }
        });
        ClientBuilder::new(server, "default").build()
    }

    fn services(code: u16, reason: &'static str) -> Api<Service> {
        Api::namespaced(client(code, reason), "ns")
    }

    /// An API server that serves no kind of the group answers 404 in plain text. kube turns the
    /// text into a `Status` (kube-client, `client/mod.rs`, `handle_api_errors`).
    #[test]
    fn a_404_is_not_found_whatever_reason_it_has() {
        for reason in ["NotFound", "Failed to parse error data", ""] {
            let status = Status::failure("404 page not found", reason).with_code(404);
            let error = CallError::new("GET /".to_owned(), kube::Error::Api(status.boxed()));
            assert!(matches!(error, CallError::NotFound(_)), "{reason:?}: {error:?}");
        }
    }

    #[tokio::test]
    async fn an_error_names_the_method_and_the_path_of_its_call() {
        let missing = services(404, "NotFound").call_get("web").await.unwrap_err();
        assert_eq!(missing.to_string(), "GET /api/v1/namespaces/ns/services/web: not found");
        let taken = services(409, "AlreadyExists").call_create(&Service::default()).await;
        let changed = services(409, "Conflict").call_patch_status("web", &json!({})).await;
        for (error, call) in [
            (taken, "POST /api/v1/namespaces/ns/services"),
            (changed, "PATCH /api/v1/namespaces/ns/services/web/status"),
        ] {
            let (error, wanted) = (error.unwrap_err(), "the object was changed by another client");
            assert_eq!(error.to_string(), format!("{call}: {wanted}"));
            assert_eq!(error.kind(), "conflict");
        }
        let all = Api::<Namespace>::all(client(403, "Forbidden"));
        let refused = all.call_list(&ListParams::default()).await.unwrap_err();
        assert_eq!(refused.refusal(), Some("no"));
        assert!(
            refused.to_string().starts_with("GET /api/v1/namespaces: ApiError: no"),
            "{refused}"
        );
        // The text of the error contains its cause, so the chain of causes must not repeat it.
        assert_eq!(format!("{:#}", anyhow::Error::new(refused)).matches("ApiError").count(), 1);
    }

    #[tokio::test]
    async fn an_object_that_is_not_found_is_none() {
        for reason in ["NotFound", "Failed to parse error data", ""] {
            let found = services(404, reason).call_get_if_served("web").await;
            assert!(matches!(found, Ok(None)), "{reason:?}: {found:?}");
            let found = services(404, reason).call_get_opt("web").await;
            assert_eq!(matches!(found, Ok(None)), reason == "NotFound", "{reason:?}: {found:?}");
        }
        let refused = services(403, "Forbidden").call_get_opt("web").await.unwrap_err();
        assert!(
            refused.to_string().starts_with("GET /api/v1/namespaces/ns/services/web: "),
            "{refused}"
        );
    }

    #[tokio::test]
    async fn a_secret_is_missing_only_if_the_api_server_says_so() {
        for reason in ["NotFound", "Failed to parse error data", ""] {
            let config = Config::new("http://server".parse().unwrap());
            let metrics = Metrics::new().unwrap();
            let reader = CredentialReader::new(client(404, reason), config, metrics);
            let secret = reader.secret("ns", "web", "token").await;
            let is_missing = matches!(secret, Ok((None, _)));
            assert_eq!(is_missing, reason == "NotFound", "{reason:?}");
        }
    }

    #[tokio::test]
    async fn a_call_without_an_answer_is_named_too() {
        let silent = services(0, "");
        let late = silent.within(Duration::from_millis(5)).call_get_opt("web").await.unwrap_err();
        let wanted = "GET /api/v1/namespaces/ns/services/web: no answer within 5ms";
        assert_eq!(late.to_string(), wanted);
    }

    #[test]
    fn every_kind_of_error_has_a_series() {
        let call = || "GET /".to_owned();
        let failed = |(code, reason)| {
            let status = Status::failure("no", reason).with_code(code);
            CallError::new(call(), kube::Error::Api(status.boxed()))
        };
        let codes =
            [(409, "Conflict"), (404, "NotFound"), (403, "Forbidden"), (500, "InternalError")];
        let errors = codes.map(failed);
        let late = CallError::Timeout { call: call(), within: CALL_DEADLINE };
        let kinds = errors.into_iter().chain([CallError::Missing("Secret", "s"), late]);
        let mut kinds: Vec<_> = kinds.map(|error| error.kind()).collect();
        // The kind `ledger`, for a ledger that cannot be written, belongs to errors of the ledger
        // task, not of a call. So this kind is added here.
        kinds.push("ledger");
        kinds.sort_unstable();
        assert_eq!(kinds, crate::metrics::ERROR_KINDS);
    }

    #[test]
    fn a_call_that_was_refused_does_not_pass_later() {
        for (code, passes) in [(401, false), (403, false), (405, false), (409, false)]
            .into_iter()
            .chain([(408, true), (429, true), (500, true), (503, true)])
        {
            let status = Status::failure("no", "Unknown").with_code(code).boxed();
            let error = CallError::new("GET /".to_owned(), kube::Error::Api(status));
            assert_eq!(error.may_pass(), passes, "{code}");
        }
        let late = CallError::Timeout { call: "GET /".to_owned(), within: CALL_DEADLINE };
        assert!(late.may_pass());
    }

    #[tokio::test]
    async fn a_success_makes_no_name() {
        let name = || -> String { panic!("named") };
        let answer = run_call(CALL_DEADLINE, name, std::future::ready(Ok(1))).await;
        assert!(matches!(answer, Ok(1)));
    }
}
