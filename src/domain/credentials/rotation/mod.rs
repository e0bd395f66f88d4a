//! Replacement of credentials: the operator revokes the old one only after the new one works.
//!
//! [`decide()`] returns one step at a time, from the recorded state and from the observed state.
//! The process may crash after any step. The order:
//!
//! 1. Record a name.
//! 2. Make a credential with that name, and verify it where it will be used.
//! 3. Record that the credential will be published, and which version of the target it will
//!    replace.
//! 4. Publish by one write, which the server refuses if the target has another version.
//! 5. Observe the new credential in the target.
//! 6. Restart the workloads.
//! 7. Wait for the overlap.
//! 8. Revoke the old credential.
//!
//! Invariants:
//!
//! * A credential is not revoked while the target holds it, or may still get it by a write whose
//!   outcome is not known. The only exception is a deletion of the TokenRotation.
//! * A credential is made only after its name was recorded.
//! * A credential that another party has put into the target is adopted. It is replaced when its
//!   replacement is due or requested, and at once in two cases:
//!   * The issuer is separate (`is_apart`), and no credential was published yet.
//!   * The issuer is not separate, and the validity and expiry of the credential are unknown.

mod bookkeeping;
mod decide;
mod deletion;
pub mod expiry;
mod foreign_credentials;
pub mod idle;
pub mod inventory;
mod issuer_report;
mod kept_credential;
pub mod ready;
pub mod schedule;
pub mod status;
pub mod target_secret;
pub mod watched;

pub use bookkeeping::failed;
pub use decide::{after_restart, decide};
pub use deletion::{left_behind, why_deletion_waits};
pub use issuer_report::IssuerReport;

use super::timestamp::Seconds;

/// Limit of the credentials that wait for revocation. At this number or more, the operator makes no
/// new credential.
const MOST_PREVIOUS: usize = 16;
/// Pause in seconds until the target is read again, if the next step is not possible now.
const READ_AGAIN_AFTER: Seconds = 30;
/// Age in seconds at which a pending credential is abandoned by a process that lacks it in memory.
/// Until then, another process may publish the credential. Not used if the source is `readable`.
const HELD_ELSEWHERE: Seconds = 15;
/// Maximum duration of a write. After this time, the write has certainly succeeded or failed.
const SURELY_ANSWERED: Seconds = 120;

/// Plan of a rotation: its spec, with defaults for unset fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotationPlan {
    /// Prefix of the names of new credentials. A dash and a number follow.
    pub prefix: String,
    /// Properties of the source of new credentials. `None`: this rotation makes none, because the
    /// target is only watched, or because children replace the credentials.
    pub source: Option<IssuerTraits>,
    /// Lifetime that is requested for new credentials, in seconds.
    pub lifetime: Seconds,
    /// Lifetime that is assumed for a credential without a known expiry, in seconds.
    pub presumed: Seconds,
    /// Schedule of the replacement.
    pub schedule: schedule::ReplacementSchedule,
    /// Time for which the old credential stays valid beside the new one, in seconds.
    pub overlap: Seconds,
    /// Whether workloads are restarted for a new credential.
    pub restarts: bool,
    /// Whether a deletion of the TokenRotation revokes the published credential.
    pub revokes: bool,
    /// Whether another TokenRotation has precedence for the same credential. In this case, this
    /// TokenRotation does nothing until it is deleted.
    pub is_second: bool,
    /// Time of the request to delete the TokenRotation. `None`: no deletion was requested.
    pub deleting: Option<Seconds>,
    /// Requests in the annotations of the TokenRotation.
    pub requests: RotationRequests,
}

/// Properties of the source and the target on which the steps of a rotation depend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IssuerTraits {
    /// Whether the issuer shows a credential again after it was made.
    pub readable: bool,
    /// Whether the target keeps the old credential beside the new one for the overlap. True for a
    /// cloud credential, because Rancher deletes a token that no cloud credential names any more.
    pub prunes: bool,
    /// Whether this cluster's API server is the issuer, and a Rancher holds the target. In this
    /// case, credentials can be listed and revoked even if the Rancher does not answer. Before the
    /// first publication, the target normally holds a token from another issuer, the Rancher. So
    /// the first replacement of a foreign credential is due at once.
    pub is_apart: bool,
}

impl RotationPlan {
    /// Plan of a TokenRotation that must wait, because another TokenRotation has precedence for the
    /// same credential. If the waiting TokenRotation is deleted, the published credential is not
    /// revoked, because the other TokenRotation may have adopted this credential.
    #[must_use]
    pub fn second(self) -> Self {
        Self { is_second: true, revokes: false, ..self }
    }

    fn is_apart(&self) -> bool {
        self.source.is_some_and(|source| source.is_apart)
    }
}

/// Requests in a TokenRotation's annotations. Each new value of an annotation is a new request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RotationRequests {
    /// Value of the annotation that requests a replacement now. `None`: no request.
    pub rotate: Option<String>,
    /// Value of the annotation that reports a leak. The credential is replaced now, and revoked as
    /// soon as the new one is published. `None`: no report.
    pub leaked: Option<String>,
}

impl RotationRequests {
    /// Requests in `self` that are not among `done`, the requests that were carried out.
    fn beyond(&self, done: &Self) -> Self {
        let new = |asked: &Option<String>, done: &Option<String>| {
            asked.clone().filter(|asked| !asked.is_empty() && Some(asked) != done.as_ref())
        };
        Self { rotate: new(&self.rotate, &done.rotate), leaked: new(&self.leaked, &done.leaked) }
    }

    fn is_none(&self) -> bool {
        self.rotate.is_none() && self.leaked.is_none()
    }
}

/// Recorded state of a rotation, as the status of the TokenRotation stores it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RotationState {
    /// Highest number in a name that was recorded so far. Each new name has the next number.
    pub serial: u64,
    /// Credential that the target was last observed to hold.
    pub current: Option<CurrentEntry>,
    /// Credential that is being made or published.
    pub pending: Option<PendingEntry>,
    /// Credentials that are to be revoked.
    pub previous: Vec<RetiredCredential>,
    /// Name of the last credential for which the workloads were restarted.
    pub restarted_for: Option<String>,
    /// Requests that were carried out.
    pub done: RotationRequests,
    /// Number of consecutive failures of steps. Failed revocations do not count.
    pub failures: u32,
    /// Earliest time at which a failed step is tried again. Revocations do not count. `None`: no
    /// failed step waits.
    pub retry_after: Option<Seconds>,
    /// Time of the last publication. `None`: no credential was published yet.
    pub last_rotation: Option<Seconds>,
    /// Result of the last step, such as `Published` or `Failed Mint`.
    pub last_result: Option<String>,
}

/// Recorded properties of the credential that the target holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CurrentEntry {
    /// Name of the credential. May be empty if another party made it.
    pub name: String,
    /// SHA-256 of the credential. Empty if the credential is only watched.
    pub hash: String,
    /// Whether the operator made the credential for this TokenRotation.
    pub ours: bool,
    /// Time since which the credential is valid. If not known: time of its first observation.
    pub issued: Seconds,
    /// Expiry. `None`: the credential has no expiry, or does not state it.
    pub expires: Option<Seconds>,
    /// Whether the issuer itself keeps the credential valid without an expiry. The replacement of
    /// such a credential is never due. It is replaced only for another reason, such as a request.
    pub kept_alive: bool,
}

/// A credential that is being made or published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingEntry {
    /// Name of the credential.
    pub name: String,
    /// Time at which the name was recorded.
    pub since: Seconds,
    /// Requests that the credential fulfils. Empty: the replacement was not requested.
    pub requests: RotationRequests,
    /// Publication, recorded before each attempt. `None`: no attempt was recorded yet.
    pub publishing: Option<PendingPublication>,
}

/// A publication that may be under way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingPublication {
    /// Credential that is published.
    pub made: MintedCredential,
    /// Version of the target that the publication replaces. Empty: the target does not exist yet.
    pub replaces: String,
}

/// Hash and times of a credential that was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MintedCredential {
    /// SHA-256 of the credential.
    pub hash: String,
    /// Time since which the credential is valid, by the issuer's clock.
    pub issued: Seconds,
    /// Expiry. `None`: the credential does not expire.
    pub expires: Option<Seconds>,
}

/// A credential that is to be revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetiredCredential {
    /// Name of the credential.
    pub name: String,
    /// SHA-256 of the credential. `None`: not known, because the credential was never published or
    /// was only found by its name.
    pub hash: Option<String>,
    /// Earliest time of the revocation. `None`: not set yet, because the overlap begins only after
    /// the workloads were restarted for the new credential.
    pub after: Option<Seconds>,
    /// Version of the target that a write of this credential may still replace, because the outcome
    /// of the write is not known. Empty: the write may still create the target. `None`: no such
    /// write can succeed any more.
    pub replaces: Option<String>,
    /// Number of failed revocations of this credential.
    pub failures: u32,
}

/// State of the target, the issuer and this process, as it is observed now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedState {
    /// Current time by the issuer's clock. By the local clock, if the issuer gave no time.
    pub now: Seconds,
    /// State of the target.
    pub target: TargetState,
    /// Names of the credentials of this TokenRotation that the issuer still has. `None`: not known.
    pub existing: Option<Vec<String>>,
    /// Pending credential in the memory of this process. `None`: this process has none in memory.
    pub unpublished: Option<UnpublishedCredential>,
    /// Reason why `target` is [`TargetState::Unknown`]. Ignored if `target` has another state.
    pub unknown: UnknownReason,
}

/// Reason why the state of a target is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownReason {
    /// A retry may succeed: the Rancher gave no answer or an unreadable one, the status was 429 or
    /// 5xx, or a proxy in front of the Rancher answered 404.
    #[default]
    Silent,
    /// The Rancher cannot be used, and a retry does not change this. For example, it answers 403,
    /// or the API key's Secret is missing. Nothing in the Rancher can be read or revoked.
    Barred,
    /// Only the target cannot be read or written, and a retry does not change this. The issuer
    /// still lists the credentials that were made for the target, so they can be revoked.
    TargetBarred,
    /// The issuer refuses to list its credentials, and a retry does not change this. So nothing can
    /// be revoked.
    Unlisted,
}

/// State of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TargetState {
    /// The target was not read, or must not be used. [`ObservedState::unknown`] is the reason.
    #[default]
    Unknown,
    /// The target does not exist, and may be created.
    Absent,
    /// The target cannot be used. For example, a user that the spec names is missing, or a write
    /// would do harm. The text is the reason.
    Unfit(String),
    /// The target exists, and could be read.
    There {
        /// Version of the target (resourceVersion).
        version: String,
        /// Credential that a client of the target would use. `None`: the target holds no
        /// credential.
        holds: Option<TargetCredential>,
        /// Hashes of all credentials in the target except the one in `holds`.
        other_tokens: Vec<String>,
        /// Hash of the replaced credential that the target keeps beside the one in `holds`. `None`:
        /// the target keeps none.
        kept: Option<String>,
    },
}

/// A credential in a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetCredential {
    /// SHA-256 of the credential.
    pub hash: String,
    /// Name and times of the credential.
    pub claims: super::token::TokenClaims,
    /// Whether only the name of the credential is known, but neither its validity nor its expiry.
    pub is_unseen: bool,
    /// Whether the issuer no longer accepts the credential. False also if this is not known.
    pub is_dead: bool,
    /// Whether the issuer answered, but did not show this credential to the API key. It is not
    /// known whether the credential was deleted, or belongs to another user.
    pub is_missing: bool,
    /// State of the credential, as the issuer reports it now. `None`: the issuer was not asked, or
    /// reports nothing about the credential.
    pub report: Option<IssuerReport>,
}

/// Pending credential in the memory of this process. At first, only its name is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnpublishedCredential {
    /// Name with which the credential was made, or is to be made.
    pub name: String,
    /// Hash and times. `None`: the credential is not made yet.
    pub made: Option<MintedCredential>,
    /// Whether the credential has been accepted by the server that it is for.
    pub verified: bool,
}

/// Next step that the process must carry out for a rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RotationAction {
    /// Write the state in field 1, if the TokenRotation has not changed since it was read. Field 0:
    /// difference between the new state and the stored one.
    Write(StateChange, Box<RotationState>),
    /// Make the credential with this name. If the credential exists and is readable
    /// ([`IssuerTraits::readable`]), read it again.
    Mint(String),
    /// Use the unpublished credential once, at the server that it is for.
    Verify,
    /// Write the unpublished credential into the target, if the target still has the version that
    /// the state names.
    Publish {
        /// Whether the old credential stays in the target, beside the new one.
        keep: bool,
    },
    /// Restart the workloads that must read the new credential.
    Restart,
    /// Remove the old credential that the target keeps beside the one in use.
    DropOld,
    /// Revoke the credential with this name, if it exists.
    Revoke(String),
    /// Complete the deletion: remove the TokenRotation's finalizer.
    Finish,
    /// Do nothing until this time, or until a watched object changes. `None`: no time is set.
    Wait(Option<Seconds>),
}

impl RotationAction {
    /// Action that writes `state`. `change`: difference between `state` and the stored state.
    fn write(change: StateChange, state: RotationState) -> Self {
        Self::Write(change, Box::new(state))
    }
}

/// Difference between a recorded state and the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateChange {
    /// The name of a new credential was recorded. The credential will be made next.
    Named,
    /// A credential is about to be published.
    Publishing,
    /// A credential was published.
    Published,
    /// A credential that another party has put into the target was adopted.
    Adopted,
    /// The recorded expiry, or `kept_alive`, of the credential in the target has changed.
    Retimed,
    /// A credential is to be revoked, or the time of its revocation has changed.
    Abandoned,
    /// The issuer has a credential of this plan that the state did not contain.
    Found,
    /// Workloads were restarted, or need no restart, and the overlap has begun.
    Restarted,
    /// An old credential was revoked, or no longer exists at the issuer.
    Revoked,
    /// No failed step waits for its next try any more.
    Recovered,
}

/// A step that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationStep {
    /// Make a credential.
    Mint,
    /// Verify the new credential at the server that it is for.
    Verify,
    /// Publish the new credential, or carry out [`RotationAction::DropOld`].
    Publish,
    /// Restart workloads.
    Restart,
    /// Revoke an old credential.
    Revoke,
}

impl RotationStep {
    /// Name of the step for statuses, Events and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Mint => "Mint",
            Self::Verify => "Verify",
            Self::Publish => "Publish",
            Self::Restart => "Restart",
            Self::Revoke => "Revoke",
        }
    }

    /// All steps, in their order.
    pub const ALL: [Self; 5] =
        [Self::Mint, Self::Verify, Self::Publish, Self::Restart, Self::Revoke];
}

impl RotationState {
    /// Whether an annotation requested the pending credential. False: the credential is made for
    /// another reason, or no credential is pending.
    pub fn is_asked(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| !pending.requests.is_none())
    }

    /// Whether the issuer itself keeps the credential in the target valid without an expiry.
    pub fn is_kept_alive(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.kept_alive)
    }

    /// Whether so many credentials wait for revocation (`MOST_PREVIOUS`) that no new one is made.
    pub fn is_stuck(&self) -> bool {
        self.previous.len() >= MOST_PREVIOUS
    }
}

/// Due time and latest time for the replacement of the credential in the target. `None`: no
/// credential is recorded, the plan has no source, or the issuer keeps the credential alive.
pub fn due(plan: &RotationPlan, state: &RotationState) -> Option<schedule::ReplacementTimes> {
    let current = state.current.as_ref().filter(|current| !current.kept_alive)?;
    plan.source?;
    let end = current.expires.unwrap_or(current.issued + plan.presumed);
    // The serial is not part of the seed. The serial grows before the replacement is made, but the
    // time of the replacement must not change until the new credential is published.
    let seed = format!("{}/{}", plan.prefix, current.hash);
    Some(schedule::due(&plan.schedule, current.issued, end, &seed))
}

#[cfg(test)]
mod tests;
