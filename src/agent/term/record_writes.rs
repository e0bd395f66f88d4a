//! Writes records to the API server: one write at a time for each lease, and a few at a time in
//! total.
//!
//! Invariant: whatever the state of the lease's link, one of these sentences is true for each
//! pending write:
//!
//! * The write is in the queue.
//! * Another write of the same record is under way. The pending write waits for its end.
//! * The lease has a time `rewrite`. The pending write is queued at this time.

use std::time::Duration;

use serde_json::json;

use super::super::managed_lease::{PendingWrite, moment};
use super::AgentTerm;
use crate::api::{DHCPLease, DHCPLeaseStatus};
use crate::domain::dhcp::Mac;
use crate::domain::dhcp_lease::status::{link_failed, report, status_patch};
use crate::domain::dhcp_lease::without_finalizer;
use crate::k8s::{CallError, clock};

/// Maximum number of writes at the same time, for all leases together. An API server does not
/// become faster with more writes at a time.
const MOST: usize = 8;
/// Pause before a failed write of a record is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// Outcome of a write of a record.
pub(super) struct WriteOutcome {
    mac: Mac,
    uid: Option<String>,
    what: PendingWrite,
    /// New resourceVersion of the record. An empty string: the record had no finalizer to remove,
    /// so nothing was written. `Err`: the write failed.
    outcome: Result<String, CallError>,
    status: DHCPLeaseStatus,
    /// Record as read after the write failed with 409 or 404. A 404 means that the record does not
    /// exist, or that its CRD has no status subresource.
    fresh: RereadRecord,
}

/// Result of an attempt to read a record again after a failed write.
enum RereadRecord {
    Found(Box<DHCPLease>),
    Gone,
    /// The record was not read, or could not be read.
    Unread,
}

impl AgentTerm<'_> {
    /// Starts queued writes, until [`MOST`] writes are under way.
    pub(super) fn write_some(&mut self) {
        while self.writes.len() < MOST {
            let Some(mac) = self.queue.pop_front() else { break };
            self.write(mac);
        }
    }

    fn write(&mut self, mac: Mac) {
        let Some(lease) = self.leases.get_mut(&mac) else { return };
        if lease.writing {
            return;
        }
        let Some(what) = lease.pending.take() else { return };
        let me = &self.agent.me;
        let status = match &what {
            PendingWrite::Record(record) => report(record, moment(), me, &lease.stored),
            PendingWrite::LinkFailed(why) => link_failed(why, moment(), &lease.stored),
            PendingWrite::Finish => DHCPLeaseStatus::default(),
        };
        lease.writing = true;
        let (writer, records) = (self.agent.writer.clone(), self.agent.records.clone());
        let meta = &lease.record.metadata;
        let uid = meta.uid.clone();
        let namespace = meta.namespace.clone().unwrap_or_default();
        let name = meta.name.clone().unwrap_or_default();
        let (patch, is_status) = if matches!(what, PendingWrite::Finish) {
            (without_finalizer(&lease.record), false)
        } else {
            let status = status_patch(&status, &lease.stored);
            let version = json!({"resourceVersion": meta.resource_version});
            (Some(json!({"metadata": version, "status": status})), true)
        };
        self.writes.spawn(async move {
            let outcome = match &patch {
                Some(patch) => {
                    writer.patch_record_of_agent(&namespace, &name, patch, is_status).await
                }
                // The record does not have the finalizer.
                None => Ok(String::new()),
            };
            let fresh = match &outcome {
                Err(CallError::Conflict(_) | CallError::NotFound(_)) => {
                    match records.read(&namespace, &name).await {
                        Ok(Some(record)) => RereadRecord::Found(Box::new(record)),
                        Ok(None) => RereadRecord::Gone,
                        Err(_) => RereadRecord::Unread,
                    }
                }
                _ => RereadRecord::Unread,
            };
            WriteOutcome { mac, uid, what, outcome, status, fresh }
        });
    }

    /// Updates the lease by the outcome of a write. After a success, the lease's client learns that
    /// its record is written. After a failure, the write is tried again, except if the record is
    /// gone. If the lease is ending, takes the next step to end the lease.
    pub(super) fn written(&mut self, written: WriteOutcome) {
        let WriteOutcome { mac, uid, what, outcome, status, fresh } = written;
        let Some(lease) =
            self.leases.get_mut(&mac).filter(|lease| lease.record.metadata.uid == uid)
        else {
            return;
        };
        lease.writing = false;
        match outcome {
            Ok(_) if matches!(what, PendingWrite::Finish) => return self.forget(mac),
            Ok(version) => {
                lease.record.metadata.resource_version = Some(version);
                lease.stored = status;
                self.stale = true;
                let PendingWrite::Record(record) = what else { return self.again(mac) };
                self.hand(mac, |client| client.record_written(record.serial, clock::now()));
                return self.again(mac);
            }
            Err(error @ (CallError::Conflict(_) | CallError::NotFound(_))) => match fresh {
                RereadRecord::Found(record) if record.metadata.uid == uid => {
                    let title = lease.title();
                    lease.update(&record);
                    lease.stored = record.status.unwrap_or_default();
                    lease.write_again(what.clone());
                    if lease.leaving {
                        self.release_lease(mac);
                    }
                    if matches!(error, CallError::Conflict(_)) {
                        return self.again(mac);
                    }
                    let why =
                        "cannot write the status: the CRD of DHCPLeases has no status subresource";
                    tracing::warn!(record = title, "{why}");
                }
                RereadRecord::Found(_) | RereadRecord::Gone => return self.end_without_record(mac),
                RereadRecord::Unread => {}
            },
            Err(CallError::NotLeader) => {}
            Err(error) => {
                tracing::warn!(
                    record = lease.title(), %error,
                    "cannot write the DHCPLease, will try again"
                );
            }
        }
        if let Some(lease) = self.leases.get_mut(&mac) {
            lease.write_again(what);
            lease.rewrite = Some(clock::now() + PAUSE);
        }
        self.reschedule(mac);
        self.continue_ending(mac);
    }

    /// Queues the pending write of a lease's record, if there is one. Called after a write of the
    /// record has ended. If the lease is ending, takes the next step to end the lease.
    fn again(&mut self, mac: Mac) {
        if self.leases.get(&mac).is_some_and(|lease| lease.pending.is_some()) {
            self.queue.push_back(mac);
        }
        self.continue_ending(mac);
    }
}
