//! `TokenRotation`: a credential that is replaced before it expires, or is only watched.
//!
//! A user writes the metadata and the spec. The operator writes the status, and also the metadata
//! and the spec of a child.
//!
//! Invariants:
//!
//! * The status contains names and hashes of credentials, and never a credential.
//! * The status has a credential's name before the credential is made, and its hash before it is
//!   published.
//! * The target never changes, because the operator revokes an old credential only after it has
//!   observed the new one in the same target. The ServiceAccount never changes either.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ApiKey, Condition, RancherServer, Source, Target, WatchedCredential};

/// Replacement of a credential before it expires, so that at every moment the old or the new
/// credential is valid.
#[derive(
    CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize,
)]
#[kube(
    group = "credentials.harvesterhci.io",
    version = "v1alpha1",
    kind = "TokenRotation",
    doc = "Credential that the operator replaces before it expires, or only watches. \
        The status has names, hashes and times of credentials, and never a credential.",
    plural = "tokenrotations",
    singular = "tokenrotation",
    shortname = "rotation",
    shortname = "rotations",
    namespaced,
    status = "TokenRotationStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(
        name = "Target",
        type_ = "string",
        json_path = ".status.target",
        description = "Secret, or cloud credential in Rancher, that holds the credential"
    ),
    printcolumn(
        name = "Expires",
        type_ = "string",
        json_path = ".status.expiresAt",
        description = "Expiry of the credential; empty if there is none or it is not stated"
    ),
    printcolumn(
        name = "Next",
        type_ = "string",
        json_path = ".status.nextRotation",
        description = "Time of the replacement; empty if the target is only watched"
    ),
    printcolumn(name = "Last", type_ = "string", json_path = ".status.lastResult"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(
        name = "Credential",
        type_ = "string",
        priority = 1,
        json_path = ".status.current.name"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        priority = 1,
        json_path = ".status.conditions[?(@.type=='Ready')].message"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(
    validation = ("self.target == oldSelf.target",
        "spec.target is immutable: make another TokenRotation for another target"),
    validation = ("has(self.source) == has(oldSelf.source)",
        "spec.source: it can be neither added nor removed: make another TokenRotation"),
    validation = ("!has(self.source) || !has(oldSelf.source) || has(self.source.serviceAccountToken) == has(oldSelf.source.serviceAccountToken)",
        "spec.source: its kind is immutable: make another TokenRotation"),
    validation = ("!has(self.source) || !has(oldSelf.source) || !has(self.source.serviceAccountToken) || !has(oldSelf.source.serviceAccountToken) || self.source.serviceAccountToken.serviceAccountName == oldSelf.source.serviceAccountToken.serviceAccountName",
        "spec.source.serviceAccountToken.serviceAccountName is immutable: make another TokenRotation"),
    validation = ("!has(self.source) || !has(oldSelf.source) || !has(self.source.serviceAccountTokenSecret) || !has(oldSelf.source.serviceAccountTokenSecret) || self.source.serviceAccountTokenSecret.serviceAccountName == oldSelf.source.serviceAccountTokenSecret.serviceAccountName",
        "spec.source.serviceAccountTokenSecret.serviceAccountName is immutable: make another TokenRotation"),
    validation = ("has(self.rancher) || !(has(self.target.cloudCredential) || has(self.target.allCloudCredentials) || has(self.source) && has(self.source.rancherToken))",
        "spec.rancher: must be set when spec.source.rancherToken, spec.target.cloudCredential or spec.target.allCloudCredentials is set"),
    validation = ("!has(self.target.allCloudCredentials) || !has(self.source) || has(self.source.rancherToken)",
        "spec.target.allCloudCredentials: accepts only tokens of spec.source.rancherToken: set it, or remove spec.source"),
    validation = ("!has(self.target.allCloudCredentials) || !has(self.source) || !has(self.source.rancherToken) || !has(self.source.rancherToken.cluster)",
        "spec.source.rancherToken.cluster: with spec.target.allCloudCredentials, each token is for the cluster in its credential's kubeconfig: remove it"),
    validation = ("!has(self.target.allCloudCredentials) || !has(self.restartWorkloads)",
        "spec.restartWorkloads: cloud credentials are read in Rancher, not by workloads here: remove it"),
    validation = ("!has(self.rancher) || !has(self.source) || has(self.source.rancherToken) || !has(self.target.secret)",
        "spec.rancher: this spec.source does not use it: remove it"),
    validation = ("!has(self.target.cloudCredential) || has(self.target.cloudCredential.server) || !has(self.source) || has(self.source.rancherToken)",
        "spec.target.cloudCredential.server: must be the URL at which Rancher reaches this cluster, such as https://192.168.5.10:6443, because Rancher's own URL does not accept a ServiceAccount's token"),
    validation = ("!has(self.target.cloudCredential) || !has(self.target.cloudCredential.server) || has(self.source) && !has(self.source.rancherToken)",
        "spec.target.cloudCredential.server: it is only for a ServiceAccount's token: remove it"),
    validation = ("!has(self.source) || !has(self.source.rancherToken) || !has(self.source.rancherToken.allowOtherUser) || has(self.target.cloudCredential)",
        "spec.source.rancherToken.allowOtherUser: it is only for spec.target.cloudCredential: remove it"),
    validation = ("!has(self.source) || !has(oldSelf.source) || has(self.source.rancherToken) == has(oldSelf.source.rancherToken)",
        "spec.source: its kind is immutable: make another TokenRotation"),
    validation = ("has(self.rancher) == has(oldSelf.rancher) && (!has(self.rancher) || has(self.rancher.url) == has(oldSelf.rancher.url) && (!has(self.rancher.url) || self.rancher.url == oldSelf.rancher.url))",
        "spec.rancher.url is immutable: make another TokenRotation"),
    validation = ("!has(self.source) || !has(self.source.rancherToken) || !has(self.source.rancherToken.cluster) || !has(self.target.secret) || self.target.secret.name != self.rancher.minter.secretName || self.target.secret.key != self.rancher.minter.key",
        "spec.source.rancherToken.cluster: an API key for one cluster cannot renew itself: remove it"),
    validation = ("has(self.source) || !has(self.restartWorkloads)",
        "spec.restartWorkloads: without spec.source nothing is replaced, so nothing is restarted: remove it"),
    validation = ("has(self.source) || !has(self.overlapSeconds)",
        "spec.overlapSeconds: without spec.source nothing is replaced: remove it"),
    validation = ("has(self.source) || !has(self.onDelete) || self.onDelete == 'Keep'",
        "spec.onDelete: without spec.source nothing can be revoked: use Keep, or remove it"),
)]
#[serde(rename_all = "camelCase")]
pub struct TokenRotationSpec {
    /// Source of new credentials. Unset: the target is only watched, and the expiry of its
    /// credentials is reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Secret or cloud credential from which clients read the credential.
    pub target: Target,
    /// Rancher server and its API key. Required for tokens and cloud credentials of Rancher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rancher: Option<RancherServer>,
    /// Schedule for the replacement of the credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Schedule>,
    /// Seconds for which the old credential stays valid beside the new one, so that all clients
    /// have time to read the new one. Unset means 3600. For a cloud credential, unset means 86400,
    /// because a job that creates machines uses the credential with which it started. The old
    /// credential may still expire earlier by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_592_000))]
    pub overlap_seconds: Option<i64>,
    /// Workloads in the same namespace to restart for a new credential, because they read the
    /// credential only when they start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub restart_workloads: Option<Vec<Workload>>,
    /// Action on the published credential when the TokenRotation is deleted. Keep: the credential
    /// stays valid until it expires. Revoke: the credential is revoked. Unset means Keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_delete: Option<OnDelete>,
}

/// Schedule for the replacement of a credential.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Schedule {
    /// Remaining lifetime at which the credential is replaced, in percent of its whole lifetime.
    /// Unset means 33.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 99))]
    pub renew_when_left_percent: Option<i64>,
    /// Lower limit, in seconds, of the remaining lifetime at which the credential is replaced. The
    /// limit applies if `renewWhenLeftPercent` gives less. The limit is never more than half of the
    /// credential's whole lifetime. A credential that is only watched is reported as near its
    /// expiry when it has less than `minimumLeftSeconds` left. Unset means 604800, seven days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub minimum_left_seconds: Option<i64>,
    /// Maximum jitter of the replacement, in percent of the credential's lifetime. The jitter moves
    /// the replacement to an earlier time than `renewWhenLeftPercent` and `minimumLeftSeconds`
    /// require. The jitter differs between credentials, so that they are not all replaced at the
    /// same time. Unset means 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 50))]
    pub jitter_percent: Option<i64>,
    /// Time window for replacements. A replacement that is due waits for the next window, but only
    /// until the remaining lifetime is half of what `renewWhenLeftPercent` and `minimumLeftSeconds`
    /// require.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance_window: Option<Window>,
    /// Whether the rotation is paused. A paused rotation still reports the expiry. It makes and
    /// publishes no credential, and revokes credentials only when it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// Time window in UTC, each day or on some days of the week.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("self.start.matches('^([01][0-9]|2[0-3]):[0-5][0-9]$')",
        "spec.schedule.maintenanceWindow.start: must be hours and minutes in UTC, such as 02:30"),
)]
pub struct Window {
    /// Start of the window in UTC, such as `02:30`.
    #[schemars(length(min = 5, max = 5))]
    pub start: String,
    /// Duration of the window in minutes.
    #[schemars(range(min = 5, max = 1440))]
    pub duration_minutes: i64,
    /// Days on which the window starts. Unset or empty: every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 7))]
    pub days: Vec<Day>,
}

/// Day of the week in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub enum Day {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

/// Workload whose pods are replaced, as `kubectl rollout restart` does.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("self.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",
        "spec.restartWorkloads[].name: must be the name of a workload: lower-case letters, digits, dashes and dots"),
)]
pub struct Workload {
    /// Kind of the workload to restart.
    pub kind: WorkloadKind,
    /// Name of the workload to restart.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Kind of a workload to restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub enum WorkloadKind {
    Deployment,
    StatefulSet,
    DaemonSet,
}

/// Action on the published credential when the TokenRotation is deleted. Keep: the credential stays
/// valid until it expires. Revoke: the credential is revoked. Unset means Keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum OnDelete {
    /// The credential stays valid until it expires by itself.
    #[default]
    Keep,
    /// The credential is revoked.
    Revoke,
}

/// State of the rotation: finished steps, and the step under way. Times are RFC 3339, by the clock
/// of the API server or of the Rancher. If no server gave a time, the operator's own clock counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenRotationStatus {
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Kind and name of the target: `secret/NAME` or `cloudcredential/NAME`. If the target is all
    /// cloud credentials: `cloudcredential/*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 270))]
    pub target: Option<String>,
    /// Number at the end of the newest credential's name. No number is used twice.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub serial: i64,
    /// Credential that the target was last observed to hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<CurrentCredential>,
    /// New credential that is being made or published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<PendingCredential>,
    /// Replaced or abandoned credentials that are to be revoked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub previous: Vec<PreviousCredential>,
    /// Credentials in the target that this TokenRotation only watches. Credentials that expire and
    /// that no other TokenRotation replaces come first, in the order of their expiry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub watched: Vec<WatchedCredential>,
    /// Number of further watched credentials, for which `watched` has no room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub watched_beyond: Option<i64>,
    /// URL of the Rancher, as the API key's Secret first named it. Unset if spec.rancher.url is
    /// set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub rancher_url: Option<String>,
    /// API key of spec.rancher, as last observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<ApiKey>,
    /// Earliest expiry of the target's credentials. If the target is all cloud credentials:
    /// earliest expiry of those that no TokenRotation replaces. Unset: no expiry is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub expires_at: Option<String>,
    /// Time when the credential is to be replaced. Unset: no replacement is planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub next_rotation: Option<String>,
    /// Time when a new credential was last published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_rotation: Option<String>,
    /// Result of the last step. `Published`: a new credential is in the target. `Adopted`: the
    /// operator recorded a credential that it found in the target, usually one of another party.
    /// `Failed` and the name of a step, such as `Failed Mint`: the step failed. `Revoked`: a
    /// credential was revoked, after an earlier attempt to revoke it had failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub last_result: Option<String>,
    /// Number of consecutive failed steps. Failed revocations are counted in `previous`.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub failures: i64,
    /// Time when the failed step is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub retry_after: Option<String>,
    /// Name of the last credential for which the workloads were restarted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub restarted_for: Option<String>,
    /// Last value of the annotation credentials.harvesterhci.io/rotate for which the credential was
    /// replaced. A value of more than 64 bytes is shown as its SHA-256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub rotate_request: Option<String>,
    /// Last value of the annotation credentials.harvesterhci.io/leaked for which the credential was
    /// replaced. A value of more than 64 bytes is shown as its SHA-256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub leak_report: Option<String>,
    /// Conditions of the rotation. `Ready`: the target holds a credential, which is replaced or
    /// watched. `Expiring`: the credential expires soon, and either it is only watched or its
    /// replacement is late. `MinterExpiring`: Rancher refuses the API key, or the key has expired,
    /// or the key expires soon and is not renewed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub conditions: Vec<Condition>,
}

/// Credential that the target holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CurrentCredential {
    /// Name of the credential. For a ServiceAccount's token: name of the Secret that the token is
    /// bound to or stored in. May be empty for a credential of another party.
    #[schemars(length(max = 253))]
    pub name: String,
    /// SHA-256 of the credential, which identifies it. Unset if the credential is only watched.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub hash: String,
    /// Whether the operator made the credential. A credential of another party is replaced before
    /// it expires, but not revoked.
    #[serde(default)]
    pub ours: bool,
    /// Time when the credential became valid, or was first observed.
    #[schemars(extend("format" = "date-time"))]
    pub issued_at: String,
    /// Expiry of the credential. Unset: the credential has no expiry, or does not state it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub expires_at: Option<String>,
    /// Whether Rancher itself keeps the credential alive. Such a credential has no expiry, so the
    /// schedule does not replace it. It is still replaced for other reasons, such as a request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept_by_rancher: bool,
}

/// New credential that is being made or published.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingCredential {
    /// Name of the credential, recorded before it is made.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Present step for the credential: Minting or Publishing.
    pub step: PendingStep,
    /// Time since which the credential is pending.
    #[schemars(extend("format" = "date-time"))]
    pub since: String,
    /// SHA-256 of the credential, recorded before it is published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub hash: Option<String>,
    /// Time since which the credential is valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub issued_at: Option<String>,
    /// Expiry of the credential, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub expires_at: Option<String>,
    /// resourceVersion of the target before the credential is published. The write fails if the
    /// target has another resourceVersion. Empty: the target does not exist yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub replaces: Option<String>,
    /// Value of the annotation credentials.harvesterhci.io/rotate for which the credential is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub rotate_request: Option<String>,
    /// Value of the annotation credentials.harvesterhci.io/leaked for which the credential is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub leak_report: Option<String>,
}

/// Step of a credential before it is published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum PendingStep {
    /// The credential is made, and tested where it will be used.
    #[default]
    Minting,
    /// The credential is written into the target.
    Publishing,
}

/// Credential that is to be revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreviousCredential {
    /// Name of the credential to revoke.
    #[schemars(length(max = 253))]
    pub name: String,
    /// SHA-256 of the credential, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub hash: Option<String>,
    /// Earliest time of the revocation. Unset: the workloads must first be restarted with the new
    /// credential. A deletion of the TokenRotation may revoke the credential earlier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub revoke_after: Option<String>,
    /// resourceVersion of the target before an attempt to publish this credential. Empty: the
    /// target did not exist. Set while the attempt may still succeed. The credential is then
    /// revoked only if the TokenRotation is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub replaces: Option<String>,
    /// Number of failed attempts to revoke the credential.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub failures: i64,
}
