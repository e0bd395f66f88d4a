//! Tests of the client against servers that store leases, over a wire that loses, doubles, delays
//! and reorders frames, and against a hostile server.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::jitter::JitterRng;
use super::server::{Answer, DECLINE, DISCOVER, RELEASE, REQUEST};
use super::*;

/// DHCP server that follows RFC 2131. It stores each lease until the lease expires.
struct Server {
    address: Ipv4Addr,
    seconds: u32,
    pool: Vec<Ipv4Addr>,
    /// Lease of the client under test: the address, and the expiry. `None`: the client has no
    /// lease.
    lease: Option<(Ipv4Addr, Duration)>,
    granted: u64,
}

impl Server {
    fn new(address: Ipv4Addr, seconds: u32) -> Self {
        Self { address, seconds, pool: vec![ADDRESS, SECOND], lease: None, granted: 0 }
    }

    fn holds(&self, now: Duration) -> Option<Ipv4Addr> {
        self.lease.filter(|(_, until)| now < *until).map(|(address, _)| address)
    }

    fn answers(&mut self, seen: &Seen, now: Duration) -> Option<Vec<u8>> {
        let held = self.holds(now);
        let reply = |kind, address| answer(seen, kind, address, self.address, self.seconds);
        match seen.kind() {
            DISCOVER => {
                let wish = seen.wish().filter(|wish| self.pool.contains(wish));
                let address = held.or(wish).or(self.pool.first().copied())?;
                Some(reply(OFFER, address))
            }
            REQUEST if seen.server().is_some_and(|server| server != self.address) => None,
            REQUEST => {
                let wish = seen.wish()?;
                if held.is_some_and(|held| held != wish) {
                    return Some(reply(NAK, wish));
                }
                // A server that has no data about the lease does not answer a REQUEST that asks to
                // confirm the lease.
                if held.is_none() && seen.server().is_none() {
                    return None;
                }
                let granted = reply(ACK, wish);
                self.lease = Some((wish, now + secs(self.seconds.into())));
                self.granted += 1;
                Some(granted)
            }
            DECLINE => {
                self.pool.retain(|address| Some(*address) != seen.wish());
                self.lease = None;
                None
            }
            RELEASE => {
                self.lease = None;
                None
            }
            other => panic!("a client says {other}"),
        }
    }
}

/// Faults of the wire: lost and doubled frames, both per thousand frames, and the longest delay.
#[derive(Clone, Copy, Debug)]
struct Wire {
    lost: u32,
    doubled: u32,
    delay: Duration,
}

/// Client with its servers, and the frames that have not arrived yet, by their times of arrival.
struct World {
    bed: Bed,
    servers: Vec<Server>,
    wire: Wire,
    rng: JitterRng,
    to_server: BTreeMap<(Duration, u64), Seen>,
    to_client: BTreeMap<(Duration, u64), Vec<u8>>,
    count: u64,
}

impl World {
    fn new(servers: Vec<Server>, wire: Wire, seed: u64) -> Self {
        let options = ClientOptions { probe: ProbeTiming::QUICK, ..ClientOptions::default() };
        let bed = Bed::of(DhcpClient::new(identity(), options, seed, ms(0)));
        let (to_server, to_client) = Default::default();
        Self { bed, servers, wire, rng: JitterRng::new(!seed), to_server, to_client, count: 0 }
    }

    /// Times of arrival of a frame, one for each copy of it. Empty: the frame is lost.
    fn arrivals(&mut self) -> Vec<(Duration, u64)> {
        let lost = self.rng.word() % 1000 < self.wire.lost;
        let doubled = self.rng.word() % 1000 < self.wire.doubled;
        let copies = u64::from(!lost) + u64::from(doubled);
        (0..copies)
            .map(|_| {
                self.count += 1;
                (self.bed.now + self.rng.below(self.wire.delay), self.count)
            })
            .collect()
    }

    fn post(&mut self, sent: Vec<Seen>) {
        for seen in sent {
            for at in self.arrivals() {
                self.to_server.insert(at, seen.clone());
            }
        }
    }

    /// Advances to the next event, and handles it.
    fn step(&mut self) {
        let deadline = self.bed.client.deadline();
        let server = self.to_server.keys().next().map(|(at, _)| *at);
        let client = self.to_client.keys().next().map(|(at, _)| *at);
        let next = deadline.into_iter().chain(server).chain(client).min().expect("something");
        self.bed.now = self.bed.now.max(next);
        let now = self.bed.now;
        let sent = if client == Some(next) {
            let (_, frame) = self.to_client.pop_first().unwrap();
            self.bed.hears(&frame)
        } else if server == Some(next) {
            let (_, seen) = self.to_server.pop_first().unwrap();
            for n in 0..self.servers.len() {
                let alone = !seen.is_broadcast() && seen.to != self.servers[n].address;
                let reply = if alone { None } else { self.servers[n].answers(&seen, now) };
                for at in self.arrivals() {
                    if let Some(frame) = &reply {
                        self.to_client.insert(at, frame.clone());
                    }
                }
            }
            Vec::new()
        } else {
            self.bed.passes()
        };
        self.post(sent);
        self.bed.messages.clear();
        self.bed.records.drain(..self.bed.records.len().saturating_sub(1));
    }

    /// Checks the invariants, which hold whatever faults the wire has.
    fn is_sound(&self) {
        let now = self.bed.now;
        if let Some(address) = self.bed.address() {
            let holders = self.servers.iter().filter(|server| server.holds(now) == Some(address));
            assert!(holders.count() >= 1, "{address} is used at {now:?}, and no server holds it");
        }
    }
}

fn renewals(bed: &Bed) -> usize {
    bed.events.iter().filter(|event| matches!(event, ClientEvent::Renewed { .. })).count()
}

fn never_without(seconds: u32, count: usize, seed: u64) {
    let wire = Wire { lost: 50, doubled: 50, delay: ms(1500) };
    let mut world = World::new(vec![Server::new(SERVER, seconds)], wire, seed);
    while world.bed.address().is_none() {
        world.step();
    }
    let address = world.bed.address();
    while renewals(&world.bed) < count {
        world.step();
        world.is_sound();
        assert_eq!(world.bed.address(), address, "at {:?}", world.bed.now);
    }
    let lost =
        |event: &ClientEvent| matches!(event, ClientEvent::Lost { .. } | ClientEvent::Nak { .. });
    assert!(!world.bed.events.iter().any(lost));
    assert!(world.servers[0].granted >= u64::try_from(count).unwrap());
}

/// About one renewal in ten loses its REQUEST or its answer. The test exists because kube-vip lost
/// an address about once a week.
#[test]
pub fn ten_thousand_renewals_over_a_bad_link_lose_no_address() {
    never_without(120, 5_000, 1);
    never_without(3600, 5_000, 2);
}

/// The server has 50 outages. Each of them lasts for almost half of the lease time.
#[test]
pub fn an_outage_shorter_than_what_is_left_costs_nothing() {
    let wire = Wire { lost: 0, doubled: 0, delay: ms(10) };
    let mut world = World::new(vec![Server::new(SERVER, 3600)], wire, 3);
    while world.bed.address().is_none() {
        world.step();
    }
    for _ in 0..50 {
        let from = world.bed.now;
        world.wire.lost = 1000;
        while world.bed.client.deadline().unwrap() < from + secs(1700) {
            world.step();
            world.is_sound();
        }
        world.wire.lost = 0;
        let before = renewals(&world.bed);
        while renewals(&world.bed) == before {
            world.step();
            assert_eq!(world.bed.address(), Some(ADDRESS));
        }
    }
}

/// A new server without data about the leases replaces the server. The new server grants the client
/// the same address. The client never loses this address.
#[test]
pub fn a_new_server_takes_over_without_a_break() {
    let wire = Wire { lost: 50, doubled: 50, delay: ms(50) };
    for seed in 0..20 {
        let mut world = World::new(vec![Server::new(SERVER, 1200)], wire, seed);
        while world.bed.address().is_none() {
            world.step();
        }
        let address = world.bed.address();
        world.servers = vec![Server::new(OTHER, 1200)];
        while world.servers[0].granted == 0 || world.bed.lease().server != OTHER {
            world.step();
            assert_eq!(world.bed.address(), address, "seed {seed} at {:?}", world.bed.now);
        }
    }
}

/// Two servers answer the client's DISCOVER. The client stays with the one that it chose.
#[test]
pub fn two_servers_do_not_pull_at_a_client() {
    let wire = Wire { lost: 0, doubled: 0, delay: ms(20) };
    let servers = vec![Server::new(SERVER, 600), Server::new(OTHER, 600)];
    let mut world = World::new(servers, wire, 4);
    while renewals(&world.bed) < 200 {
        world.step();
    }
    let changed = |event: &ClientEvent| matches!(event, ClientEvent::ServerChanged { .. });
    assert!(!world.bed.events.iter().any(changed));
}

/// Input with which a hostile network attacks a client.
#[derive(Clone, Debug)]
enum Blow {
    /// An answer to the client's last message, with some octets changed.
    Spoilt {
        kind: u8,
        last: u8,
        seconds: u32,
        octets: Vec<(usize, u8)>,
        cut: usize,
    },
    /// A frame of random octets.
    Noise(Vec<u8>),
    /// Time passes. The value is in milliseconds.
    Wait(u64),
    /// The time of the client's next deadline comes.
    Due,
    Link(bool),
    Recorded,
}

fn blow() -> impl Strategy<Value = Blow> {
    let seconds = prop_oneof![Just(0), Just(u32::MAX), 1_u32..200, any::<u32>()];
    let octets = prop::collection::vec((0_usize..330, any::<u8>()), 0..3);
    let spoilt =
        (0_u8..9, any::<u8>(), seconds, octets, prop_oneof![3 => Just(9999), 1 => 0_usize..340])
            .prop_map(|(kind, last, seconds, octets, cut)| Blow::Spoilt {
                kind,
                last,
                seconds,
                octets,
                cut,
            });
    prop_oneof![
        8 => spoilt,
        1 => prop::collection::vec(any::<u8>(), 0..400).prop_map(Blow::Noise),
        3 => (0_u64..100_000).prop_map(Blow::Wait),
        6 => Just(Blow::Due),
        1 => any::<bool>().prop_map(Blow::Link),
        2 => Just(Blow::Recorded),
    ]
}

/// Checks that no input causes a panic or a flood of messages. Also checks that the client uses no
/// forbidden address, and no address of an expired lease.
fn endures(blows: &[Blow]) {
    let mut bed = Bed::new();
    bed.slow = true;
    let mut last: Option<Seen> = None;
    for blow in blows {
        let sent = match blow {
            Blow::Spoilt { kind, last: octet, seconds, octets, cut } => {
                let Some(asked) = &last else { continue };
                let address = Ipv4Addr::new(10, 0, 0, *octet);
                let mut frame = Answer::new(asked, *kind, address, SERVER, *seconds).frame();
                for (at, value) in octets {
                    if let Some(octet) = frame.get_mut(*at) {
                        *octet = *value;
                    }
                }
                frame.truncate(*cut);
                bed.hears(&frame)
            }
            Blow::Noise(octets) => bed.hears(octets),
            Blow::Wait(time) => {
                bed.now += ms(*time);
                continue;
            }
            Blow::Due if bed.client.deadline().is_some() => bed.passes(),
            Blow::Due => continue,
            Blow::Link(up) => bed.set_link(*up),
            Blow::Recorded => {
                let serial = bed.records.last().map_or(0, |record| record.serial);
                let out = bed.client.record_written(serial, bed.now);
                bed.takes(out)
            }
        };
        assert!(sent.len() <= 2);
        last = sent.last().cloned().or(last);
        let deadline = bed.client.deadline();
        if let Some(lease) = bed.client.lease() {
            let [first, .., octet] = lease.address.octets();
            assert!(first != 0 && first != 127 && first < 224, "{lease:?}");
            assert!(lease.prefix != Some(24) || (octet != 0 && octet != 255), "{lease:?}");
            assert!(lease.address != lease.server && Some(lease.address) != lease.gateway);
            assert!(lease.expires.is_none_or(|end| end > bed.now && deadline.unwrap() <= end));
            let recorded = bed.records.iter().filter_map(|record| record.lease.as_ref());
            assert!(recorded.into_iter().any(|recorded| recorded.address == lease.address));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_client_endures_whatever_comes(blows in prop::collection::vec(blow(), 0..60)) {
        endures(&blows);
    }

    #[test]
    fn no_wire_makes_a_client_use_what_no_server_holds(
        seed in any::<u64>(),
        lost in 0_u32..400,
        doubled in 0_u32..400,
        delay in 1_u64..20_000,
        seconds in prop_oneof![10_u32..60, 60_u32..4000],
    ) {
        let wire = Wire { lost, doubled, delay: ms(delay) };
        let servers = vec![Server::new(SERVER, seconds), Server::new(OTHER, seconds)];
        let mut world = World::new(servers, wire, seed);
        for _ in 0..200 {
            world.step();
            world.is_sound();
        }
    }
}

/// The model of the wire loses and doubles frames at the rates to which it is set.
#[test]
fn the_model_loses_and_doubles_as_it_says() {
    let wire = Wire { lost: 50, doubled: 50, delay: ms(10) };
    let mut world = World::new(Vec::new(), wire, 5);
    let copies: Vec<usize> = (0..100_000).map(|_| world.arrivals().len()).collect();
    let share = |n| copies.iter().filter(|copies| **copies == n).count();
    assert!((4500..5500).contains(&share(0)), "{}", share(0));
    assert!((4500..5500).contains(&share(2)), "{}", share(2));
}
