//! Lifecycle of a lease: record, link, client, release, finalizer.

use std::hash::BuildHasher as _;
use std::time::Duration;

use kube::Resource as _;

use super::super::link_worker::LinkJob;
use super::super::managed_lease::{LinkState, ManagedLease, PendingWrite, moment};
use super::super::netlink;
use super::AgentTerm;
use crate::api::DHCPLease;
use crate::domain::dhcp::{ClientOptions, Mac, phase, start_within};
use crate::k8s::agent_records::RecordEvent;
use crate::k8s::clock;
use crate::k8s::informer::key;

/// Time that each lease adds to the period over which resumed clients spread their first requests.
/// The period is at most [`RESUME_LONGEST`].
const RESUME_EACH: Duration = Duration::from_millis(60);
const RESUME_LONGEST: Duration = Duration::from_secs(30);
/// Largest number of clients that may all start at once while they have no address. If there are
/// more such clients, they spread their first messages over time.
const A_FEW: usize = 10;
/// Pause after the first failed attempt to make a link. The pause doubles with each further
/// failure, up to [`LINK_LONGEST_PAUSE`]. A release that waits for the leadership is tried again at
/// this interval, which does not double.
const LINK_PAUSE: Duration = Duration::from_millis(500);
const LINK_LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl AgentTerm<'_> {
    /// Starts, updates or ends a lease after an event of the watch on DHCPLeases. Before the first
    /// list of DHCPLeases is complete, no lease is started.
    pub(super) fn seen(&mut self, seen: RecordEvent) {
        match seen {
            RecordEvent::Is(record) => self.apply_record(record),
            RecordEvent::Gone(name) => {
                if let Some(mac) = self.names.get(&name).copied()
                    && let Some(lease) = self.leases.get_mut(&mac)
                {
                    // If another record has replaced the lease's record, this other record is gone.
                    lease.successor = None;
                    self.end_without_record(mac);
                }
            }
            RecordEvent::Complete if self.complete => {}
            RecordEvent::Complete => self.take_up_all(),
        }
    }

    /// Starts to serve all leases. Called when the first list of DHCPLeases is complete.
    fn take_up_all(&mut self) {
        self.complete = true;
        tracing::info!(leases = self.leases.len(), "the list of DHCPLeases is complete");
        let all: Vec<Mac> = self.leases.keys().copied().collect();
        self.link_worker
            .ask(LinkJob::ClearAllBut(all.iter().map(|mac| netlink::name(*mac)).collect()));
        for mac in all {
            self.take_up(mac);
        }
    }

    fn apply_record(&mut self, record: Box<DHCPLease>) {
        let key = key(record.meta());
        if let Some(mac) = self.names.get(&key).copied() {
            let Some(lease) = self.leases.get_mut(&mac) else { return };
            if lease.record.metadata.uid == record.metadata.uid {
                lease.update(&record);
                if lease.leaving {
                    self.release_lease(mac);
                }
            } else {
                lease.successor = Some(record);
                self.end_without_record(mac);
            }
            return;
        }
        let lease = match ManagedLease::read(*record) {
            Ok(lease) => lease,
            Err(error) => {
                tracing::warn!(record = key, error, "ignored a DHCPLease that is not valid");
                return;
            }
        };
        let mac = lease.identity.mac;
        if let Some(other) = self.leases.get(&mac) {
            tracing::error!(
                record = lease.title(), other = other.title(), %mac,
                "ignored a DHCPLease: another one has the same hardware address"
            );
            return;
        }
        self.names.insert(key, mac);
        self.leases.insert(mac, lease);
        self.stale = true;
        if self.complete {
            self.take_up(mac);
        }
    }

    /// Starts to serve a lease: requests its link, or releases its address if the record is being
    /// deleted.
    fn take_up(&mut self, mac: Mac) {
        let Some(lease) = self.leases.get_mut(&mac) else { return };
        if lease.leaving {
            return self.release_lease(mac);
        }
        if let Some(parent) = &self.parent {
            self.link_worker.ask(LinkJob::Make { parent: parent.index, mac, lease: lease.title() });
        } else {
            let why = format!("the interface {} does not exist", self.agent.interface);
            self.not_linked(mac, why, clock::now());
        }
    }

    pub(super) fn not_linked(&mut self, mac: Mac, why: String, now: Duration) {
        let Some(lease) = self.leases.get_mut(&mac) else { return };
        if lease.link != LinkState::Making || lease.leaving {
            return;
        }
        tracing::warn!(
            record = lease.title(),
            error = why,
            "cannot make the link of the lease, will try again"
        );
        let pause = LINK_PAUSE * 2_u32.saturating_pow(lease.failures.min(8));
        lease.retry = Some(now + pause.min(LINK_LONGEST_PAUSE));
        if lease.failures == 0 {
            self.agent.events.warning(lease.reference(), "LinkFailed", why.clone());
        }
        lease.failures += 1;
        if lease.pending.is_none() && !lease.writing {
            lease.pending = Some(PendingWrite::LinkFailed(why));
            self.queue.push_back(mac);
        }
        self.reschedule(mac);
    }

    /// Starts the client of a lease, after the lease's link was made. If the client runs already,
    /// it only learns whether the carrier is up.
    pub(super) fn start(&mut self, mac: Mac) {
        let at = moment();
        let options = self.options();
        let seed = self.seeds.hash_one((mac.0, at.now));
        let up = self.parent.as_ref().is_some_and(|parent| parent.carries);
        let Some(lease) = self.leases.get_mut(&mac) else { return };
        let said = match &mut lease.client {
            Some(client) => client.set_link(up, at.now),
            None => lease.begin(options, seed, at).set_link(up, at.now),
        };
        self.stale = true;
        self.act(mac, said);
    }

    fn options(&mut self) -> ClientOptions {
        self.begun = self.begun.wrapping_add(1);
        let all = u32::try_from(self.leases.len()).unwrap_or(u32::MAX);
        let without = self.leases.values().filter(|lease| !lease.holds()).count();
        ClientOptions {
            start_within: start_within(without.saturating_sub(A_FEW)),
            resume_within: RESUME_EACH.saturating_mul(all).min(RESUME_LONGEST),
            phase: phase(self.begun),
            proxy: self.disputes.proxy(),
            ..self.agent.options.clone()
        }
    }

    /// Handles the deadline of a lease: queues the failed write again, makes the planned attempt,
    /// and lets the DHCP client take its steps. Skips each of these that is not due yet.
    ///
    /// A release that has begun is put off while this agent is not the leader. The agent would not
    /// send the frames of the release, but the client would count them as sent.
    pub(super) fn deadline_passed(&mut self, mac: Mac, now: Duration) {
        let Some(lease) = self.leases.get_mut(&mac) else { return };
        lease.deadline = None;
        if lease.rewrite.take_if(|at| *at <= now).is_some() {
            self.queue.push_back(mac);
        }
        let retries = lease.retry.take_if(|at| *at <= now).is_some();
        if retries && (lease.leaving || lease.link == LinkState::Making) {
            self.take_up(mac);
        }
        let Some(lease) = self.leases.get_mut(&mac) else { return };
        if lease.released && !self.agent.leadership.is_current() {
            if let Some(client) = &mut lease.client {
                client.put_off_release(now + LINK_PAUSE);
            }
            return self.reschedule(mac);
        }
        let said = lease.client.as_mut().map(|client| client.poll(now));
        self.act(mac, said.unwrap_or_default());
    }

    /// Ends a lease whose record was deleted, or replaced by another record of the same name.
    pub(super) fn end_without_record(&mut self, mac: Mac) {
        let Some(lease) = self.leases.get_mut(&mac) else { return };
        lease.gone = true;
        lease.leaving = true;
        lease.pending = None;
        self.release_lease(mac);
    }

    /// Releases the address of a lease, if the lease has one. If this agent is not the leader, or
    /// the rate limit of releases is reached, a timer for another attempt is set instead.
    pub(super) fn release_lease(&mut self, mac: Mac) {
        let at = moment();
        let options = self.options();
        let seed = self.seeds.hash_one((mac.0, at.now));
        let Some(lease) = self.leases.get_mut(&mac) else { return };
        if lease.released {
            return self.continue_ending(mac);
        }
        let later = if self.agent.leadership.is_current() {
            self.releases.take(at.now).err()
        } else {
            Some(at.now + LINK_PAUSE)
        };
        if let Some(later) = later {
            lease.retry = Some(later);
            return self.reschedule(mac);
        }
        tracing::info!(record = lease.title(), "the agent releases the lease");
        let up = self.parent.as_ref().is_some_and(|parent| parent.carries);
        if let Some(said) = lease.release(options, seed, at, up) {
            self.act(mac, said);
        } else {
            lease.done = true;
            self.continue_ending(mac);
        }
    }

    /// Takes the next step to end a lease, if the step is possible now. After the client has
    /// finished and the last write of the record has ended, the link is removed, and then the
    /// finalizer. If the record is gone, only the link is removed.
    ///
    /// Some pending writes would delay the end, so this function drops them: each write of a record
    /// that is gone, and [`PendingWrite::LinkFailed`] of a record that is being deleted.
    pub(super) fn continue_ending(&mut self, mac: Mac) {
        let Some(lease) = self.leases.get_mut(&mac) else { return };
        lease.pending.take_if(|what| {
            lease.gone || (lease.leaving && matches!(what, PendingWrite::LinkFailed(_)))
        });
        if !lease.done || lease.writing || lease.pending.is_some() {
            return;
        }
        match lease.link {
            LinkState::Making | LinkState::There => {
                lease.link = LinkState::Removing;
                self.link_worker.ask(LinkJob::Remove(mac));
            }
            LinkState::Removing => {}
            LinkState::Gone if lease.gone => self.forget(mac),
            LinkState::Gone => {
                lease.pending = Some(PendingWrite::Finish);
                self.queue.push_back(mac);
            }
        }
    }

    /// Drops the remaining state of a lease. If another record has replaced the lease's record,
    /// starts to serve that record.
    pub(super) fn forget(&mut self, mac: Mac) {
        let Some(lease) = self.leases.get_mut(&mac) else { return };
        lease.client = None;
        (lease.rewrite, lease.retry) = (None, None);
        self.reschedule(mac);
        let Some(lease) = self.leases.remove(&mac) else { return };
        self.names.remove(&lease.title());
        self.stale = true;
        if let Some(next) = lease.successor {
            self.apply_record(next);
        }
    }
}
