//! State of one lease in the agent: its record, its client, its link.

use std::time::Duration;

use chrono::Utc;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource as _, ResourceExt as _};

use crate::api::{DHCPLease, DHCPLeaseStatus, LeaseState};
use crate::domain::dhcp::{
    ClientAction, ClientId, ClientIdentity, ClientOptions, DhcpClient, LeaseRecord,
};
use crate::domain::dhcp_lease::status::{Moment, former, held};
use crate::domain::object_fields::resource_version::is_newer;
use crate::k8s::clock;
use crate::k8s::informer::key;

/// State of the link of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    /// The link is to be made, or is being made.
    Making,
    /// The link exists.
    There,
    /// The link is being removed. The lease ends after that.
    Removing,
    /// The link has been removed.
    Gone,
}

/// State of one lease in the agent.
#[allow(clippy::struct_excessive_bools, reason = "each can be so or not at any time")]
pub(super) struct ManagedLease {
    /// Record of the lease, without its status. The status is in `stored`. The metadata is as last
    /// read or written, the spec as first read.
    pub(super) record: DHCPLease,
    /// Whether the record is being deleted or is gone. Then the address must be released.
    pub(super) leaving: bool,
    /// Whether the record was deleted, or replaced by another record of the same name.
    pub(super) gone: bool,
    /// Record that replaced the lease's record. The agent serves it after this lease has ended.
    /// `None`: there is none.
    pub(super) successor: Option<Box<DHCPLease>>,
    pub(super) identity: ClientIdentity,
    /// DHCP client. The agent creates the client when the link is made for the first time, or when
    /// a stored address is to be released. `None`: neither has happened yet.
    pub(super) client: Option<DhcpClient>,
    pub(super) link: LinkState,
    /// Number of failed attempts to make the link since the last success.
    pub(super) failures: u32,
    /// Status of the stored record, as last read or written.
    pub(super) stored: DHCPLeaseStatus,
    /// Next write of the record. `None`: no write is needed, or the write has started.
    pub(super) pending: Option<PendingWrite>,
    pub(super) writing: bool,
    /// Time at which a failed write is queued again. `None`: no such time is set.
    pub(super) rewrite: Option<Duration>,
    /// Time of the next attempt to make the link or to release the address. `None`: no attempt is
    /// planned.
    pub(super) retry: Option<Duration>,
    /// Whether the release has begun. `true` also if there was no address to release.
    pub(super) released: bool,
    /// Time at which the lease is handled next: the earliest of the client's deadline, `rewrite`
    /// and `retry`.
    pub(super) deadline: Option<Duration>,
    /// Whether the client has finished, or there is no client and no address to release. Then the
    /// link and the finalizer can be removed.
    pub(super) done: bool,
    /// State of the client under which the metrics count the lease. `None`: the metrics do not
    /// count the lease.
    pub(super) counted: Option<LeaseState>,
}

/// Kind and content of a write of a record.
#[derive(Clone, Debug)]
pub(super) enum PendingWrite {
    /// Stores the client's state and lease, as the client reported them.
    Record(LeaseRecord),
    /// Reports that the link could not be made. The text is the reason.
    LinkFailed(String),
    /// Removes the agent's finalizer.
    Finish,
}

impl ManagedLease {
    /// Plans the failed write `what` again, unless another write is pending. Drops `what` if it
    /// only reports that the link could not be made, and the link exists by now.
    pub(super) fn write_again(&mut self, what: PendingWrite) {
        if self.link != LinkState::There || !matches!(what, PendingWrite::LinkFailed(_)) {
            self.pending.get_or_insert(what);
        }
    }

    /// Parses a record. `Err`: the hardware address or the client identifier in the spec is not
    /// valid. The text is the parser's error.
    pub(super) fn read(mut record: DHCPLease) -> Result<Self, String> {
        let spec = &record.spec;
        let identity = ClientIdentity {
            mac: spec.mac_address.parse()?,
            client_id: Some(&spec.client_id)
                .filter(|id| !id.is_empty())
                .map(|id| id.parse::<ClientId>())
                .transpose()?,
            hostname: spec.hostname.clone(),
        };
        let stored = record.status.take().unwrap_or_default();
        Ok(Self {
            leaving: record.metadata.deletion_timestamp.is_some(),
            gone: false,
            successor: None,
            record,
            identity,
            client: None,
            link: LinkState::Making,
            failures: 0,
            stored,
            pending: None,
            writing: false,
            rewrite: None,
            retry: None,
            released: false,
            deadline: None,
            done: false,
            counted: None,
        })
    }

    /// Updates this state from `record`, if the resourceVersion of `record` is newer than that of
    /// the state. While a write is under way, this may be the record after that write. So version
    /// and status are updated together: if the write has no answer, the next patch is made for the
    /// status that the version has.
    ///
    /// The versions are compared because a watch event may arrive late: after the answer to a newer
    /// write of the record. The late event would bring the old resourceVersion back. With this
    /// version, the agent's following write would fail with a conflict.
    pub(super) fn update(&mut self, record: &DHCPLease) {
        let version = |of: &DHCPLease| of.resource_version().unwrap_or_default();
        if !is_newer(&version(record), &version(&self.record)) {
            return;
        }
        self.record.metadata = record.metadata.clone();
        self.leaving |= record.metadata.deletion_timestamp.is_some();
        self.stored = record.status.clone().unwrap_or_default();
    }

    /// Creates the DHCP client. If the record holds a lease, the client resumes this lease. If the
    /// record names a lost address, the client requests this address first.
    pub(super) fn begin(
        &mut self,
        mut options: ClientOptions,
        seed: u64,
        at: Moment,
    ) -> &mut DhcpClient {
        let spec = &self.record.spec;
        options.wish = spec.requested_address.as_deref().and_then(|wish| wish.parse().ok());
        options.broadcast |= spec.broadcast;
        let identity = self.identity.clone();
        let client = if let Some(held) = held(&self.stored, at.wall) {
            DhcpClient::resume(identity, options, held, seed, at.now)
        } else {
            let client = DhcpClient::new(identity, options, seed, at.now);
            match former(&self.stored) {
                Some(announced) => client.remembering(announced),
                None => client,
            }
        };
        self.client.insert(client)
    }

    /// Makes the client release the address, and returns the actions that the client requests.
    /// Creates the client first, if there is none and the stored record has an address. `None`:
    /// there is no client, and the stored record has no address. `up`: whether the carrier of the
    /// agent's interface is up.
    pub(super) fn release(
        &mut self,
        options: ClientOptions,
        seed: u64,
        at: Moment,
        up: bool,
    ) -> Option<Vec<ClientAction>> {
        self.released = true;
        let mut said = Vec::new();
        if self.client.is_none() && self.holds() {
            said = self.begin(options, seed, at).set_link(up, at.now);
        }
        said.extend(self.client.as_mut()?.release(at.now));
        Some(said)
    }

    /// Whether the stored record holds an address.
    pub(super) fn holds(&self) -> bool {
        self.stored.address.is_some()
    }

    /// Namespace and name of the record, as `namespace/name`, for messages.
    pub(super) fn title(&self) -> String {
        key(&self.record.metadata)
    }

    /// Reference to the record, for Events.
    pub(super) fn reference(&self) -> ObjectReference {
        self.record.object_ref(&())
    }
}

/// Current time on two clocks: the time since the machine started, and the time of day. Only the
/// times in records use the time of day.
pub(super) fn moment() -> Moment {
    Moment { now: clock::now(), wall: Utc::now().fixed_offset() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::dhcp_lease::status::status_patch;

    fn record(version: &str, status: &serde_json::Value) -> DHCPLease {
        let record = json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1alpha1", "kind": "DHCPLease",
            "metadata": {"namespace": "ns", "name": "web", "resourceVersion": version},
            "spec": {
                "network": "ns/lan", "macAddress": "02:00:5e:10:00:01", "clientID": "",
                "hostname": "web",
            },
            "status": status,
        });
        serde_json::from_value(record).unwrap()
    }

    /// The event of a write comes, and its answer is lost. The next patch has the version of the
    /// event, so it meets no conflict.
    #[test]
    fn a_field_of_a_write_without_an_answer_does_not_outlive_the_next_write() {
        let mut lease = ManagedLease::read(record("1", &json!({}))).unwrap();
        lease.writing = true;
        lease.update(&record("2", &json!({"address": "10.0.0.20"})));
        lease.writing = false;
        let patch = status_patch(&DHCPLeaseStatus::default(), &lease.stored);
        assert_eq!(patch.get("address"), Some(&serde_json::Value::Null), "{patch}");
    }
}
