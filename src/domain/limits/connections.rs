//! Table of the connections that a listener has accepted. If the table is full, [`ConnectionTable`]
//! chooses the connection that is closed to make room for a new one.
//!
//! Invariants:
//! * A new connection always gets room, so it waits for no connection of another source.
//! * If the table is full, the source with the most connections loses one, even if all of them are
//!   busy.
//! * A source loses a connection only to itself, or to a source that has fewer. So a source with
//!   few connections, such as an API server, loses none to a source that opens many.
//! * Of the connections of one source, a connection without a whole request is closed first. A
//!   connection whose answer is being sent is closed last, because its request was processed.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Source of connections: an IPv4 address, or the /64 of an IPv6 address, because one host may use
/// all addresses of a /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionSource(IpAddr);

impl ConnectionSource {
    /// Source to which the client at `address` belongs.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(v6) => Self(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64)).into()),
            v4 @ IpAddr::V4(_) => Self(v4),
        }
    }
}

impl std::fmt::Display for ConnectionSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Phase of a connection, from the handshake through each request and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionPhase {
    /// The TLS handshake is under way.
    Greeting,
    /// No byte has come since the last answer, or since the handshake.
    Idle,
    /// A part of a request's head has come.
    Heading,
    /// A request's head has come, but not yet its body.
    Asking,
    /// A whole request has come and is being processed.
    Working,
    /// An answer is being sent.
    Sending,
}

/// Open connections, each with its phase and a handle of type `T` that closes it.
#[derive(Debug)]
pub struct ConnectionTable<T> {
    most: usize,
    /// Number of the connection that was added last.
    last: u64,
    /// Connections by their numbers.
    seats: BTreeMap<u64, ConnectionSeat<T>>,
}

#[derive(Debug)]
struct ConnectionSeat<T> {
    source: ConnectionSource,
    phase: ConnectionPhase,
    /// Start of the phase, as an offset on one monotonic clock.
    since: Duration,
    ends: T,
}

impl<T> ConnectionSeat<T> {
    /// Rank among the connections that may be closed. The connection with the lowest rank is closed
    /// first:
    ///
    /// 1. Connections without a whole request, the oldest phase first
    /// 2. Connections whose request is being processed, the newest phase first. So the oldest
    ///    request, which will be answered next, keeps its connection.
    /// 3. Connections whose answer is being sent, the oldest phase first
    fn rank(&self) -> (u8, Duration) {
        match self.phase {
            ConnectionPhase::Working => (1, Duration::MAX.saturating_sub(self.since)),
            ConnectionPhase::Sending => (2, self.since),
            _ => (0, self.since),
        }
    }
}

/// Connection that was removed from the table to make room. The caller must close the connection.
#[derive(Debug, PartialEq, Eq)]
pub struct EvictedConnection<T> {
    /// Handle that closes the connection.
    pub ends: T,
    /// Source of the connection.
    pub source: ConnectionSource,
    /// Number of connections that the source had, the removed one included.
    pub had: usize,
}

impl<T> ConnectionTable<T> {
    /// Empty table for at most `most` connections.
    pub fn new(most: usize) -> Self {
        Self { most, last: 0, seats: BTreeMap::new() }
    }

    /// Removes and returns the connection that must be closed before a new one from `newcomer` is
    /// added. `None`: the table is not full, so no connection is removed.
    pub fn make_room(&mut self, newcomer: ConnectionSource) -> Option<EvictedConnection<T>> {
        if self.seats.len() < self.most {
            return None;
        }
        let mut counts: BTreeMap<ConnectionSource, usize> = BTreeMap::new();
        for seat in self.seats.values() {
            *counts.entry(seat.source).or_default() += 1;
        }
        let own = counts.get(&newcomer).copied().unwrap_or_default();
        let first = |(number, seat): (&u64, &ConnectionSeat<T>)| {
            let had = *counts.get(&seat.source)?;
            (seat.source == newcomer || had > own)
                .then(|| (Reverse(had), seat.rank(), seat.source, *number))
        };
        let (Reverse(had), _, source, number) = self.seats.iter().filter_map(first).min()?;
        let ends = self.leave(number)?;
        Some(EvictedConnection { ends, source, had })
    }

    /// Adds a connection from `source`. The connection's handshake begins at `now`. `ends`: handle
    /// that closes the connection. Returns the number of the connection.
    pub fn enter(&mut self, source: ConnectionSource, now: Duration, ends: T) -> u64 {
        self.last += 1;
        let seat = ConnectionSeat { source, phase: ConnectionPhase::Greeting, since: now, ends };
        self.seats.insert(self.last, seat);
        self.last
    }

    /// Sets the phase of a connection. The phase begins at `now`. Does nothing if the connection
    /// was removed before.
    pub fn set_phase(&mut self, number: u64, phase: ConnectionPhase, now: Duration) {
        if let Some(seat) = self.seats.get_mut(&number) {
            (seat.phase, seat.since) = (phase, now);
        }
    }

    /// Removes a connection, and returns the handle that closes it. `None`: the connection was
    /// removed before.
    pub fn leave(&mut self, number: u64) -> Option<T> {
        self.seats.remove(&number).map(|seat| seat.ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn source(n: u8) -> ConnectionSource {
        ConnectionSource::of(IpAddr::from([10, 0, 0, n]))
    }

    /// Adds a connection from the source `from` at the time `at`, in seconds. Returns the number of
    /// the new connection, and the connection that was closed to make room: its handle, and the
    /// number of connections that its source had.
    fn come<T>(
        table: &mut ConnectionTable<T>,
        from: ConnectionSource,
        at: u64,
        ends: T,
    ) -> (u64, Option<(T, usize)>) {
        let gone = table.make_room(from).map(|gone| (gone.ends, gone.had));
        (table.enter(from, s(at), ends), gone)
    }

    #[test]
    fn an_address_is_a_source_and_so_is_a_network_of_64_bits() {
        let of = |text: &str| ConnectionSource::of(text.parse().unwrap());
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_eq!(of("fd00:1::1"), of("fd00:1::ffff:2"));
        assert_ne!(of("fd00:1::1"), of("fd00:1:0:1::1"));
        assert_eq!(of("fd00:1::1").to_string(), "fd00:1::");
    }

    #[test]
    fn the_source_with_the_most_gives_up_its_oldest() {
        let mut table = ConnectionTable::new(4);
        for (from, at, name) in [(1, 1, "api"), (2, 2, "a"), (2, 3, "b"), (2, 4, "c")] {
            assert_eq!(come(&mut table, source(from), at, name).1, None);
        }
        assert_eq!(come(&mut table, source(2), 5, "d").1, Some(("a", 3)));
        assert_eq!(come(&mut table, source(1), 6, "api 2").1, Some(("b", 3)));
        // Each of the two sources has two connections, so the oldest of the four connections is
        // closed.
        assert_eq!(come(&mut table, source(3), 7, "e").1, Some(("api", 2)));
        assert_eq!(table.seats.len(), 4);
    }

    #[test]
    fn a_request_that_is_being_processed_goes_late_and_an_answer_last() {
        use ConnectionPhase::{Asking, Idle, Sending, Working};
        let mut table = ConnectionTable::new(6);
        for (phase, at, name) in [
            (Sending, 10, "answer"),
            (Working, 11, "older request"),
            (Working, 12, "newer request"),
            (Idle, 14, "used last"),
            (Asking, 13, "part of a request"),
            (Sending, 15, "newer answer"),
        ] {
            let (place, _) = come(&mut table, source(1), 1, name);
            table.set_phase(place, phase, s(at));
        }
        for (newcomer, expected) in [
            (2, ("part of a request", 6)),
            (3, ("used last", 5)),
            (4, ("newer request", 4)),
            (5, ("older request", 3)),
            (6, ("answer", 2)),
        ] {
            let (_, gone) = come(&mut table, source(newcomer), 20, "new");
            assert_eq!(gone, Some(expected));
        }
    }

    /// A source whose requests are all being processed loses one of them, and takes no idle
    /// connection of another source.
    #[test]
    fn a_source_with_many_busy_connections_takes_none_of_a_source_with_fewer() {
        let mut table = ConnectionTable::new(5);
        for at in 1..=2 {
            let (idle, _) = come(&mut table, source(1), at, "api");
            table.set_phase(idle, ConnectionPhase::Idle, s(at));
        }
        for at in 3..=5 {
            let (busy, _) = come(&mut table, source(2), at, "busy");
            table.set_phase(busy, ConnectionPhase::Working, s(at));
        }
        for newcomer in [2, 1, 3] {
            let gone = table.make_room(source(newcomer)).unwrap();
            assert_eq!((gone.ends, gone.had), ("busy", 3), "{newcomer}");
            let (busy, _) = come(&mut table, source(2), 6, "busy");
            table.set_phase(busy, ConnectionPhase::Working, s(6));
        }
    }

    #[test]
    fn a_source_takes_nothing_from_a_source_that_has_as_many() {
        let mut table = ConnectionTable::new(4);
        for (from, at, ends) in [(1, 1, "other"), (1, 2, "other"), (2, 3, "own"), (2, 4, "own")] {
            come(&mut table, source(from), at, ends);
        }
        assert_eq!(come(&mut table, source(2), 5, "own").1, Some(("own", 2)));
    }

    #[test]
    fn the_only_source_makes_room_for_itself() {
        let mut table = ConnectionTable::new(1);
        let (busy, _) = come(&mut table, source(1), 1, "busy");
        table.set_phase(busy, ConnectionPhase::Working, s(1));
        assert_eq!(come(&mut table, source(1), 2, "new").1, Some(("busy", 1)));
        assert_eq!(table.leave(busy), None, "it was removed");
    }

    /// A thousand connections from one source never cause a connection of another source to be
    /// closed.
    #[test]
    fn a_flood_from_one_source_costs_the_others_nothing() {
        let mut table = ConnectionTable::new(100);
        for server in 1..=3 {
            for n in 0..10 {
                let (place, _) = come(&mut table, source(server), n, server);
                table.set_phase(place, ConnectionPhase::Idle, s(n));
            }
        }
        for n in 0..1_000 {
            let (_, gone) = come(&mut table, source(200), 100 + n, 200);
            assert!(gone.is_none_or(|(of, _)| of == 200), "{gone:?}");
            if n % 100 == 0 {
                let (_, gone) = come(&mut table, source(1), 100 + n, 1);
                assert!(gone.is_none_or(|(of, _)| of == 200), "{gone:?}");
            }
        }
        assert_eq!(table.seats.len(), 100);
    }
}
