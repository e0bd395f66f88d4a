//! Connections that a listener has accepted. If there is no room for a new connection,
//! [`ConnectionTable`] chooses the connection to close.
//!
//! Invariants: after a whole request has arrived, its connection is not closed before the answer is
//! sent. If there is no room, the source with the most connections loses a connection that has no
//! whole request: the one whose phase began first. But no source loses a connection to a source
//! that has as many. So a source that opens many connections takes none from a source with few,
//! even if all its own are busy: then it loses the new one. An API server has few connections and
//! uses them, so it loses no connection.

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
    /// No byte has come since the last answer.
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

impl ConnectionPhase {
    /// Whether a connection in this phase may be closed to make room: the connection has no whole
    /// request that still needs an answer. If only a part of a request has arrived, the client
    /// sends the request again.
    fn may_go(self) -> bool {
        !matches!(self, Self::Working | Self::Sending)
    }
}

/// Open connections, each with its phase and a handle of type `T` that closes it.
#[derive(Debug)]
pub struct ConnectionTable<T> {
    most: usize,
    next: u64,
    seats: BTreeMap<ConnectionSource, BTreeMap<u64, ConnectionSeat<T>>>,
}

#[derive(Debug)]
struct ConnectionSeat<T> {
    phase: ConnectionPhase,
    /// Start of the phase, as an offset on one monotonic clock.
    since: Duration,
    ends: T,
}

/// Key of a connection in a [`ConnectionTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionKey {
    source: ConnectionSource,
    number: u64,
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
        Self { most, next: 0, seats: BTreeMap::new() }
    }

    /// Removes and returns the connection that must be closed before a new one from `newcomer` is
    /// added. `Ok(None)`: the table is not full, so no connection is removed. `Err`: the table is
    /// full, and no connection may be closed for this source. The error says whether the new
    /// connection may wait.
    pub fn make_room(
        &mut self,
        newcomer: ConnectionSource,
    ) -> Result<Option<EvictedConnection<T>>, NoRoom> {
        if self.len() < self.most {
            return Ok(None);
        }
        let own = self.seats.get(&newcomer).map_or(0, BTreeMap::len);
        let oldest = |(source, seats): (&ConnectionSource, &BTreeMap<u64, ConnectionSeat<T>>)| {
            if *source != newcomer && seats.len() <= own {
                return None;
            }
            let may_go = seats.iter().filter(|(_, seat)| seat.phase.may_go());
            let (number, seat) = may_go.min_by_key(|(_, seat)| seat.since)?;
            Some((seats.len(), std::cmp::Reverse(seat.since), *source, *number))
        };
        let Some((had, _, source, number)) = self.seats.iter().filter_map(oldest).max() else {
            let others = self.seats.iter().filter(|(source, _)| **source != newcomer);
            let most = others.map(|(_, seats)| seats.len()).max();
            let is_greedy = most.is_some_and(|most| most <= own);
            return Err(if is_greedy { NoRoom::Refused { had: own } } else { NoRoom::ForNow });
        };
        let gone = self.leave(ConnectionKey { source, number });
        Ok(gone.map(|ends| EvictedConnection { ends, source, had }))
    }

    /// Adds a connection from `source`. The connection's handshake begins at `now`. `ends`: handle
    /// that closes the connection. Returns the key of the connection.
    pub fn enter(&mut self, source: ConnectionSource, now: Duration, ends: T) -> ConnectionKey {
        self.next += 1;
        let seat = ConnectionSeat { phase: ConnectionPhase::Greeting, since: now, ends };
        self.seats.entry(source).or_default().insert(self.next, seat);
        ConnectionKey { source, number: self.next }
    }

    /// Sets the phase of the connection with the key `place`. The phase begins at `now`. Does
    /// nothing if the connection was removed before.
    pub fn set_phase(&mut self, place: ConnectionKey, phase: ConnectionPhase, now: Duration) {
        let seats = self.seats.get_mut(&place.source);
        if let Some(seat) = seats.and_then(|seats| seats.get_mut(&place.number)) {
            (seat.phase, seat.since) = (phase, now);
        }
    }

    /// Removes the connection with the key `place`, and returns the handle that closes it. `None`:
    /// the connection was removed before.
    pub fn leave(&mut self, place: ConnectionKey) -> Option<T> {
        let seats = self.seats.get_mut(&place.source)?;
        let seat = seats.remove(&place.number);
        if seats.is_empty() {
            self.seats.remove(&place.source);
        }
        seat.map(|seat| seat.ends)
    }

    /// Number of connections.
    pub fn len(&self) -> usize {
        self.seats.values().map(BTreeMap::len).sum()
    }

    /// Whether there are no connections.
    pub fn is_empty(&self) -> bool {
        self.seats.is_empty()
    }
}

/// Error: the table is full, and no connection may be closed. Each connection has a request that is
/// being processed, or an answer that is being sent, or belongs to a source that has no more
/// connections than the source of the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// The new connection waits until another one ends or becomes idle.
    ForNow,
    /// The new connection must be closed, because no other source has more connections. If it
    /// waited, connections of other sources would wait behind it.
    Refused {
        /// Number of connections that the source of the new one has.
        had: usize,
    },
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

    /// Adds a connection from the source `from` at the time `at`, in seconds. Returns the key of
    /// the new connection, and the connection that was closed to make room: its handle, and the
    /// number of connections that its source had.
    fn come<T>(
        table: &mut ConnectionTable<T>,
        from: ConnectionSource,
        at: u64,
        ends: T,
    ) -> (ConnectionKey, Option<(T, usize)>) {
        let gone = table.make_room(from).unwrap().map(|gone| (gone.ends, gone.had));
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
        assert_eq!(table.len(), 4);
    }

    #[test]
    fn what_is_in_use_stays_and_what_was_used_last_goes_last() {
        let mut table = ConnectionTable::new(2);
        let (first, _) = come(&mut table, source(1), 1, "first");
        let (second, _) = come(&mut table, source(1), 2, "second");
        table.set_phase(first, ConnectionPhase::Idle, s(3));
        assert_eq!(come(&mut table, source(2), 4, "third").1, Some(("second", 2)));
        table.set_phase(second, ConnectionPhase::Working, s(5));
        for busy in [ConnectionPhase::Working, ConnectionPhase::Sending] {
            table.set_phase(first, busy, s(5));
            assert_eq!(table.make_room(source(3)).unwrap().unwrap().ends, "third");
            let (third, _) = come(&mut table, source(2), 4, "third");
            table.set_phase(third, busy, s(6));
            assert_eq!(table.make_room(source(3)).unwrap_err(), NoRoom::ForNow);
            table.set_phase(third, ConnectionPhase::Asking, s(7));
        }
        assert_eq!(table.leave(first), Some("first"));
        assert_eq!(table.leave(first), None);
        assert_eq!(table.make_room(source(3)).unwrap(), None);
    }

    /// A source whose requests are all being processed takes no idle connection of another source.
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
        assert_eq!(table.make_room(source(2)).unwrap_err(), NoRoom::Refused { had: 3 });
        // The other source replaces one of its own connections, and a source without connections
        // may replace any.
        assert_eq!(table.make_room(source(1)).unwrap().unwrap().had, 2);
        let (idle, _) = come(&mut table, source(1), 6, "api");
        table.set_phase(idle, ConnectionPhase::Idle, s(6));
        assert_eq!(table.make_room(source(3)).unwrap().unwrap().ends, "api");
    }

    /// A new connection of the only source delays only others of its own source.
    #[test]
    fn a_new_connection_of_the_only_source_waits() {
        let mut table = ConnectionTable::new(1);
        let (busy, _) = come(&mut table, source(1), 1, ());
        table.set_phase(busy, ConnectionPhase::Working, s(1));
        assert_eq!(table.make_room(source(1)).unwrap_err(), NoRoom::ForNow);
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
        assert_eq!(table.len(), 100);
    }
}
