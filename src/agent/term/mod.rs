//! Work of the agent during one term: a single loop handles all events, one at a time.
//!
//! Examples of events are a received frame, a changed record, a removed link, the end of a write,
//! and a deadline. Each event goes to the clients that it concerns. The actions that these clients
//! request are executed at once ([`AgentTerm::act`]). No handler blocks.

mod client_actions;
mod lease_lifecycle;
mod record_writes;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::RandomState;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use self::client_actions::EASE;
use self::record_writes::WriteOutcome;
use super::DhcpAgent;
use super::link_worker::{JobOutcome, LinkJob, LinkWorker};
use super::managed_lease::{LinkState, ManagedLease, PendingWrite};
use super::netlink::{KernelLink, KernelLinks, LinkChange, LinkChanges, name};
use super::packet_socket::PacketSocket;
use crate::domain::dhcp::{AddressDisputes, FrameFilter, Mac, RELEASES, owner_of};
use crate::domain::limits::token_bucket::TokenBucket;
use crate::k8s::agent_records::RecordEvent;
use crate::k8s::clock;
use crate::k8s::leadership::LeadershipState;

/// Longest sleep of the loop. The clock goes on while the machine is suspended, but a sleep does
/// not. So a longer sleep could end far too late.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
/// Maximum number of frames that are read in a row, before the loop handles other events.
const MOST_FRAMES: usize = 256;
/// Length, in octets, up to which a frame is read. The rest of a longer frame is lost.
const LONGEST_FRAME: usize = 2048;

/// State of a term of leadership.
pub(super) struct AgentTerm<'a> {
    agent: &'a DhcpAgent,
    leases: HashMap<Mac, ManagedLease>,
    /// Hardware address of each lease. The key is `namespace/name` of the lease's record.
    names: HashMap<String, Mac>,
    timers: BTreeSet<(Duration, Mac)>,
    /// Whether the first list of DHCPLeases is complete.
    complete: bool,
    records: UnboundedReceiver<RecordEvent>,
    socket: PacketSocket,
    /// Frames that the client of each lease needs. A client that needs no frame has no entry.
    listening: BTreeMap<Mac, FrameFilter>,
    /// Time at which the socket is closed, accepts fewer frames, or is opened again after a
    /// failure. `None`: no such change is planned.
    ease: Option<Duration>,
    changes: LinkChanges,
    link_worker: LinkWorker,
    /// Agent's interface on the network. The leases' links are made on this interface. `None`: the
    /// interface does not exist.
    parent: Option<KernelLink>,
    /// Leases whose records are to be written, in the order of the writes.
    queue: VecDeque<Mac>,
    writes: JoinSet<WriteOutcome>,
    releases: TokenBucket,
    /// Stations that answered ARP for addresses that the DHCP servers granted.
    disputes: AddressDisputes,
    /// Number of calls of `options()` in this term. From this number, each client gets a phase of
    /// its own, so that clients spread their messages over time.
    begun: u32,
    seeds: RandomState,
    leadership: watch::Receiver<LeadershipState>,
    /// Whether another agent was active on this network while the API server did not answer. Then
    /// this agent renews no lease until it is the leader.
    yields: bool,
    /// Whether the metrics that are computed from all leases are out of date.
    stale: bool,
    /// Task that watches DHCPLeases. It is aborted at the end of the term.
    _watch: AbortOnDropHandle<()>,
}

impl<'a> AgentTerm<'a> {
    pub(super) async fn begin(agent: &'a DhcpAgent) -> anyhow::Result<Self> {
        let (links, changes) = KernelLinks::connect(&agent.network)?;
        let all = links.all().await?;
        let parent = all.into_iter().find(|link| link.name == agent.interface);
        let (sender, records) = unbounded_channel();
        let watch = agent.records.clone().watch(agent.network.clone(), sender);
        let watch = AbortOnDropHandle::new(tokio::spawn(watch));
        tracing::info!(
            network = agent.network,
            interface = agent.interface,
            "this agent leads: it leases the addresses of the network"
        );
        Ok(Self {
            agent,
            leases: HashMap::new(),
            names: HashMap::new(),
            timers: BTreeSet::new(),
            complete: false,
            records,
            socket: PacketSocket::new(&agent.interface),
            listening: BTreeMap::new(),
            ease: None,
            changes,
            link_worker: LinkWorker::start(links),
            parent,
            queue: VecDeque::new(),
            writes: JoinSet::new(),
            releases: RELEASES,
            disputes: AddressDisputes::default(),
            begun: 0,
            seeds: RandomState::new(),
            leadership: agent.leadership.state(),
            yields: false,
            stale: true,
            _watch: watch,
        })
    }

    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        let mut buffer = vec![0; LONGEST_FRAME];
        loop {
            // Events of records are handled, and records are written, only while this agent holds
            // the network's Lease.
            let current = self.agent.leadership.is_current();
            if current {
                self.write_some();
            }
            self.show();
            let pause = self.next_turn().saturating_sub(clock::now()).min(LONGEST_SLEEP);
            tokio::select! {
                readable = self.socket.ready() => self.receive_frames(readable, &mut buffer),
                seen = self.records.recv(), if current => {
                    self.seen(seen.context("the watch of DHCPLeases ended")?);
                }
                changed = self.leadership.changed() => {
                    changed?;
                    tracing::info!(
                        state = ?*self.leadership.borrow_and_update(),
                        "the state of leadership changed"
                    );
                }
                change = self.changes.next() => {
                    self.changed(change.context("the kernel sends no more link notifications")?);
                }
                Some(done) = self.link_worker.done.recv() => self.linked(done),
                Some(written) = self.writes.join_next() => match written {
                    Ok(written) => self.written(written),
                    Err(error) => bail!("the write of a DHCPLease did not finish: {error}"),
                },
                () = tokio::time::sleep(pause) => {}
            }
            self.take_turns();
        }
    }

    /// Earliest deadline of a lease, or the time of the socket's planned change if this is earlier.
    fn next_turn(&self) -> Duration {
        let first = self.timers.first().map(|(at, _)| *at);
        let ease = self.ease;
        first.into_iter().chain(ease).min().unwrap_or(Duration::MAX)
    }

    fn take_turns(&mut self) {
        let now = clock::now();
        if self.ease.is_some_and(|ease| ease <= now) {
            self.ease = None;
            self.adjust_filter(true);
        }
        while let Some((at, mac)) = self.timers.first().copied() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            self.deadline_passed(mac, now);
        }
    }

    /// Reads received frames. A DHCP message goes to the client whose hardware address the message
    /// contains. Any other frame goes to all clients that wait for ARP. `readable`: result of the
    /// wait for a frame.
    fn receive_frames(&mut self, readable: std::io::Result<()>, buffer: &mut [u8]) {
        let mut problem = readable.err();
        for _ in 0..MOST_FRAMES {
            let frame = match self.socket.receive(buffer) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => {
                    problem = Some(error);
                    break;
                }
            };
            let now = clock::now();
            if let Some(mac) = owner_of(frame) {
                if !self.hand(mac, |client| client.receive(frame, now)) {
                    self.agent.dhcp.frames_dropped.inc();
                }
                continue;
            }
            let probing = |(mac, filter): (&Mac, &FrameFilter)| {
                (*filter == FrameFilter::DhcpAndArp).then_some(*mac)
            };
            for mac in self.listening.iter().filter_map(probing).collect::<Vec<_>>() {
                self.hand(mac, |client| client.receive(frame, now));
            }
        }
        if let Some(error) = problem {
            // The interface went down or was removed. The kernel will send a notification that says
            // which of the two happened. A socket that is opened before that would fail like this
            // one.
            tracing::debug!(%error, "the packet socket failed");
            self.socket.close();
            self.ease = Some(clock::now() + EASE);
        }
    }

    /// Updates the socket, the links and the clients after a change of a network interface.
    fn changed(&mut self, change: LinkChange) {
        let interface = &self.agent.interface;
        match change {
            LinkChange::Is(link) if link.name == *interface => {
                let before = self.parent.replace(link.clone());
                if before.as_ref().is_none_or(|before| before.index != link.index) {
                    tracing::info!(interface, "the interface is available");
                    self.socket.close();
                    self.make_all(link.index);
                }
                let carried = before.is_some_and(|before| before.carries);
                if carried != link.carries {
                    tracing::info!(
                        interface,
                        carries = link.carries,
                        "the carrier of the interface changed"
                    );
                    self.carry(link.carries);
                }
            }
            LinkChange::Gone(link)
                if self.parent.as_ref().is_some_and(|p| p.index == link.index) =>
            {
                self.interface_removed();
            }
            LinkChange::Gone(link) => {
                let Some(mac) = link.mac.filter(|mac| link.name == name(*mac)) else { return };
                self.unlinked(mac);
            }
            LinkChange::All(links) => {
                tracing::warn!(
                    interface,
                    links = links.len(),
                    "the kernel dropped link notifications: the agent listed all links again"
                );
                let there: HashSet<Mac> = links
                    .iter()
                    .filter_map(|link| link.mac.filter(|mac| link.name == name(*mac)))
                    .collect();
                match links.into_iter().find(|link| link.name == *interface) {
                    Some(parent) => self.changed(LinkChange::Is(parent)),
                    None if self.parent.is_some() => self.interface_removed(),
                    None => {}
                }
                let gone = self.leases.keys().filter(|mac| !there.contains(mac)).copied();
                for mac in gone.collect::<Vec<_>>() {
                    self.unlinked(mac);
                }
            }
            LinkChange::Is(_) => {}
        }
    }

    /// Closes the socket, because the agent's interface was removed. Each client learns that its
    /// link has no carrier.
    fn interface_removed(&mut self) {
        let interface = &self.agent.interface;
        tracing::warn!(interface, "the interface was removed, and with it the links of all leases");
        self.parent = None;
        self.socket.close();
        self.carry(false);
    }

    /// Makes the link of a lease again, after another process removed it.
    fn unlinked(&mut self, mac: Mac) {
        if let Some(lease) = self.leases.get_mut(&mac)
            && lease.link == LinkState::There
            && let Some(parent) = &self.parent
        {
            tracing::warn!(
                record = lease.title(),
                "the link of the lease was removed: the agent makes it again"
            );
            lease.link = LinkState::Making;
            self.link_worker.ask(LinkJob::Make { parent: parent.index, mac, lease: lease.title() });
        }
    }

    /// Makes the links that leases need, because the agent's interface is new or was replaced.
    /// `parent`: index of this interface.
    fn make_all(&mut self, parent: u32) {
        for (mac, lease) in &mut self.leases {
            if matches!(lease.link, LinkState::There | LinkState::Making) {
                lease.link = LinkState::Making;
                self.link_worker.ask(LinkJob::Make { parent, mac: *mac, lease: lease.title() });
            }
        }
    }

    /// Passes to all clients whether the carrier is up.
    fn carry(&mut self, up: bool) {
        let now = clock::now();
        let macs: Vec<Mac> = self.leases.keys().copied().collect();
        for mac in macs {
            self.hand(mac, |client| client.set_link(up, now));
        }
    }

    /// Continues with a lease after an attempt to make or remove its link. Starts the client, plans
    /// another attempt to make the link, or takes the next step to end the lease.
    fn linked(&mut self, done: JobOutcome) {
        let now = clock::now();
        match done {
            JobOutcome::Made(mac, Ok(())) => {
                let Some(lease) = self.leases.get_mut(&mac) else { return };
                if lease.link == LinkState::Making {
                    lease.link = LinkState::There;
                    lease.failures = 0;
                    lease.pending.take_if(|what| matches!(what, PendingWrite::LinkFailed(_)));
                    self.start(mac);
                }
            }
            JobOutcome::Made(mac, Err(why)) => self.not_linked(mac, why, now),
            JobOutcome::Removed(mac) => {
                if let Some(lease) = self.leases.get_mut(&mac)
                    && lease.link == LinkState::Removing
                {
                    lease.link = LinkState::Gone;
                    self.continue_ending(mac);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
