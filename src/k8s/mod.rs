//! The only room that talks to the API server: informers, guarded writes, events, the Lease.
//!
//! Invariants: every call has a deadline; every write is refused here when this process does not lead,
//! but the Lease's, admission's, those of the `cloud-config` and `takeover` commands and the condition that names
//! another controller that leads; every write rests on a resourceVersion, so that a decision made from
//! an old view is refused by the server instead of carried out.

/// What a wrapper of objects says of their kind: the same as the wrapped type, named here.
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

pub mod client;
pub mod clock;
pub mod cloud_config;
pub mod credentials;
pub mod events;
pub mod guard;
pub mod informer;
pub mod installation;
pub mod lease;
pub mod other_controller;
pub mod read;
pub mod records;
pub mod takeover;
pub mod trimmed;
mod unread;
pub mod views;
pub mod write;

use std::time::Duration;

/// The longest that one call may take before its outcome counts as unknown.
pub const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// The longest that a connection to the API server may be silent while something is awaited from
/// it. Calls have shorter deadlines of their own; this one ends lists and watches.
pub const SILENCE: Duration = Duration::from_secs(10);

/// Why a call failed, as far as the caller must know.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Somebody else changed or created the object first (409).
    #[error("the object was changed by somebody else")]
    Conflict,
    /// There is no such object, or no such subresource (404).
    #[error("not found")]
    NotFound,
    /// An object that is installed with the operator, of this kind and name, is not there.
    #[error("{0} {1} is missing: helm upgrade, or kubectl apply -f config/rbac, puts it back")]
    Missing(&'static str, &'static str),
    /// This process does not lead.
    #[error("not the leader")]
    NotLeader,
    /// Refused, or the outcome is unknown.
    #[error(transparent)]
    Other(Box<kube::Error>),
    /// No answer in time: the outcome is unknown.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
}

impl CallError {
    /// Why the API server refuses what was sent, for good: repeating it would change nothing.
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
            // "Conflict" and "AlreadyExists" are two reasons of one code.
            kube::Error::Api(status) if status.is_conflict() || status.is_already_exists() => {
                Self::Conflict
            }
            kube::Error::Api(status) if status.is_not_found() => Self::NotFound,
            _ => Self::Other(Box::new(error)),
        }
    }
}

/// Runs one call under the deadline.
pub async fn call<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, CallError> {
    call_within(CALL_DEADLINE, call).await
}

/// Runs one call under a deadline of its own.
pub async fn call_within<T>(
    deadline: Duration,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(deadline, call).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(CallError::Timeout(deadline)),
    }
}
