//! The connections of a listener, and which of them goes when there is no room for another.
//!
//! Invariants: a request that has arrived is never cut off. The source with the most connections
//! gives one up, its oldest: so whoever opens many loses their own, and an API server, which has few
//! and uses them, loses none.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Where connections come from: an IPv4 address, or the /64 of an IPv6 one, which one host has to
/// itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source(IpAddr);

impl Source {
    /// The source of a caller's address.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(v6) => Self(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64)).into()),
            v4 @ IpAddr::V4(_) => Self(v4),
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its TLS handshake is under way.
    Greeting,
    /// Nothing: no byte has come since the last answer.
    Idle,
    /// A part of a request's head has come.
    Heading,
    /// A request's head has come, and its body not yet.
    Asking,
    /// A request has come as a whole, and is worked on.
    Working,
    /// An answer is on its way.
    Sending,
}

impl Phase {
    /// Whether the connection may be taken from its caller: no request is lost by that which
    /// cannot be sent again.
    fn may_go(self) -> bool {
        !matches!(self, Self::Working | Self::Sending)
    }
}

/// Connections, each with what ends it.
#[derive(Debug)]
pub struct Crowd<T> {
    most: usize,
    next: u64,
    seats: BTreeMap<Source, BTreeMap<u64, Seat<T>>>,
}

#[derive(Debug)]
struct Seat<T> {
    phase: Phase,
    /// Since when it is doing that, as an offset on one monotonic clock.
    since: Duration,
    ends: T,
}

/// A connection's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    source: Source,
    number: u64,
}

/// A connection that has to go.
#[derive(Debug, PartialEq, Eq)]
pub struct Evicted<T> {
    /// What ends it.
    pub ends: T,
    /// Its source.
    pub source: Source,
    /// How many connections the source had.
    pub had: usize,
}

impl<T> Crowd<T> {
    /// A crowd of at most so many connections.
    pub fn new(most: usize) -> Self {
        Self { most, next: 0, seats: BTreeMap::new() }
    }

    /// Makes room for one more, if there is none. `Ok(None)`: there is room already. `Err`: there is
    /// none, and no connection may go.
    pub fn make_room(&mut self) -> Result<Option<Evicted<T>>, NoRoom> {
        if self.len() < self.most {
            return Ok(None);
        }
        let oldest = |(source, seats): (&Source, &BTreeMap<u64, Seat<T>>)| {
            let may_go = seats.iter().filter(|(_, seat)| seat.phase.may_go());
            let (number, seat) = may_go.min_by_key(|(_, seat)| seat.since)?;
            Some((seats.len(), std::cmp::Reverse(seat.since), *source, *number))
        };
        let (had, _, source, number) = self.seats.iter().filter_map(oldest).max().ok_or(NoRoom)?;
        let gone = self.leave(Place { source, number });
        Ok(gone.map(|ends| Evicted { ends, source, had }))
    }

    /// Takes in a connection whose handshake begins.
    pub fn enter(&mut self, source: Source, now: Duration, ends: T) -> Place {
        self.next += 1;
        let seat = Seat { phase: Phase::Greeting, since: now, ends };
        self.seats.entry(source).or_default().insert(self.next, seat);
        Place { source, number: self.next }
    }

    /// Notes what a connection does from now on. Of one that is gone nothing is noted.
    pub fn note(&mut self, place: Place, phase: Phase, now: Duration) {
        let seats = self.seats.get_mut(&place.source);
        if let Some(seat) = seats.and_then(|seats| seats.get_mut(&place.number)) {
            (seat.phase, seat.since) = (phase, now);
        }
    }

    /// Takes a connection out, if it is still in.
    pub fn leave(&mut self, place: Place) -> Option<T> {
        let seats = self.seats.get_mut(&place.source)?;
        let seat = seats.remove(&place.number);
        if seats.is_empty() {
            self.seats.remove(&place.source);
        }
        seat.map(|seat| seat.ends)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.seats.values().map(BTreeMap::len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.seats.is_empty()
    }
}

/// No connection may go: each has a request that is worked on, or an answer under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn source(n: u8) -> Source {
        Source::of(IpAddr::from([10, 0, 0, n]))
    }

    /// Takes one in, and says which one had to go for it.
    fn come<T>(
        crowd: &mut Crowd<T>,
        from: Source,
        at: u64,
        ends: T,
    ) -> (Place, Option<(T, usize)>) {
        let gone = crowd.make_room().unwrap().map(|gone| (gone.ends, gone.had));
        (crowd.enter(from, s(at), ends), gone)
    }

    #[test]
    fn an_address_is_a_source_and_so_is_a_network_of_64_bits() {
        let of = |text: &str| Source::of(text.parse().unwrap());
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_eq!(of("fd00:1::1"), of("fd00:1::ffff:2"));
        assert_ne!(of("fd00:1::1"), of("fd00:1:0:1::1"));
        assert_eq!(of("fd00:1::1").to_string(), "fd00:1::");
    }

    #[test]
    fn the_source_with_the_most_gives_up_its_oldest() {
        let mut crowd = Crowd::new(4);
        for (from, at, name) in [(1, 1, "api"), (2, 2, "a"), (2, 3, "b"), (2, 4, "c")] {
            assert_eq!(come(&mut crowd, source(from), at, name).1, None);
        }
        assert_eq!(come(&mut crowd, source(2), 5, "d").1, Some(("a", 3)));
        assert_eq!(come(&mut crowd, source(1), 6, "api 2").1, Some(("b", 3)));
        // Equal: the oldest of all.
        assert_eq!(come(&mut crowd, source(3), 7, "e").1, Some(("api", 2)));
        assert_eq!(crowd.len(), 4);
    }

    #[test]
    fn what_is_in_use_stays_and_what_was_used_last_goes_last() {
        let mut crowd = Crowd::new(2);
        let (first, _) = come(&mut crowd, source(1), 1, "first");
        let (second, _) = come(&mut crowd, source(1), 2, "second");
        crowd.note(first, Phase::Idle, s(3));
        assert_eq!(come(&mut crowd, source(2), 4, "third").1, Some(("second", 2)));
        crowd.note(second, Phase::Working, s(5));
        for busy in [Phase::Working, Phase::Sending] {
            crowd.note(first, busy, s(5));
            assert_eq!(crowd.make_room().unwrap().unwrap().ends, "third");
            let (third, _) = come(&mut crowd, source(2), 4, "third");
            crowd.note(third, busy, s(6));
            assert_eq!(crowd.make_room().unwrap_err(), NoRoom);
            crowd.note(third, Phase::Asking, s(7));
        }
        assert_eq!(crowd.leave(first), Some("first"));
        assert_eq!(crowd.leave(first), None);
        assert_eq!(crowd.make_room().unwrap(), None);
    }

    /// Whoever opens a thousand from one address closes none of another's.
    #[test]
    fn a_flood_from_one_source_costs_the_others_nothing() {
        let mut crowd = Crowd::new(100);
        for server in 1..=3 {
            for n in 0..10 {
                let (place, _) = come(&mut crowd, source(server), n, server);
                crowd.note(place, Phase::Idle, s(n));
            }
        }
        for n in 0..1_000 {
            let (_, gone) = come(&mut crowd, source(200), 100 + n, 200);
            assert!(gone.is_none_or(|(of, _)| of == 200), "{gone:?}");
            if n % 100 == 0 {
                let (_, gone) = come(&mut crowd, source(1), 100 + n, 1);
                assert!(gone.is_none_or(|(of, _)| of == 200), "{gone:?}");
            }
        }
        assert_eq!(crowd.len(), 100);
    }
}
