//! State of one lease in the agent: its record, its client, its link.

use std::net::Ipv4Addr;
use std::time::Duration;

use chrono::Utc;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource as _, ResourceExt as _};

use crate::api::{DHCP_FINALIZER, DHCPLease, DHCPLeaseStatus, LeaseState};
use crate::domain::dhcp::{
    ClientId, ClientIdentity, ClientOptions, DhcpClient, FrameFilter, LeaseRecord,
};
use crate::domain::dhcp_lease::status::{Moment, former, held};
use crate::domain::object_fields::finalizers::without_finalizers;
use crate::domain::object_fields::resource_version::is_newer;
use crate::k8s::clock;

/// State of the link of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    /// The link is being made.
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
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// resourceVersion of the record, as last read or written.
    pub(super) version: String,
    finalizers: Vec<String>,
    /// Whether the record is being deleted or is gone. Then the address must be released.
    pub(super) leaving: bool,
    /// Whether the record was deleted, or replaced by another record of the same name.
    pub(super) gone: bool,
    pub(super) identity: ClientIdentity,
    /// Address in `spec.requestedAddress`. The client requests this address if it has no former
    /// address.
    wish: Option<Ipv4Addr>,
    /// Whether the client always asks servers to broadcast their answers.
    broadcast: bool,
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
    /// Whether the client was asked to release the address.
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
    pub(super) listening: FrameFilter,
}

/// Write of a record that has not started yet.
#[derive(Clone, Debug)]
pub(super) enum PendingWrite {
    /// Stores the state of the lease that the client reported.
    Record(LeaseRecord),
    /// Reports that the link could not be made. The text is the reason.
    LinkFailed(String),
    /// Removes the agent's finalizer.
    Finish,
}

impl ManagedLease {
    /// Makes `what`, whose write has failed, the next write, unless another write is pending. Drops
    /// the report of a failed link if the link exists by now.
    pub(super) fn write_again(&mut self, what: PendingWrite) {
        if self.link != LinkState::There || !matches!(what, PendingWrite::LinkFailed(_)) {
            self.pending.get_or_insert(what);
        }
    }

    /// Parses a record. `Err`: the hardware address or the client identifier in the spec is not
    /// valid. The text is the parser's error.
    pub(super) fn read(record: DHCPLease) -> Result<Self, String> {
        let spec = &record.spec;
        let identity = ClientIdentity {
            mac: spec.mac_address.parse()?,
            client_id: Some(&spec.client_id)
                .filter(|id| !id.is_empty())
                .map(|id| id.parse::<ClientId>())
                .transpose()?,
            hostname: spec.hostname.clone(),
        };
        let wish = spec.requested_address.as_deref().and_then(|address| address.parse().ok());
        let broadcast = spec.broadcast;
        Ok(Self {
            namespace: record.namespace().unwrap_or_default(),
            name: record.name_any(),
            uid: record.uid().unwrap_or_default(),
            version: record.resource_version().unwrap_or_default(),
            finalizers: record.finalizers().to_vec(),
            leaving: record.metadata.deletion_timestamp.is_some(),
            gone: false,
            identity,
            wish,
            broadcast,
            client: None,
            link: LinkState::Making,
            failures: 0,
            stored: record.status.unwrap_or_default(),
            pending: None,
            writing: false,
            rewrite: None,
            retry: None,
            released: false,
            deadline: None,
            done: false,
            counted: None,
            listening: FrameFilter::Nothing,
        })
    }

    /// Updates this state from the record, if the record's resourceVersion is newer than that of
    /// the state. The status is updated only if no write of the record is under way.
    ///
    /// Correctness does not need the comparison of versions: with an older state, the next write
    /// fails with a conflict, and the record is read again. The comparison saves this conflict if
    /// the event of a write arrives after the answer to the next write.
    pub(super) fn update(&mut self, record: &DHCPLease) {
        let version = record.resource_version().unwrap_or_default();
        if !is_newer(&version, &self.version) {
            return;
        }
        self.version = version;
        self.finalizers = record.finalizers().to_vec();
        self.leaving |= record.metadata.deletion_timestamp.is_some();
        if !self.writing {
            self.stored = record.status.clone().unwrap_or_default();
        }
    }

    /// Creates the DHCP client. If the record holds a lease, the client resumes this lease. If the
    /// record names a lost address, the client requests this address first.
    pub(super) fn begin(
        &mut self,
        mut options: ClientOptions,
        seed: u64,
        at: Moment,
    ) -> &mut DhcpClient {
        options.wish = self.wish;
        options.broadcast |= self.broadcast;
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

    /// Whether the stored record holds an address.
    pub(super) fn holds(&self) -> bool {
        self.stored.address.is_some()
    }

    /// Finalizers of the record without the agent's finalizer. `None`: the record does not have the
    /// agent's finalizer.
    pub(super) fn other_finalizers(&self) -> Option<Vec<String>> {
        without_finalizers(&self.finalizers, &[DHCP_FINALIZER])
    }

    /// Namespace and name of the record, as `namespace/name`, for messages.
    pub(super) fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Reference to the record, for Events.
    pub(super) fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(DHCPLease::api_version(&()).into_owned()),
            kind: Some(DHCPLease::kind(&()).into_owned()),
            namespace: Some(self.namespace.clone()),
            name: Some(self.name.clone()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }
}

/// Current time on two clocks: the time since the machine started, and the time of day. Only the
/// times in records use the time of day.
pub(super) fn moment() -> Moment {
    Moment { now: clock::now(), wall: Utc::now().fixed_offset() }
}
