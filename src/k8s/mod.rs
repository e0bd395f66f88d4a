//! Client of the API server: informers, guarded writes, Events, the Lease. Other modules may send
//! reads themselves, but every write goes through this module.
//!
//! Invariants:
//! * Every call has a deadline.
//! * Every write is refused when this process does not lead. Exceptions:
//!   * the writes of the Lease, of Events, of admission, and of the `cloud-config` and `takeover`
//!     commands;
//!   * the condition that names another controller as the leader, and the removal of IPPool's
//!     status subresource for that controller;
//!   * the claims that are kept when etcd was restored from a backup.
//! * [`write::ApiWriter::check_leadership`] refuses writes to a Rancher in the same way.
//! * Each change carries the resourceVersion of the object that the decision was based on. Each
//!   deletion carries that version or the UID. So the server refuses a decision from a stale view.
//!   Three writes carry neither the version nor the UID:
//!   * the restart of a workload, and the annotation that keeps a CRD, because each sets one
//!     annotation;
//!   * the deletion of a bound Secret, because its name is never used again.

/// Gives a wrapper type the kind of the wrapped type.
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
pub mod client;
pub mod clock;
pub mod cloud_config;
pub mod credentials;
pub mod events;
pub mod guard;
pub mod informer;
pub mod installation;
mod lazy_object;
pub mod leadership;
pub mod other_controller;
pub mod read;
pub mod read_only;
mod request_path;
pub mod store;
pub mod stored_objects;
pub mod takeover;
pub mod trimmed;
pub mod views;
pub mod write;

use std::time::Duration;

use crate::metrics::Metrics;

/// Deadline of one call. After the deadline, the call's outcome counts as unknown.
pub const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// Longest silence of a connection to the API server while an answer is due. Single calls end
/// earlier, at [`CALL_DEADLINE`], so this limit applies to lists and watches.
pub const SILENCE: Duration = Duration::from_secs(10);

/// Reason why a call failed. Callers distinguish only these reasons.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// A conflict: another client changed or created the object first (409).
    #[error("the object was changed by another client")]
    Conflict,
    /// The object or the subresource does not exist (404).
    #[error("not found")]
    NotFound,
    /// An object that is installed with the operator is missing. The fields are its kind and name.
    #[error("{0} {1} is missing: helm upgrade, or kubectl apply -f config/rbac, restores it")]
    Missing(&'static str, &'static str),
    /// The process does not lead.
    #[error("not the leader")]
    NotLeader,
    /// The call was refused, or its outcome is unknown.
    #[error(transparent)]
    Other(Box<kube::Error>),
    /// No answer before the deadline: the outcome is unknown.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
}

impl CallError {
    /// All values of [`Self::kind`] that count as failures: `not_leader` does not.
    pub const KINDS: [&'static str; 6] =
        ["conflict", "not_found", "missing", "refused", "no_answer", "failed"];

    /// Kind of the error: label of metrics. A refusal is that of [`Self::refusal`].
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::NotFound => "not_found",
            Self::Missing(..) => "missing",
            Self::NotLeader => "not_leader",
            Self::Other(_) if self.refusal().is_some() => "refused",
            Self::Timeout(_) => "no_answer",
            Self::Other(_) => "failed",
        }
    }

    /// Reason why the API server refuses the request for good, so that a retry would not help.
    /// `None`: the error is not such a refusal.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Self::Other(error) => match &**error {
                kube::Error::Api(status) if matches!(status.code, 400 | 403 | 422) => {
                    Some(&status.message)
                }
                _ => None,
            },
            _ => None,
        }
    }
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        match &error {
            // The reasons "Conflict" and "AlreadyExists" have the same code, 409.
            kube::Error::Api(status) if status.is_conflict() || status.is_already_exists() => {
                Self::Conflict
            }
            // The code is compared, because kube recognizes a 404 only by the reason "NotFound"
            // (kube-core 5.0, `reason_or_code` looks up the wrong reason). An API server that
            // serves no kind of the group gives no reason.
            kube::Error::Api(status) if status.code == 404 => Self::NotFound,
            _ => Self::Other(Box::new(error)),
        }
    }
}

/// Counts a write by the kind of its object and by its outcome. Returns `answer` unchanged.
fn count_write<T>(
    metrics: &Metrics,
    kind: &str,
    answer: Result<T, CallError>,
) -> Result<T, CallError> {
    let outcome = match &answer {
        Ok(_) => "ok",
        Err(CallError::Conflict) => "conflict",
        Err(CallError::NotFound) => "not_found",
        Err(_) => "error",
    };
    metrics.api_writes.with_label_values(&[kind, outcome]).inc();
    answer
}

/// Runs one call under [`CALL_DEADLINE`].
pub async fn call<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, CallError> {
    call_within(CALL_DEADLINE, call).await
}

/// Runs one call under the given deadline.
pub async fn call_within<T>(
    deadline: Duration,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(deadline, call).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(CallError::Timeout(deadline)),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    /// An API server that serves no kind of the group answers 404 in plain text. kube turns the
    /// text into a `Status` (kube-client, `client/mod.rs`, `handle_api_errors`).
    #[test]
    fn a_404_is_not_found_whatever_reason_it_has() {
        for reason in ["NotFound", "Failed to parse error data", ""] {
            let status = Status::failure("404 page not found", reason).with_code(404);
            let error = CallError::from(kube::Error::Api(status.boxed()));
            assert!(matches!(error, CallError::NotFound), "{reason:?}: {error:?}");
        }
        let status = Status::failure("no", "Forbidden").with_code(403);
        let error = CallError::from(kube::Error::Api(status.boxed()));
        assert_eq!(error.refusal(), Some("no"));
    }
}
