//! One term: everything that happens is waited for here, one thing at a time.
//!
//! Frames, records, links, writes and time come in; each is handed to the clients that it concerns,
//! and what these have to say is carried out at once ([`Term::act`]). Nothing here blocks.

mod act;
mod life;
mod paper;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::RandomState;
use std::ops::Bound;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::act::EASE;
use self::paper::Written;
use super::hands::{Done, Hands, Job};
use super::lease::{Lease, LinkState};
use super::links::{Change, Changes, Link, Links, name};
use super::wire::Wire;
use super::{Agent, clock};
use crate::api::DHCPLease;
use crate::domain::dhcp::{Bucket, Disputes, Mac, owner_of};
use crate::k8s::lease::Claim;
use crate::k8s::records::Seen;

/// The longest sleep. Sleeps stand still while the machine does, the clock does not.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
/// Frames that are read before anything else gets its turn.
const MOST_FRAMES: usize = 256;
/// The longest frame that is read whole.
const LONGEST_FRAME: usize = 2048;

/// The work of a term.
pub(super) struct Term<'a> {
    agent: &'a Agent,
    leases: HashMap<Mac, Lease>,
    names: HashMap<(String, String), Mac>,
    /// Records whose place is still taken by one that is about to go.
    successors: HashMap<Mac, Box<DHCPLease>>,
    timers: BTreeSet<(Duration, Mac)>,
    /// What a list that is under way has named so far.
    list: Option<HashSet<Mac>>,
    /// Whether there has been a whole list.
    complete: bool,
    records: UnboundedReceiver<Seen>,
    wire: Wire,
    /// Whose client waits for ARP.
    probing: BTreeSet<Mac>,
    /// How many wait for DHCP.
    asking: usize,
    /// When less may be listened to.
    ease: Option<Duration>,
    changes: Changes,
    hands: Hands,
    /// The interface.
    parent: Option<Link>,
    /// Whose record is to be written, and what is under way.
    queue: VecDeque<Mac>,
    writes: JoinSet<Written>,
    releases: Bucket,
    /// Stations that dispute what the servers grant.
    disputes: Disputes,
    /// Clients that were begun.
    begun: u32,
    seeds: RandomState,
    claim: watch::Receiver<Claim>,
    /// Whether another agent was heard to speak for this network while it is not known who leads.
    yields: bool,
    /// Whether what is worked out from all leases is out of date.
    stale: bool,
    /// Ends with the term.
    _watch: JoinSet<()>,
}

impl<'a> Term<'a> {
    pub(super) async fn begin(agent: &'a Agent) -> anyhow::Result<Self> {
        let settings = &agent.settings;
        let (links, changes) = Links::connect(&settings.network)?;
        let all = links.all().await?;
        let parent = all.into_iter().find(|link| link.name == settings.interface);
        let (tell, records) = unbounded_channel();
        let mut watch = JoinSet::new();
        watch.spawn(agent.records.clone().watch(settings.network.clone(), tell));
        tracing::info!(network = settings.network, interface = settings.interface, "speaking");
        Ok(Self {
            agent,
            leases: HashMap::new(),
            names: HashMap::new(),
            successors: HashMap::new(),
            timers: BTreeSet::new(),
            list: None,
            complete: false,
            records,
            wire: Wire::new(&settings.interface),
            probing: BTreeSet::new(),
            asking: 0,
            ease: None,
            changes,
            hands: Hands::start(links),
            parent,
            queue: VecDeque::new(),
            writes: JoinSet::new(),
            releases: Bucket::for_releases(),
            disputes: Disputes::default(),
            begun: 0,
            seeds: RandomState::new(),
            claim: agent.leadership.claim(),
            yields: false,
            stale: true,
            _watch: watch,
        })
    }

    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        self.agent.dhcp.leases.reset();
        let mut buffer = vec![0; LONGEST_FRAME];
        loop {
            // Without a current claim nothing is begun, written or given back.
            let current = self.agent.leadership.is_current();
            if current {
                self.write_some();
            }
            self.show();
            let pause = self.next_turn().saturating_sub(clock::now()).min(LONGEST_SLEEP);
            tokio::select! {
                readable = self.wire.ready() => self.hear(readable, &mut buffer),
                seen = self.records.recv(), if current => {
                    self.seen(seen.context("the watch ended")?);
                }
                changed = self.claim.changed() => {
                    changed?;
                    tracing::info!(claim = ?*self.claim.borrow_and_update(), "the claim changed");
                }
                change = self.changes.next() => {
                    self.changed(change.context("the kernel tells nothing of links any more")?);
                }
                Some(done) = self.hands.done.recv() => self.linked(done),
                Some(written) = self.writes.join_next() => match written {
                    Ok(written) => self.written(written),
                    Err(error) => bail!("a write failed to end: {error}"),
                },
                () = tokio::time::sleep(pause) => {}
            }
            self.take_turns();
        }
    }

    /// When something is due.
    fn next_turn(&self) -> Duration {
        let first = self.timers.first().map(|(at, _)| *at);
        let ease = self.ease;
        first.into_iter().chain(ease).min().unwrap_or(Duration::MAX)
    }

    fn take_turns(&mut self) {
        let now = clock::now();
        if self.ease.is_some_and(|ease| ease <= now) {
            self.ease = None;
            self.listen(true);
        }
        while let Some((at, mac)) = self.timers.first().copied() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            self.turn(mac, now);
        }
    }

    /// Whatever has come in on the wire.
    fn hear(&mut self, readable: std::io::Result<()>, buffer: &mut [u8]) {
        let mut problem = readable.err();
        for _ in 0..MOST_FRAMES {
            let frame = match self.wire.take(buffer) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => {
                    problem = Some(error);
                    break;
                }
            };
            let now = clock::now();
            if let Some(mac) = owner_of(frame) {
                match self.leases.get_mut(&mac).and_then(|lease| lease.client.as_mut()) {
                    Some(client) => {
                        let said = client.heard(frame, now);
                        self.act(mac, said);
                    }
                    None => self.agent.dhcp.frames_dropped.inc(),
                }
                continue;
            }
            // What one does may take it from among them.
            let mut next = self.probing.first().copied();
            while let Some(mac) = next {
                next = self.probing.range((Bound::Excluded(mac), Bound::Unbounded)).next().copied();
                let lease = self.leases.get_mut(&mac);
                if let Some(client) = lease.and_then(|lease| lease.client.as_mut()) {
                    let said = client.heard(frame, now);
                    self.act(mac, said);
                }
            }
        }
        if let Some(error) = problem {
            // The interface went down or away. What becomes of it is told by the kernel; until then
            // a new socket would end like this one.
            tracing::debug!(%error, "the packet socket");
            self.wire.close();
            self.ease = Some(clock::now() + EASE);
        }
    }

    /// The kernel told of a link.
    fn changed(&mut self, change: Change) {
        let interface = &self.agent.settings.interface;
        match change {
            Change::Is(link) if link.name == *interface => {
                let before = self.parent.replace(link.clone());
                if before.as_ref().is_none_or(|before| before.index != link.index) {
                    tracing::info!(interface, "the interface is there");
                    self.wire.close();
                    self.make_all(link.index);
                }
                let carried = before.is_some_and(|before| before.carries);
                if carried != link.carries {
                    tracing::info!(interface, carries = link.carries, "the interface changed");
                    self.carry(link.carries);
                }
            }
            Change::Gone(link) if self.parent.as_ref().is_some_and(|p| p.index == link.index) => {
                self.orphaned();
            }
            Change::Gone(link) => {
                let Some(mac) = link.mac.filter(|mac| link.name == name(*mac)) else { return };
                self.unlinked(mac);
            }
            Change::All(links) => {
                tracing::warn!(
                    interface,
                    links = links.len(),
                    "the kernel told too much at once: looked again"
                );
                let there: HashSet<Mac> = links
                    .iter()
                    .filter_map(|link| link.mac.filter(|mac| link.name == name(*mac)))
                    .collect();
                match links.into_iter().find(|link| link.name == *interface) {
                    Some(parent) => self.changed(Change::Is(parent)),
                    None if self.parent.is_some() => self.orphaned(),
                    None => {}
                }
                let gone = self.leases.keys().filter(|mac| !there.contains(mac)).copied();
                for mac in gone.collect::<Vec<_>>() {
                    self.unlinked(mac);
                }
            }
            Change::Is(_) => {}
        }
    }

    /// The interface is gone.
    fn orphaned(&mut self) {
        let interface = &self.agent.settings.interface;
        tracing::warn!(interface, "the interface is gone, and all links with it");
        self.parent = None;
        self.wire.close();
        self.carry(false);
    }

    /// Somebody else has removed a lease's link.
    fn unlinked(&mut self, mac: Mac) {
        if let Some(lease) = self.leases.get_mut(&mac)
            && lease.link == LinkState::There
            && let Some(parent) = &self.parent
        {
            tracing::warn!(record = lease.title(), "its link is gone, and is made again");
            lease.link = LinkState::Making;
            self.hands.ask(Job::Make { parent: parent.index, mac, lease: lease.title() });
        }
    }

    /// The interface is another one, so every link has to be made.
    fn make_all(&mut self, parent: u32) {
        for (mac, lease) in &mut self.leases {
            if matches!(lease.link, LinkState::There | LinkState::Making) {
                lease.link = LinkState::Making;
                self.hands.ask(Job::Make { parent, mac: *mac, lease: lease.title() });
            }
        }
    }

    /// The cable is in, or out.
    fn carry(&mut self, up: bool) {
        let now = clock::now();
        let macs: Vec<Mac> = self.leases.keys().copied().collect();
        for mac in macs {
            let lease = self.leases.get_mut(&mac);
            if let Some(client) = lease.and_then(|lease| lease.client.as_mut()) {
                let said = client.link(up, now);
                self.act(mac, said);
            }
        }
    }

    /// A link was made or removed.
    fn linked(&mut self, done: Done) {
        let now = clock::now();
        match done {
            Done::Made(mac) => {
                let Some(lease) = self.leases.get_mut(&mac) else { return };
                if lease.link == LinkState::Making {
                    lease.link = LinkState::There;
                    lease.failures = 0;
                    self.start(mac);
                }
            }
            Done::Failed(mac, why) => self.not_linked(mac, why, now),
            Done::Removed(mac) => {
                if let Some(lease) = self.leases.get_mut(&mac)
                    && lease.link == LinkState::Removing
                {
                    lease.link = LinkState::Gone;
                    self.settle(mac);
                }
            }
        }
    }
}
