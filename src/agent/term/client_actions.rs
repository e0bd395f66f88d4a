//! Executes the actions that a DHCP client requests, and updates the socket, the timers and the
//! metrics.

use std::time::Duration;

use super::super::managed_lease::PendingWrite;
use super::super::report;
use super::AgentTerm;
use crate::api::LeaseState;
use crate::domain::dhcp::{ClientAction, ClientEvent, DhcpClient, FrameFilter, Mac};
use crate::k8s::clock;
use crate::k8s::leadership::LeadershipState;

/// Delay before the socket is closed or stops accepting ARP frames. Another client often needs the
/// socket or these frames within this time. Also the delay before the socket is opened again after
/// a failure.
pub(super) const EASE: Duration = Duration::from_secs(1);

impl AgentTerm<'_> {
    /// Hands an input to a lease's client, and executes the actions that the client requests.
    /// Returns whether the lease has a client.
    pub(super) fn hand(
        &mut self,
        mac: Mac,
        input: impl FnOnce(&mut DhcpClient) -> Vec<ClientAction>,
    ) -> bool {
        let client = self.leases.get_mut(&mac).and_then(|lease| lease.client.as_mut());
        let Some(said) = client.map(input) else { return false };
        self.act(mac, said);
        true
    }

    /// Executes the actions `said` that a lease's client requests: queues writes, reports events,
    /// sends frames.
    pub(super) fn act(&mut self, mac: Mac, said: Vec<ClientAction>) {
        let Some(lease) = self.leases.get_mut(&mac) else { return };
        let mut frames = Vec::new();
        let proxy = self.disputes.proxy();
        for out in said {
            match out {
                ClientAction::Send(frame) => frames.push(frame),
                ClientAction::Record(record) => {
                    report::trouble(self.agent, lease, &record);
                    lease.pending = Some(PendingWrite::Record(record));
                    self.queue.push_back(mac);
                    self.stale = true;
                }
                ClientAction::Event(event) => {
                    report::event(self.agent, lease, &event);
                    match event {
                        ClientEvent::Declined { address, by, server } => {
                            self.disputes.add(address, by, server);
                        }
                        ClientEvent::Undisputed => self.disputes.clear(),
                        ClientEvent::Duplicate { .. } => {
                            let silent = *self.leadership.borrow() == LeadershipState::Silent;
                            if silent && !std::mem::replace(&mut self.yields, true) {
                                let network = &self.agent.network;
                                tracing::warn!(
                                    network,
                                    "the API server does not answer, and another agent is active: \
                                     this agent renews no lease"
                                );
                            }
                        }
                        _ => {}
                    }
                }
                ClientAction::Done => lease.done = true,
            }
        }
        if proxy != self.disputes.proxy() {
            let proxy = self.disputes.proxy();
            let network = &self.agent.network;
            if let Some(station) = proxy {
                tracing::warn!(network, %station, "one host answers ARP for every granted address");
            } else {
                tracing::info!(network, "no host answers ARP for every granted address any more");
            }
            for client in self.leases.values_mut().filter_map(|lease| lease.client.as_mut()) {
                client.set_proxy(proxy);
            }
        }
        self.reschedule(mac);
        if !frames.is_empty() {
            self.send(mac, &frames);
        }
        self.continue_ending(mac);
    }

    /// Updates all that depends on the state of a lease: its timer, the metric of leases by state,
    /// and the frames that the socket accepts.
    pub(super) fn reschedule(&mut self, mac: Mac) {
        let Some(lease) = self.leases.get_mut(&mac) else { return };
        let client = lease.client.as_ref();
        let deadline = client.and_then(|client| client.deadline().filter(|_| !lease.done));
        let deadline = deadline.into_iter().chain(lease.rewrite).chain(lease.retry).min();
        if deadline != lease.deadline {
            if let Some(former) = lease.deadline {
                self.timers.remove(&(former, mac));
            }
            lease.deadline = deadline;
        }
        if let Some(deadline) = deadline {
            self.timers.insert((deadline, mac));
        }
        let counted = client.filter(|_| !lease.done).map(DhcpClient::state);
        if counted != lease.counted {
            let gauge =
                |of: LeaseState| self.agent.dhcp.leases.with_label_values(&[format!("{of:?}")]);
            if let Some(former) = lease.counted {
                gauge(former).dec();
            }
            if let Some(now) = counted {
                gauge(now).inc();
            }
            lease.counted = counted;
        }
        let listening = client.map_or(FrameFilter::Nothing, DhcpClient::listening);
        let before = match listening {
            FrameFilter::Nothing => self.listening.remove(&mac),
            _ => self.listening.insert(mac, listening),
        };
        if before.unwrap_or(FrameFilter::Nothing) != listening {
            self.adjust_filter(false);
        }
    }

    /// Frames that the clients need. [`FrameFilter::Nothing`]: no client waits for a frame.
    fn needed(&self) -> FrameFilter {
        self.listening.values().max().copied().unwrap_or(FrameFilter::Nothing)
    }

    /// Sets the frames that the socket accepts to those that the clients need. A change to more
    /// frames takes effect at once. `less`: whether a change to fewer frames also takes effect at
    /// once. `false`: such a change takes effect after [`EASE`].
    pub(super) fn adjust_filter(&mut self, less: bool) {
        let needed = self.needed();
        if needed >= self.socket.accepted() || less {
            if let Err(error) = self.socket.set_filter(needed) {
                tracing::warn!(%error, interface = self.agent.interface, "cannot open the packet socket");
                self.socket.close();
                self.ease = Some(clock::now() + EASE);
            }
        } else if self.ease.is_none() {
            self.ease = Some(clock::now() + EASE);
        }
    }

    /// Sends the frames of a lease's client if this agent is the leader. Otherwise, sends them only
    /// if all of these hold:
    ///
    /// * The API server does not answer, so no agent knows which agent leads.
    /// * The client asks to confirm or extend a held lease.
    /// * This agent has seen no other active agent. One agent that renews leases is enough.
    fn send(&mut self, mac: Mac, frames: &[Vec<u8>]) {
        let leads = self.agent.leadership.is_current();
        self.yields &= !leads;
        let renews = || {
            let client = self.leases.get(&mac).and_then(|lease| lease.client.as_ref());
            let silent = *self.leadership.borrow() == LeadershipState::Silent;
            silent && !self.yields && client.is_some_and(DhcpClient::renews)
        };
        if !leads && !renews() {
            tracing::debug!(%mac, "frame not sent: this agent is not the leader");
            return;
        }
        // The socket may be closed here: a client that sends a DHCPRELEASE waits for no answer. Or
        // the interface was replaced while clients wait for answers.
        if self.socket.accepted() == FrameFilter::Nothing {
            let accepted = self.needed().max(FrameFilter::Dhcp);
            if let Err(error) = self.socket.set_filter(accepted) {
                tracing::debug!(%mac, %error, "frame not sent");
                return;
            }
            self.ease.get_or_insert(clock::now() + EASE);
        }
        for frame in frames {
            if let Err(error) = self.socket.send(frame) {
                tracing::debug!(%mac, %error, "frame not sent");
            }
        }
    }

    /// Sets the metrics that are computed from all leases, if they are out of date.
    pub(super) fn show(&mut self) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        let held = || self.leases.values().filter_map(|lease| lease.client.as_ref()?.lease());
        self.agent.set_first_expiry(held().filter_map(|lease| lease.expires).min());
        let servers: std::collections::BTreeSet<_> = held().map(|lease| lease.server).collect();
        self.agent.dhcp.servers.set(i64::try_from(servers.len()).unwrap_or(i64::MAX));
        let clients = self.leases.values().filter_map(|lease| lease.client.as_ref());
        let still = clients.filter(|client| client.is_still_announced()).count();
        self.agent.dhcp.still_announced.set(i64::try_from(still).unwrap_or(i64::MAX));
    }
}
