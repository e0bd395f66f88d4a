//! Queue of large requests: decides which request is read and processed, and which answer is sent.
//!
//! Invariants:
//! * The turn is the right of a request to be read and processed. One request at a time has the
//!   turn. It keeps the turn while its large answer waits for the place.
//! * The place is the right of a large answer to be sent. One answer at a time has the place. A
//!   small answer needs no place, because each connection may hold one small request or answer in
//!   memory.
//! * At most one request and two large answers of a queue are in memory: the answer that is being
//!   sent, and the request that has the turn, with its answer.
//! * The connection of a large answer is cut if the answer has had the place for the time
//!   [`LEAVES`] and another answer waits for the place. So a caller that does not read its answer
//!   delays the next caller no longer than a caller that does not send its body.

use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use axum::body::Bytes;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::listener::Caller;
use super::request_body::SMALL;
use crate::domain::limits::connections::ConnectionSource;
use crate::locks::lock;
use crate::turns::{CallerTurn, Turns};

/// Minimum time for which a large answer may keep the place. After this time, its connection is cut
/// if another answer waits for the place. An answer of 8 MiB takes 0.7 s at 100 Mbit/s.
const LEAVES: Duration = Duration::from_secs(1);

/// Queue of large requests of one kind.
pub(super) struct LargeQueue {
    /// The turn, which is the right of a request to be read and processed.
    pub(super) turns: Turns<ConnectionSource>,
    /// The place, which is the right to send a large answer. Only a caller that has the turn takes
    /// the place.
    place: Turns<ConnectionSource>,
    /// Latest answer that has taken the place.
    last: Mutex<StartedAnswer>,
    /// Minimum time for which a large answer may keep the place: [`LEAVES`], except in tests.
    leaves: Duration,
}

/// Answer that was started.
#[derive(Clone)]
struct StartedAnswer {
    at: Instant,
    /// Token that cuts the connection of the answer ([`Caller::cut`]).
    cut: CancellationToken,
}

/// Answer that is being sent, with its place. The place is free when the answer is sent.
struct LeavingAnswer {
    answer: Vec<u8>,
    _place: CallerTurn<ConnectionSource>,
}

impl AsRef<[u8]> for LeavingAnswer {
    fn as_ref(&self) -> &[u8] {
        &self.answer
    }
}

impl LargeQueue {
    /// Creates an empty queue.
    pub(super) fn new() -> Self {
        Self::with_time(LEAVES)
    }

    fn with_time(leaves: Duration) -> Self {
        let last = StartedAnswer { at: Instant::now(), cut: CancellationToken::new() };
        let (turns, place) = (Turns::new(1), Turns::new(1));
        Self { turns, place, last: Mutex::new(last), leaves }
    }

    /// Returns the bytes of `answer`, for `caller`. If the answer is large, first waits for the
    /// place, and the returned bytes keep the place until they are dropped. Precondition: the
    /// request of a large answer has the turn.
    pub(super) async fn start_answer(&self, answer: Vec<u8>, caller: &Caller) -> Bytes {
        if answer.len() <= SMALL {
            // The text is copied, because the memory of `answer` may be larger than its text.
            return Bytes::copy_from_slice(&answer);
        }
        let last = lock(&self.last).clone();
        let mut place = pin!(self.place.take(caller.source));
        let in_time = timeout_at(last.at + self.leaves, &mut place).await;
        let place = if let Ok(place) = in_time {
            place
        } else {
            last.cut.cancel();
            place.await
        };
        *lock(&self.last) = StartedAnswer { at: Instant::now(), cut: caller.cut.clone() };
        Bytes::from_owner(LeavingAnswer { answer, _place: place })
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    fn caller(last: u8) -> Caller {
        let source = ConnectionSource::of([10, 0, 0, last].into());
        Caller { source, is_known: false, cut: CancellationToken::new() }
    }

    fn large() -> Vec<u8> {
        vec![b'a'; SMALL + 1]
    }

    #[tokio::test]
    async fn a_large_answer_waits_until_the_one_before_is_sent_and_a_small_one_does_not() {
        let queue = LargeQueue::with_time(LONG);
        let (first, second) = (caller(1), caller(2));
        let sent = queue.start_answer(large(), &first).await;
        let mut next = Box::pin(queue.start_answer(large(), &second));
        assert!(timeout(Duration::ZERO, &mut next).await.is_err());
        let mut text = Vec::with_capacity(SMALL * 2);
        text.extend_from_slice(&large()[..SMALL]);
        let small = timeout(Duration::ZERO, queue.start_answer(text, &second)).await.unwrap();
        assert_eq!(small.len(), SMALL);
        assert!(!first.cut.is_cancelled());
        drop(sent);
        assert_eq!(timeout(LONG, next).await.unwrap(), large());
        assert!(!second.cut.is_cancelled());
    }

    #[tokio::test]
    async fn an_answer_that_is_not_read_is_cut_when_another_waits() {
        let queue = LargeQueue::with_time(Duration::ZERO);
        let (first, second) = (caller(1), caller(2));
        let sent = queue.start_answer(large(), &first).await;
        assert!(!first.cut.is_cancelled(), "no other answer waits");
        let mut next = Box::pin(queue.start_answer(large(), &second));
        tokio::select! {
            _ = &mut next => panic!("the answer before is not dropped yet"),
            cut = timeout(LONG, first.cut.cancelled()) => cut.unwrap(),
        }
        drop(sent);
        timeout(LONG, next).await.unwrap();
        assert!(!second.cut.is_cancelled());
    }
}
