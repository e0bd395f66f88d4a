//! One lease as the agent holds it: its record, its client, its link.

use std::net::Ipv4Addr;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource as _, ResourceExt as _};

use super::clock;
use crate::api::{DHCP_FINALIZER, DHCPLease, DHCPLeaseStatus};
use crate::domain::dhcp::{
    Client, ClientId, Identity, Listening, Mac, Moment, Options, Record, State, former, held,
};

/// Where a lease's link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    /// It is being made.
    Making,
    /// It is there.
    There,
    /// It is being removed, and then the lease is over.
    Removing,
    /// It is gone.
    Gone,
}

/// A lease.
#[allow(clippy::struct_excessive_bools, reason = "each can be so or not at any time")]
pub(super) struct Lease {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// The record's version, as last seen or written.
    pub(super) version: String,
    finalizers: Vec<String>,
    /// Its record is to go, and the address to be given back.
    pub(super) leaving: bool,
    /// Its record is gone, however that came about.
    pub(super) gone: bool,
    pub(super) identity: Identity,
    /// The address that is asked for at first.
    wish: Option<Ipv4Addr>,
    /// Whether servers are asked to broadcast their answers in any case.
    broadcast: bool,
    /// From when its link is there.
    pub(super) client: Option<Client>,
    pub(super) link: LinkState,
    /// How often making the link failed.
    pub(super) failures: u32,
    /// The status as it is stored.
    pub(super) stored: DHCPLeaseStatus,
    /// What is to be written, and whether that is under way.
    pub(super) pending: Option<Pending>,
    pub(super) writing: bool,
    /// When something that failed is tried again.
    pub(super) retry: Option<Duration>,
    /// Whether its client was told to give the address back.
    pub(super) released: bool,
    /// When it is this lease's turn.
    pub(super) deadline: Option<Duration>,
    /// Whether its client has said its last word.
    pub(super) done: bool,
    /// What is counted of it now.
    pub(super) counted: Option<State>,
    pub(super) listening: Listening,
}

/// What is to be written.
#[derive(Clone, Debug)]
pub(super) enum Pending {
    /// What the client asked for.
    Record(Record),
    /// The link could not be made.
    LinkFailed(String),
    /// The finalizer is to go.
    Finish,
}

impl Lease {
    /// Reads a record. `Err`: what is wrong with it.
    pub(super) fn read(record: DHCPLease) -> Result<Self, String> {
        let spec = &record.spec;
        let identity = Identity {
            mac: spec.mac_address.parse::<Mac>().map_err(|error| error.to_string())?,
            client_id: Some(&spec.client_id)
                .filter(|id| !id.is_empty())
                .map(|id| id.parse::<ClientId>().map_err(|error| error.to_string()))
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
            retry: None,
            released: false,
            deadline: None,
            done: false,
            counted: None,
            listening: Listening::Nothing,
        })
    }

    /// Takes over what a newer reading of the record says beside its status.
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

    /// The client, which goes on where the record says that an earlier one was.
    pub(super) fn begin(&mut self, mut options: Options, seed: u64, at: Moment) -> &mut Client {
        options.wish = self.wish;
        options.broadcast |= self.broadcast;
        let identity = self.identity.clone();
        let client = if let Some(held) = held(&self.stored, at.wall) {
            Client::resume(identity, options, held, seed, at.now)
        } else {
            let client = Client::new(identity, options, seed, at.now);
            match former(&self.stored) {
                Some(announced) => client.remembering(announced),
                None => client,
            }
        };
        self.client.insert(client)
    }

    /// Whether the record says that there is an address.
    pub(super) fn holds(&self) -> bool {
        self.stored.address.is_some()
    }

    /// The finalizers that are not ours.
    pub(super) fn other_finalizers(&self) -> Vec<String> {
        self.finalizers.iter().filter(|name| *name != DHCP_FINALIZER).cloned().collect()
    }

    /// What people call it.
    pub(super) fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// What Events are about.
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

/// Now, on both clocks.
pub(super) fn moment() -> Moment {
    Moment { now: clock::now(), wall: clock::wall() }
}

/// Versions are numbers in practice. What is not is taken for newer: it came later.
fn is_newer(version: &str, than: &str) -> bool {
    match (version.parse::<u64>(), than.parse::<u64>()) {
        (Ok(version), Ok(than)) => version > than,
        _ => version != than,
    }
}
