//! Tests of the client with a clock that the test advances, and with answers that the test writes.

mod acquiring;
mod announcing;
mod checklist;
mod confirming;
mod hostile;
mod kept;
mod leaving;
mod probing;
mod renewing;
mod server;
mod wire;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use server::{ACK, NAK, OFFER, SERVER_MAC, Seen, answer, seen};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 20);
const SECOND: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 21);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn identity() -> ClientIdentity {
    ClientIdentity::derive("cluster", "default/net", "default", "web")
}

/// Client with its clock and its output. If `slow` is false, each record counts as written at once.
struct Bed {
    client: DhcpClient,
    now: Duration,
    slow: bool,
    probes: Vec<(Duration, Vec<u8>)>,
    messages: Vec<Seen>,
    events: Vec<ClientEvent>,
    records: Vec<LeaseRecord>,
    done: bool,
}

impl Bed {
    fn of(client: DhcpClient) -> Self {
        let (probes, messages, events, records) = Default::default();
        Self { client, now: ms(0), slow: false, probes, messages, events, records, done: false }
    }

    fn with(options: ClientOptions) -> Self {
        Self::of(DhcpClient::new(identity(), options, 7, ms(0)))
    }

    fn new() -> Self {
        Self::with(ClientOptions::default())
    }

    /// Client with a lease of `seconds` that was granted at the time zero, without a probe.
    fn bound(seconds: u32) -> Self {
        let mut bed =
            Self::with(ClientOptions { probe: ProbeTiming::OFF, ..ClientOptions::default() });
        bed.acquire(ADDRESS, seconds);
        assert_eq!((bed.client.state(), bed.now), (LeaseState::Bound, ms(0)));
        bed
    }

    /// Client that was restarted when `left` seconds of a lease of 120 s remained.
    fn resumed(left: u64) -> Self {
        let options = ClientOptions { resume_within: ms(0), ..ClientOptions::default() };
        Self::of(DhcpClient::resume(identity(), options, held(left), 7, ms(0)))
    }

    /// Runs all messages by which the client acquires the address, with the probe.
    fn acquire(&mut self, address: Ipv4Addr, seconds: u32) {
        let discover = self.speaks();
        self.acquire_by(&discover, address, seconds);
    }

    fn acquire_by(&mut self, discover: &Seen, address: Ipv4Addr, seconds: u32) {
        let request = self.offer(discover, address, seconds);
        self.hears(&answer(&request, ACK, address, SERVER, seconds));
        for _ in 0..1000 {
            if self.client.state() != LeaseState::Probing {
                return;
            }
            self.passes();
        }
        panic!("the address is neither used nor given up: {:?}", self.record());
    }

    fn offer(&mut self, discover: &Seen, address: Ipv4Addr, seconds: u32) -> Seen {
        self.hears(&answer(discover, OFFER, address, SERVER, seconds)).remove(0)
    }

    fn takes(&mut self, out: Vec<ClientAction>) -> Vec<Seen> {
        let mut sent = Vec::new();
        for out in out {
            match out {
                ClientAction::Send(frame) => match seen(&frame) {
                    Some(seen) => sent.push(seen),
                    None => self.probes.push((self.now, frame)),
                },
                ClientAction::Record(record) => {
                    let serial = record.serial;
                    self.records.push(record);
                    if !self.slow {
                        let more = self.client.record_written(serial, self.now);
                        assert_eq!(more, []);
                    }
                }
                ClientAction::Event(event) => self.events.push(event),
                ClientAction::Done => self.done = true,
            }
        }
        self.messages.extend(sent.clone());
        sent
    }

    /// Advances the clock to the client's next deadline. Returns the messages that the client sends
    /// then.
    fn passes(&mut self) -> Vec<Seen> {
        self.now = self.now.max(self.client.deadline().expect("a deadline"));
        let out = self.client.poll(self.now);
        self.takes(out)
    }

    /// Advances the clock until the client sends a message. Checks that the client sends only one.
    fn speaks(&mut self) -> Seen {
        let mut sent = self.speaks_all();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.remove(0)
    }

    fn speaks_all(&mut self) -> Vec<Seen> {
        for _ in 0..1000 {
            let sent = self.passes();
            if !sent.is_empty() {
                return sent;
            }
        }
        panic!("the client says nothing");
    }

    /// Advances the clock to `time`, and handles all deadlines on the way. Returns the messages
    /// that the client sent.
    fn until(&mut self, time: Duration) -> Vec<Seen> {
        let mut sent = Vec::new();
        while self.client.deadline().is_some_and(|deadline| deadline <= time) {
            sent.extend(self.passes());
        }
        self.now = time;
        sent
    }

    fn hears(&mut self, frame: &[u8]) -> Vec<Seen> {
        let out = self.client.receive(frame, self.now);
        self.takes(out)
    }

    fn set_link(&mut self, up: bool) -> Vec<Seen> {
        let out = self.client.set_link(up, self.now);
        self.takes(out)
    }

    fn release(&mut self) -> Vec<Seen> {
        let out = self.client.release(self.now);
        self.takes(out)
    }

    fn address(&self) -> Option<Ipv4Addr> {
        self.client.lease().map(|lease| lease.address)
    }

    fn lease(&self) -> GrantedLease {
        self.client.lease().expect("a lease").clone()
    }

    fn record(&self) -> &LeaseRecord {
        self.records.last().expect("a record")
    }

    fn saw(&self, event: &ClientEvent) -> bool {
        self.events.contains(event)
    }
}

/// Recorded lease of 120 s, of which `left` seconds remain.
fn held(left: u64) -> RecordedLease {
    RecordedLease {
        address: ADDRESS,
        prefix: Some(24),
        gateway: None,
        name_servers: vec![OTHER],
        server: SERVER,
        server_mac: Some(SERVER_MAC),
        announcers: Vec::new(),
        seconds: Some(120),
        age: secs(1000),
        left: secs(left),
    }
}
